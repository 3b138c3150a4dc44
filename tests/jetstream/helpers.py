import asyncio
from collections.abc import Awaitable, Callable

from infra.jetstream.deliveries import Delivered
from infra.jetstream.follow import Follower
from infra.jetstream.outgoing import OutgoingMessage
from infra.jetstream.pull import PullGroup
from infra.jetstream.reads import StoredMessage

TIMEOUT_SECONDS = 60


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition is true."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not await condition():  # noqa: ASYNC110 - polls a server
            await asyncio.sleep(0.02)


async def collect(follower: Follower, count: int) -> list[StoredMessage]:
    messages: list[StoredMessage] = []
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while len(messages) < count:
            messages += await anext(follower)
    return messages


async def pull(group: PullGroup, count: int) -> list[Delivered]:
    messages: list[Delivered] = []
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while len(messages) < count:
            messages += await group.next_batch()
    return messages


def message(
    subject: str, payload: bytes = b"x", expected_filter: str | None = None, expected_last: int = 0
) -> OutgoingMessage:
    return OutgoingMessage(subject, payload, None, expected_filter, expected_last)
