"""PostgreSQL's kinds on each supported version of the server."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from psycopg import sql

from events.external import ExternalObject
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec
from infra.components.postgres import Postgres
from infra.providers.postgres.database import DATABASE
from infra.providers.postgres.grant import GRANT
from infra.providers.postgres.role import DATABASE_ROLE
from reconciler.provider import Provider
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.contract import LABELS, action, with_version_of
from reconciler.provider.kind import Kind
from reconciler.provider.secrets import Secrets
from reconciler.resource.difference import Wanted, differences
from tests.folders import short_folder
from tests.needs import skip_unless_in_ci
from tests.postgres import Superuser
from tests.postgres_versions import (
    VERSIONS,
    WHEELS,
    find_programs,
    installation_of,
    version_problem,
)

pytestmark = pytest.mark.postgres

NEWEST = max(VERSIONS)
PASSWORD = "of-a-login-with-createrole"


def _version(version: int) -> Any:
    """Return a parameter. The newest version runs in the tier `ci`, the others in `night`."""
    marks = [pytest.mark.tier("ci")] if version == NEWEST else []
    return pytest.param(version, marks=marks, id=str(version))


@pytest.fixture(scope="module", params=map(_version, VERSIONS))
def server(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """A server of each version. Its account must reach the programs, so they are copied."""
    version: int = request.param
    if problem := version_problem(version):
        skip_unless_in_ci(problem)
    with short_folder() as folder:
        folder.chmod(0o755)
        programs = find_programs(installation_of(version))
        if version in WHEELS:
            shutil.copytree(installation_of(version), folder / "programs")
            programs = find_programs(folder / "programs")
        started = Postgres("fsync=off", programs=programs)
        asyncio.run(started.start(folder / "postgres"))
        yield started
        asyncio.run(started.stop())


@pytest.fixture
async def superuser(server: Postgres) -> AsyncIterator[Superuser]:
    opened = Superuser(server)
    yield opened
    await opened.close()


@asynccontextmanager
async def provider_of(kind: Kind, endpoint: str, password: str | None = None):
    assert kind.connect is not None
    secrets = Secrets(password, {}, key=b"k" * 32)
    provider = kind.connect(ProviderConfigSpec("postgres", endpoint), secrets, CallPermit())
    try:
        yield provider
    finally:
        await provider.close()


@pytest.fixture
async def roles(server: Postgres) -> AsyncIterator[Provider]:
    async with provider_of(DATABASE_ROLE, server.endpoint) as provider:
        yield provider


async def create(provider: Provider, name: str, kind: Kind = DATABASE_ROLE, **fields: Any):
    creation = action("Create", name, kind.check_fields(fields))
    if kind is GRANT:
        creation = msgspec.structs.replace(creation, labels={})
    created = (await provider.create(creation)).object
    assert created is not None
    return created


async def read(provider: Provider, name: str) -> ExternalObject:
    existing = await provider.read(name)
    assert existing is not None
    return existing


async def update(provider: Provider, name: str, **fields: Any) -> ExternalObject:
    """Write the declared fields, as the worker does after drift."""
    existing = await read(provider, name)
    write = action("Update", name, DATABASE_ROLE.check_fields(fields))
    updated = (await provider.update(with_version_of(write, existing))).object
    assert updated is not None
    return updated


def drift(existing: ExternalObject, **fields: Any) -> list[str]:
    wanted = Wanted(DATABASE_ROLE.check_fields(fields), LABELS)
    return [each.path for each in differences(wanted, existing, DATABASE_ROLE)]


async def run(superuser: Superuser, statement: str, *names: str) -> list[tuple[Any, ...]]:
    query = sql.SQL(statement)  # pyright: ignore[reportArgumentType] - a test's own
    return await superuser.run(query.format(*map(sql.Identifier, names)))


async def run_as(superuser: Superuser, role: str, statement: str, *names: str) -> None:
    await run(superuser, "SET ROLE {}", role)
    try:
        await run(superuser, statement, *names)
    finally:
        await run(superuser, "RESET ROLE")


async def has_options(superuser: Superuser) -> bool:
    return int(await superuser.value(sql.SQL("SHOW server_version_num"))) >= 160_000


CREATOR: Fields = {"login": True, "createRole": True}


async def test_each_kind_is_created_and_matches_its_declaration(
    server: Postgres, roles: Provider, unique: str
) -> None:
    name, reader = unique.lower(), f"{unique}-reader".lower()
    declared: Fields = {"login": True, "memberOf": ["pg_monitor"]}
    assert drift(await create(roles, name, **declared), **declared) == []
    changed: Fields = {
        "createDatabase": True,
        "inherit": False,
        "memberOf": ["pg_signal_backend"],
    }
    assert drift(await update(roles, name, **changed), **changed) == []
    await create(roles, reader)
    async with provider_of(DATABASE, server.endpoint) as databases:
        database = {"owner": name, "connectionLimit": 3}
        existing = await create(databases, name, DATABASE, **database)
        wanted = Wanted(DATABASE.check_fields(database), LABELS)
        assert differences(wanted, existing, DATABASE) == ()
        assert await read(databases, name) == existing
    async with provider_of(GRANT, server.endpoint) as grants:
        privileges = {"privileges": ["CONNECT"]}
        grant = await create(grants, f"{reader}@{name}", GRANT, **privileges)
        wanted = Wanted(GRANT.check_fields(privileges), {})
        assert differences(wanted, grant, GRANT) == ()


async def test_what_the_server_grants_to_the_creator_of_a_role_is_no_drift(
    roles: Provider, superuser: Superuser, unique: str
) -> None:
    creator, child = unique.lower(), f"{unique}-child".lower()
    await create(roles, creator, **CREATOR)
    await run_as(superuser, creator, "CREATE ROLE {}", child)
    assert drift(await read(roles, creator), **CREATOR) == []

    # A correction of other drift does not take what the role created from it.
    await run(superuser, "ALTER ROLE {} CONNECTION LIMIT 3", creator)
    await run(superuser, "GRANT pg_monitor TO {}", creator)
    assert drift(await read(roles, creator), **CREATOR) == ["connectionLimit", "memberOf"]
    assert drift(await update(roles, creator, **CREATOR), **CREATOR) == []
    await run_as(superuser, creator, "ALTER ROLE {} CONNECTION LIMIT 5", child)


async def test_what_a_creator_grants_itself_is_no_drift(
    roles: Provider, superuser: Superuser, unique: str
) -> None:
    if not await has_options(superuser):
        pytest.skip("before version 16, no server has createrole_self_grant")
    creator, child = unique.lower(), f"{unique}-child".lower()
    await create(roles, creator, **CREATOR)
    await run(superuser, "ALTER ROLE {} SET createrole_self_grant = 'set, inherit'", creator)
    await run(superuser, "SET createrole_self_grant = 'set, inherit'")
    await run_as(superuser, creator, "CREATE ROLE {}", child)
    assert drift(await read(roles, creator), **CREATOR) == []


async def test_a_declared_membership_in_a_created_role_is_granted_and_only_that_is_revoked(
    roles: Provider, superuser: Superuser, unique: str
) -> None:
    creator, child = unique.lower(), f"{unique}-child".lower()
    await create(roles, creator, **CREATOR)
    await run_as(superuser, creator, "CREATE ROLE {}", child)
    member = {**CREATOR, "memberOf": [child]}
    assert drift(await read(roles, creator), **member) == ["memberOf"]
    assert drift(await update(roles, creator, **member), **member) == []
    is_member = sql.SQL("SELECT pg_has_role({}, {}, 'USAGE')").format(creator, child)
    assert await superuser.value(is_member) is True
    assert drift(await update(roles, creator, **CREATOR), **CREATOR) == []
    assert await superuser.value(is_member) is False
    await run_as(superuser, creator, "ALTER ROLE {} CONNECTION LIMIT 5", child)


async def test_the_option_to_administer_a_predefined_or_superuser_role_is_drift(
    roles: Provider, superuser: Superuser, unique: str
) -> None:
    """With the ADMIN option alone, the role could grant itself the membership at any time."""
    if not await has_options(superuser):
        pytest.skip("before version 16, grants have no options")
    creator, root = unique.lower(), f"{unique}-root".lower()
    await create(roles, creator, **CREATOR)
    await run(superuser, "CREATE ROLE {} SUPERUSER", root)
    for parent in (root, "pg_write_server_files"):
        grant = "GRANT {} TO {} WITH ADMIN TRUE, INHERIT FALSE, SET FALSE"
        await run(superuser, grant, parent, creator)
    existing = await read(roles, creator)
    assert existing.fields["memberOf"] == sorted([root, "pg_write_server_files"])
    assert drift(await update(roles, creator, **CREATOR), **CREATOR) == []


async def test_a_superuser_revokes_what_other_roles_granted(
    roles: Provider, superuser: Superuser, unique: str
) -> None:
    member, parent, between = (f"{unique}-{each}".lower() for each in ("m", "p", "b"))
    await create(roles, member)
    for role in (parent, between):
        await run(superuser, "CREATE ROLE {}", role)
    await run(superuser, "GRANT {} TO {} WITH ADMIN OPTION", parent, between)
    await run_as(superuser, between, "GRANT {} TO {}", parent, member)
    assert drift(await read(roles, member)) == ["memberOf"]
    assert drift(await update(roles, member)) == []


async def test_a_membership_that_cannot_be_revoked_does_not_block_the_others(
    server: Postgres, superuser: Superuser, unique: str
) -> None:
    login, member, own, other = (f"{unique}-{each}".lower() for each in ("l", "m", "o", "x"))
    create_login = sql.SQL("CREATE ROLE {} LOGIN CREATEROLE PASSWORD {}")
    await superuser.run(create_login.format(sql.Identifier(login), PASSWORD))
    endpoint = f"postgresql://{login}@127.0.0.1:{server.port}/postgres"
    async with provider_of(DATABASE_ROLE, endpoint, PASSWORD) as roles:
        await create(roles, own)
        await create(roles, member, memberOf=[own])
        superusers = [] if await has_options(superuser) else ["SUPERUSER"]
        await run(superuser, " ".join(["CREATE ROLE {}", *superusers]), other)
        await run(superuser, "GRANT {} TO {}", other, member)
        updated = await update(roles, member, connectionLimit=3)
        assert updated.fields["connectionLimit"] == 3
        assert updated.fields["memberOf"] == [other], "the other one is revoked"
        explanation = DATABASE_ROLE.explain_kept(DATABASE_ROLE.check_fields({}), updated)
        assert f"revoke these memberships as a superuser or as their grantor: {other} (" in (
            explanation
        )
        if await has_options(superuser):
            assert "granted by postgres" in explanation
        await run(superuser, "REVOKE {} FROM {}", other, member)
        existing = await read(roles, member)
        assert drift(existing, connectionLimit=3) == []
        assert "unrevocableMemberships" not in existing.outputs
