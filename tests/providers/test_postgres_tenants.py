"""What a tenant does on a shared PostgreSQL server affects only its own resources."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg import sql

from events.external import ExternalObject
from events.provider_config import ProviderConfigSpec, Scope
from infra.components.postgres import Postgres
from infra.providers.postgres import databases as databases_module
from infra.providers.postgres.database import DATABASE
from infra.providers.postgres.databases import DatabaseMark
from infra.providers.postgres.errors import classify_connection_error
from infra.providers.postgres.grant import GRANT
from infra.providers.postgres.limits import MAX_TEXT_BYTES
from infra.providers.postgres.marks import replace_mark
from infra.providers.postgres.names import unfinished_name
from infra.providers.postgres.role import DATABASE_ROLE
from infra.providers.postgres.server import SLOT_LIMITS, TENANT_CONNECT_SECONDS
from infra.providers.postgres.tenant_reads import TenantListing, TenantReads
from infra.secrets import open_stores
from reconciler.errors import NotDoneError, ProviderError, UnreadableObjectsError
from reconciler.provider import ProbedProvider, Provider
from reconciler.provider.call_permit import CALL_NAMESPACE, CallPermit
from reconciler.provider.contract import LABELS, action, listing
from reconciler.provider.kind import Kind
from reconciler.provider.secrets import SecretKey, Secrets
from tests.postgres import Superuser, connect_superuser
from tests.providers.connect import Connect

pytestmark = [pytest.mark.postgres]

QUICK_SECONDS = 1.5
"""Less than any timeout that a tenant can cause."""


@pytest.fixture
async def superuser(postgres_server: Postgres) -> AsyncIterator[Superuser]:
    opened = Superuser(postgres_server)
    yield opened
    await opened.close()


class Providers:
    """One provider of each kind, as one process has them."""

    def __init__(self, connect: Connect, endpoint: str) -> None:
        self.databases = connect(DATABASE, endpoint)
        self.roles = connect(DATABASE_ROLE, endpoint)
        self.grants = connect(GRANT, endpoint)

    @property
    def all(self) -> tuple[Provider, ...]:
        return self.databases, self.roles, self.grants


@pytest.fixture
def providers(postgres_server: Postgres, connect: Connect) -> Providers:
    return Providers(connect, postgres_server.endpoint)


async def create(
    provider: Provider, kind: Kind, name: str, namespace: str = "", **fields: Any
) -> ExternalObject:
    """Create an object for a resource in a namespace, as a worker does."""
    CALL_NAMESPACE.set(namespace)
    creation = action("Create", name, kind.check_fields(fields))
    if kind is GRANT:
        creation = msgspec.structs.replace(creation, labels={})
    existing = (await provider.create(creation)).object
    assert existing is not None
    return existing


async def list_readable(provider: Provider, prefix: str) -> tuple[list[str], str]:
    """Return the names in a listing, and its error if it has unreadable objects."""
    names: list[str] = []
    try:
        async for page in provider.pages(Scope(prefix=prefix), page_size=100):
            names += [each.name for each in page]
            assert msgspec.json.encode(page), "each object can be recorded"
    except UnreadableObjectsError as error:
        return sorted(names), error.message
    return sorted(names), ""


@asynccontextmanager
async def lock(server: Postgres, database: str) -> AsyncGenerator[None]:
    """Keep a database locked, as its owner may."""
    async with await connect_superuser(server) as owner:
        rename = sql.SQL("ALTER DATABASE {} RENAME TO {}")
        await owner.execute("BEGIN")
        await owner.execute(rename.format(*map(sql.Identifier, (database, f"{database}x"))))
        yield
        await owner.execute("ROLLBACK")


async def measure(call: Awaitable[object]) -> float:
    began_at = time.monotonic()
    await call
    return time.monotonic() - began_at


# --- databases that admit no connection


async def test_a_locked_database_is_unreadable_and_hides_and_delays_no_other(
    providers: Providers, postgres_server: Postgres, superuser: Superuser, unique: str
) -> None:
    first, locked, last = (f"{unique.lower()}{each}" for each in "abc")
    for name in (first, locked, last):
        await create(providers.databases, DATABASE, name, extensions=["hstore"])
    role = await create(providers.roles, DATABASE_ROLE, unique.lower())
    async with lock(postgres_server, locked):
        began_at = time.monotonic()
        names, error = await list_readable(providers.databases, unique.lower())
        assert names == [first, last]
        assert f"{locked!r} admits no connections" in error
        names, error = await list_readable(providers.grants, f"public@{unique.lower()}")
        assert f"public@{first}/public" in names
        assert f"public@{last}/public" in names
        assert locked in error
        for provider in providers.all:
            assert isinstance(provider, ProbedProvider)
            assert await provider.probe()
        grant = create(
            providers.grants, GRANT, f"{role.name}@{locked}/public", privileges=["USAGE"]
        )
        with pytest.raises(NotDoneError, match="admits no connections") as caught:
            await grant
        assert caught.value.status == HTTPStatus.CONFLICT
        with pytest.raises(NotDoneError) as caught:
            await providers.databases.read(locked)
        assert caught.value.status == HTTPStatus.CONFLICT
        assert time.monotonic() - began_at < QUICK_SECONDS
        waiting = sql.SQL("SELECT count(*) FROM pg_locks WHERE NOT granted")
        assert await superuser.value(waiting) == 0, "no connection waits on the server"
    assert await list_readable(providers.databases, unique.lower()) == ([first, locked, last], "")


async def test_the_grants_of_an_unreadable_database_are_unproven_and_no_others(
    providers: Providers, postgres_server: Postgres, unique: str
) -> None:
    name = unique.lower()
    await create(providers.databases, DATABASE, name)
    async with lock(postgres_server, name):
        with pytest.raises(UnreadableObjectsError) as caught:
            await listing(providers.grants, Scope(prefix=f"public@{name}"))
    unproven = (f"public@{name}", f"role@{name}/public", f"role@{name}/public/tables")
    assert all(map(caught.value.may_have, unproven))
    proven = (f"public@{name}2", f"{name}@other", f"role@other/{name}", "not a grant")
    assert not any(map(caught.value.may_have, proven))


async def test_a_connection_that_hangs_is_given_up_soon_and_not_repeated_in_each_listing(
    providers: Providers, postgres_server: Postgres, unique: str
) -> None:
    """No lock on the database shows that a connection would hang on its catalog."""
    name, other = f"{unique.lower()}a", f"{unique.lower()}b"
    for each in (name, other):
        await create(providers.databases, DATABASE, each, extensions=["hstore"])
    async with await connect_superuser(postgres_server, name) as owner:
        await owner.execute("BEGIN; LOCK TABLE pg_class")
        for limit in (TENANT_CONNECT_SECONDS + QUICK_SECONDS, QUICK_SECONDS):
            began_at = time.monotonic()
            names, error = await list_readable(providers.databases, unique.lower())
            assert (names, name in error) == ([other], True)
            assert time.monotonic() - began_at < limit
        with pytest.raises(NotDoneError, match="within 2 s") as caught:
            await providers.databases.read(name)
        assert caught.value.status == HTTPStatus.CONFLICT


async def test_a_catalog_that_cannot_be_read_concerns_only_its_database(
    providers: Providers, postgres_server: Postgres, connect: Connect, unique: str
) -> None:
    name, other = f"{unique.lower()}a", f"{unique.lower()}b"
    for each in (name, other):
        await create(providers.databases, DATABASE, each)
    provider = connect(GRANT, postgres_server.endpoint, timeout_seconds=2.0)
    async with await connect_superuser(postgres_server, name) as owner:
        await owner.execute("BEGIN; LOCK TABLE pg_proc")
        names, error = await list_readable(provider, f"public@{unique.lower()}")
    assert f"public@{other}/public" in names
    assert name in error


class TenantRow(msgspec.Struct, frozen=True):
    uid: str
    name: str
    is_locked: bool = False


async def test_many_databases_that_fail_slowly_delay_a_listing_for_a_limited_time() -> None:
    now = 0.0
    is_failing = True
    unreadable: set[str] = set()

    async def read(row: TenantRow) -> str:
        nonlocal now
        now += 2.0 if is_failing else 0.01
        if is_failing:
            raise NotDoneError("slow", status=HTTPStatus.CONFLICT)
        return row.name

    async def record(row: TenantRow, _error: ProviderError) -> None:
        unreadable.add(row.name)

    async def list_all() -> tuple[list[str], float]:
        nonlocal now
        began_at, rows = now, [TenantRow(str(each), f"d{each}") for each in range(60)]
        each_listing = TenantListing(reads, read, record)
        results = [await each_listing.read(row) for row in rows]
        results += [result async for result in each_listing.read_postponed()]
        seconds, now = now - began_at, now + 30
        return [each for each in results if each is not None], seconds

    reads = TenantReads(lambda: now)
    await list_all()
    for _ in range(20):
        unreadable.clear()
        names, seconds = await list_all()
        assert (names, len(unreadable)) == ([], 60)
        assert seconds <= 6
    is_failing = False
    assert len((await list_all())[0]) == 60, "each is read again"


def test_a_tenant_cannot_throttle_the_server_with_a_name() -> None:
    for name in ("too many", 'a" too many clients already "b'):
        text = f'connection failed: FATAL:  database "{name}" does not exist'
        assert classify_connection_error(psycopg.OperationalError(text)).error_class == "NotDone"


# --- slots


async def test_slow_calls_of_one_namespace_delay_no_other(
    providers: Providers, postgres_server: Postgres, unique: str
) -> None:
    """A database in use as a template delays each call for five seconds."""
    name = unique.lower()
    await create(providers.databases, DATABASE, name)
    async with await connect_superuser(postgres_server, name):
        slow = [
            asyncio.create_task(
                create(providers.databases, DATABASE, f"{name}{each}", "alice", template=name)
            )
            for each in range(2 * SLOT_LIMITS.total)
        ]
        await asyncio.sleep(0.2)  # until they have all started
        bob = create(providers.databases, DATABASE, f"{name}bob", "bob")
        assert await measure(bob) < QUICK_SECONDS
        listed = asyncio.create_task(list_readable(providers.databases, f"{name}bob"))
        assert await measure(listed) < QUICK_SECONDS
        CALL_NAMESPACE.set("alice")
        assert isinstance(providers.databases, ProbedProvider)
        assert await measure(providers.databases.probe()) < QUICK_SECONDS
        assert not any(each.done() for each in slow)
        for each in slow:
            each.cancel()
        await asyncio.gather(*slow, return_exceptions=True)


# --- comments

NASTY_VALUES: list[Any] = [
    *("", "x" * 10_000, "\x01\x7f\u2028", "é\U0001f600", "\\", "'", '"', "%s", "{}", "../../etc"),
    *(None, True, 0, -1, 1.5, 10**400, [], {}, [[]], {"a": {"b": []}}, ["x"], {"x": "y"}),
    *("2026-01-01T00:00:00", "2026-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59"),
    *("9999-12-31T23:59:59-23:59", "2026-02-30T00:00:00Z", "now"),
    {"$secret": "bob-pw", "namespace": "bob"},
    {"$secret": "../bob", "store": "no-such-store"},
    {"$secret": "x", "namespace": "no-such-namespace", "store": "env"},
    {f"label{each}": "x" * 50 for each in range(500)},
]
FIELDS = (
    *("key", "labels", "name", "since", "extensions", "password", "is_generated", "namespace"),
)
NASTY_COMMENTS = [
    'reconciler: {"key":"k","since":"2026-01-01T00:00:00"}',
    "reconciler: " + "[" * 30_000,
    "reconciler: " + '{"key":' * 9_000,
    'reconciler: {"key":"\\ud800"}',
    'reconciler: {"key":"k","labels":{"reconciler/owner":"\\u0000"}}',
    'reconciler: {"key":1e999}',
    "reconciler: " + "9" * 60_000,
    "reconciler: nul",
    "reconciler: ",
    "\n" * 60_000 + 'reconciler: {"key":"k"}',
    "x" * (MAX_TEXT_BYTES + 1),
]


def build_comment(source: random.Random) -> str:
    mark: dict[str, Any] = {"key": "k"}
    for field in source.sample(FIELDS, source.randint(1, 4)):
        mark[field] = source.choice(NASTY_VALUES)
    return "reconciler: " + json.dumps(mark, ensure_ascii=source.random() < 0.5)


async def test_no_comment_hides_other_objects(
    providers: Providers, superuser: Superuser, unique: str
) -> None:
    """Any owner of a database, and any role that may create roles, can write a comment."""
    prefix, source = unique.lower(), random.Random(7)
    name, other = f"{prefix}a", f"{prefix}b"
    unfinished = f"reconciler_unfinished_{prefix}"
    for each in (name, other, unfinished):
        await superuser.run(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(each)))
    for each in (name, other):
        await superuser.run(sql.SQL("CREATE ROLE {}").format(sql.Identifier(each)))
    write = sql.SQL("COMMENT ON {} {} IS {}")
    comments = [*NASTY_COMMENTS, *(build_comment(source) for _ in range(150))]
    for comment in comments:
        for object_sql, target in (
            (sql.SQL("DATABASE"), name),
            (sql.SQL("DATABASE"), unfinished),
            (sql.SQL("ROLE"), name),
        ):
            await superuser.run(write.format(object_sql, sql.Identifier(target), comment))
        for provider in (providers.databases, providers.roles):
            names, error = await list_readable(provider, prefix)
            assert other in names, comment[:200]
            assert (name in names) is (error == ""), (comment[:200], error)
        await list_readable(providers.databases, unfinished)
        assert await providers.databases.read(f"{prefix}c") is None
    await superuser.run(sql.SQL("DROP DATABASE {}").format(sql.Identifier(unfinished)))


async def test_a_role_that_cannot_be_converted_does_not_hide_others(
    providers: Providers, superuser: Superuser, unique: str
) -> None:
    """In a database without an encoding, a name can contain any bytes, also that of a parent."""
    prefix = unique.lower()
    create_database = "CREATE DATABASE {} TEMPLATE template0 ENCODING SQL_ASCII LOCALE 'C'"
    await superuser.run(sql.SQL(create_database).format(sql.Identifier(prefix)))
    for each in (f"{prefix}a", f"{prefix}b"):
        await superuser.run(sql.SQL("CREATE ROLE {}").format(sql.Identifier(each)))
    tenant = await connect_superuser(superuser._server, prefix)  # pyright: ignore[reportPrivateUsage]
    for statement in (f'CREATE ROLE "x{prefix}\\377"', f'GRANT "x{prefix}\\377" TO {prefix}a'):
        await tenant.execute(f"DO $$ BEGIN EXECUTE e'{statement}'; END $$")  # pyright: ignore
    try:
        names, _ = await list_readable(providers.roles, prefix)
        assert f"{prefix}b" in names
    finally:
        await tenant.execute(f"DO $$ BEGIN EXECUTE e'DROP ROLE \"x{prefix}\\377\"'; END $$")  # pyright: ignore
        await tenant.close()


# --- settings


async def test_no_setting_of_a_database_changes_what_is_read_or_written(
    providers: Providers, superuser: Superuser, unique: str
) -> None:
    """The owner of a database sets defaults for each session in it."""
    name, role = f"{unique.lower()}a", f"{unique.lower()}r"
    for each in (role, f"{role}2"):
        await superuser.run(sql.SQL("CREATE ROLE {}").format(sql.Identifier(each)))
    await create(providers.databases, DATABASE, name, owner=role, extensions=["hstore", "citext"])
    before = [
        await listing(providers.databases, Scope(prefix=name)),
        await listing(providers.grants, Scope(prefix=f"public@{name}")),
    ]
    settings = await superuser.run(
        sql.SQL(
            "SELECT name, vartype, setting, coalesce(enumvals, '{}') FROM pg_settings"
            " WHERE context = 'user' AND vartype IN ('bool', 'enum')"
        )
    )
    values = {
        setting: ("off" if value == "on" else "on")
        if kind == "bool"
        else next(each for each in choices if each != value)
        for setting, kind, value, choices in settings
        if setting not in ("transaction_read_only", "transaction_deferrable")
    }
    values |= {
        "role": f"{role}2",
        "work_mem": "64kB",
        "search_path": "nothing",
        "TimeZone": "UTC-9",
    }
    values |= {"DateStyle": "German", "extra_float_digits": "-15", "default_tablespace": ""}
    alter = sql.SQL("ALTER DATABASE {} SET {} = {}")
    for setting, value in values.items():
        if not setting.startswith("transaction_"):
            target = sql.Identifier(name), sql.Identifier(setting), value
            await superuser.run(alter.format(*target))
    after = [
        await listing(providers.databases, Scope(prefix=name)),
        await listing(providers.grants, Scope(prefix=f"public@{name}")),
    ]
    assert [[(each.name, each.fields) for each in part] for part in after] == [
        [(each.name, each.fields) for each in part] for part in before
    ]
    granted = await create(providers.grants, GRANT, f"{role}2@{name}/public", privileges=["USAGE"])
    assert granted.fields["privileges"] == ["USAGE"]


# --- forged marks


@pytest.fixture
async def tenant_role(superuser: Superuser, unique: str) -> str:
    name = f"{unique.lower()}tenant"
    await superuser.run(
        sql.SQL("CREATE ROLE {} LOGIN CREATEDB PASSWORD 'x'").format(sql.Identifier(name))
    )
    return name


async def write_forged(tenant: Any, name: str, mark: DatabaseMark) -> None:
    await tenant.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    await tenant.execute(
        sql.SQL("COMMENT ON DATABASE {} IS {}").format(
            sql.Identifier(name), replace_mark(None, mark)
        )
    )


async def test_a_forged_leftover_does_not_prevent_a_creation(
    providers: Providers,
    superuser: Superuser,
    tenant_role: str,
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(databases_module, "_MAX_LEFTOVERS", 1)
    name = f"{unique.lower()}a"
    tenant = await superuser.connect(tenant_role, "x", "postgres")
    forged = f"reconciler_unfinished_{unique.lower()}"
    await write_forged(tenant, forged, DatabaseMark("k", LABELS, name=name))
    in_use = await superuser.connect(tenant_role, "x", forged)
    assert (await create(providers.databases, DATABASE, name)).name == name
    await in_use.close()
    await tenant.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(forged)))
    await tenant.close()


async def test_a_database_that_another_role_created_under_a_predicted_name_is_not_used(
    providers: Providers, superuser: Superuser, tenant_role: str, unique: str
) -> None:
    creation = action("Create", f"{unique.lower()}a", DATABASE.check_fields({}))
    name = unfinished_name(creation.idempotency_key)
    tenant = await superuser.connect(tenant_role, "x", "postgres")
    await write_forged(tenant, name, DatabaseMark(creation.idempotency_key, LABELS))
    with pytest.raises(NotDoneError, match=f"belongs to role {tenant_role!r}") as caught:
        await providers.databases.create(creation)
    assert caught.value.status == HTTPStatus.CONFLICT
    await tenant.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(name)))
    await tenant.close()
    assert (await providers.databases.create(creation)).object is not None


async def test_a_comment_cannot_name_a_secret_of_a_namespace_that_may_not_use_the_server(
    postgres_server: Postgres, superuser: Superuser, tmp_path: Path, unique: str
) -> None:
    stores = open_stores(tmp_path / "secrets")
    await stores.by_name["files"].write(SecretKey("bob", "bob-pw"), "planted-password-77a1")
    name = unique.lower()
    await superuser.run(
        sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'planted-password-77a1'").format(
            sql.Identifier(name)
        )
    )
    mark = '{"key":"k","password":{"$secret":"bob-pw"},"namespace":"bob"}'
    await superuser.run(
        sql.SQL("COMMENT ON ROLE {} IS {}").format(sql.Identifier(name), f"reconciler: {mark}")
    )

    async def read_outputs(namespaces: tuple[str, ...], caller: str) -> Any:
        assert DATABASE_ROLE.connect is not None
        config = ProviderConfigSpec("postgres", postgres_server.endpoint, namespaces=namespaces)
        secrets = Secrets(None, stores.by_name, key=stores.key)
        provider = DATABASE_ROLE.connect(config, secrets, CallPermit())
        CALL_NAMESPACE.set(caller)
        existing = await provider.read(name)
        await provider.close()
        assert existing is not None
        return existing.outputs.get("password")

    assert await read_outputs(("alice", "bob"), "") is not None
    assert await read_outputs(("alice", "bob"), "bob") is not None
    assert await read_outputs(("alice", "bob"), "alice") is None, "an action of another namespace"
    assert await read_outputs(("alice",), "") is None, "a namespace that may not use the server"
