"""JetStream's own objects: changes in place, data loss, foreign objects, and advisories."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client

from events.external import ExternalObject
from events.manifest import Fields, InvalidManifestError
from events.provider_config import Scope
from infra.embedded import EmbeddedServer
from infra.jetstream.connection import api_request
from infra.providers.jetstream.api import to_nanoseconds, to_seconds
from infra.providers.jetstream.bucket import BUCKET
from infra.providers.jetstream.consumer import CONSUMER
from infra.providers.jetstream.stream import STREAM
from reconciler.errors import ConflictError, NotDoneError, RefusedError, UnreadableObjectsError
from reconciler.provider import WatchingProvider
from reconciler.provider.contract import action, listing
from reconciler.provider.kind import Kind, installed_kinds
from tests.providers.connect import Connect, action_on

CHANGES: Mapping[str, Iterable[tuple[str, Any, Any]]] = {
    "Stream": [
        ("allowDirect", False, True),
        ("compression", "none", "s2"),
        ("description", "a", "b"),
        ("discard", "old", "new"),
        ("duplicateWindowSeconds", 10, 20),
        ("maxAgeSeconds", 600, 1200),
        ("maxBytes", 1_000, 2_000),
        ("maxMessageBytes", 100, 200),
        ("maxMessages", 10, 20),
        ("maxMessagesPerSubject", 10, 20),
        ("retention", "limits", "interest"),
        ("retention", "limits", "workqueue"),
        ("retention", "interest", "workqueue"),
        ("storage", "file", "memory"),
        ("subjects", ["{}.a"], ["{}.b"]),
    ],
    "Bucket": [
        ("compression", "none", "s2"),
        ("description", "a", "b"),
        ("history", 2, 5),
        ("maxBytes", 1_000, 2_000),
        ("maxValueBytes", 100, 200),
        ("storage", "file", "memory"),
        ("ttlSeconds", 60, 90),
    ],
    "Consumer": [
        ("ackPolicy", "explicit", "all"),
        ("ackPolicy", "explicit", "none"),
        ("ackWaitSeconds", 10, 20),
        ("backoffSeconds", [1], [2, 3]),
        ("deliverPolicy", "all", "new"),
        ("deliverPolicy", "last", "last_per_subject"),
        ("description", "a", "b"),
        ("filterSubjects", ["a"], ["a", "b"]),
        ("filterSubjects", ["a", "b"], []),
        ("headersOnly", False, True),
        ("maxAckPending", 10, 20),
        ("maxDeliver", 10, 20),
        ("maxWaiting", 10, 20),
        ("memoryStorage", False, True),
        ("replayPolicy", "instant", "original"),
        ("replicas", 0, 1),
        ("startSequence", 5, 6),
        ("startTime", "2026-01-01T00:00:00+02:00", "2026-01-02T00:00:00Z"),
    ],
}
ONLY_IN_A_CLUSTER = {("Stream", "replicas"), ("Bucket", "replicas")}
DERIVED_FIELDS = {("Stream", "isWorkQueue"), ("Consumer", "stream")}
KINDS = {kind.name: kind for kind in (STREAM, BUCKET, CONSUMER)}


def with_required_fields(kind: Kind, field: str, value: Any, subject: str) -> Fields:
    fields: Fields = {"subjects": [subject]} if kind is STREAM else {}
    if field == "subjects":
        value = [each.format(subject) for each in value]
    if field == "backoffSeconds":
        fields["maxDeliver"] = 10
    if field in ("startSequence", "startTime"):
        fields["deliverPolicy"] = "by_start_" + field.removeprefix("start").lower()
    if field == "deliverPolicy" and value == "last_per_subject":
        fields["filterSubjects"] = ["a"]
    return kind.check_fields({**fields, field: value})


@pytest.fixture
async def consumer_name(nc: Client, unique: str) -> str:
    """Create a stream, and return the name of a consumer on it."""
    config = {"name": f"{unique}on", "subjects": [f"{unique}on.>"]}
    await api_request(nc, f"STREAM.CREATE.{unique}on", config)
    return f"{unique}on/c"


@pytest.mark.parametrize(
    ("kind", "change"),
    [(KINDS[name], change) for name, changes in CHANGES.items() for change in changes],
    ids=[f"{name}-{field}" for name, changes in CHANGES.items() for field, _, _ in changes],
)
async def test_the_server_updates_all_but_immutable_fields_in_place(
    nats_server: EmbeddedServer,
    connect: Connect,
    unique: str,
    consumer_name: str,
    kind: Kind,
    change: tuple[str, Any, Any],
) -> None:
    field, before, after = change
    provider = connect(kind, nats_server.url)
    object_name = consumer_name if kind is CONSUMER else unique
    first = with_required_fields(kind, field, before, unique)
    second = with_required_fields(kind, field, after, unique)
    created_object = (await provider.create(action("Create", object_name, first))).object
    paths = first.keys() | second.keys()
    changed_paths = {path for path in paths if first.get(path) != second.get(path)}

    if changed_paths & kind.immutable:
        with pytest.raises(RefusedError, match=r"can ?not be updated|can not change"):
            await provider.update(action_on("Update", created_object, second))
        assert await provider.read(object_name) == created_object
    else:
        updated_object = (await provider.update(action_on("Update", created_object, second))).object
        assert updated_object is not None
        assert updated_object.fields == second


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_field_has_a_change(kind: Kind) -> None:
    covered_fields = {(kind.name, field) for field, _, _ in CHANGES[kind.name]}
    all_fields = {(kind.name, field.encode_name) for field in msgspec.structs.fields(kind.schema)}
    assert covered_fields | ONLY_IN_A_CLUSTER | DERIVED_FIELDS >= all_fields


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
async def test_an_undeclared_field_with_the_servers_default_does_not_count_as_a_difference(
    nats_server: EmbeddedServer,
    nc: Client,
    connect: Connect,
    unique: str,
    consumer_name: str,
    kind: Kind,
) -> None:
    name = consumer_name if kind is CONSUMER else unique
    if kind is STREAM:
        config = {"name": name, "subjects": [unique]}
        await api_request(nc, f"STREAM.CREATE.{name}", config)
    elif kind is BUCKET:
        subjects = [f"$KV.{name}.>"]
        config = {"name": f"KV_{name}", "subjects": subjects, "max_msgs_per_subject": 1}
        await api_request(nc, f"STREAM.CREATE.KV_{name}", config)
    else:
        stream, _, consumer = name.partition("/")
        body = {"stream_name": stream, "config": {"durable_name": consumer, "ack_policy": "none"}}
        await api_request(nc, f"CONSUMER.CREATE.{stream}.{consumer}", body)
    existing = await connect(kind, nats_server.url).read(name)

    declared_fields: Fields = {"subjects": [unique]} if kind is STREAM else {}
    if kind is CONSUMER:
        declared_fields["ackPolicy"] = "none"
    assert existing is not None
    assert kind.normalize(existing.fields) == kind.check_fields(declared_fields)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (STREAM, {"subjects": ["b", "a", "b"], "maxAgeSeconds": 1.0004, "maxBytes": 0}),
        (STREAM, {"subjects": ["a"], "retention": "workqueue", "maxAgeSeconds": 31_622_400}),
        (BUCKET, {"ttlSeconds": 5, "maxBytes": -1}),
        (CONSUMER, {"ackPolicy": "none", "maxAckPending": 5}),
        (CONSUMER, {"deliverPolicy": "by_start_time", "startTime": "2026-01-01T00:00:00.5-01:00"}),
    ],
)
def test_declaring_or_normalizing_the_canonical_form_changes_nothing(
    kind: Kind, fields: Fields
) -> None:
    canonical_fields = kind.check_fields(fields)

    assert kind.normalize(canonical_fields) == canonical_fields
    assert kind.check_fields(canonical_fields) == canonical_fields


@given(st.integers(min_value=0, max_value=10**11))
def test_durations_are_read_as_they_were_written(milliseconds: int) -> None:
    assert to_seconds(to_nanoseconds(milliseconds / 1_000)) == milliseconds / 1_000


@pytest.mark.parametrize(
    ("kind", "fields", "reason"),
    [
        (STREAM, {"subjects": []}, "length"),
        (
            STREAM,
            {"subjects": ["a"], "maxAgeSeconds": 5, "duplicateWindowSeconds": 9},
            "must not be greater than maxAgeSeconds",
        ),
        (STREAM, {"subjects": ["a"], "isWorkQueue": True}, "retention determines it"),
        (STREAM, {"subjects": ["a"], "mirror": {"name": "x"}}, "unknown field"),
        (BUCKET, {"history": 65}, "must be at most 64"),
        (CONSUMER, {"filterSubjects": ["a..b"]}, "is not a subject"),
        (CONSUMER, {"deliverPolicy": "by_start_sequence"}, "required with deliverPolicy"),
        (CONSUMER, {"startTime": "2026-01-01T00:00:00Z"}, "required with deliverPolicy"),
    ],
)
def test_a_spec_that_no_server_accepts_is_refused_when_declared(
    kind: Kind, fields: Fields, reason: str
) -> None:
    with pytest.raises(InvalidManifestError, match=reason):
        kind.check_fields(fields)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (STREAM, ["ORDERS", "a-b_c", "$x", "ü"], ["", "a.b", "a b", "*", "a/b", "KV_x", "OBJ_x"]),
        (BUCKET, ["sessions", "a-b_c"], ["", "a.b", "a b", "ü", "a/b", "a\n"]),
        (CONSUMER, ["ORDERS/billing"], ["billing", "a/b/c", "/b", "a/", "a.b/c", "a/b\n", "a /b"]),
    ],
    ids=["Stream", "Bucket", "Consumer"],
)
def test_names_are_accepted_or_refused(kind: Kind, good: list[str], bad: list[str]) -> None:
    assert [name for name in good if kind.name_problem(name) is not None] == []
    assert [name for name in bad if kind.name_problem(name) is None] == []


def test_the_kinds_are_found_by_their_entry_points() -> None:
    registry = installed_kinds()
    assert [registry[name] for name in KINDS] == list(KINDS.values())
    assert all(not kind.has_second_name for kind in KINDS.values())


# --- data loss


def existing_object(kind: Kind, fields: Fields, *, has_data: bool | None = True) -> ExternalObject:
    checked_fields = kind.check_fields({"subjects": ["s"], **fields} if kind is STREAM else fields)
    outputs = {} if has_data is None else {"hasData": has_data, "hasLeader": True}
    return ExternalObject("x", checked_fields, outputs=outputs)


@pytest.mark.parametrize(
    ("kind", "before", "after", "lost"),
    [
        (STREAM, {"maxAgeSeconds": 60}, {"maxAgeSeconds": 30}, "maxAgeSeconds from 60 seconds"),
        (STREAM, {}, {"maxAgeSeconds": 30}, "maxAgeSeconds from no limit to 30 seconds"),
        (STREAM, {}, {"maxBytes": 10}, "maxBytes"),
        (STREAM, {"maxMessages": 9}, {"maxMessages": 8}, "maxMessages from 9 messages to 8"),
        (STREAM, {}, {"maxMessagesPerSubject": 1}, "maxMessagesPerSubject"),
        (STREAM, {}, {"retention": "interest"}, "retention from limits to interest"),
        (STREAM, {"maxBytes": 10}, {"maxBytes": 11}, ""),
        (STREAM, {"maxBytes": 10}, {}, ""),
        (STREAM, {"retention": "interest"}, {}, ""),
        (STREAM, {}, {"maxMessageBytes": 5, "discard": "new", "description": "x"}, ""),
        (BUCKET, {"history": 5}, {"history": 4}, "history from 5 values per key to 4"),
        (BUCKET, {}, {"ttlSeconds": 5}, "ttlSeconds"),
        (BUCKET, {}, {"maxBytes": 5}, "maxBytes"),
        (BUCKET, {"ttlSeconds": 5}, {"history": 2}, ""),
        (CONSUMER, {}, {"filterSubjects": ["a"], "maxDeliver": 1}, ""),
    ],
)
def test_the_data_loss_of_a_shrinking_write_is_described(
    kind: Kind, before: Fields, after: Fields, lost: str
) -> None:
    expected = existing_object(kind, after).fields
    loss = kind.describe_data_loss(expected, existing_object(kind, before))
    assert lost in loss
    assert bool(loss) == bool(lost)
    assert bool(
        kind.describe_data_loss(expected, existing_object(kind, before, has_data=None))
    ) == bool(lost)
    assert kind.describe_data_loss(expected, existing_object(kind, before, has_data=False)) == ""


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_data_loss_of_a_deletion_is_described_unless_there_was_no_data(kind: Kind) -> None:
    assert "x" in kind.describe_data_loss(None, existing_object(kind, {}))
    assert kind.describe_data_loss(None, existing_object(kind, {}, has_data=None)), (
        "unknown counts as data"
    )
    assert kind.describe_data_loss(None, existing_object(kind, {}, has_data=False)) == ""


async def test_an_object_that_had_data_keeps_has_data(
    nats_server: EmbeddedServer, nc: Client, connect: Connect, unique: str
) -> None:
    """Otherwise each message through a work queue would cause two log events."""
    streams, consumers = connect(STREAM, nats_server.url), connect(CONSUMER, nats_server.url)
    fields = STREAM.check_fields({"subjects": [unique], "retention": "workqueue"})
    await streams.create(action("Create", unique, fields))
    name = f"{unique}/c"
    await consumers.create(action("Create", name, CONSUMER.check_fields({})))

    async def read_has_data() -> list[bool]:
        objects = [await streams.read(unique), await consumers.read(name)]
        return [each is not None and each.outputs["hasData"] for each in objects]

    assert await read_has_data() == [False, False]
    await nc.request(unique, b"1")
    assert await read_has_data() == [True, True]
    inbox = await nc.subscribe(nc.new_inbox())  # pyright: ignore[reportUnknownMemberType]
    await nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.{unique}.c", reply=inbox.subject)
    await nc.request((await inbox.next_msg(10)).reply, b"+ACK", timeout=10)
    assert (await api_request(nc, f"STREAM.INFO.{unique}", None))["state"]["messages"] == 0
    assert await read_has_data() == [True, True]


# --- foreign objects on the same server


async def test_an_adopted_stream_keeps_its_messages_and_unmanaged_settings(
    nats_server: EmbeddedServer, nc: Client, connect: Connect, unique: str
) -> None:
    config = {
        "name": unique,
        "subjects": [unique],
        "max_consumers": 7,
        "allow_rollup_hdrs": True,
        "metadata": {"team": "a"},
    }
    await api_request(nc, f"STREAM.CREATE.{unique}", config)
    await nc.request(unique, b"kept")
    provider = connect(STREAM, nats_server.url)
    expected = STREAM.check_fields({"subjects": [unique], "description": "ours"})
    with pytest.raises(ConflictError) as caught:
        await provider.create(action("Create", unique, expected))
    foreign_stream = caught.value.obstacle
    assert foreign_stream is not None
    assert (foreign_stream.labels, foreign_stream.written_by) == ({"team": "a"}, None)

    adopted = (await provider.update(action_on("Update", foreign_stream, expected))).object

    assert adopted is not None
    assert (adopted.uid, adopted.fields) == (foreign_stream.uid, expected)
    info = await api_request(nc, f"STREAM.INFO.{unique}", None)
    assert info["state"]["messages"] == 1
    assert (info["config"]["max_consumers"], info["config"]["allow_rollup_hdrs"]) == (7, True)


async def test_a_stream_waits_for_subjects_of_a_foreign_stream(
    nats_server: EmbeddedServer, nc: Client, connect: Connect, unique: str
) -> None:
    config = {"name": f"{unique}x", "subjects": [f"{unique}.>"]}
    await api_request(nc, f"STREAM.CREATE.{unique}x", config)
    fields = STREAM.check_fields({"subjects": [f"{unique}.a"]})
    with pytest.raises(NotDoneError, match="overlap"):
        await connect(STREAM, nats_server.url).create(action("Create", unique, fields))


async def test_a_consumer_waits_for_work_queue_subjects_of_a_foreign_consumer(
    nats_server: EmbeddedServer, nc: Client, connect: Connect, unique: str
) -> None:
    config = {"name": unique, "subjects": [f"{unique}.>"], "retention": "workqueue"}
    await api_request(nc, f"STREAM.CREATE.{unique}", config)
    provider = connect(CONSUMER, nats_server.url)
    for first, second in (("", ""), (f"{unique}.a", f"{unique}.*")):
        body = {
            "stream_name": unique,
            "config": {"durable_name": "x", "ack_policy": "explicit", "filter_subject": first},
        }
        await api_request(nc, f"CONSUMER.CREATE.{unique}.x", body)
        fields = CONSUMER.check_fields({"filterSubjects": [second] if second else []})
        with pytest.raises(NotDoneError, match=r"not unique|not allowed"):
            await provider.create(action("Create", f"{unique}/c", fields))
        await api_request(nc, f"CONSUMER.DELETE.{unique}.x", None)


async def test_a_consumer_waits_for_its_stream(
    nats_server: EmbeddedServer, connect: Connect, unique: str
) -> None:
    provider = connect(CONSUMER, nats_server.url)
    create = action("Create", f"{unique}/c", CONSUMER.check_fields({}))
    with pytest.raises(NotDoneError, match="does not exist"):
        await provider.create(create)
    assert await provider.read(f"{unique}/c") is None


async def test_a_clients_consumer_is_neither_listed_nor_replaced(
    nats_server: EmbeddedServer, nc: Client, connect: Connect, consumer_name: str
) -> None:
    stream = consumer_name.partition("/")[0]
    config = {"name": "c", "inactive_threshold": 60_000_000_000, "ack_policy": "none"}
    body = {"stream_name": stream, "config": config}
    await api_request(nc, f"CONSUMER.CREATE.{stream}.c", body)
    provider = connect(CONSUMER, nats_server.url)

    assert await listing(provider, Scope(prefix=f"{stream}/")) == []
    with pytest.raises(NotDoneError, match="is an ephemeral consumer"):
        await provider.create(action("Create", consumer_name, CONSUMER.check_fields({})))


async def test_a_push_consumer_differs_and_is_not_changed(
    nats_server: EmbeddedServer, nc: Client, connect: Connect, consumer_name: str
) -> None:
    stream = consumer_name.partition("/")[0]
    config = {"durable_name": "c", "deliver_subject": "x", "ack_policy": "explicit"}
    body = {"stream_name": stream, "config": config}
    await api_request(nc, f"CONSUMER.CREATE.{stream}.c", body)
    provider = connect(CONSUMER, nats_server.url)
    existing = await provider.read(consumer_name)
    expected = CONSUMER.check_fields({})

    assert existing is not None
    assert existing.fields != expected
    with pytest.raises(RefusedError, match="only pull consumers"):
        await provider.update(action_on("Update", existing, expected))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
async def test_a_listing_of_several_pages_is_complete(
    nats_server: EmbeddedServer,
    nc: Client,
    connect: Connect,
    unique: str,
    consumer_name: str,
    kind: Kind,
) -> None:
    """The server's pages have 256 entries."""
    numbers = [f"{number:03}" for number in range(300)]
    if kind is CONSUMER:
        stream = consumer_name.partition("/")[0]
        names = [f"{stream}/{each}" for each in numbers]
        requests = [
            (
                f"CONSUMER.CREATE.{stream}.{each}",
                {"stream_name": stream, "config": {"durable_name": each, "mem_storage": True}},
            )
            for each in numbers
        ]
    else:
        names = [f"{unique}-{each}" for each in numbers]
        prefix = "KV_" if kind is BUCKET else ""
        requests = [
            (
                f"STREAM.CREATE.{prefix}{each}",
                {"name": prefix + each, "subjects": [f"t.{each}"], "storage": "memory"},
            )
            for each in names
        ]
    for request, body in requests:
        await api_request(nc, request, body)
    provider = connect(kind, nats_server.url)
    objects = await listing(provider, Scope(prefix=names[0][:-3]))

    assert sorted(existing.name for existing in objects) == names
    for each in names if kind is not CONSUMER else ():
        await api_request(nc, f"STREAM.DELETE.{'KV_' if kind is BUCKET else ''}{each}", None)


async def test_a_listing_with_a_deletion_between_two_pages_proves_no_absence(
    nats_server: EmbeddedServer, nc: Client, connect: Connect, consumer_name: str
) -> None:
    stream = consumer_name.partition("/")[0]
    for number in range(300):
        config = {"durable_name": f"{number:03}", "mem_storage": True}
        body = {"stream_name": stream, "config": config}
        await api_request(nc, f"CONSUMER.CREATE.{stream}.{number:03}", body)
    pages = connect(CONSUMER, nats_server.url).pages(Scope(prefix=f"{stream}/"), page_size=9)
    await anext(pages)
    await api_request(nc, f"CONSUMER.DELETE.{stream}.007", None)

    with pytest.raises(UnreadableObjectsError, match="the listing changed") as raised:
        async for _ in pages:
            pass
    assert raised.value.may_have(f"{stream}/299")


# --- advisories


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
async def test_an_out_of_band_change_is_reported_while_a_call_waits(
    nats_server: EmbeddedServer,
    nc: Client,
    connect: Connect,
    unique: str,
    consumer_name: str,
    kind: Kind,
) -> None:
    feed = connect(kind, nats_server.url, timeout_seconds=60)
    assert isinstance(feed, WatchingProvider)
    mark = await feed.changes(None)
    pending_call = asyncio.create_task(feed.changes(mark))
    await asyncio.sleep(0.1)
    if kind is CONSUMER:
        stream = consumer_name.partition("/")[0]
        body = {"stream_name": stream, "config": {"durable_name": "c"}}
        await api_request(nc, f"CONSUMER.CREATE.{stream}.c", body)
    else:
        name = f"KV_{unique}" if kind is BUCKET else unique
        await api_request(nc, f"STREAM.CREATE.{name}", {"name": name, "subjects": [unique]})

    async with asyncio.timeout(10):
        assert await pending_call != mark


async def test_a_change_between_two_calls_is_reported_by_the_second(
    nats_server: EmbeddedServer, nc: Client, connect: Connect, unique: str
) -> None:
    feed = connect(STREAM, nats_server.url)
    assert isinstance(feed, WatchingProvider)
    mark = await feed.changes(None)
    await api_request(nc, f"STREAM.CREATE.{unique}", {"name": unique, "subjects": [unique]})
    await asyncio.sleep(0.2)

    async with asyncio.timeout(1):
        assert await feed.changes(mark) != mark


@pytest.mark.parametrize(
    ("subject", "claim"),
    [
        ("orders.new", "subject/orders/new/."),
        ("orders.>", "subject/orders"),
        ("orders.*.eu", "subject/orders"),
        (">", "subject"),
    ],
)
def test_a_stream_has_its_subjects_alone(subject: str, claim: str) -> None:
    assert STREAM.find_claims("any", {"subjects": [subject]}) == [claim]


def test_a_consumer_uses_a_stream_or_a_bucket() -> None:
    (of_stream,), (of_bucket,) = (
        CONSUMER.find_uses(name, {}) for name in ("orders/one", "KV_sessions/one")
    )
    assert (of_stream.kind, of_stream.name) == ("Stream", "orders")
    assert (of_bucket.kind, of_bucket.name) == ("Bucket", "sessions")
