"""Clients of a PostgreSQL server outside the reconciler."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from infra.components.postgres import Postgres

Connection = psycopg.AsyncConnection[tuple[Any, ...]]


async def connect_superuser(server: Postgres, database: str = "postgres") -> Connection:
    """Connect as the superuser; each statement takes effect immediately."""
    return await psycopg.AsyncConnection.connect(
        host=str(server.socket), port=server.port, user="postgres", dbname=database, autocommit=True
    )


class Superuser:
    """A superuser with a permanent connection, and logins of other roles over TCP."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self._connection: Connection | None = None

    async def run(self, statement: sql.SQL | sql.Composed) -> list[tuple[Any, ...]]:
        if self._connection is None or self._connection.closed:
            self._connection = await connect_superuser(self._server)
        while True:
            try:
                cursor = await self._connection.execute(statement)
            except psycopg.errors.InternalError as error:
                # No lock is held, so statements of other sessions may run first.
                if "concurrently" not in str(error):
                    raise
            else:
                return await cursor.fetchall() if cursor.description else []

    async def value(self, query: sql.SQL | sql.Composed) -> Any:
        rows = await self.run(query)
        return rows[0][0] if rows else None

    async def connect(self, role: str, password: str, database: str) -> Connection:
        return await psycopg.AsyncConnection.connect(
            host="127.0.0.1",
            port=self._server.port,
            user=role,
            password=password,
            dbname=database,
            autocommit=True,
        )

    async def logs_in(self, role: str, password: str, database: str) -> bool:
        try:
            connection = await self.connect(role, password, database)
        except psycopg.OperationalError:
            return False
        await connection.close()
        return True

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
