"""What the client needs of the bus: a narrow protocol, implemented in ``infra.bus.client_bus``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from events.dead_letter import DeadLetterRecord, Discarded, LetterHandled
from events.intake import Answer, SnapshotPart
from events.names import ShapeKey
from reconciler.ports import IntakeMessageOut, StoredEvent


class OutcomeFeed(Protocol):
    """Outcomes in order, as they come."""

    async def next_outcomes(self) -> Sequence[StoredEvent]:
        """Wait for outcomes; their positions are those of the outcome stream. May be empty."""
        ...

    async def done(self, position: int) -> None:
        """Say that an outcome was dealt with; only a durable feed remembers it."""
        ...


class ClientBus(Protocol):
    """What a client can do on the bus.

    Every method may raise the implementation's ``BusError``; what is unknown is tried again inside.
    """

    async def store(self, messages: Sequence[IntakeMessageOut], *, timeout_seconds: float) -> None:
        """Store messages in the intake; raises ``TimeoutError`` where it is unknown."""
        ...

    async def ask(
        self, messages: Sequence[IntakeMessageOut], *, timeout_seconds: float
    ) -> Sequence[Answer | None]:
        """Store messages and wait for the decider's answers; None for those that did not come."""
        ...

    async def dead_letters(
        self, *, most: int | None = None
    ) -> tuple[Mapping[int, DeadLetterRecord], Sequence[LetterHandled]]:
        """Read the dead letters by number, or about the newest, and what was done about them."""
        ...

    async def discarded(self) -> Sequence[Discarded]:
        """Read how many messages got no dead letter."""
        ...

    async def letter_handled(self, handled: LetterHandled) -> None:
        """Write down what was done about a dead letter."""
        ...

    async def publish_again(
        self, subject: str, payload: bytes, message_id: str, *, answer_seconds: float
    ) -> tuple[int, Answer | None]:
        """Store a message of the intake as it is; give its position, and the answer if it comes."""
        ...

    @property
    def source(self) -> str:
        """Who publishes."""
        ...

    async def last_intake_position(self) -> int:
        """Return the intake's last position: the logical time of now."""
        ...

    async def store_snapshot_parts(self, subject: str, parts: Sequence[SnapshotPart]) -> None:
        """Store parts of a snapshot in this order."""
        ...

    def outcomes(
        self, tokens: Sequence[str], *, after: int | None
    ) -> AbstractAsyncContextManager[OutcomeFeed]:
        """Follow outcomes of patterns ``namespace.kind.name``; after=None: from now on."""
        ...

    def durable_outcomes(
        self, tokens: str, *, after: int | None, durable: str
    ) -> AbstractAsyncContextManager[OutcomeFeed]:
        """Follow outcomes with a consumer of that name that remembers what was dealt with."""
        ...

    async def last_outcomes(self, keys: Sequence[ShapeKey]) -> Sequence[StoredEvent]:
        """Read each shape's newest outcome, where it has one, with its place in the outcome stream.

        The position is 0 for what that has no more, or has not got yet from the log.
        """
        ...

    async def history(self, key: ShapeKey) -> Sequence[StoredEvent]:
        """Read every event of one shape."""
        ...

    def replay(
        self, tokens: str, *, after: int, follow: bool
    ) -> AsyncGenerator[Sequence[StoredEvent]]:
        """Read the log in batches from behind a position, to its end or for ever."""
        ...

    async def row(self, name: str) -> bytes | None:
        """Read one row of the read models."""
        ...

    async def rows(self, pattern: str) -> Mapping[str, bytes]:
        """Read the rows whose names match a pattern with wildcards."""
        ...
