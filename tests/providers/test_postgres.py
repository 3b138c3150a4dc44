"""The provider contract, for PostgreSQL's kinds on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import ClassVar

import psycopg
import pytest
from psycopg import sql

from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields
from events.provider_config import Scope
from infra.components.postgres import Postgres
from infra.providers.postgres.database import DATABASE
from infra.providers.postgres.grant import GRANT
from infra.providers.postgres.role import DATABASE_ROLE
from reconciler.provider import Effect, Provider
from reconciler.provider.call_permit import CALL_GATE
from reconciler.provider.contract import Connect, ProviderContract
from tests.postgres import connect_superuser

pytestmark = [pytest.mark.postgres]


class TestDatabases(ProviderContract):
    kind = DATABASE
    fields: ClassVar[Fields] = {
        "owner": "postgres",
        "encoding": "utf-8",
        "locale": "C.UTF-8",
        "extensions": ["plpgsql", "hstore"],
    }
    other_fields: ClassVar[Fields] = {**fields, "extensions": ["citext"], "connectionLimit": 7}
    refused_fields: ClassVar[Fields] = {"locale": "xx_XX.nowhere"}

    @pytest.fixture
    def endpoint(self, postgres_server: Postgres) -> str:
        return postgres_server.endpoint


class TestDatabaseRoles(ProviderContract):
    kind = DATABASE_ROLE
    fields: ClassVar[Fields] = {"login": True, "memberOf": ["pg_monitor", "pg_signal_backend"]}
    other_fields: ClassVar[Fields] = {
        "createDatabase": True,
        "connectionLimit": 3,
        "validUntil": "2040-01-02T03:04:05+02:00",
        "memberOf": ["pg_monitor", "pg_checkpoint"],
    }
    refused_fields: ClassVar[Fields] = {"memberOf": ["no_such_role"]}

    @pytest.fixture
    def endpoint(self, postgres_server: Postgres) -> str:
        return postgres_server.endpoint


class SchemaCreatingProvider:
    """A provider that recreates the schema before each create: a new schema is a new object."""

    def __init__(self, provider: Provider, server: Postgres) -> None:
        self._provider = provider
        self._server = server
        self._created_for: set[str] = set()

    async def create(self, action: Action) -> Effect:
        name = action.external_name
        if GRANT.name_problem(name) is None and action.idempotency_key not in self._created_for:
            permit = CALL_GATE.set(None)  # not a request by the provider
            exists = await self._provider.read(name) is not None
            CALL_GATE.reset(permit)
            self._created_for.add(action.idempotency_key)
            if not exists:
                _, database, schema = name.replace("@", "/").split("/")
                target = sql.Identifier(schema)
                async with await connect_superuser(self._server, database) as connection:
                    await connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {}").format(target))
                    await connection.execute(sql.SQL("CREATE SCHEMA {}").format(target))
        return await self._provider.create(action)

    async def update(self, action: Action) -> Effect:
        return await self._provider.update(action)

    async def delete(self, action: Action) -> Effect:
        return await self._provider.delete(action)

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        return await self._provider.read(external_name, uid)

    def pages(self, scope: Scope, *, page_size: int) -> AsyncIterator[Sequence[ExternalObject]]:
        return self._provider.pages(scope, page_size=page_size)

    async def close(self) -> None:
        await self._provider.close()


class TestGrants(ProviderContract):
    kind = GRANT
    fields: ClassVar[Fields] = {"privileges": ["USAGE"]}
    other_fields: ClassVar[Fields] = {"privileges": ["USAGE", "CREATE"], "grantable": ["USAGE"]}
    refused_fields: ClassVar[Fields] = {"privileges": ["SELECT"]}

    @pytest.fixture
    def endpoint(self, postgres_server: Postgres) -> str:
        return postgres_server.endpoint

    @pytest.fixture
    async def name(self, postgres_server: Postgres, unique: str) -> str:
        async with await connect_superuser(postgres_server) as connection:
            await connection.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(unique)))
            with suppress(psycopg.errors.DuplicateDatabase):
                await connection.execute("CREATE DATABASE granting")
        return f"{unique}@granting/s"

    @pytest.fixture
    def provider(self, postgres_server: Postgres, endpoint: str, connect: Connect) -> Provider:
        return SchemaCreatingProvider(connect(endpoint), postgres_server)
