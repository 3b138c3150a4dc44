"""What is special about PostgreSQL's kinds: passwords, halves, dependants, what is protected."""

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

pytestmark = [pytest.mark.postgres]

PASSWORD = "planted-pässwörd-with-'quotes\\-9d3b"
OTHER = "planted-another-password-5c11"
SCHEMAS = 5_000


@pytest.fixture
async def superuser(postgres_server: Postgres) -> AsyncIterator[Superuser]:
    one = Superuser(postgres_server)
    yield one
    await one.close()


@pytest.fixture
def short() -> Iterator[Path]:
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


def create(kind: Kind, name: str, fields: Fields):
    creation = action("Create", name, kind.check_fields(fields))
    return creation if kind is not GRANT else msgspec.structs.replace(creation, labels={})


async def create_object(
    provider: Provider, kind: Kind, name: str, fields: Fields
) -> ExternalObject:
    existing = (await provider.create(create(kind, name, fields))).object
    assert existing is not None
    return existing


async def updated(provider: Provider, kind: Kind, thing: ExternalObject, fields: Fields):
    update = action("Update", thing.name, kind.check_fields(fields))
    changed = (await provider.update(with_version_of(update, thing))).object
    assert changed is not None
    return changed


async def read_object(provider: Provider, name: str) -> ExternalObject:
    existing = await provider.read(name)
    assert existing is not None
    return existing


def drift(kind: Kind, thing: ExternalObject, fields: Fields) -> list[str]:
    labels = {} if kind is GRANT else LABELS
    return [each.path for each in differences(Wanted(fields, labels), thing, kind)]


async def run(superuser: Superuser, statement: str, *names: str) -> list[tuple[Any, ...]]:
    text = sql.SQL(statement)  # pyright: ignore[reportArgumentType] - a test's own
    return await superuser.run(text.format(*map(sql.Identifier, names)))


# --- passwords


async def test_a_password_is_set_and_shown_nowhere(
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
    role = await updated(roles, DATABASE_ROLE, changed, expected)
    assert await superuser.logs_in(unique, PASSWORD, "postgres")

    await run(superuser, "ALTER ROLE {} PASSWORD NULL", unique)
    assert drift(DATABASE_ROLE, await read_object(roles, unique), expected) == ["password.secret"]


async def test_what_is_right_is_not_written_again_and_a_digest_keeps_it(
    roles: Provider, secrets: Secrets, superuser: Superuser, unique: str
) -> None:
    await secrets.store(SecretRef("app"), PASSWORD, "default")
    fields: Fields = {"login": True, "password": {"$secret": "app"}}
    role = await create_object(roles, DATABASE_ROLE, unique, fields)
    query = sql.SQL("SELECT rolpassword FROM pg_authid WHERE rolname = {}").format(unique)
    verifier_before = await superuser.value(query)

    role = await updated(roles, DATABASE_ROLE, role, {**fields, "connectionLimit": 3})
    kept_action = action("Update", unique, {**role.fields, "connectionLimit": 4})
    role = (await roles.update(with_version_of(kept_action, role))).object
    assert role is not None
    assert await superuser.value(query) == verifier_before
    role = await updated(roles, DATABASE_ROLE, role, {"login": True})
    assert await superuser.value(query) is None, "no password is declared any more"
    assert "password" not in role.fields


async def test_a_generated_password_is_the_roles_own(
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
    lost_object = await read_object(roles, unique)
    assert drift(DATABASE_ROLE, lost_object, expected) == ["generatedPassword.isSet"]
    role = await updated(roles, DATABASE_ROLE, lost_object, fields)
    second = await secrets.value(SecretRef("made"), "default")
    assert first != second
    assert await superuser.logs_in(unique, second, "postgres")

    await roles.delete(with_version_of(action("Delete", unique, {}), role))
    assert await secrets.find(SecretRef("made"), "default") is None


async def test_another_kind_of_password_removes_the_generated_one(
    roles: Provider, secrets: Secrets, unique: str
) -> None:
    await secrets.store(SecretRef("app"), PASSWORD, "default")
    role = await create_object(
        roles, DATABASE_ROLE, unique, {"generatedPassword": {"name": "made"}}
    )
    await updated(roles, DATABASE_ROLE, role, {"password": {"$secret": "app"}})
    assert await secrets.find(SecretRef("made"), "default") is None
    assert await secrets.find(SecretRef("app"), "default") is not None


async def test_a_secret_that_is_missing_ends_no_listing(
    roles: Provider, secrets: Secrets, unique: str
) -> None:
    reference = await secrets.store(SecretRef("app"), PASSWORD, "default")
    await create_object(roles, DATABASE_ROLE, unique, {"password": {"$secret": "app"}})
    await secrets.remove(SecretRef("app"), "default")
    (role,) = await listing(roles, Scope(prefix=unique))
    assert role.fields["password"] == {"secret": reference.digest}, "nothing says otherwise"


async def test_a_secret_that_cannot_be_read_ends_no_listing(
    roles: Provider, secrets: Secrets, tmp_path: Path, unique: str
) -> None:
    """Such as one whose mode an operator has changed: the roles of other tenants are listed too."""
    reference = await secrets.store(SecretRef("app"), PASSWORD, "default")
    await create_object(roles, DATABASE_ROLE, unique, {"password": {"$secret": "app"}})
    (tmp_path / "secrets/default/app").chmod(0o644)
    (role,) = await listing(roles, Scope(prefix=unique))
    assert role.fields["password"] == {"secret": reference.digest}


@pytest.mark.parametrize(
    ("verifier", "password", "is_it"),
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
def test_a_verifier_that_is_none_is_of_no_password(
    verifier: str | None, password: str, is_it: bool
) -> None:
    assert matches_password(verifier, password) is is_it


async def test_a_verifier_of_too_many_iterations_is_replaced_without_a_check(
    roles: Provider, secrets: Secrets, superuser: Superuser, unique: str
) -> None:
    """A role may store any verifier of its own, and the check would take seconds."""
    verifier = f"SCRAM-SHA-256$2000000000:c2FsdA==${'A' * 43}=:{'A' * 43}="
    await secrets.store(SecretRef("app"), PASSWORD, "default")
    fields: Fields = {"login": True, "password": {"$secret": "app"}}
    await create_object(roles, DATABASE_ROLE, unique, fields)
    # By ALTER ROLE, PostgreSQL would compute whether it is the verifier of an empty password.
    change = sql.SQL("UPDATE pg_authid SET rolpassword = {} WHERE rolname = {}")
    await superuser.run(change.format(verifier, unique))
    role = await read_object(roles, unique)
    assert role.fields["password"] == {"secret": UNCHECKED_PASSWORD}
    await updated(roles, DATABASE_ROLE, role, fields)
    assert await superuser.logs_in(unique, PASSWORD, "postgres")


@pytest.mark.parametrize(
    "password", ["plain", PASSWORD, "ﬁ ⅸ", "\u00ad soft\u00a0space", "a\u0627b"]
)
async def test_verifiers_are_those_that_the_client_makes(
    superuser: Superuser, unique: str, password: str
) -> None:
    await run(superuser, "CREATE ROLE {}", unique)
    await superuser.run(
        sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(unique), password)
    )
    query = sql.SQL("SELECT rolpassword FROM pg_authid WHERE rolname = {}").format(unique)
    assert matches_password(await superuser.value(query), password)
    assert not matches_password(await superuser.value(query), password + "x")


# --- databases that are not finished


class Interrupted:
    """Does something before the call's request of that number."""

    may_send_now = False
    interval_seconds = 0.0

    def __init__(self, request: int, what: Callable[[], None]) -> None:
        self.remaining, self._what = request, what

    async def wait(self, *, has_priority: bool = False) -> None:
        self.remaining -= 1
        if self.remaining == 0:
            self._what()


def connect_synchronously(server: Postgres) -> psycopg.Connection[tuple[Any, ...]]:
    return psycopg.connect(
        host=str(server.socket), port=server.port, user="postgres", autocommit=True
    )


async def test_a_backend_that_is_killed_before_any_statement_leaves_nothing_unlabelled(
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
        creation = create(DATABASE, name, {"extensions": ["hstore"]})
        interrupted = Interrupted(request, kill)
        token = CALL_GATE.set(interrupted)
        try:
            await databases.create(creation)
        except (NotDoneError, UnknownResultError):
            half = await databases.read(name)
            assert half is None or half.written_by == creation.idempotency_key
        finally:
            CALL_GATE.reset(token)
        existing = (await databases.create(creation)).object
        assert existing is not None
        assert (existing.labels, existing.fields["extensions"]) == (LABELS, {"hstore": True})
        assert await listing(databases, Scope(prefix=UNFINISHED_PREFIX)) == []
        if interrupted.remaining > 0:
            break
    else:
        pytest.fail("a creation has no end")
    with connect_synchronously(postgres_server) as connection:
        query = "SELECT datname FROM pg_database WHERE starts_with(datname, %s)"
        assert connection.execute(query, [UNFINISHED_PREFIX]).fetchall() == []


async def test_a_server_that_is_killed_before_any_statement_leaves_nothing_unlabelled(
    short: Path, connect: Connect
) -> None:
    server = Postgres("fsync=off")  # what is killed has written: only a machine's crash loses
    await server.start(short / "postgres")
    provider = connect(DATABASE, server.endpoint)
    try:
        for request in range(1, 30):
            creation = create(DATABASE, f"db{request}", {})
            interrupted = Interrupted(request, lambda: os.kill(server.pid, 9))
            token = CALL_GATE.set(interrupted)
            try:
                await provider.create(creation)
            except (NotDoneError, UnknownResultError):
                pass
            finally:
                CALL_GATE.reset(token)
            if interrupted.remaining > 0:
                break
            await server.kill()
            await server.start(short / "postgres")
            existing = (await provider.create(creation)).object
            assert existing is not None
            assert existing.labels == LABELS
        else:
            pytest.fail("a creation has no end")
        assert await listing(provider, Scope(prefix=UNFINISHED_PREFIX)) == []
    finally:
        await server.stop()


async def test_a_client_that_takes_the_name_meanwhile_is_an_obstacle_and_nothing_else_remains(
    postgres_server: Postgres, databases: Provider, superuser: Superuser, unique: str
) -> None:
    name = unique.lower()

    def take() -> None:
        with connect_synchronously(postgres_server) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))

    token = CALL_GATE.set(Interrupted(5, take))
    creation = create(DATABASE, name, {})
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


async def test_what_was_given_up_is_dropped_by_the_next_action_or_shown_after_an_hour(
    databases: Provider, superuser: Superuser, unique: str
) -> None:
    name, labels = unique.lower(), {**LABELS, "run": unique}

    async def leave(key: str, since: datetime) -> str:
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
    await leave(f"{unique}1", now)
    assert await listing(databases, Scope(labels={"run": unique})) == []
    old = await leave(f"{unique}2", now - timedelta(seconds=LEFTOVER_SECONDS + 60))
    (leftover,) = await listing(databases, Scope(labels={"run": unique}))
    assert (leftover.name, leftover.labels) == (old, labels)

    creation = msgspec.structs.replace(create(DATABASE, name, {}), labels=labels)
    await databases.create(creation)
    (only,) = await listing(databases, Scope(labels={"run": unique}))
    assert only.name == name


# --- what is in the way


async def test_a_database_in_use_is_not_dropped_and_the_session_is_named(
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


async def test_a_role_with_dependants_is_kept_and_they_are_named(
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
    ("fields", "what"),
    [
        ({"owner": "nobody-of-this-name"}, r"does not exist yet"),
        ({"extensions": ["no_such_extension"]}, "install its package"),
        ({"encoding": "EUC_JP", "locale": "C.UTF-8"}, "EUC_JP"),
        ({"locale": "xx_XX.none"}, "xx_XX.none"),
        ({"template": "no_such_template"}, "no_such_template"),
    ],
)
async def test_what_cannot_be_made_leaves_nothing(
    databases: Provider, superuser: Superuser, unique: str, fields: Fields, what: str
) -> None:
    creation = create(DATABASE, unique.lower(), fields)
    with pytest.raises((RefusedError, NotDoneError), match=what):
        await databases.create(creation)
    query = sql.SQL("SELECT count(*) FROM pg_database WHERE datname IN ({}, {})")
    names = (unique.lower(), unfinished_name(creation.idempotency_key))
    assert await superuser.value(query.format(*names)) == 0


@pytest.mark.parametrize(
    "fields",
    [{"encoding": "utf_8", "locale": "C/C"}, {"encoding": "latin-1", "locale": "C"}],
)
async def test_another_way_to_write_an_encoding_or_a_locale_is_no_difference(
    databases: Provider, unique: str, fields: Fields
) -> None:
    existing = await create_object(databases, DATABASE, unique.lower(), fields)
    expected = DATABASE.check_fields(fields)
    assert {name: existing.fields[name] for name in fields} == {
        name: expected[name] for name in fields
    }


@pytest.mark.parametrize("encoding", ["LATIN-99", "ISO88591", "nonsense"])
def test_an_encoding_that_no_server_shows_is_refused(encoding: str) -> None:
    with pytest.raises(InvalidManifestError, match=encoding):
        DATABASE.check_fields({"encoding": encoding})


async def test_an_update_waits_for_an_extension_and_opens_a_closed_database(
    databases: Provider, unique: str
) -> None:
    existing = await create_object(databases, DATABASE, unique.lower(), {"allowConnections": False})
    assert not existing.fields["allowConnections"]
    with pytest.raises(NotDoneError, match="install its package"):
        await updated(
            databases, DATABASE, existing, {"extensions": ["none_such"], "allowConnections": True}
        )
    existing = await read_object(databases, existing.name)
    existing = await updated(databases, DATABASE, existing, {"extensions": ["hstore"]})
    assert existing.fields["extensions"] == {"hstore": True}
    closed = await updated(
        databases, DATABASE, existing, {"extensions": ["hstore"], "allowConnections": False}
    )
    assert closed.fields["extensions"] == {"hstore": True}, "as it was last written"
    assert DATABASE.describe_data_loss(DATABASE.check_fields({}), closed).endswith(": hstore")


async def test_text_that_users_write_into_a_comment_stays(
    databases: Provider, superuser: Superuser, unique: str
) -> None:
    name = unique.lower()
    await run(superuser, "CREATE DATABASE {}", name)
    await run(superuser, "COMMENT ON DATABASE {} IS 'Ask Ann.\n\nBefore you drop it.'", name)
    existing = await updated(databases, DATABASE, await read_object(databases, name), {})
    assert existing.labels == LABELS
    existing = await updated(databases, DATABASE, existing, {"connectionLimit": 3})
    query = sql.SQL("SELECT shobj_description(oid, 'pg_database') FROM pg_database")
    comment = await superuser.value(sql.SQL("{} WHERE datname = {}").format(query, name))
    assert comment.startswith("Ask Ann.\n\nBefore you drop it.\nreconciler: {")
    assert comment.count("reconciler: ") == 1


@pytest.mark.parametrize("comment", [None, "", "text", "reconciler: {", 'reconciler: {"key":1}'])
def test_a_comment_without_a_mark_is_text(comment: str | None) -> None:
    assert read_mark(comment, Mark) is None
    assert read_mark(replace_mark(comment, Mark("k")), Mark) == Mark("k")


# --- what is out of bounds


async def test_the_servers_own_is_never_listed_and_never_written(
    postgres_server: Postgres,
    databases: Provider,
    roles: Provider,
    superuser: Superuser,
    unique: str,
) -> None:
    await run(superuser, "CREATE ROLE {} SUPERUSER", unique)
    listed = [each.name for each in await listing(databases, Scope())]
    assert not {"postgres", "template0", "template1"} & set(listed)
    listed = [each.name for each in await listing(roles, Scope())]
    assert not {"postgres", unique} & set(listed)
    assert not any(each.startswith("pg_") for each in listed)
    for kind, provider, names in (
        (DATABASE, databases, ("postgres", "template0", "template1")),
        (DATABASE_ROLE, roles, ("postgres", unique, "pg_monitor", "public", "none")),
    ):
        for name in names:
            for call in (
                provider.create(create(kind, name, {})),
                provider.delete(action("Delete", name, {})),
                provider.update(action("Update", name, kind.check_fields({}))),
                provider.read(name),
            ):
                with pytest.raises(RefusedError):
                    await call


async def test_a_role_that_was_made_a_superuser_is_seen_and_made_an_ordinary_one(
    roles: Provider, superuser: Superuser, unique: str
) -> None:
    await create_object(roles, DATABASE_ROLE, unique, {})
    await run(superuser, "ALTER ROLE {} SUPERUSER", unique)
    (role,) = await listing(roles, Scope(prefix=unique))
    assert drift(DATABASE_ROLE, role, DATABASE_ROLE.check_fields({})) == ["superuser"]
    role = await updated(roles, DATABASE_ROLE, role, {})
    assert role.fields["superuser"] is False


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"superuser": True}, "must not be true"),
        ({"memberOf": ["pg_execute_server_program"]}, "equivalent to superuser"),
        ({"password": "planted"}, "not a string"),
        ({"password": {"$secret": "a"}, "generatedPassword": {"name": "b"}}, "set only one"),
        ({"generatedPassword": {"name": "../b"}}, "name of a secret"),
    ],
)
def test_what_no_role_may_be_is_refused_when_it_is_declared(fields: Fields, why: str) -> None:
    with pytest.raises(InvalidManifestError, match=why) as caught:
        DATABASE_ROLE.check_fields(fields)
    assert "planted" not in str(caught.value)


async def test_a_membership_that_would_make_a_superuser_is_refused(
    roles: Provider, unique: str
) -> None:
    with pytest.raises(NotDoneError, match="is a superuser"):
        await create_object(roles, DATABASE_ROLE, unique, {"memberOf": ["postgres"]})
    assert await roles.read(unique) is None


@pytest.mark.parametrize(
    ("above", "why"),
    [
        ("SUPERUSER", "is a member of '{}', which is a superuser"),
        ("IN ROLE pg_read_server_files", "is a member of 'pg_read_server_files', which is equiv"),
        ("CREATEROLE", "is a member of '{}', which has the privilege createRole"),
        ("REPLICATION", "is a member of '{}', which has the privilege replication"),
    ],
)
async def test_a_membership_that_leads_beyond_the_databases_is_refused(
    roles: Provider, superuser: Superuser, unique: str, above: str, why: str
) -> None:
    """A tenant's role would become a superuser by SET ROLE, or read the files of the machine."""
    top, middle = f"{unique}_top", f"{unique}_middle"
    await run(superuser, "CREATE ROLE {} " + above, top)
    await run(superuser, "CREATE ROLE {} IN ROLE {}", middle, top)
    with pytest.raises(NotDoneError, match=why.format(top)):
        await create_object(roles, DATABASE_ROLE, unique, {"memberOf": [middle]})
    assert await roles.read(unique) is None

    await run(
        superuser, "CREATE ROLE {} LOGIN IN ROLE {}", unique, middle
    )  # adopted, it is no better
    role = await read_object(roles, unique)
    with pytest.raises(NotDoneError, match=why.format(top)):
        await updated(roles, DATABASE_ROLE, role, {"login": True, "memberOf": [middle]})
    assert (await updated(roles, DATABASE_ROLE, role, {})).fields["memberOf"] == []


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


# --- tenants of one server


@pytest.mark.parametrize(
    "setting",
    [
        *("default_transaction_read_only=on", "local_preload_libraries=nothing"),
        *("lock_timeout=1", "statement_timeout=1", "search_path=nothing"),
        *("idle_session_timeout=1", "idle_in_transaction_session_timeout=1"),
    ],
)
async def test_the_owner_of_a_database_ends_no_listing(
    databases: Provider, grants: Provider, superuser: Superuser, unique: str, setting: str
) -> None:
    name, (variable, value) = unique.lower(), setting.split("=")
    await run(superuser, "CREATE ROLE {} LOGIN", unique)
    await create_object(databases, DATABASE, name, {"owner": unique, "extensions": ["hstore"]})
    await run(superuser, f"ALTER DATABASE {{}} SET {variable} = '{value}'", name)
    for _ in range(10):  # a limit of a millisecond is not always met
        assert [each.name for each in await listing(databases, Scope(prefix=name))] == [name]
        assert await listing(grants, Scope(prefix=f"public@{name}"))
    await create_object(grants, GRANT, f"{unique}@{name}/public", {"privileges": ["USAGE"]})


async def test_names_with_a_slash_give_no_two_grants_one_name(
    databases: Provider,
    grants: Provider,
    postgres_server: Postgres,
    unique: str,
) -> None:
    """A listing in which two objects have one name is refused, and with it those of all tenants."""
    name = unique.lower()
    for each in (name, f"{name}/public"):
        await create_object(databases, DATABASE, each, {})
    async with await connect_superuser(postgres_server, name) as owner:
        await owner.execute("CREATE FUNCTION public.f() RETURNS int LANGUAGE sql AS 'SELECT 1'")
        await owner.execute('CREATE SCHEMA "public/functions"')
        await owner.execute('GRANT USAGE ON SCHEMA "public/functions" TO PUBLIC')
    objects = [each.name for each in await listing(grants, Scope(prefix=f"public@{name}"))]
    assert sorted(objects) == [
        f"public@{name}{end}" for end in ("", "/public", "/public/functions")
    ]


async def test_a_database_whose_deletion_was_interrupted_ends_no_listing(
    databases: Provider, grants: Provider, superuser: Superuser, unique: str
) -> None:
    """Its owner may cancel a deletion: the server then accepts no connection."""
    name = unique.lower()
    await create_object(databases, DATABASE, name, {"extensions": ["hstore"]})
    await superuser.run(
        sql.SQL("UPDATE pg_database SET datconnlimit = -2 WHERE datname = {}").format(name)
    )
    assert [each.name for each in await listing(databases, Scope(prefix=name))] == [name]
    objects = await listing(grants, Scope(prefix=f"public@{name}"))
    assert [each.name for each in objects] == [f"public@{name}"]
    await run(superuser, "DROP DATABASE {}", name)


async def test_many_schemas_of_a_tenant_make_no_listing_slow(
    databases: Provider, connect: Connect, postgres_server: Postgres, unique: str
) -> None:
    name = unique.lower()
    await create_object(databases, DATABASE, name, {})
    async with await connect_superuser(postgres_server, name) as owner:
        for start in range(0, SCHEMAS, 500):
            many = sql.SQL(
                "DO $$ BEGIN FOR each IN {} .. {} LOOP "
                "EXECUTE format('CREATE SCHEMA s%s CREATE VIEW v AS SELECT 1', each); "
                "EXECUTE format('GRANT USAGE ON SCHEMA s%s TO PUBLIC', each); "
                "EXECUTE format('GRANT SELECT ON s%s.v TO PUBLIC', each); "
                "END LOOP; END $$"
            )
            await owner.execute(many.format(start, start + 499))
    impatient = connect(GRANT, postgres_server.endpoint, timeout_seconds=2.0)
    objects = await listing(impatient, Scope(prefix=f"public@{name}"))
    assert len(objects) >= 2 * SCHEMAS


async def test_a_role_that_takes_our_lock_stops_no_write(
    roles: Provider, superuser: Superuser, unique: str
) -> None:
    """Every role may take an advisory lock in a database that it may connect to."""
    await run(superuser, f"SELECT pg_advisory_lock({_LOCK})")
    try:
        async with asyncio.timeout(5):
            await create_object(roles, DATABASE_ROLE, unique, {})
    finally:
        await run(superuser, f"SELECT pg_advisory_unlock({_LOCK})")


async def test_what_a_tenant_waits_for_says_nothing_of_the_server(
    databases: Provider, roles: Provider, grants: Provider, superuser: Superuser, unique: str
) -> None:
    """Such errors in a row must not open the breaker of the server for other tenants."""
    name = unique.lower()
    await create_object(databases, DATABASE, name, {})
    await run(superuser, "CREATE ROLE {}", unique)
    attempts = [
        create_object(roles, DATABASE_ROLE, f"{unique}1", {"memberOf": ["nobody-there"]}),
        create_object(roles, DATABASE_ROLE, f"{unique}2", {"memberOf": ["postgres"]}),
        create_object(databases, DATABASE, f"{name}1", {"owner": "nobody-there"}),
        create_object(grants, GRANT, f"{unique}@{name}1", {"privileges": ["CONNECT"]}),
        create_object(grants, GRANT, f"{unique}@{name}/no-schema", {"privileges": ["USAGE"]}),
        create_object(grants, GRANT, f"{unique}@{name}/public/tables", {"privileges": ["SELECT"]}),
        create_object(grants, GRANT, f"nobody-there@{name}", {"privileges": ["CONNECT"]}),
    ]
    for attempt in attempts:
        with pytest.raises(NotDoneError) as caught:
            await attempt
        assert caught.value.status == HTTPStatus.CONFLICT, caught.value


# --- grants


async def test_privileges_on_all_tables_are_exact_and_uneven_ones_are_seen(
    databases: Provider,
    grants: Provider,
    postgres_server: Postgres,
    superuser: Superuser,
    unique: str,
) -> None:
    name = unique.lower()
    await create_object(databases, DATABASE, name, {})
    await run(superuser, "CREATE ROLE {}", unique)
    place = f"{unique}@{name}/public/tables"
    fields: Fields = {"privileges": ["SELECT", "INSERT"], "grantable": ["SELECT"]}
    expected = GRANT.check_fields(fields)
    with pytest.raises(NotDoneError, match=r"there is no object yet to grant privileges on"):
        await create_object(grants, GRANT, place, fields)
    with psycopg.connect(
        host=str(postgres_server.socket),
        port=postgres_server.port,
        user="postgres",
        dbname=name,
        autocommit=True,
    ) as by_hand:
        by_hand.execute("CREATE TABLE a (); CREATE VIEW b AS SELECT 1; CREATE SEQUENCE c")
        grant = await create_object(grants, GRANT, place, fields)
        assert drift(GRANT, grant, expected) == []
        by_hand.execute("CREATE TABLE d ()")
        grantee = sql.Identifier(unique)
        by_hand.execute(sql.SQL("GRANT DELETE ON a TO {}").format(grantee))
        by_hand.execute(
            sql.SQL("GRANT UPDATE ON ALL TABLES IN SCHEMA public TO {}").format(grantee)
        )
        changed = await read_object(grants, place)
        assert drift(GRANT, changed, expected) == ["grantable", "partial", "privileges"]
        assert changed.fields["privileges"] == ["UPDATE"]
        assert changed.fields["partial"] == ["DELETE", "INSERT", "SELECT"]
        grant = await updated(grants, GRANT, changed, fields)
        assert drift(GRANT, grant, expected) == []
        assert grant.uid == changed.uid
        assert place in [each.name for each in await listing(grants, Scope(prefix=f"{unique}@"))]
    await grants.delete(with_version_of(action("Delete", place, {}), grant))
    assert await grants.read(place) is None


async def test_default_privileges_of_all_roles_can_be_revoked(
    databases: Provider, grants: Provider, unique: str
) -> None:
    name = unique.lower()
    await create_object(databases, DATABASE, name, {})
    public = await read_object(grants, f"public@{name}")
    assert public.fields["privileges"] == ["CONNECT", "TEMPORARY"]
    only = await updated(grants, GRANT, public, {"privileges": ["TEMPORARY"]})
    assert only.fields["privileges"] == ["TEMPORARY"]
    await grants.delete(with_version_of(action("Delete", public.name, {}), only))
    assert await grants.read(public.name) is None


async def test_what_another_role_granted_is_named_and_nothing_is_done_by_halves(
    databases: Provider, grants: Provider, superuser: Superuser, unique: str
) -> None:
    name, between, end = unique.lower(), f"{unique}between", f"{unique}end"
    await create_object(databases, DATABASE, name, {})
    for role in (between, end):
        await run(superuser, "CREATE ROLE {}", role)
    first = await create_object(
        grants,
        GRANT,
        f"{between}@{name}",
        {"privileges": ["CREATE"], "grantable": ["CREATE"]},
    )
    await run(superuser, "SET ROLE {}", between)
    await run(superuser, "GRANT CREATE ON DATABASE {} TO {}", name, end)
    await run(superuser, "RESET ROLE")
    second = await read_object(grants, f"{end}@{name}")
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
    for place in (f"{unique}@{name}", f"{unique}@{name}/public"):
        assert await grants.read(place) is None
        with pytest.raises(NotDoneError, match=f"database '{name}' does not exist"):
            await create_object(grants, GRANT, place, {"privileges": ["CREATE"]})
    await create_object(databases, DATABASE, name, {})
    for place in (f"{unique}@{name}", f"{unique}@{name}/public"):
        with pytest.raises(NotDoneError, match=f"role '{unique}' does not exist"):
            await create_object(grants, GRANT, place, {"privileges": ["CREATE"]})


@pytest.mark.parametrize(
    ("place", "fields", "why"),
    [
        ("a@b", {"privileges": ["SELECT"]}, "SELECT cannot be granted"),
        ("a@b", {"privileges": ["CONNECT"], "role": "c"}, "spec.role: 'c' does not match"),
        ("a@b/s", {"privileges": ["USAGE"], "database": "c"}, "spec.database: 'c' does not match"),
        ("a@postgres", {"privileges": ["CONNECT"]}, "belongs to the server"),
        ("pg_monitor@b", {"privileges": ["CONNECT"]}, "reserved for the server"),
        ("a@b/pg_catalog", {"privileges": ["USAGE"]}, "belongs to the server"),
    ],
)
async def test_a_grant_that_cannot_be_is_refused(
    grants: Provider, place: str, fields: Fields, why: str
) -> None:
    with pytest.raises(RefusedError, match=why):
        await create_object(grants, GRANT, place, fields)


@pytest.mark.parametrize(
    "name", ["a", "@b", "a@", "a@b/", "a@b/c/d", "a@b/c/tables/x", "a/x@b", "a@b@c"]
)
def test_a_grants_name_can_be_read_in_one_way_only(name: str) -> None:
    assert GRANT.name_problem(name) is not None


@pytest.mark.parametrize("name", ["a@b", "a@b/c", *(f"a@b/c/{each}" for each in PRIVILEGES)])
def test_a_grants_name_is_that_of_its_target(name: str) -> None:
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


async def test_a_failed_login_is_reported_and_the_environment_is_not_read(
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


async def test_without_access_to_verifiers_the_last_written_digest_counts(
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
    await secrets.store(SecretRef("app"), OTHER, "default")
    role = await updated(provider, DATABASE_ROLE, await read_object(provider, unique), fields)
    assert await superuser.logs_in(unique, OTHER, "postgres")
    assert role.fields["password"] != {"secret": first.digest}
    await provider.delete(with_version_of(action("Delete", unique, {}), role))
    await provider.close()


async def test_a_server_that_was_restarted_is_found_again(short: Path, connect: Connect) -> None:
    server = Postgres()
    await server.start(short / "postgres")
    provider = connect(DATABASE, server.endpoint)
    assert await provider.read("orders") is None
    await server.stop()
    with pytest.raises(NotDoneError):
        await provider.read("orders")
    await server.start(short / "postgres")
    assert await provider.read("orders") is None
    await server.stop()


async def test_a_write_that_waits_for_a_lock_ends_in_time(
    postgres_server: Postgres,
    databases: Provider,
    connect: Connect,
    superuser: Superuser,
    unique: str,
) -> None:
    """The session of one tenant must not use the connections that all tenants need."""
    name = unique.lower()
    existing = await create_object(databases, DATABASE, name, {})
    impatient = connect(DATABASE, postgres_server.endpoint, timeout_seconds=2.0)
    await superuser.run(sql.SQL("BEGIN"))
    await run(superuser, "COMMENT ON DATABASE {} IS 'mine'", name)
    async with asyncio.timeout(1.5):
        with pytest.raises(NotDoneError, match="lock timeout") as caught:
            await updated(impatient, DATABASE, existing, {"connectionLimit": 3})
    assert caught.value.status == HTTPStatus.CONFLICT
    await superuser.run(sql.SQL("ROLLBACK"))


@pytest.mark.parametrize(
    ("error", "a_read", "a_write"),
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
def test_errors_are_classified_by_their_state(
    error: psycopg.Error, a_read: str, a_write: str
) -> None:
    assert classify_error(error, may_be_done=False).error_class == a_read
    assert classify_error(error, may_be_done=True).error_class == a_write


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
def test_only_an_error_about_the_server_says_that_it_is_down(
    error: psycopg.Error, is_about_the_server: bool
) -> None:
    assert (classify_error(error, may_be_done=False).status is None) is is_about_the_server


def test_a_full_database_throttles_no_other() -> None:
    """Its owner sets the limit, and may use all connections of it."""
    full = psycopg.OperationalError('FATAL:  too many connections for database "orders"')
    assert classify_connection_error(full).error_class == "NotDone"
    assert classify_connection_error(full).status == HTTPStatus.CONFLICT
    full = psycopg.OperationalError("FATAL:  sorry, too many clients already")
    assert classify_connection_error(full).error_class == "Throttled"


def test_the_kinds_load_without_psycopg_and_their_providers_say_what_to_install() -> None:
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
