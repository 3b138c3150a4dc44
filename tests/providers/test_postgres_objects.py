"""Only PostgreSQL's kinds: passwords, unfinished databases, dependents, protected objects."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg import sql

from events.allow import Allow
from events.external import ExternalObject
from events.manifest import Fields, InvalidManifestError
from events.provider_config import ProviderConfigSpec, Scope
from events.secret import SecretRef
from infra.components.postgres import Postgres
from infra.providers.postgres.database import DATABASE
from infra.providers.postgres.databases import LEFTOVER_SECONDS, DatabaseMark
from infra.providers.postgres.errors import classify_connection_error, classify_error
from infra.providers.postgres.grant import GRANT
from infra.providers.postgres.grant_spec import PRIVILEGES, parse_target
from infra.providers.postgres.marks import Mark, read_mark, replace_mark
from infra.providers.postgres.names import UNFINISHED_PREFIX, unfinished_name
from infra.providers.postgres.passwords import matches_password
from infra.providers.postgres.role import DATABASE_ROLE
from infra.providers.postgres.roles import UNCHECKED_PASSWORD
from infra.providers.postgres.server import (
    _LOCK,  # pyright: ignore[reportPrivateUsage]
    parse_endpoint,
)
from infra.secrets import open_stores
from reconciler.errors import (
    ConfigurationError,
    ConflictError,
    NotDoneError,
    RefusedError,
    UnknownResultError,
)
from reconciler.provider import Provider
from reconciler.provider.call_permit import CALL_GATE, CallPermit
from reconciler.provider.contract import LABELS, action, listing, with_version_of
from reconciler.provider.kind import Kind
from reconciler.provider.secrets import Secrets
from reconciler.resource.difference import Wanted, differences
from tests.folders import short_folder
from tests.postgres import Superuser, connect_superuser
from tests.providers.connect import Connect
from tests.providers.permit import ClosedGate

pytestmark = [pytest.mark.postgres]

PASSWORD = "planted-pässwörd-with-'quotes\\-9d3b"
OTHER_PASSWORD = "planted-another-password-5c11"
SCHEMA_COUNT = 5_000


@pytest.fixture
async def superuser(postgres_server: Postgres) -> AsyncIterator[Superuser]:
    opened = Superuser(postgres_server)
    yield opened
    await opened.close()


@pytest.fixture
def short_path() -> Iterator[Path]:
    with short_folder() as folder:
        folder.chmod(0o755)
        yield folder


@pytest.fixture
def secrets(tmp_path: Path) -> Secrets:
    stores = open_stores(tmp_path / "secrets")
    return Secrets(None, stores.by_name, key=stores.key)


@pytest.fixture
async def roles(postgres_server: Postgres, secrets: Secrets) -> AsyncIterator[Provider]:
    assert DATABASE_ROLE.connect is not None
    config = ProviderConfigSpec("postgres", postgres_server.endpoint)
    provider = DATABASE_ROLE.connect(config, secrets, CallPermit())
    yield provider
    await provider.close()


@pytest.fixture
def databases(postgres_server: Postgres, connect: Connect) -> Provider:
    return connect(DATABASE, postgres_server.endpoint)


@pytest.fixture
def grants(postgres_server: Postgres, connect: Connect) -> Provider:
    return connect(GRANT, postgres_server.endpoint)


def build_create(kind: Kind, name: str, fields: Fields):
    creation = action("Create", name, kind.check_fields(fields))
    return creation if kind is not GRANT else msgspec.structs.replace(creation, labels={})


async def create_object(
    provider: Provider, kind: Kind, name: str, fields: Fields
) -> ExternalObject:
    existing = (await provider.create(build_create(kind, name, fields))).object
    assert existing is not None
    return existing


async def update_object(provider: Provider, kind: Kind, existing: ExternalObject, fields: Fields):
    update = action("Update", existing.name, kind.check_fields(fields))
    changed = (await provider.update(with_version_of(update, existing))).object
    assert changed is not None
    return changed


async def read_object(provider: Provider, name: str) -> ExternalObject:
    existing = await provider.read(name)
    assert existing is not None
    return existing


def drift(kind: Kind, existing: ExternalObject, fields: Fields) -> list[str]:
    labels = {} if kind is GRANT else LABELS
    return [difference.path for difference in differences(Wanted(fields, labels), existing, kind)]


async def run(superuser: Superuser, statement: str, *names: str) -> list[tuple[Any, ...]]:
    query = sql.SQL(statement)  # pyright: ignore[reportArgumentType] - a test's own
    return await superuser.run(query.format(*map(sql.Identifier, names)))


# --- passwords


async def test_a_password_is_set_but_never_shown(
    roles: Provider, secrets: Secrets, postgres_server: Postgres, superuser: Superuser, unique: str
) -> None:
    reference = await secrets.store(SecretRef("app"), PASSWORD, "default")
    expected = DATABASE_ROLE.check_fields({"login": True, "password": {"$secret": "app"}})
    expected["password"]["digest"] = reference.digest
    role = await create_object(roles, DATABASE_ROLE, unique, expected)

    assert await superuser.logs_in(unique, PASSWORD, "postgres")
    assert drift(DATABASE_ROLE, role, expected) == []
    assert role.outputs["password"]["digest"] == reference.digest
    log = postgres_server.log.read_bytes()
    assert unique.encode() in log
    assert b"planted-p" not in log
    assert b"planted" not in msgspec.json.encode(role)

    await run(superuser, "ALTER ROLE {} PASSWORD 'guessed-by-hand'", unique)
    changed = await read_object(roles, unique)
    assert drift(DATABASE_ROLE, changed, expected) == ["password.secret"]
    assert "password" not in changed.outputs
    role = await update_object(roles, DATABASE_ROLE, changed, expected)
    assert await superuser.logs_in(unique, PASSWORD, "postgres")

    await run(superuser, "ALTER ROLE {} PASSWORD NULL", unique)
    assert drift(DATABASE_ROLE, await read_object(roles, unique), expected) == ["password.secret"]


async def test_a_correct_password_is_not_written_again(
    roles: Provider, secrets: Secrets, superuser: Superuser, unique: str
) -> None:
    await secrets.store(SecretRef("app"), PASSWORD, "default")
    fields: Fields = {"login": True, "password": {"$secret": "app"}}
    role = await create_object(roles, DATABASE_ROLE, unique, fields)
    verifier_query = sql.SQL("SELECT rolpassword FROM pg_authid WHERE rolname = {}").format(unique)
    verifier_before = await superuser.value(verifier_query)

    role = await update_object(roles, DATABASE_ROLE, role, {**fields, "connectionLimit": 3})
    kept_action = action("Update", unique, {**role.fields, "connectionLimit": 4})
    role = (await roles.update(with_version_of(kept_action, role))).object
    assert role is not None
    assert await superuser.value(verifier_query) == verifier_before
    role = await update_object(roles, DATABASE_ROLE, role, {"login": True})
    assert await superuser.value(verifier_query) is None, "no password is declared any more"
    assert "password" not in role.fields


async def test_each_role_gets_its_own_generated_password(
    roles: Provider, secrets: Secrets, superuser: Superuser, unique: str
) -> None:
    fields: Fields = {"login": True, "generatedPassword": {"name": "made"}}
    expected = DATABASE_ROLE.check_fields(fields)
    role = await create_object(roles, DATABASE_ROLE, unique, fields)
    first = await secrets.value(SecretRef("made"), "default")
    assert await superuser.logs_in(unique, first, "postgres")
    assert drift(DATABASE_ROLE, role, expected) == []
    assert role.outputs["password"]["$secret"] == "made"

    await secrets.remove(SecretRef("made"), "default")
    role_without_secret = await read_object(roles, unique)
    assert drift(DATABASE_ROLE, role_without_secret, expected) == ["generatedPassword.isSet"]
    role = await update_object(roles, DATABASE_ROLE, role_without_secret, fields)
    second = await secrets.value(SecretRef("made"), "default")
    assert first != second
    assert await superuser.logs_in(unique, second, "postgres")

    await roles.delete(with_version_of(action("Delete", unique, {}), role))
    assert await secrets.find(SecretRef("made"), "default") is None


async def test_declaring_a_password_removes_the_generated_one(
    roles: Provider, secrets: Secrets, unique: str
) -> None:
    await secrets.store(SecretRef("app"), PASSWORD, "default")
    role = await create_object(
        roles, DATABASE_ROLE, unique, {"generatedPassword": {"name": "made"}}
    )
    await update_object(roles, DATABASE_ROLE, role, {"password": {"$secret": "app"}})
    assert await secrets.find(SecretRef("made"), "default") is None
    assert await secrets.find(SecretRef("app"), "default") is not None


async def test_a_missing_secret_does_not_fail_a_listing(
    roles: Provider, secrets: Secrets, unique: str
) -> None:
    reference = await secrets.store(SecretRef("app"), PASSWORD, "default")
    await create_object(roles, DATABASE_ROLE, unique, {"password": {"$secret": "app"}})
    await secrets.remove(SecretRef("app"), "default")
    (role,) = await listing(roles, Scope(prefix=unique))
    assert role.fields["password"] == {"secret": reference.digest}, "nothing shows that it changed"


async def test_an_unreadable_secret_does_not_fail_a_listing(
    roles: Provider, secrets: Secrets, tmp_path: Path, unique: str
) -> None:
    """An operator may have changed its mode. The listing also includes other tenants' roles."""
    reference = await secrets.store(SecretRef("app"), PASSWORD, "default")
    await create_object(roles, DATABASE_ROLE, unique, {"password": {"$secret": "app"}})
    (tmp_path / "secrets/default/app").chmod(0o644)
    (role,) = await listing(roles, Scope(prefix=unique))
    assert role.fields["password"] == {"secret": reference.digest}


@pytest.mark.parametrize(
    ("verifier", "password", "expected"),
    [
        (None, "x", False),
        ("md5c4ca4238a0b923820dcc509a6f75849b", "x", False),
        ("SCRAM-SHA-256$4096:c2FsdA==$bm8=:bm8=", "x", False),
        ("SCRAM-SHA-256$4096:not base64$bm8=:bm8=", "x", False),
        ("SCRAM-SHA-256$9999999:c2FsdA==$bm8=:bm8=", "x", False),
        (
            "SCRAM-SHA-256$20001:c2FsdA==$jTQD7KHsc1O4RAS6EUjhyUGKkGRkJoLT3v7tjxIhk1s=:bm8=",
            "x",
            False,
        ),
        (
            "SCRAM-SHA-256$20000:c2FsdA==$PEHisaVnZ7VIPKTeNYL3GQVBl8y7vOmNV0QueeoF4EQ=:bm8=",
            "x",
            True,
        ),
    ],
)
def test_an_invalid_verifier_matches_no_password(
    verifier: str | None, password: str, expected: bool
) -> None:
    assert matches_password(verifier, password) is expected


async def test_a_verifier_with_too_many_iterations_is_replaced_without_a_check(
    roles: Provider, secrets: Secrets, superuser: Superuser, unique: str
) -> None:
    """A role may store any verifier as its own, and the check would take seconds."""
    verifier = f"SCRAM-SHA-256$2000000000:c2FsdA==${'A' * 43}=:{'A' * 43}="
    await secrets.store(SecretRef("app"), PASSWORD, "default")
    fields: Fields = {"login": True, "password": {"$secret": "app"}}
    await create_object(roles, DATABASE_ROLE, unique, fields)
    # With ALTER ROLE, PostgreSQL would check the verifier against an empty password.
    change = sql.SQL("UPDATE pg_authid SET rolpassword = {} WHERE rolname = {}")
    await superuser.run(change.format(verifier, unique))
    role = await read_object(roles, unique)
    assert role.fields["password"] == {"secret": UNCHECKED_PASSWORD}
    await update_object(roles, DATABASE_ROLE, role, fields)
    assert await superuser.logs_in(unique, PASSWORD, "postgres")


@pytest.mark.parametrize(
    "password", ["plain", PASSWORD, "ﬁ ⅸ", "\u00ad soft\u00a0space", "a\u0627b"]
)
async def test_verifiers_match_those_that_libpq_computes(
    superuser: Superuser, unique: str, password: str
) -> None:
    await run(superuser, "CREATE ROLE {}", unique)
    await superuser.run(
        sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(unique), password)
    )
    query = sql.SQL("SELECT rolpassword FROM pg_authid WHERE rolname = {}").format(unique)
    assert matches_password(await superuser.value(query), password)
    assert not matches_password(await superuser.value(query), password + "x")


# --- unfinished databases


class RunBeforeRequest(ClosedGate):
    """Runs a function before the call's nth request."""

    def __init__(self, request: int, function: Callable[[], None]) -> None:
        self.remaining, self._function = request, function

    async def wait(self, *, has_priority: bool = False) -> None:
        self.remaining -= 1
        if self.remaining == 0:
            self._function()


def connect_synchronously(server: Postgres) -> psycopg.Connection[tuple[Any, ...]]:
    return psycopg.connect(
        host=str(server.socket), port=server.port, user="postgres", autocommit=True
    )


async def test_a_backend_killed_before_any_statement_leaves_nothing_unlabeled(
    postgres_server: Postgres, databases: Provider, unique: str
) -> None:
    def kill() -> None:
        with connect_synchronously(postgres_server) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 2000) FROM pg_stat_activity"
                " WHERE application_name = 'reconciler'"
            )

    for request in range(1, 30):
        name = f"{unique.lower()}{request}"
        creation = build_create(DATABASE, name, {"extensions": ["hstore"]})
        interruption = RunBeforeRequest(request, kill)
        token = CALL_GATE.set(interruption)
        try:
            await databases.create(creation)
        except (NotDoneError, UnknownResultError):
            partial = await databases.read(name)
            assert partial is None or partial.written_by == creation.idempotency_key
        finally:
            CALL_GATE.reset(token)
        existing = (await databases.create(creation)).object
        assert existing is not None
        assert (existing.labels, existing.fields["extensions"]) == (LABELS, {"hstore": True})
        assert await listing(databases, Scope(prefix=UNFINISHED_PREFIX)) == []
        if interruption.remaining > 0:
            break
    else:
        pytest.fail("a create never completes")
    with connect_synchronously(postgres_server) as connection:
        query = "SELECT datname FROM pg_database WHERE starts_with(datname, %s)"
        assert connection.execute(query, [UNFINISHED_PREFIX]).fetchall() == []


async def test_a_server_killed_before_any_statement_leaves_nothing_unlabeled(
    short_path: Path, connect: Connect
) -> None:
    server = Postgres(
        "fsync=off"
    )  # without fsync, a killed process loses no writes; only a crashed machine does
    await server.start(short_path / "postgres")
    provider = connect(DATABASE, server.endpoint)
    try:
        for request in range(1, 30):
            creation = build_create(DATABASE, f"db{request}", {})
            interruption = RunBeforeRequest(request, lambda: os.kill(server.pid, 9))
            token = CALL_GATE.set(interruption)
            try:
                await provider.create(creation)
            except (NotDoneError, UnknownResultError):
                pass
            finally:
                CALL_GATE.reset(token)
            if interruption.remaining > 0:
                break
            await server.kill()
            await server.start(short_path / "postgres")
            existing = (await provider.create(creation)).object
            assert existing is not None
            assert existing.labels == LABELS
        else:
            pytest.fail("a create never completes")
        assert await listing(provider, Scope(prefix=UNFINISHED_PREFIX)) == []
    finally:
        await server.stop()


async def test_a_name_taken_during_a_create_is_a_conflict_and_nothing_remains(
    postgres_server: Postgres, databases: Provider, superuser: Superuser, unique: str
) -> None:
    name = unique.lower()

    def take_name() -> None:
        with connect_synchronously(postgres_server) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))

    token = CALL_GATE.set(RunBeforeRequest(5, take_name))
    creation = build_create(DATABASE, name, {})
    try:
        with pytest.raises(ConflictError) as caught:
            await databases.create(creation)
    finally:
        CALL_GATE.reset(token)
    assert caught.value.obstacle == await read_object(databases, name)
    assert caught.value.obstacle is not None
    assert caught.value.obstacle.labels == {}
    count_query = sql.SQL("SELECT count(*) FROM pg_database WHERE datname = {}")
    assert await superuser.value(count_query.format(unfinished_name(creation.idempotency_key))) == 0


async def test_an_unfinished_database_is_dropped_by_the_next_action_or_listed_after_an_hour(
    databases: Provider, superuser: Superuser, unique: str
) -> None:
    name, labels = unique.lower(), {**LABELS, "run": unique}

    async def create_leftover(key: str, since: datetime) -> str:
        leftover_name = unfinished_name(key)
        await run(superuser, "CREATE DATABASE {}", leftover_name)
        mark = DatabaseMark(key, labels, name=name, since=since)
        await superuser.run(
            sql.SQL("COMMENT ON DATABASE {} IS {}").format(
                sql.Identifier(leftover_name), replace_mark(None, mark)
            )
        )
        return leftover_name

    now = datetime.now(UTC)
    await create_leftover(f"{unique}1", now)
    assert await listing(databases, Scope(labels={"run": unique})) == []
    old_name = await create_leftover(f"{unique}2", now - timedelta(seconds=LEFTOVER_SECONDS + 60))
    (leftover,) = await listing(databases, Scope(labels={"run": unique}))
    assert (leftover.name, leftover.labels) == (old_name, labels)

    creation = msgspec.structs.replace(build_create(DATABASE, name, {}), labels=labels)
    await databases.create(creation)
    (existing,) = await listing(databases, Scope(labels={"run": unique}))
    assert existing.name == name


# --- obstacles


async def test_a_database_in_use_is_not_dropped_and_the_error_names_the_session(
    databases: Provider, postgres_server: Postgres, superuser: Superuser, unique: str
) -> None:
    existing = await create_object(databases, DATABASE, unique.lower(), {})
    await run(superuser, "CREATE ROLE {} LOGIN PASSWORD 'x'", unique)
    session = await superuser.connect(unique, "x", existing.name)
    delete = with_version_of(action("Delete", existing.name, {}), existing)
    with pytest.raises(NotDoneError, match=f"in use by {unique} "):
        await databases.delete(delete)
    await session.execute("SELECT 1")
    await session.close()
    assert not (await databases.delete(delete)).absent


async def test_a_database_is_kept_until_its_replacement_can_be_created(
    databases: Provider, unique: str
) -> None:
    existing = await create_object(databases, DATABASE, unique.lower(), {})
    fields = DATABASE.check_fields({"encoding": "SQL_ASCII", "locale": "C", "owner": "nobody"})
    delete = with_version_of(action("Delete", existing.name, fields), existing)
    delete = msgspec.structs.replace(delete, purpose="Replace")
    with pytest.raises(NotDoneError, match="role 'nobody' does not exist"):
        await databases.delete(delete)
    assert await read_object(databases, existing.name) == existing
    assert not (await databases.delete(msgspec.structs.replace(delete, fields={}))).absent


async def test_a_role_with_dependents_is_kept_and_the_error_names_them(
    roles: Provider, databases: Provider, unique: str
) -> None:
    role = await create_object(roles, DATABASE_ROLE, unique, {})
    database = await create_object(databases, DATABASE, unique.lower(), {"owner": unique})
    delete = with_version_of(action("Delete", unique, {}), role)
    with pytest.raises(NotDoneError, match=f"owner of database {database.name}"):
        await roles.delete(delete)
    await databases.delete(with_version_of(action("Delete", database.name, {}), database))
    await roles.delete(delete)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"owner": "no-such-role"}, r"does not exist yet"),
        ({"extensions": ["no_such_extension"]}, "install its package"),
        ({"encoding": "EUC_JP", "locale": "C.UTF-8"}, "EUC_JP"),
        ({"locale": "xx_XX.none"}, "xx_XX.none"),
        ({"template": "no_such_template"}, "no_such_template"),
    ],
)
async def test_a_failed_create_leaves_nothing(
    databases: Provider, superuser: Superuser, unique: str, fields: Fields, reason: str
) -> None:
    creation = build_create(DATABASE, unique.lower(), fields)
    with pytest.raises((RefusedError, NotDoneError), match=reason):
        await databases.create(creation)
    count_query = sql.SQL("SELECT count(*) FROM pg_database WHERE datname IN ({}, {})")
    names = (unique.lower(), unfinished_name(creation.idempotency_key))
    assert await superuser.value(count_query.format(*names)) == 0


@pytest.mark.parametrize(
    "fields",
    [{"encoding": "utf_8", "locale": "C/C"}, {"encoding": "latin-1", "locale": "C"}],
)
async def test_another_spelling_of_an_encoding_or_locale_does_not_count_as_a_difference(
    databases: Provider, unique: str, fields: Fields
) -> None:
    existing = await create_object(databases, DATABASE, unique.lower(), fields)
    expected = DATABASE.check_fields(fields)
    assert {name: existing.fields[name] for name in fields} == {
        name: expected[name] for name in fields
    }


@pytest.mark.parametrize("encoding", ["LATIN-99", "ISO88591", "nonsense"])
def test_an_encoding_that_no_server_reports_is_refused(encoding: str) -> None:
    with pytest.raises(InvalidManifestError, match=encoding):
        DATABASE.check_fields({"encoding": encoding})


async def test_an_update_waits_for_an_extension_and_opens_a_closed_database(
    databases: Provider, unique: str
) -> None:
    existing = await create_object(databases, DATABASE, unique.lower(), {"allowConnections": False})
    assert not existing.fields["allowConnections"]
    with pytest.raises(NotDoneError, match="install its package"):
        await update_object(
            databases,
            DATABASE,
            existing,
            {"extensions": ["no_such_extension"], "allowConnections": True},
        )
    existing = await read_object(databases, existing.name)
    existing = await update_object(databases, DATABASE, existing, {"extensions": ["hstore"]})
    assert existing.fields["extensions"] == {"hstore": True}
    closed_database = await update_object(
        databases, DATABASE, existing, {"extensions": ["hstore"], "allowConnections": False}
    )
    assert closed_database.fields["extensions"] == {"hstore": True}, "the last written state"
    assert DATABASE.describe_data_loss(DATABASE.check_fields({}), closed_database).endswith(
        ": hstore"
    )


async def test_text_that_users_write_in_a_comment_is_kept(
    databases: Provider, superuser: Superuser, unique: str
) -> None:
    name = unique.lower()
    await run(superuser, "CREATE DATABASE {}", name)
    await run(superuser, "COMMENT ON DATABASE {} IS 'Ask Ann.\n\nBefore you drop it.'", name)
    existing = await update_object(databases, DATABASE, await read_object(databases, name), {})
    assert existing.labels == LABELS
    existing = await update_object(databases, DATABASE, existing, {"connectionLimit": 3})
    query = sql.SQL("SELECT shobj_description(oid, 'pg_database') FROM pg_database")
    comment = await superuser.value(sql.SQL("{} WHERE datname = {}").format(query, name))
    assert comment.startswith("Ask Ann.\n\nBefore you drop it.\nreconciler: {")
    assert comment.count("reconciler: ") == 1


@pytest.mark.parametrize("comment", [None, "", "text", "reconciler: {", 'reconciler: {"key":1}'])
def test_a_comment_without_a_mark_is_plain_text(comment: str | None) -> None:
    assert read_mark(comment, Mark) is None
    assert read_mark(replace_mark(comment, Mark("k")), Mark) == Mark("k")


# --- protected objects


async def test_the_servers_own_objects_are_never_listed_or_written(
    postgres_server: Postgres,
    databases: Provider,
    roles: Provider,
    superuser: Superuser,
    unique: str,
) -> None:
    await run(superuser, "CREATE ROLE {} SUPERUSER", unique)
    objects = [each.name for each in await listing(databases, Scope())]
    assert not {"postgres", "template0", "template1"} & set(objects)
    objects = [each.name for each in await listing(roles, Scope())]
    assert not {"postgres", unique} & set(objects)
    assert not any(each.startswith("pg_") for each in objects)
    for kind, provider, names in (
        (DATABASE, databases, ("postgres", "template0", "template1")),
        (DATABASE_ROLE, roles, ("postgres", unique, "pg_monitor", "public", "none")),
    ):
        for name in names:
            for call in (
                provider.create(build_create(kind, name, {})),
                provider.delete(action("Delete", name, {})),
                provider.update(action("Update", name, kind.check_fields({}))),
                provider.read(name),
            ):
                with pytest.raises(RefusedError):
                    await call


async def test_a_role_that_became_a_superuser_is_detected_and_reverted(
    roles: Provider, superuser: Superuser, unique: str
) -> None:
    await create_object(roles, DATABASE_ROLE, unique, {})
    await run(superuser, "ALTER ROLE {} SUPERUSER", unique)
    (role,) = await listing(roles, Scope(prefix=unique))
    assert drift(DATABASE_ROLE, role, DATABASE_ROLE.check_fields({})) == ["superuser"]
    role = await update_object(roles, DATABASE_ROLE, role, {})
    assert role.fields["superuser"] is False


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"superuser": True}, "must not be true"),
        ({"memberOf": ["pg_execute_server_program"]}, "equivalent to superuser"),
        ({"password": "planted"}, "not a string"),
        ({"password": {"$secret": "a"}, "generatedPassword": {"name": "b"}}, "set only one"),
        ({"generatedPassword": {"name": "../b"}}, "name of a secret"),
    ],
)
def test_a_forbidden_role_is_refused_when_declared(fields: Fields, reason: str) -> None:
    with pytest.raises(InvalidManifestError, match=reason) as caught:
        DATABASE_ROLE.check_fields(fields)
    assert "planted" not in str(caught.value)


async def test_a_membership_that_would_grant_superuser_is_refused(
    roles: Provider, unique: str
) -> None:
    with pytest.raises(NotDoneError, match="is a superuser"):
        await create_object(roles, DATABASE_ROLE, unique, {"memberOf": ["postgres"]})
    assert await roles.read(unique) is None


@pytest.mark.parametrize(
    ("parent_role", "reason"),
    [
        ("SUPERUSER", "is a member of '{}', which is a superuser"),
        ("IN ROLE pg_read_server_files", "is a member of 'pg_read_server_files', which is equiv"),
        ("CREATEROLE", "is a member of '{}', which has the createRole privilege"),
        ("REPLICATION", "is a member of '{}', which has the replication privilege"),
    ],
)
async def test_a_membership_in_a_privileged_role_is_refused(
    roles: Provider, superuser: Superuser, unique: str, parent_role: str, reason: str
) -> None:
    """A tenant's role could become a superuser with SET ROLE, or read the machine's files."""
    top, middle = f"{unique}_top", f"{unique}_middle"
    await run(superuser, "CREATE ROLE {} " + parent_role, top)
    await run(superuser, "CREATE ROLE {} IN ROLE {}", middle, top)
    with pytest.raises(NotDoneError, match=reason.format(top)):
        await create_object(roles, DATABASE_ROLE, unique, {"memberOf": [middle]})
    assert await roles.read(unique) is None

    await run(
        superuser, "CREATE ROLE {} LOGIN IN ROLE {}", unique, middle
    )  # adopting the role does not allow it either
    role = await read_object(roles, unique)
    with pytest.raises(NotDoneError, match=reason.format(top)):
        await update_object(roles, DATABASE_ROLE, role, {"login": True, "memberOf": [middle]})
    assert (await update_object(roles, DATABASE_ROLE, role, {})).fields["memberOf"] == []


async def test_a_membership_in_a_role_with_an_allowed_privilege_is_granted(
    postgres_server: Postgres, secrets: Secrets, superuser: Superuser, unique: str
) -> None:
    await run(superuser, "CREATE ROLE {} CREATEROLE", f"{unique}_top")
    allow = Allow(privileges=("createRole",))
    config = ProviderConfigSpec("postgres", postgres_server.endpoint, allow=allow)
    assert DATABASE_ROLE.connect is not None
    roles = DATABASE_ROLE.connect(config, secrets, CallPermit())
    role = await create_object(roles, DATABASE_ROLE, unique, {"memberOf": [f"{unique}_top"]})
    assert role.fields["memberOf"] == [f"{unique}_top"]
    await roles.close()


# --- tenants that share a server


@pytest.mark.parametrize(
    "setting",
    [
        *("default_transaction_read_only=on", "local_preload_libraries=nothing"),
        *("lock_timeout=1", "statement_timeout=1", "search_path=nothing"),
        *("idle_session_timeout=1", "idle_in_transaction_session_timeout=1"),
    ],
)
async def test_a_database_owners_settings_do_not_fail_a_listing(
    databases: Provider, grants: Provider, superuser: Superuser, unique: str, setting: str
) -> None:
    name, (variable, value) = unique.lower(), setting.split("=")
    await run(superuser, "CREATE ROLE {} LOGIN", unique)
    await create_object(databases, DATABASE, name, {"owner": unique, "extensions": ["hstore"]})
    await run(superuser, f"ALTER DATABASE {{}} SET {variable} = '{value}'", name)
    for _ in range(10):  # a timeout of a millisecond does not always expire
        assert [each.name for each in await listing(databases, Scope(prefix=name))] == [name]
        assert await listing(grants, Scope(prefix=f"public@{name}"))
    await create_object(grants, GRANT, f"{unique}@{name}/public", {"privileges": ["USAGE"]})


async def test_two_grants_never_share_a_name_if_names_contain_slashes(
    databases: Provider,
    grants: Provider,
    postgres_server: Postgres,
    unique: str,
) -> None:
    """A listing that contains two objects with the same name is refused, affecting all tenants."""
    name = unique.lower()
    for database in (name, f"{name}/public"):
        await create_object(databases, DATABASE, database, {})
    async with await connect_superuser(postgres_server, name) as owner:
        await owner.execute("CREATE FUNCTION public.f() RETURNS int LANGUAGE sql AS 'SELECT 1'")
        await owner.execute('CREATE SCHEMA "public/functions"')
        await owner.execute('GRANT USAGE ON SCHEMA "public/functions" TO PUBLIC')
    names = [database.name for database in await listing(grants, Scope(prefix=f"public@{name}"))]
    assert sorted(names) == [
        f"public@{name}{suffix}" for suffix in ("", "/public", "/public/functions")
    ]


async def test_an_interrupted_database_deletion_does_not_fail_a_listing(
    databases: Provider, grants: Provider, superuser: Superuser, unique: str
) -> None:
    """Its owner may cancel the deletion; the server then accepts no connections."""
    name = unique.lower()
    await create_object(databases, DATABASE, name, {"extensions": ["hstore"]})
    await superuser.run(
        sql.SQL("UPDATE pg_database SET datconnlimit = -2 WHERE datname = {}").format(name)
    )
    assert [each.name for each in await listing(databases, Scope(prefix=name))] == [name]
    objects = await listing(grants, Scope(prefix=f"public@{name}"))
    assert [each.name for each in objects] == [f"public@{name}"]
    await run(superuser, "DROP DATABASE {}", name)


async def test_a_tenants_many_schemas_do_not_slow_down_listings(
    databases: Provider, connect: Connect, postgres_server: Postgres, unique: str
) -> None:
    name = unique.lower()
    await create_object(databases, DATABASE, name, {})
    async with await connect_superuser(postgres_server, name) as owner:
        for start in range(0, SCHEMA_COUNT, 500):
            statement = sql.SQL(
                "DO $$ BEGIN FOR each IN {} .. {} LOOP "
                "EXECUTE format('CREATE SCHEMA s%s CREATE VIEW v AS SELECT 1', each); "
                "EXECUTE format('GRANT USAGE ON SCHEMA s%s TO PUBLIC', each); "
                "EXECUTE format('GRANT SELECT ON s%s.v TO PUBLIC', each); "
                "END LOOP; END $$"
            )
            await owner.execute(statement.format(start, start + 499))
    provider = connect(GRANT, postgres_server.endpoint, timeout_seconds=2.0)
    objects = await listing(provider, Scope(prefix=f"public@{name}"))
    assert len(objects) >= 2 * SCHEMA_COUNT


async def test_a_role_that_takes_our_lock_does_not_block_writes(
    roles: Provider, superuser: Superuser, unique: str
) -> None:
    """Every role may take an advisory lock in a database that it may connect to."""
    await run(superuser, f"SELECT pg_advisory_lock({_LOCK})")
    try:
        async with asyncio.timeout(5):
            await create_object(roles, DATABASE_ROLE, unique, {})
    finally:
        await run(superuser, f"SELECT pg_advisory_unlock({_LOCK})")


async def test_a_tenants_missing_dependencies_are_not_server_errors(
    databases: Provider, roles: Provider, grants: Provider, superuser: Superuser, unique: str
) -> None:
    """Repeated errors of this kind must not open the server's breaker for other tenants."""
    name = unique.lower()
    await create_object(databases, DATABASE, name, {})
    await run(superuser, "CREATE ROLE {}", unique)
    attempts = [
        create_object(roles, DATABASE_ROLE, f"{unique}1", {"memberOf": ["no-such-role"]}),
        create_object(roles, DATABASE_ROLE, f"{unique}2", {"memberOf": ["postgres"]}),
        create_object(databases, DATABASE, f"{name}1", {"owner": "no-such-role"}),
        create_object(grants, GRANT, f"{unique}@{name}1", {"privileges": ["CONNECT"]}),
        create_object(grants, GRANT, f"{unique}@{name}/no-schema", {"privileges": ["USAGE"]}),
        create_object(grants, GRANT, f"{unique}@{name}/public/tables", {"privileges": ["SELECT"]}),
        create_object(grants, GRANT, f"no-such-role@{name}", {"privileges": ["CONNECT"]}),
    ]
    for attempt in attempts:
        with pytest.raises(NotDoneError) as caught:
            await attempt
        assert caught.value.status == HTTPStatus.CONFLICT, caught.value


# --- grants


async def test_privileges_on_all_tables_are_exact_and_partial_ones_are_detected(
    databases: Provider,
    grants: Provider,
    postgres_server: Postgres,
    superuser: Superuser,
    unique: str,
) -> None:
    name = unique.lower()
    await create_object(databases, DATABASE, name, {})
    await run(superuser, "CREATE ROLE {}", unique)
    grant_name = f"{unique}@{name}/public/tables"
    fields: Fields = {"privileges": ["SELECT", "INSERT"], "grantable": ["SELECT"]}
    expected = GRANT.check_fields(fields)
    with pytest.raises(NotDoneError, match=r"there is no object to grant privileges on yet"):
        await create_object(grants, GRANT, grant_name, fields)
    with psycopg.connect(
        host=str(postgres_server.socket),
        port=postgres_server.port,
        user="postgres",
        dbname=name,
        autocommit=True,
    ) as connection:
        connection.execute("CREATE TABLE a (); CREATE VIEW b AS SELECT 1; CREATE SEQUENCE c")
        grant = await create_object(grants, GRANT, grant_name, fields)
        assert drift(GRANT, grant, expected) == []
        connection.execute("CREATE TABLE d ()")
        grantee = sql.Identifier(unique)
        connection.execute(sql.SQL("GRANT DELETE ON a TO {}").format(grantee))
        connection.execute(
            sql.SQL("GRANT UPDATE ON ALL TABLES IN SCHEMA public TO {}").format(grantee)
        )
        changed = await read_object(grants, grant_name)
        assert drift(GRANT, changed, expected) == ["grantable", "partial", "privileges"]
        assert changed.fields["privileges"] == ["UPDATE"]
        assert changed.fields["partial"] == ["DELETE", "INSERT", "SELECT"]
        grant = await update_object(grants, GRANT, changed, fields)
        assert drift(GRANT, grant, expected) == []
        assert grant.uid == changed.uid
        assert grant_name in [
            each.name for each in await listing(grants, Scope(prefix=f"{unique}@"))
        ]
    await grants.delete(with_version_of(action("Delete", grant_name, {}), grant))
    assert await grants.read(grant_name) is None


async def test_default_privileges_of_all_roles_can_be_revoked(
    databases: Provider, grants: Provider, unique: str
) -> None:
    name = unique.lower()
    await create_object(databases, DATABASE, name, {})
    grant = await read_object(grants, f"public@{name}")
    assert grant.fields["privileges"] == ["CONNECT", "TEMPORARY"]
    updated_grant = await update_object(grants, GRANT, grant, {"privileges": ["TEMPORARY"]})
    assert updated_grant.fields["privileges"] == ["TEMPORARY"]
    await grants.delete(with_version_of(action("Delete", grant.name, {}), updated_grant))
    assert await grants.read(grant.name) is None


async def test_a_grant_by_another_role_is_named_and_nothing_is_revoked_partially(
    databases: Provider, grants: Provider, superuser: Superuser, unique: str
) -> None:
    name, grantor, grantee = unique.lower(), f"{unique}between", f"{unique}end"
    await create_object(databases, DATABASE, name, {})
    for role in (grantor, grantee):
        await run(superuser, "CREATE ROLE {}", role)
    first = await create_object(
        grants,
        GRANT,
        f"{grantor}@{name}",
        {"privileges": ["CREATE"], "grantable": ["CREATE"]},
    )
    await run(superuser, "SET ROLE {}", grantor)
    await run(superuser, "GRANT CREATE ON DATABASE {} TO {}", name, grantee)
    await run(superuser, "RESET ROLE")
    second = await read_object(grants, f"{grantee}@{name}")
    with pytest.raises(NotDoneError, match="a role other than the owner"):
        await grants.delete(with_version_of(action("Delete", second.name, {}), second))
    with pytest.raises(NotDoneError, match="dependent privileges exist"):
        await grants.delete(with_version_of(action("Delete", first.name, {}), first))
    assert await grants.read(first.name) == first
    assert await grants.read(second.name) == second


async def test_a_grant_without_its_role_or_database_waits(
    databases: Provider, grants: Provider, unique: str
) -> None:
    name = unique.lower()
    for grant_name in (f"{unique}@{name}", f"{unique}@{name}/public"):
        assert await grants.read(grant_name) is None
        with pytest.raises(NotDoneError, match=f"database '{name}' does not exist"):
            await create_object(grants, GRANT, grant_name, {"privileges": ["CREATE"]})
    await create_object(databases, DATABASE, name, {})
    for grant_name in (f"{unique}@{name}", f"{unique}@{name}/public"):
        with pytest.raises(NotDoneError, match=f"role '{unique}' does not exist"):
            await create_object(grants, GRANT, grant_name, {"privileges": ["CREATE"]})


@pytest.mark.parametrize(
    ("name", "fields", "reason"),
    [
        ("a@b", {"privileges": ["SELECT"]}, "SELECT cannot be granted"),
        ("a@b", {"privileges": ["CONNECT"], "role": "c"}, "spec.role: 'c' does not match"),
        ("a@b/s", {"privileges": ["USAGE"], "database": "c"}, "spec.database: 'c' does not match"),
        ("a@postgres", {"privileges": ["CONNECT"]}, "belongs to the server"),
        ("pg_monitor@b", {"privileges": ["CONNECT"]}, "reserved for the server"),
        ("a@b/pg_catalog", {"privileges": ["USAGE"]}, "belongs to the server"),
    ],
)
async def test_an_invalid_grant_is_refused(
    grants: Provider, name: str, fields: Fields, reason: str
) -> None:
    with pytest.raises(RefusedError, match=reason):
        await create_object(grants, GRANT, name, fields)


@pytest.mark.parametrize(
    "name", ["a", "@b", "a@", "a@b/", "a@b/c/d", "a@b/c/tables/x", "a/x@b", "a@b@c"]
)
def test_an_ambiguous_grant_name_is_refused(name: str) -> None:
    assert GRANT.name_problem(name) is not None


@pytest.mark.parametrize("name", ["a@b", "a@b/c", *(f"a@b/c/{each}" for each in PRIVILEGES)])
def test_a_grant_is_named_after_its_target(name: str) -> None:
    target = parse_target(name)
    assert (target is not None and target.name == name) is (
        name.rpartition("/")[2] not in ("database", "schema")
    )


# --- the connection


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://localhost",
        "postgresql://",
        "postgresql://u:p@h/db",
        "postgresql://h:0",
        "postgresql://h:99999",
        "postgresql://h/a/b",
        "postgresql://h/db?sslmode=disable",
        "",
    ],
)
def test_an_endpoint_that_cannot_be_called_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match="postgresql://USER@HOST"):
        parse_endpoint(endpoint)


def test_an_endpoint_names_a_host_a_folder_or_an_address() -> None:
    assert parse_endpoint("postgresql://u@[::1]:1/d") == ("[::1]", 1, "u", "d")
    assert parse_endpoint("postgresql://%2Frun%2FpostgreSQL") == (
        "/run/postgreSQL",
        5432,
        "postgres",
        "postgres",
    )


async def test_a_failed_login_is_reported_and_the_environment_is_ignored(
    postgres_server: Postgres, superuser: Superuser, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run(superuser, "CREATE ROLE {} LOGIN CREATEDB PASSWORD 'right'", unique)
    monkeypatch.setenv("PGPASSWORD", "right")
    endpoint = f"postgresql://{unique}@127.0.0.1:{postgres_server.port}/postgres"
    assert DATABASE.connect is not None
    for secret in (None, "wrong", "right"):
        provider = DATABASE.connect(
            ProviderConfigSpec("postgres", endpoint), Secrets(secret), CallPermit()
        )
        if secret == "right":
            await create_object(provider, DATABASE, unique.lower(), {"owner": unique})
        else:
            with pytest.raises(NotDoneError, match="password"):
                await provider.read("orders")
        await provider.close()


async def test_without_access_to_verifiers_the_last_written_digest_is_used(
    postgres_server: Postgres, secrets: Secrets, tmp_path: Path, superuser: Superuser, unique: str
) -> None:
    admin = f"{unique}admin"
    await run(superuser, "CREATE ROLE {} LOGIN CREATEROLE PASSWORD 'x'", admin)
    endpoint = f"postgresql://{admin}@127.0.0.1:{postgres_server.port}/postgres"
    stores = open_stores(tmp_path / "secrets")
    assert DATABASE_ROLE.connect is not None
    provider = DATABASE_ROLE.connect(
        ProviderConfigSpec("postgres", endpoint),
        Secrets("x", stores.by_name, key=stores.key),
        CallPermit(),
    )
    first = await secrets.store(SecretRef("app"), PASSWORD, "default")
    fields: Fields = {"login": True, "password": {"$secret": "app"}}
    role = await create_object(provider, DATABASE_ROLE, unique, fields)
    assert role.fields["password"] == {"secret": first.digest}
    assert await superuser.logs_in(unique, PASSWORD, "postgres")
    await secrets.store(SecretRef("app"), OTHER_PASSWORD, "default")
    role = await update_object(provider, DATABASE_ROLE, await read_object(provider, unique), fields)
    assert await superuser.logs_in(unique, OTHER_PASSWORD, "postgres")
    assert role.fields["password"] != {"secret": first.digest}
    await provider.delete(with_version_of(action("Delete", unique, {}), role))
    await provider.close()


async def test_the_provider_reconnects_after_a_server_restart(
    short_path: Path, connect: Connect
) -> None:
    server = Postgres()
    await server.start(short_path / "postgres")
    provider = connect(DATABASE, server.endpoint)
    assert await provider.read("orders") is None
    await server.stop()
    with pytest.raises(NotDoneError):
        await provider.read("orders")
    await server.start(short_path / "postgres")
    assert await provider.read("orders") is None
    await server.stop()


async def test_a_write_that_waits_for_a_lock_times_out(
    postgres_server: Postgres,
    databases: Provider,
    connect: Connect,
    superuser: Superuser,
    unique: str,
) -> None:
    """One tenant's session must not use up the connections that all tenants need."""
    name = unique.lower()
    existing = await create_object(databases, DATABASE, name, {})
    provider = connect(DATABASE, postgres_server.endpoint, timeout_seconds=2.0)
    await superuser.run(sql.SQL("BEGIN"))
    await run(superuser, "COMMENT ON DATABASE {} IS 'mine'", name)
    async with asyncio.timeout(1.5):
        with pytest.raises(NotDoneError, match="lock timeout") as caught:
            await update_object(provider, DATABASE, existing, {"connectionLimit": 3})
    assert caught.value.status == HTTPStatus.CONFLICT
    await superuser.run(sql.SQL("ROLLBACK"))


@pytest.mark.parametrize(
    ("error", "read_class", "write_class"),
    [
        (psycopg.OperationalError("gone"), "NotDone", "Unknown"),
        (psycopg.errors.AdminShutdown(), "NotDone", "Unknown"),
        (psycopg.errors.CrashShutdown(), "NotDone", "Unknown"),
        (psycopg.errors.IoError(), "NotDone", "Unknown"),
        (psycopg.errors.TooManyConnections(), "Throttled", "Throttled"),
        (psycopg.errors.QueryCanceled(), "NotDone", "NotDone"),
        (psycopg.errors.DeadlockDetected(), "NotDone", "NotDone"),
        (psycopg.errors.DiskFull(), "NotDone", "NotDone"),
        (psycopg.errors.ObjectInUse(), "NotDone", "NotDone"),
        (psycopg.errors.DependentObjectsStillExist(), "NotDone", "NotDone"),
        (psycopg.errors.ReadOnlySqlTransaction(), "NotDone", "NotDone"),
        (psycopg.errors.InsufficientPrivilege(), "NotDone", "NotDone"),
        (psycopg.errors.UndefinedObject(), "NotDone", "NotDone"),
        (psycopg.errors.InvalidSchemaName(), "NotDone", "NotDone"),
        (psycopg.errors.DuplicateObject(), "Conflict", "Conflict"),
        (psycopg.errors.DuplicateDatabase(), "Conflict", "Conflict"),
        (psycopg.errors.FeatureNotSupported(), "Refused", "Refused"),
        (psycopg.errors.InvalidParameterValue(), "Refused", "Refused"),
        (psycopg.errors.ReservedName(), "Refused", "Refused"),
        (psycopg.errors.InvalidGrantOperation(), "NotDone", "NotDone"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else each,
)
def test_errors_are_classified_by_their_sqlstate(
    error: psycopg.Error, read_class: str, write_class: str
) -> None:
    assert classify_error(error, may_be_done=False).error_class == read_class
    assert classify_error(error, may_be_done=True).error_class == write_class


@pytest.mark.parametrize(
    ("error", "is_about_the_server"),
    [
        (psycopg.errors.ObjectInUse(), False),
        (psycopg.errors.DependentObjectsStillExist(), False),
        (psycopg.errors.LockNotAvailable(), False),
        (psycopg.errors.InsufficientPrivilege(), False),
        (psycopg.errors.DiskFull(), True),
        (psycopg.errors.AdminShutdown(), True),
        (psycopg.errors.QueryCanceled(), True),
        (psycopg.errors.InternalError_(), True),
        (psycopg.errors.InternalError_("tuple concurrently updated"), False),
    ],
    ids=lambda each: f"{type(each).__name__} {each}" if isinstance(each, Exception) else str(each),
)
def test_only_an_error_about_the_server_counts_as_an_outage(
    error: psycopg.Error, is_about_the_server: bool
) -> None:
    assert (classify_error(error, may_be_done=False).status is None) is is_about_the_server


def test_a_full_database_does_not_throttle_other_databases() -> None:
    """Its owner sets the connection limit, and may use up all connections."""
    full = psycopg.OperationalError('FATAL:  too many connections for database "orders"')
    assert classify_connection_error(full).error_class == "NotDone"
    assert classify_connection_error(full).status == HTTPStatus.CONFLICT
    full = psycopg.OperationalError("FATAL:  sorry, too many clients already")
    assert classify_connection_error(full).error_class == "Throttled"


def test_the_kinds_load_without_psycopg_and_errors_name_the_package() -> None:
    program = (
        "import sys\n"
        "sys.modules['psycopg'] = None\n"
        "from reconciler.provider.kind import installed_kinds\n"
        "from reconciler.provider.secrets import Secrets\n"
        "from events.provider_config import ProviderConfigSpec\n"
        "from reconciler.errors import ConfigurationError\n"
        "from reconciler.provider.call_permit import CallPermit\n"
        "kinds = installed_kinds()\n"
        "for name in ('Database', 'DatabaseRole', 'Grant'):\n"
        "    config = ProviderConfigSpec('postgres', 'postgresql://h')\n"
        "    try: kinds[name].connect(config, Secrets(), CallPermit())\n"
        "    except ConfigurationError as error: print(error)\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert process.stdout.count("pip install 'event-sourced-reconciler[postgres]'") == 3
