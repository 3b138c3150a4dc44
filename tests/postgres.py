"""Who uses a PostgreSQL server by hand, past the reconciler."""

from __future__ import annotations

from typing import Any

import psycopg

from infra.components.postgres import Postgres


async def hands(
    server: Postgres, database: str = "postgres"
) -> psycopg.AsyncConnection[tuple[Any, ...]]:
    """Connect as the superuser; each statement takes effect at once."""
    return await psycopg.AsyncConnection.connect(
        host=str(server.socket), port=server.port, user="postgres", dbname=database, autocommit=True
    )
