"""The contract suite for JetStream's own objects, each kind on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import ClassVar

import msgspec
import pytest
from nats.aio.client import Client

from events.external import ExternalObject
from events.log import Action, Operation
from events.manifest import Fields
from infra.bus.streams import OWN_METADATA
from infra.embedded import EmbeddedServer
from infra.jetstream.connection import api_request
from infra.providers.jetstream.bucket import BUCKET
from infra.providers.jetstream.consumer import CONSUMER
from infra.providers.jetstream.stream import STREAM
from reconciler.errors import RefusedError
from reconciler.provider import Effect, MeasuredProvider, Provider, WatchingProvider
from reconciler.provider.contract import Connect, ProviderContract


class JetStreamContract(ProviderContract):
    """The contract with the session's server, with cases for the change feed."""

    fresh: ClassVar[Fields] = {"messages": 0, "bytes": 0, "consumers": 0}
    prefix: ClassVar[str] = ""

    @pytest.fixture
    def endpoint(self, nats_server: EmbeddedServer) -> str:
        return nats_server.url

    async def test_a_repeated_create_returns_the_object_that_it_created(
        self, provider: Provider, name: str
    ) -> None:
        create = self.action("Create", name, self.fields)
        created_object = (await provider.create(create)).object

        assert (await provider.create(create)).object == created_object
        assert created_object is not None
        assert created_object.written_by == create.idempotency_key
        assert not any(
            label.startswith(("_nats", "reconciler-")) for label in created_object.labels
        )

    async def test_a_repeated_create_returns_its_object_after_a_foreign_change(
        self, provider: Provider, nc: Client, name: str
    ) -> None:
        """The server compares configurations, so only the key identifies the object as ours."""
        create = self.action("Create", name, self.fields)
        await provider.create(create)
        await self.change_description(nc, name, "changed")

        repeated = await provider.create(create)

        assert repeated.replayed
        assert repeated.object is not None
        assert repeated.object.fields["description"] == "changed"

    async def test_a_repeated_update_returns_its_object_after_a_foreign_change(
        self, provider: Provider, nc: Client, name: str
    ) -> None:
        """Another client keeps the key; the next comparison detects its change as drift."""
        update = self.action_on("Update", await self.create_one(provider, name), self.other_fields)
        updated_object = (await provider.update(update)).object

        assert await provider.update(update) == Effect(updated_object, replayed=True)
        await self.change_description(nc, name, "changed")
        repeated = await provider.update(update)

        assert repeated.replayed
        assert repeated.object is not None
        assert repeated.object.fields["description"] == "changed"

    async def change_description(self, nc: Client, name: str, description: str) -> None:
        """Change an object as another client would."""
        stream = f"{self.prefix}{name}"
        config = (await api_request(nc, f"STREAM.INFO.{stream}", None))["config"]
        await api_request(nc, f"STREAM.UPDATE.{stream}", {**config, "description": description})

    async def test_every_kind_of_change_returns_a_new_mark(
        self, provider: Provider, name: str
    ) -> None:
        assert isinstance(provider, WatchingProvider)
        marks = [await provider.changes(None)]
        created_object = await self.create_one(provider, name)
        marks.append(await self.wait_for_stable_mark(provider, marks[-1]))
        updated_object = (
            await provider.update(self.action_on("Update", created_object, self.other_fields))
        ).object
        marks.append(await self.wait_for_stable_mark(provider, marks[-1]))
        await provider.delete(self.action_on("Delete", updated_object))
        marks.append(await self.wait_for_stable_mark(provider, marks[-1]))

        assert len(set(marks)) == 4

    async def wait_for_stable_mark(self, provider: WatchingProvider, after: str) -> str:
        """Return the mark once it is stable, because one change may cause two advisories."""
        mark = await provider.changes(after)
        assert mark != after
        while (newer := await read_mark_after_pause(provider)) != mark:
            mark = newer
        return mark

    async def test_without_a_change_the_same_mark_is_returned_before_the_timeout(
        self, endpoint: str, connect: Connect
    ) -> None:
        feed = connect(endpoint, timeout_seconds=2)
        assert isinstance(feed, WatchingProvider)
        mark = await feed.changes(None)
        started_at = asyncio.get_running_loop().time()

        async with asyncio.timeout(2):
            assert await feed.changes(mark) == mark
        assert asyncio.get_running_loop().time() - started_at > 0.5

    async def test_volatile_values_are_readings_and_not_part_of_the_object(
        self, provider: Provider, name: str
    ) -> None:
        assert isinstance(provider, MeasuredProvider)
        assert await provider.readings(name) is None
        created_object = await self.create_one(provider, name)

        readings = await provider.readings(name)
        assert readings is not None
        assert readings.items() >= self.fresh.items()
        assert not readings.keys() & created_object.outputs.keys()

    async def test_an_object_that_is_as_declared_is_ready(
        self, provider: Provider, name: str
    ) -> None:
        created_object = await self.create_one(provider, name)

        assert created_object.outputs == {"hasData": False, "hasLeader": True}
        assert self.kind.outputs is not None
        assert msgspec.convert(created_object.outputs, self.kind.outputs)
        assert self.kind.ready(created_object.fields, created_object).is_ready
        leaderless = msgspec.structs.replace(created_object, outputs={"hasLeader": False})
        assert self.kind.ready(created_object.fields, leaderless).reason == "NoLeader"

    async def test_a_reserved_label_is_refused(self, provider: Provider, name: str) -> None:
        for label in (OWN_METADATA, "reconciler-key", "_nats.level"):
            create = self.action("Create", name, self.fields)
            with pytest.raises(RefusedError, match="reserved"):
                await provider.create(msgspec.structs.replace(create, labels={label: "x"}))
        assert await provider.read(name) is None


class TestStream(JetStreamContract):
    """Streams on one server cannot share subjects, so each uses subjects with its name."""

    kind = STREAM
    fields: ClassVar[Fields] = {"maxAgeSeconds": 3600, "description": "orders"}
    refused_fields: ClassVar[Fields] = {"replicas": 3}
    other_fields: ClassVar[Fields] = {
        "retention": "interest",
        "maxBytes": 1_000_000,
        "maxMessages": 100,
        "maxMessagesPerSubject": 10,
        "maxMessageBytes": 1_000,
        "discard": "new",
        "duplicateWindowSeconds": 1.5,
        "compression": "s2",
        "allowDirect": True,
    }

    def action(self, operation: Operation, name: str, fields: Fields | None = None) -> Action:
        if fields is not None:
            token = name if self.kind.name_problem(name) is None else "any"
            fields = {**fields, "subjects": [f"{token}.>"]}
        return super().action(operation, name, fields)

    def is_as_declared(self, observed: ExternalObject | None, fields: Fields) -> bool:
        assert observed is not None
        return super().is_as_declared(observed, {**fields, "subjects": [f"{observed.name}.>"]})


class TestBucket(JetStreamContract):
    kind = BUCKET
    prefix = "KV_"
    fields: ClassVar[Fields] = {"ttlSeconds": 60, "description": "sessions"}
    refused_fields: ClassVar[Fields] = {"replicas": 3}
    other_fields: ClassVar[Fields] = {
        "history": 5,
        "maxBytes": 1_000_000,
        "maxValueBytes": 1_000,
        "compression": "s2",
    }


class TestConsumer(JetStreamContract):
    kind = CONSUMER
    fresh: ClassVar[Fields] = {"pending": 0, "delivered": 0, "waitingForAck": 0, "redelivered": 0}
    fields: ClassVar[Fields] = {"filterSubjects": ["a.b", "a.c"], "backoffSeconds": [1, 2.5]}
    fields["maxDeliver"] = 5
    refused_fields: ClassVar[Fields] = {"backoffSeconds": [1, 2, 3, 4, 5, 6, 7]}
    other_fields: ClassVar[Fields] = {
        "description": "billing",
        "filterSubjects": ["a.b"],
        "ackWaitSeconds": 5,
        "maxDeliver": 3,
        "maxAckPending": 7,
        "headersOnly": True,
        "replicas": 1,
    }

    @pytest.fixture
    async def name(self, nc: Client, unique: str) -> AsyncIterator[str]:
        config = {"name": unique, "subjects": [f"{unique}.>"]}
        await api_request(nc, f"STREAM.CREATE.{unique}", config)
        yield f"{unique}/c"
        await api_request(nc, f"STREAM.DELETE.{unique}", None)

    async def change_description(self, nc: Client, name: str, description: str) -> None:
        stream, consumer = name.split("/")
        config = (await api_request(nc, f"CONSUMER.INFO.{stream}.{consumer}", None))["config"]
        body = {"stream_name": stream, "config": {**config, "description": description}}
        await api_request(nc, f"CONSUMER.CREATE.{stream}.{consumer}", body)


async def read_mark_after_pause(feed: WatchingProvider) -> str:
    await asyncio.sleep(0.2)
    return await feed.changes(None)
