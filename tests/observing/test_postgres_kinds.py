"""Databases, roles and grants through the whole loop on a real server: the pages' example."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import yaml
from msgspec.structs import replace
from psycopg import sql

from events.intake import Withdrawn
from events.log import ActionDecided
from events.manifest import EXTERNAL_NAME_ANNOTATION, Manifest, Metadata
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec
from infra.backup.backup import save_log
from infra.backup.file import Backup
from infra.backup.inspection import content_of
from infra.bus.streams import find_log
from infra.components.postgres import Postgres
from infra.providers.postgres.database import DATABASE
from infra.providers.postgres.grant import GRANT
from infra.providers.postgres.role import DATABASE_ROLE
from infra.secrets import open_stores
from reconciler.provider.kind import KindRegistry
from reconciler.provider.secrets import SecretKey
from tests.postgres import Superuser
from tests.scenarios.harness import World, every

pytestmark = [pytest.mark.postgres]

PAGES = Path(__file__).parents[2] / "docs" / "kinds"
APPLIED_BLOCKS = r"<!-- applied by [^\n]*-->\n```yaml\n(.*?)```"
DOCUMENTS = [
    document
    for page in ("database", "database-role", "grant")
    for block in re.findall(APPLIED_BLOCKS, (PAGES / f"{page}.md").read_text(), re.DOTALL)
    for document in yaml.safe_load_all(block)
]
DATABASE_GRANTS = "FROM pg_database, aclexplode(datacl) WHERE datname = 'orders'"
PLANTED_PASSWORD = "planted-s3cr3t-of-a-role-4f1e"
NEW_PASSWORD = "planted-s3cr3t-rotated-a07c"


class Example:
    """The documented example under unique names, because tests share the server."""

    def __init__(self, world: World, server: Postgres, secrets: Path, unique: str) -> None:
        self.world, self.server, self.secrets = world, server, secrets
        self.prefix = unique.lower()
        self.superuser = Superuser(server)
        text = msgspec.json.encode(DOCUMENTS).decode().replace("orders", self.prefix)
        self.manifests = msgspec.json.decode(text, type=list[Manifest])
        self.names = {
            each.metadata.name.replace(self.prefix, "orders"): each for each in self.manifests
        }

    @property
    def declared(self) -> list[Manifest]:
        return [each for each in self.manifests if each.kind != "ProviderConfig"]

    def name(self, name: str) -> str:
        return name.replace("orders", self.prefix)

    async def begin(self) -> None:
        world = self.world
        await self.write_secret("orders-app-password", PLANTED_PASSWORD)
        world.kinds = KindRegistry([DATABASE, DATABASE_ROLE, GRANT])
        world.secrets = self.secrets
        await world.start_reconciler()
        (documented,) = (each.spec for each in self.manifests if each.kind == "ProviderConfig")
        assert documented["endpoint"].startswith("postgresql://postgres@")
        settings = {
            "provider": documented["provider"],
            "endpoint": self.server.endpoint,
            "scope": {"prefix": self.prefix},
            "resyncSeconds": 0.3,
            "retry": {"initialSeconds": 0.2, "maxSeconds": 1.0},
        }
        await world.configure(msgspec.convert(settings, ProviderConfigSpec), "postgres")
        # Grants to all roles have another prefix.
        settings["scope"] = {"prefix": f"public@{self.prefix}"}
        await world.configure(msgspec.convert(settings, ProviderConfigSpec), "public")
        nobody = self.names["nobody-else-connects"]
        nobody.spec["providerConfigRef"] = {"name": "public"}
        await world.declare_all(self.declared)

    async def write_secret(self, name: str, value: str) -> None:
        store = open_stores(self.secrets).by_name["files"]
        await store.write(SecretKey("default", self.name(name)), value)

    async def secret(self, name: str) -> str | None:
        store = open_stores(self.secrets).by_name["files"]
        return await store.read(SecretKey("default", self.name(name)), "default")

    async def until_converged(self) -> None:
        for each in self.declared:
            await self.world.until_outcome(each.key, "Converged")

    async def logs_in(self, role: str, password: str) -> bool:
        return await self.superuser.logs_in(self.name(role), password, self.prefix)

    async def until(self, query: str, expected: object, what: str) -> None:
        """Wait until a catalog query returns the expected value."""
        composed = sql.SQL(query.replace("orders", self.prefix))  # pyright: ignore[reportArgumentType]

        async def has_expected_value() -> bool:
            return await self.superuser.value(composed) == expected

        await self.world.until(
            has_expected_value, what, seconds=30.0
        )  # a listing begins every 0.3 s

    async def until_public_grants_are_revoked(self) -> None:
        """Wait until the default grants to all roles are revoked."""
        public = f"SELECT count(*) {DATABASE_GRANTS} AND grantee = 0"
        await self.until(public, 0, "the default privileges of all roles are revoked")

    async def do(self, *statements: str) -> None:
        for each in statements:
            await self.superuser.run(sql.SQL(each.replace("orders", self.prefix)))  # pyright: ignore[reportArgumentType]


@pytest.fixture
async def example(
    bare_world: World, postgres_server: Postgres, tmp_path: Path, unique: str
) -> AsyncIterator[Example]:
    opened = Example(bare_world, postgres_server, tmp_path / "secrets", unique)
    await opened.begin()
    await opened.until_converged()
    yield opened
    await opened.superuser.close()


async def test_the_documented_example_works_and_is_deleted_in_the_right_order(
    example: Example,
) -> None:
    world = example.world
    assert await example.logs_in("orders-app", PLANTED_PASSWORD)
    assert not await example.logs_in("orders-app", NEW_PASSWORD)
    generated = await example.secret("orders-report-password")
    assert generated is not None
    assert len(generated) == 32
    assert await example.logs_in("orders-report", generated), "by way of orders-app's CONNECT"
    connection = await example.superuser.connect(
        example.name("orders-app"), PLANTED_PASSWORD, example.prefix
    )
    await connection.execute("CREATE TABLE public.orders (id int)")
    await connection.execute("INSERT INTO public.orders VALUES (1)")
    await connection.close()
    await example.do("CREATE ROLE \"orders-stranger\" LOGIN PASSWORD 'stranger'")
    await example.until_public_grants_are_revoked()
    assert not await example.logs_in("orders-stranger", "stranger")
    await example.do('DROP ROLE "orders-stranger"')

    # The role owns a table, so it cannot be deleted before the database, which has data.
    for name in ("orders-owner", "orders-app", "orders"):
        await world.publish(example.names[name].key, Withdrawn())
    await world.until_outcome(example.names["orders-app"].key, "Held", reason="Referenced")
    await world.until_outcome(example.names["orders"].key, "Held", reason="Referenced")
    for each in example.declared:
        await world.publish(each.key, Withdrawn())
    held = await world.until_outcome(example.names["orders"].key, "Held", reason="DataLoss")
    assert f"all data of database {example.prefix}" in held.message
    await example.until(
        "SELECT count(*) FROM pg_roles WHERE rolname = 'orders-report'",
        0,
        "a role without dependents is deleted",
    )
    assert await example.secret("orders-report-password") is None, "its secret is deleted with it"
    assert (
        await example.superuser.value(
            sql.SQL("SELECT count(*) FROM pg_roles WHERE rolname = {}").format(
                example.name("orders-app")
            )
        )
        == 1
    )
    await world.client.approve_many([example.names["orders"].key], hold="DataLoss")
    for each in example.declared:
        await world.until_outcome(each.key, "Deleted")
    count_query = "SELECT count(*) FROM pg_roles WHERE starts_with(rolname, 'orders')"
    await example.until(count_query, 0, "no role is left")
    await example.until(
        "SELECT count(*) FROM pg_database WHERE datname = 'orders'", 0, "no database is left"
    )


async def test_out_of_band_changes_are_reverted_by_the_next_listing(example: Example) -> None:
    await (
        example.until_public_grants_are_revoked()
    )  # a repeated grant has the uid of the deleted one
    await example.do(
        'REVOKE CONNECT ON DATABASE "orders" FROM "orders-app"',
        'GRANT CREATE ON DATABASE "orders" TO "orders-app"',
        'GRANT CONNECT ON DATABASE "orders" TO PUBLIC',
        "ALTER ROLE \"orders-app\" SUPERUSER NOLOGIN PASSWORD 'guessed' CONNECTION LIMIT 5",
        'GRANT pg_monitor TO "orders-app"',
        'REVOKE "orders-app" FROM "orders-report"',
        'ALTER DATABASE "orders" CONNECTION LIMIT 3',
        'ALTER DATABASE "orders" OWNER TO postgres',
        'COMMENT ON DATABASE "orders" IS NULL',
    )
    acl = (
        "SELECT string_agg(privilege_type || (grantee = 0), ' ' ORDER BY privilege_type)"
        f" {DATABASE_GRANTS} AND grantee <> datdba"
    )
    await example.until(
        acl, "CONNECTfalse TEMPORARYfalse", "the privileges are exactly as declared"
    )
    role = (
        "SELECT rolsuper::text || rolcanlogin || rolconnlimit"
        " FROM pg_roles WHERE rolname = 'orders-app'"
    )
    await example.until(role, "falsetrue20", "the role is as declared")
    members = (
        "SELECT string_agg(r.rolname || '<' || m.rolname, ' ') FROM pg_auth_members g"
        " JOIN pg_roles r ON r.oid = g.roleid JOIN pg_roles m ON m.oid = g.member"
        " WHERE starts_with(m.rolname, 'orders')"
    )
    await example.until(members, f"{example.prefix}-app<{example.prefix}-report", "memberships")

    async def has_its_password() -> bool:
        return await example.logs_in("orders-app", PLANTED_PASSWORD)

    await example.world.until(has_its_password, "the password matches the secret again")
    assert not await example.logs_in("orders-app", "guessed")
    database = (
        "SELECT r.rolname || datconnlimit FROM pg_database d JOIN pg_roles r ON r.oid = datdba"
        " WHERE datname = 'orders'"
    )
    await example.until(database, f"{example.prefix}-owner-1", "the database is as declared")
    labels = (
        "SELECT shobj_description(oid, 'pg_database') LIKE '%\"team\":\"shop\"%'"
        " FROM pg_database WHERE datname = 'orders'"
    )
    await example.until(labels, True, "its labels are restored")


async def test_45_a_renamed_database_is_not_replaced_by_an_empty_one(example: Example) -> None:
    world, key = example.world, example.names["orders"].key
    uid = await example.superuser.value(
        sql.SQL("SELECT oid::text FROM pg_database WHERE datname = {}").format(example.prefix)
    )
    await example.do('ALTER DATABASE "orders" RENAME TO "orders-old"')
    held = await world.until_outcome(key, "Held", reason="DataMissing")
    evidence = f"a Database with its uid is now named '{example.prefix}-old'; rename it back"
    assert f"'{example.prefix}' (uid {uid})" in held.message
    assert evidence in held.message
    await world.until_observed_again(times=9)  # three kinds, two configurations
    renamed = await world.outcomes(ResourceKey("default", "Database", f"{example.prefix}-old"))
    assert [each.outcome for each in renamed] == ["Unowned"], renamed
    names = "SELECT count(*) FROM pg_database WHERE datname IN ('orders', 'orders-old')"
    await example.until(names, 1, "no empty database")

    await example.do('ALTER DATABASE "orders-old" RENAME TO "orders"')
    await world.until_outcome(key, "Converged")
    await example.until_converged()
    writes = [each.action.operation for each in every(ActionDecided, await world.facts(key))]
    assert writes == ["Create"]


async def test_a_dropped_database_is_recreated_after_an_approval(example: Example) -> None:
    world, key = example.world, example.names["orders"].key
    await example.do('DROP DATABASE "orders"')
    held = await world.until_outcome(key, "Held", reason="DataMissing")
    assert f"with all data of database {example.prefix}, has been missing since" in held.message
    await world.client.approve_many([key], hold="DataMissing")
    await example.until(
        "SELECT count(*) FROM pg_database WHERE datname = 'orders'", 1, "the database is recreated"
    )
    acl = f"SELECT count(*) {DATABASE_GRANTS} AND grantee::regrole::text LIKE '%orders-app%'"
    await example.until(acl, 2, "the grant is restored")
    public = f"SELECT count(*) {DATABASE_GRANTS} AND grantee = 0"
    await example.until(public, 0, "the default privileges are revoked again")


async def test_a_password_rotation_does_not_fail_queries_or_leak_passwords(
    example: Example, tmp_path: Path
) -> None:
    world, server = example.world, example.server
    role = example.name("orders-app")
    session = await example.superuser.connect(role, PLANTED_PASSWORD, example.prefix)
    request_count = 0
    await example.write_secret("orders-app-password", NEW_PASSWORD)

    async def is_rotated() -> bool:
        nonlocal request_count
        cursor = await session.execute("SELECT current_user")  # before and after each check
        assert await cursor.fetchone() == (role,)
        request_count += 1
        return await example.logs_in("orders-app", NEW_PASSWORD)

    await world.until(is_rotated, "the new password is the role's")
    assert not await example.logs_in("orders-app", PLANTED_PASSWORD)
    await session.execute("SELECT 1")
    await session.close()
    assert request_count

    await world.until_outcome(example.names["orders-app"].key, "Converged")
    generated = await example.secret("orders-report-password")
    assert generated is not None
    texts = repr([await world.history(each.key) for each in example.declared])
    rows = repr(await world.rows()).encode()
    path = tmp_path / "backup"
    identity = await find_log(world.nc)
    await save_log(world.nc, path, identity, lambda _done: None)
    backup = Backup(path)
    saved = [
        each for part in (backup.declarations(), backup.events()) for many in part for each in many
    ]
    assert saved
    sources = {
        "history": texts.encode(),
        "rows": rows,
        "the server's log": server.log.read_bytes(),
        "backup": b"".join(content_of(each) for each in saved),
    }
    for secret in (PLANTED_PASSWORD, NEW_PASSWORD, generated):
        for source, content in sources.items():
            assert secret.encode() not in content, source
    assert b"SCRAM-SHA-256$4096" in sources["the server's log"], (
        "the server log contains all statements"
    )


async def test_nothing_is_written_while_nothing_differs(example: Example) -> None:
    world = example.world

    async def actions() -> int:
        events = [await world.facts(each.key) for each in example.declared]
        return sum(isinstance(event, ActionDecided) for each in events for event in each)

    await example.until_public_grants_are_revoked()
    await world.until_settled()
    count_before = await actions()
    await world.until_observed_again(3)
    assert await actions() == count_before == len(example.declared)


async def test_46_another_namespace_changes_nothing_without_permission(example: Example) -> None:
    world = example.world
    await example.do(
        'CREATE ROLE "orders-ext"', 'GRANT CONNECT ON DATABASE "orders" TO "orders-ext"'
    )

    def rival(kind: str, name: str, **spec: object) -> Manifest:
        name = example.name(name)
        metadata = Metadata(
            re.sub(r"[^a-z-]", "-", name), "rival", {}, {EXTERNAL_NAME_ANNOTATION: name}
        )
        return Manifest(
            "postgres/v1", kind, metadata, {"providerConfigRef": {"name": "postgres"}, **spec}
        )

    absent = {"mode": "Absent", "adoption": "Adopt"}
    revoking = rival("Grant", "orders-ext@orders", privileges=["CONNECT"], policy=absent)
    own = rival("DatabaseRole", "orders-rival")
    opening = rival("Grant", "orders-rival@orders", privileges=["CONNECT"])
    joining = rival("DatabaseRole", "orders-joining", memberOf=[example.name("orders-app")])
    keeping = rival("Database", "orders-keeping", owner=example.name("orders-app"))
    copying = rival("Database", "orders-copying", template=example.prefix)
    await world.declare_all([revoking, own, opening, joining, keeping, copying])
    await world.until_outcome(own.key, "Converged")
    refused = await world.until_outcome(revoking.key, "Conflict", reason="OwnedByAnother")
    assert "default" not in refused.message
    for each in (joining, keeping, copying):
        waiting = await world.until_outcome(each.key, "Degraded", reason="NotDone")
        assert "belongs to a resource in another namespace; that resource must" in waiting.message
    granted = (
        "SELECT count(*) FROM pg_database, aclexplode(datacl) JOIN pg_roles r ON r.oid = grantee"
        " WHERE datname = 'orders' AND rolname = '{}'"
    )
    await example.until(granted.format("orders-ext"), 1, "its privilege is kept")
    await example.until(granted.format("orders-rival"), 0, "no privilege is granted")
    roles = "SELECT count(*) FROM pg_auth_members m JOIN pg_roles r ON r.oid = member"
    await example.until(f"{roles} WHERE rolname = 'orders-joining'", 0, "no membership")

    (database,) = (each for each in example.declared if each.kind == "Database")
    policy = {**database.spec.get("policy", {}), "referencedFrom": ["rival"]}
    await world.declare_all([replace(database, spec={**database.spec, "policy": policy})])
    await example.until(granted.format("orders-rival"), 1, "the owner permits it")
    await example.until(granted.format("orders-ext"), 0, "the owner permits it")
