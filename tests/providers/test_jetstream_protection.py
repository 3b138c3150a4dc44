"""No manifest may declare or delete the product's own streams, consumers and buckets."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client

from events.manifest import InvalidManifestError
from events.provider_config import Scope
from infra.bus.permissions import ALL_STREAMS
from infra.bus.streams import (
    INTAKE,
    LOG,
    ROWS,
    decider_consumers,
    ensure_topology,
    ensure_worker_consumer,
)
from infra.embedded import EmbeddedServer
from infra.jetstream.connection import api_request, close
from infra.jetstream.connection import connect as connect_to_bus
from infra.jetstream.topology import consumer_names
from infra.providers.jetstream.bucket import BUCKET
from infra.providers.jetstream.consumer import CONSUMER
from infra.providers.jetstream.stream import STREAM
from infra.providers.jetstream.subjects import OWN_SUBJECTS, SERVER_SUBJECTS, overlap
from reconciler.errors import RefusedError
from reconciler.provider import WatchingProvider
from reconciler.provider.contract import action, listing
from reconciler.provider.kind import Kind
from tests.providers.connect import Connect

EVERYTHING = Scope(mode="Exclusive")
OWN = [
    *((STREAM, name) for name in ALL_STREAMS if name != ROWS),
    (BUCKET, ROWS.removeprefix("KV_")),
    *((CONSUMER, f"{INTAKE}/{name}") for name in decider_consumers()),
    (CONSUMER, f"{LOG}/workers=default"),
    (CONSUMER, f"{LOG}/another"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer()
    asyncio.run(server.start(tmp_path_factory.mktemp("bus")))
    yield server
    asyncio.run(server.stop())


@pytest.fixture
async def bus(server: EmbeddedServer) -> AsyncIterator[Client]:
    client = await connect_to_bus(server.url, name="test")
    await ensure_topology(client)
    await ensure_worker_consumer(client, "default")
    yield client
    await close(client)


async def read_contents(bus: Client) -> list[object]:
    """Return the configurations of all streams on the bus, and their consumers."""
    streams = (await api_request(bus, "STREAM.LIST", None))["streams"]
    names = [stream["config"]["name"] for stream in streams]
    consumers = [await consumer_names(bus, name) for name in names]
    return [[stream["config"] for stream in streams], consumers]


@pytest.mark.parametrize(("kind", "name"), OWN)
async def test_the_products_own_objects_are_refused_and_kept(
    bus: Client, server: EmbeddedServer, connect: Connect, kind: Kind, name: str
) -> None:
    contents_before = await read_contents(bus)
    provider = connect(kind, server.url)
    fields = kind.check_fields({"subjects": ["mine"]} if kind is STREAM else {})

    for call in (
        provider.create(action("Create", name, fields)),
        provider.update(action("Update", name, fields)),
        provider.delete(action("Delete", name, {})),
        provider.read(name),
    ):
        with pytest.raises(RefusedError, match="belongs to Reconciler"):
            await call
    assert await read_contents(bus) == contents_before


@pytest.mark.parametrize("kind", [STREAM, BUCKET, CONSUMER], ids=lambda kind: kind.name)
async def test_the_products_own_objects_are_outside_every_scope(
    bus: Client, server: EmbeddedServer, connect: Connect, kind: Kind
) -> None:
    assert await listing(connect(kind, server.url), EVERYTHING) == []


async def test_only_the_products_own_streams_have_the_mark(
    bus: Client, server: EmbeddedServer, connect: Connect
) -> None:
    streams = (await api_request(bus, "STREAM.LIST", None))["streams"]
    marked_names = {
        stream["config"]["name"] for stream in streams if "reconciler-own" in str(stream)
    }
    assert marked_names == set(ALL_STREAMS)

    provider = connect(STREAM, server.url)
    effect = await provider.create(
        action("Create", "MINE", STREAM.check_fields({"subjects": ["m"]}))
    )
    assert await listing(provider, EVERYTHING) == [effect.object]
    await provider.delete(action("Delete", "MINE", {}))


async def test_a_stream_from_an_earlier_release_is_given_the_mark(bus: Client) -> None:
    config = (await api_request(bus, f"STREAM.INFO.{ROWS}", None))["config"]
    await api_request(bus, f"STREAM.UPDATE.{ROWS}", {**config, "metadata": {}})
    assert (await ensure_topology(bus)).changes[ROWS] == "updated"
    assert (await ensure_topology(bus)).changes[ROWS] == "unchanged"


@pytest.mark.parametrize("kind", [STREAM, BUCKET, CONSUMER], ids=lambda kind: kind.name)
async def test_the_products_own_changes_are_not_reported(
    bus: Client, server: EmbeddedServer, connect: Connect, kind: Kind
) -> None:
    """Otherwise each start of one of its consumers would trigger a listing."""
    feed = connect(kind, server.url, timeout_seconds=2)
    assert isinstance(feed, WatchingProvider)
    await listing(feed, EVERYTHING)
    mark = await feed.changes(None)

    body = {"stream_name": LOG, "config": {"durable_name": "reader"}}
    await api_request(bus, f"CONSUMER.CREATE.{LOG}.reader", body)
    await api_request(bus, f"CONSUMER.DELETE.{LOG}.reader", None)
    config = (await api_request(bus, f"STREAM.INFO.{ROWS}", None))["config"]
    await api_request(bus, f"STREAM.UPDATE.{ROWS}", config)

    assert await feed.changes(mark) == mark


async def test_a_stream_that_lost_its_mark_is_still_protected(
    bus: Client, server: EmbeddedServer, connect: Connect
) -> None:
    for stream in ALL_STREAMS:
        config = (await api_request(bus, f"STREAM.INFO.{stream}", None))["config"]
        await api_request(bus, f"STREAM.UPDATE.{stream}", {**config, "metadata": {}})
    try:
        for kind in (STREAM, BUCKET, CONSUMER):
            assert await listing(connect(kind, server.url), EVERYTHING) == []
        with pytest.raises(RefusedError, match="belongs to Reconciler"):
            await connect(STREAM, server.url).delete(action("Delete", INTAKE, {}))
    finally:
        await ensure_topology(bus)


# --- subjects


@pytest.mark.parametrize("subject", ["log.x", "$MQTT.sess.>", "$KV.mine.>", "_INBOX.a"])
async def test_a_stream_with_reserved_subjects_is_outside_every_scope(
    nats_server: EmbeddedServer, nc: Client, connect: Connect, unique: str, subject: str
) -> None:
    """Another client or the server created it."""
    await api_request(nc, f"STREAM.CREATE.{unique}", {"name": unique, "subjects": [subject]})
    try:
        provider = connect(STREAM, nats_server.url)
        assert await listing(provider, Scope(prefix=unique)) == []
        with pytest.raises(RefusedError, match="overlaps"):
            await provider.delete(action("Delete", unique, {}))
    finally:
        await api_request(nc, f"STREAM.DELETE.{unique}", None)


@pytest.mark.parametrize(
    "subject", [*OWN_SUBJECTS, *SERVER_SUBJECTS, ">", "*.>", "*.x", "*", "$KV.mine.>"]
)
def test_subjects_of_the_product_and_the_server_are_refused_when_declared(subject: str) -> None:
    with pytest.raises(InvalidManifestError, match="overlaps"):
        STREAM.check_fields({"subjects": ["mine.>", subject]})


def test_every_subject_of_the_products_streams_is_reserved() -> None:
    first = {subject.split(".")[0] for subject in OWN_SUBJECTS}
    assert first >= {"rec", "in", "log", "rejection", "listing", "state", "sched", "fired", "rate"}
    assert first >= {"deadletter", "discarded", "$KV"}


@pytest.mark.parametrize("subject", ["", "a..b", ".a", "a.", "a b", "a.>.b", ">.a", "a\n", "é\x00"])
def test_an_invalid_subject_is_refused(subject: str) -> None:
    with pytest.raises(InvalidManifestError, match="is not a subject"):
        STREAM.check_fields({"subjects": [subject]})


tokens = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=4)
filters = st.one_of(tokens, tokens.map(lambda parts: [*parts, ">"])).map(".".join)
SUBJECTS = [
    ".".join(parts) for length in range(1, 7) for parts in itertools.product("ab", repeat=length)
]


def matches(subject: str, pattern: str) -> bool:
    """Match like the server, but with a regular expression."""
    expression = re.escape(pattern).replace(r"\*", "[^.]+").replace(">", ".+")
    return re.fullmatch(expression, subject) is not None


@given(filters, filters)
def test_two_filters_overlap_if_a_subject_matches_both(first: str, second: str) -> None:
    expected = any(matches(subject, first) and matches(subject, second) for subject in SUBJECTS)
    assert overlap(first, second) == overlap(second, first) == expected
