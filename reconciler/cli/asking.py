"""Ask the decider about shapes, and give one result each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from events.intake import Answer
from events.names import ShapeKey
from reconciler.cli.client import client_of
from reconciler.cli.connection import Connection
from reconciler.cli.results import Result, result_of
from reconciler.client.client import Client
from reconciler.errors import DeclarationRefusedError

Told = Answer | DeclarationRefusedError


async def ask_many(
    connection: Connection,
    keys: Sequence[ShapeKey],
    ask: Callable[[Client], Awaitable[Sequence[Told]]],
) -> list[Result]:
    """Ask about many shapes at once; raises ``BusError`` and ``ConfigurationError``."""
    async with client_of(connection) as client:
        answers = await ask(client)
    return [result_of(key, answer) for key, answer in zip(keys, answers, strict=True)]


async def ask_one(
    connection: Connection, key: ShapeKey, ask: Callable[[Client], Awaitable[Answer]]
) -> Result:
    """Ask about one shape; a refusal is its result. Raises as ``ask_many``."""
    async with client_of(connection) as client:
        try:
            told: Told = await ask(client)
        except DeclarationRefusedError as refused:
            told = refused
    return result_of(key, told)
