"""A decider's messages other than its events: all are stored, or the whole batch fails."""

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from nats.aio.client import Client

from events.intake import Reply
from events.names import ResourceKey
from events.subjects import fired, schedule
from infra.bus.decision_sink import JetStreamDecisionSink
from infra.bus.streams import DEADLETTERS, INTAKE, REJECTIONS, TIMERS
from infra.jetstream.connection import api_request
from infra.jetstream.errors import StreamFullError
from infra.jetstream.publish import publish
from infra.jetstream.reads import read_subject, stream_state
from infra.jetstream.wire import subscribe
from reconciler.ports import DeadLetter, IntakeDelivery, Rejection, TimerRequest
from tests.bus.histories import new_key

TIMEOUT_SECONDS = 10
LATER = datetime.now(UTC) + timedelta(hours=1)


@asynccontextmanager
async def allow_more_messages(bus: Client, stream: str, messages: int) -> AsyncGenerator[None]:
    """Limit a stream to the given number of additional messages."""
    state = await stream_state(bus, stream)
    limit = {"max_msgs": state.messages + messages, "discard": "new"}
    await api_request(bus, f"STREAM.UPDATE.{stream}", {**state.config, **limit})
    try:
        yield
    finally:
        await api_request(bus, f"STREAM.UPDATE.{stream}", state.config)


def rejection(key: ResourceKey, position: int) -> Rejection:
    reply = Reply(False, "Invalid", 0, position, "not valid")
    return Rejection(key, reply, "test", datetime.now(UTC))


async def build_dead_letter(bus: Client, key: ResourceKey) -> DeadLetter:
    """Return a dead letter for a message in the intake."""
    at = (await publish(bus, f"rec.desired.{key.tokens}", b"x", msg_id=uuid.uuid4().hex)).seq
    subject = f"in.0.desired.{key.tokens}"
    delivery = IntakeDelivery(at, subject, b"x", "", None, 1, None)
    return DeadLetter("intake", "not valid", delivery)


async def test_each_resource_has_its_own_timer(bus: Client) -> None:
    own_key = new_key()
    same_names = [
        own_key,
        ResourceKey("other", own_key.kind, own_key.name),
        ResourceKey("default", "Record", own_key.name),
    ]
    await JetStreamDecisionSink(bus).set_timers([TimerRequest(key, LATER) for key in same_names])
    for key in same_names:
        [stored] = await read_subject(bus, TIMERS, schedule(key, "retry"))
        assert (stored.headers or {})["Nats-Schedule-Target"] == fired(key)


async def test_a_refusal_that_was_not_stored_is_a_failure(bus: Client) -> None:
    sink, key = JetStreamDecisionSink(bus), new_key()
    refused = [rejection(key, position) for position in (1, 2, 3)]
    await publish(bus, f"rejection.{new_key().tokens}", b"x")
    async with allow_more_messages(bus, REJECTIONS, 2):
        with pytest.raises(StreamFullError):
            await sink.reject(refused)
    assert len(await read_subject(bus, REJECTIONS, f"rejection.{key.tokens}")) == 2


async def test_a_message_that_the_bus_cannot_store_does_not_block_others(bus: Client) -> None:
    """A decider retries a batch that was not stored, and this message would always fail."""
    sink, key = JetStreamDecisionSink(bus), new_key()
    oversized = Reply(False, "Invalid", 0, 1, "x" * (bus.max_payload + 1))
    await sink.reject([Rejection(key, oversized, "test", datetime.now(UTC)), rejection(key, 2)])
    assert len(await read_subject(bus, REJECTIONS, f"rejection.{key.tokens}")) == 1

    reply_received: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    inbox = bus.new_inbox()
    await subscribe(bus, inbox, lambda _reply: reply_received.set_result(None))
    short = Reply(True, "Accepted", 1, 1)
    await sink.send_replies([(f"_INBOX.{'a' * 4_000}", short), (inbox, oversized), (inbox, short)])
    await asyncio.wait_for(reply_received, TIMEOUT_SECONDS)


async def test_a_message_with_a_possible_secret_is_erased_once_its_dead_letter_is_stored(
    bus: Client,
) -> None:
    sink, key = JetStreamDecisionSink(bus), ResourceKey("system", "ProviderConfig", new_key().name)
    await sink.store_dead_letters([await build_dead_letter(bus, new_key())])
    refused = await build_dead_letter(bus, key)
    async with allow_more_messages(bus, DEADLETTERS, 0):
        assert await sink.store_dead_letters([refused]) == [refused]
        assert await read_subject(bus, INTAKE, f"in.*.desired.{key.tokens}")
    assert not await sink.store_dead_letters([refused])
    assert not await read_subject(bus, INTAKE, f"in.*.desired.{key.tokens}")


async def test_a_flood_of_possible_secrets_does_not_block_the_decider(bus: Client) -> None:
    """An erasure takes the server about 20 ms, and only operators declare resources in `system`."""
    namespace, name = new_key().namespace, new_key().name
    keys = {
        owner: [ResourceKey(owner, "ProviderConfig", f"{name}-{n}") for n in range(30)]
        for owner in (namespace, "system")
    }
    refused = [await build_dead_letter(bus, key) for owned in keys.values() for key in owned]
    assert not await JetStreamDecisionSink(bus).store_dead_letters(refused)
    remaining_by_owner = {
        owner: sum(
            [bool(await read_subject(bus, INTAKE, f"in.*.desired.{key.tokens}")) for key in owned]
        )
        for owner, owned in keys.items()
    }
    assert remaining_by_owner["system"] == 0
    assert 15 <= remaining_by_owner[namespace] <= 25
