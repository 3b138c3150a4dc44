"""Dead letters on a real stream: a namespace's share, and the count of the rest."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from nats.aio.client import Client

from events.dead_letter import MAX_COUNTS, OTHERS, Discarded, count_discarded
from events.subjects import DISCARDED, NO_NAMESPACE, deadletter_filter, namespace_of
from infra.bus.dead_letters import discard, read_discarded, read_letters, store_letters
from infra.bus.streams import DEADLETTERS, RATES
from infra.jetstream.connection import api_request, connect
from infra.jetstream.publish import publish
from infra.jetstream.reads import read_subject, stream_state
from infra.jetstream.topology import delete_stream
from reconciler.ports import DeadLetter, IntakeDelivery

MAX_BYTES = 1024**2
QUARTER = MAX_BYTES // 4
TIMEOUT_SECONDS = 60.0
positions = itertools.count(1)


@pytest.fixture
async def small_bus(bus: Client) -> AsyncIterator[Client]:
    """A bus that has no dead letters, and capacity for only a few.

    Its stream is recreated. A server that updates the duplicate window of a stream may remember
    earlier message ids for the old window: it wakes the timer that forgets them before it stores
    the new window, and on a busy machine the timer is faster (nats-server 2.15, `stream.go`).
    """
    config = (await stream_state(bus, DEADLETTERS)).config
    await api_request(bus, f"STREAM.PURGE.{RATES}", {})
    await delete_stream(bus, DEADLETTERS)
    limited = {**config, "max_bytes": MAX_BYTES, "duplicate_window": 100_000_000}
    await api_request(bus, f"STREAM.CREATE.{DEADLETTERS}", limited)
    yield bus
    await delete_stream(bus, DEADLETTERS)
    await api_request(bus, f"STREAM.CREATE.{DEADLETTERS}", config)


def letter(
    namespace: str = "acme", *, size: int = 10, dedup_key: str = "", usable: bool = False
) -> DeadLetter:
    """Return a dead letter for a new message; the server drops duplicates in the window."""
    subject = f"in.0.desired.{namespace}.Shape.x"
    content = f"of {size}" if dedup_key else ""
    delivery = IntakeDelivery(next(positions), subject, b"x" * size, "", None, 1, None)
    return DeadLetter("intake", "no", delivery, dedup_key, content, usable)


async def used_bytes(nc: Client, namespace: str) -> int:
    """Return the bytes that the letters of a namespace use."""
    filters = deadletter_filter(namespace)
    return sum(
        len(each.payload) + len(each.subject) + 100
        for each in await read_subject(nc, DEADLETTERS, filters)
    )


async def counts(nc: Client) -> dict[str, int]:
    return {each.namespace: each.count for each in await read_discarded(nc)}


@pytest.mark.parametrize("size", [10, 600, 5_000, 100_000])
async def test_a_namespace_gets_a_quarter_of_the_bytes_and_leaves_the_rest_to_others(
    small_bus: Client, size: int
) -> None:
    for _ in range(2):
        assert await store_letters(small_bus, [letter(size=size) for _ in range(400)]) == []
    assert await store_letters(small_bus, [letter("other", size=size)]) == []

    stored = await read_letters(small_bus)
    used = await used_bytes(small_bus, "acme")
    assert QUARTER / 3 < used <= QUARTER
    assert await used_bytes(small_bus, "other") > 0
    assert await counts(small_bus) == {"acme": 800 - (len(stored.letters) - 1)}


async def test_concurrent_writers_stay_near_the_quarter(
    small_bus: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.bus.dead_letters._CHUNK_BYTES", 8 * 1024)
    batches = [[letter(size=600) for _ in range(300)] for _ in range(3)]
    await asyncio.gather(*(store_letters(small_bus, batch) for batch in batches))
    used = await used_bytes(small_bus, "acme")
    assert used <= QUARTER + 2 * 8 * 1024
    assert await counts(small_bus) == {"acme": 900 - len((await read_letters(small_bus)).letters)}


async def test_usable_letters_wait_and_are_not_counted(small_bus: Client) -> None:
    await store_letters(small_bus, [letter(size=5_000) for _ in range(100)])
    counts_before = await counts(small_bus)
    usable = [letter(size=5_000, usable=True) for _ in range(100)]
    assert len(await store_letters(small_bus, usable)) >= 80
    assert await counts(small_bus) == counts_before


async def test_a_full_stream_returns_the_letters_that_do_not_fit_and_keeps_the_rest(
    small_bus: Client,
) -> None:
    many = [letter(f"n{number}", size=50_000) for number in range(40)]
    waiting = await store_letters(small_bus, many)
    stored = (await read_letters(small_bus)).letters
    assert 0 < len(waiting) == len(many) - len(stored)
    assert await counts(small_bus) == {}


async def test_a_dead_letter_is_stored_again_when_its_newest_copy_differs(
    small_bus: Client,
) -> None:
    async def sizes() -> list[int]:
        return [each.size for each in (await read_letters(small_bus)).letters.values()]

    for size in (10, 10, 20_000, 20_000):
        await store_letters(small_bus, [letter(size=size, dedup_key="x")])
    assert await sizes() == [10, 20_000]
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while len(await sizes()) < 3:  # the server drops a repeat within the window
            await store_letters(small_bus, [letter(size=10, dedup_key="x")])
    assert await sizes() == [10, 20_000, 10]


async def test_dead_letters_with_the_former_subjects_are_read(small_bus: Client) -> None:
    await publish(small_bus, "deadletter.intake", b"{}")
    await publish(small_bus, "deadletter.intake.0123456789abcdef", b"{}")
    await store_letters(small_bus, [letter()])
    assert len((await read_letters(small_bus)).letters) == 3


async def test_concurrent_counts_are_not_lost(small_bus: Client, module_bus_url: str) -> None:
    others = [await connect(module_bus_url, name="another decider") for _ in range(3)]
    batches = [[letter(), letter("other")] for _ in range(20)]
    await asyncio.gather(*(discard(others[at % 3], batch) for at, batch in enumerate(batches)))
    assert await counts(small_bus) == {"acme": 20, "other": 20}
    for each in others:
        await each.close()


async def test_a_count_that_another_client_overwrote_starts_at_zero(small_bus: Client) -> None:
    await publish(small_bus, DISCARDED, b"not ours")
    await discard(small_bus, [letter()])
    assert await counts(small_bus) == {"acme": 1}


def test_arbitrary_namespaces_use_a_bounded_row() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    discarded_counts: list[Discarded] = []
    for number in range(1_000):
        at = start + timedelta(seconds=number)
        more = [(f"n{number}", "intake"), ("acme", "intake"), ("acme", "declaration")]
        discarded_counts = list(count_discarded(discarded_counts, more, at))
    assert len(discarded_counts) == MAX_COUNTS
    assert sum(each.count for each in discarded_counts) == 3_000
    others_count = next(each for each in discarded_counts if each.namespace == OTHERS)
    assert (others_count.first_at, others_count.count) == (start, 1_000 - MAX_COUNTS + 3)
    acme_counts = {each.stage: each.count for each in discarded_counts if each.namespace == "acme"}
    assert acme_counts == {"intake": 1_000, "declaration": 1_000}


@pytest.mark.parametrize(
    ("subject", "namespace"),
    [
        ("in.3.desired.acme.Shape.foo", "acme"),
        ("in.3.wished.acme.Shape.foo", "acme"),
        ("rec.observed.acme.Shape.foo", "acme"),
        ("log.acme.Shape.foo.action", "acme"),
        ("in.3.desired.a*.Shape.foo", NO_NAMESPACE),
        ("in.3.desired.=.Shape.foo", NO_NAMESPACE),
        ("rec.desired.acme.Shape.foo.bar", NO_NAMESPACE),
        ("rec", NO_NAMESPACE),
        ("listing.default.Shape.x", NO_NAMESPACE),
    ],
)
def test_the_namespace_is_read_from_the_subject(subject: str, namespace: str) -> None:
    assert namespace_of(subject) == namespace
