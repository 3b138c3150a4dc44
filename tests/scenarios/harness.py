"""The world of a scenario: nats-server, the shapes API, the reconciler, and a human.

The server and the API are real processes, the reconciler runs its roles in this process, and the
human uses the API directly, without the reconciler. No method sleeps for a fixed time: ``until``
waits for a condition, and ``until_observed_again`` for complete listings.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, cast

import httpx
import msgspec
from nats.aio.client import Client

from events.dead_letter import DeadLetterRecord
from events.envelope import decode_log, encode_intake
from events.intake import INTAKE_TYPE_NAMES, IntakeData, Reply, Withdrawn
from events.log import LogEvent, OutcomeRecorded, ResourceEvent, UndeclaredCounted
from events.manifest import RECONCILER_API_VERSION, Fields, Manifest, Metadata
from events.names import SYSTEM_NAMESPACE, ResourceKey
from events.provider_config import (
    PROVIDER_CONFIG_KIND,
    DeletionGuard,
    Limits,
    ProviderConfigSpec,
    Retry,
    Scope,
    config_key,
)
from events.subjects import REPLY_HEADER, Intake, intake, outcome_filter, rejection_filter
from infra.bus.event_log import open_log
from infra.bus.intake import JetStreamIntakeWriter
from infra.bus.rows import JetStreamRows
from infra.bus.streams import (
    DEADLETTERS,
    INTAKE,
    LOG,
    REJECTIONS,
    ROWS,
    STATES,
    decider_consumers,
    worker_consumers,
)
from infra.embedded import EmbeddedServer
from infra.jetstream.connection import api_request
from infra.jetstream.errors import BusError
from infra.jetstream.reads import read_subject, stream_state
from projections.status import StatusRow
from reconciler.ports import EventLog, IntakeMessageOut, IntakeWriter
from reconciler.provider.kind import KindRegistry
from reconciler.resource.owner_label import OWNER_LABEL, owner
from reconciler.sdk import Client as SdkClient
from reconciler.sdk import client_on
from reconciler.wiring import ROLES, ProcessParts, Role, initialize, open_connection, run_roles
from shapes_api.kinds.records import RECORD
from shapes_api.kinds.shapes import SHAPE
from tests.host_access import EVERYTHING

TIMEOUT_SECONDS = 90.0
"""Ten times what the slowest step takes on an idle machine, because four tests run at a time."""

ACTOR = "team-a"

_POLL_SECONDS = 0.01
_T = TypeVar("_T")
_E = TypeVar("_E")


def shape(name: str) -> ResourceKey:
    return ResourceKey("default", "Shape", name)


def manifest(
    name: str,
    kind: str = "Square",
    color: str = "Red",
    *,
    config: str | None = None,
    policy: Fields | None = None,
) -> Manifest:
    spec: Fields = {"type": kind, "color": color}
    if policy is not None:
        spec["policy"] = policy
    if config is not None:
        spec["providerConfigRef"] = {"name": config}
    return Manifest("shapes/v1", "Shape", Metadata(name), spec)


def api_config(
    endpoint: str,
    *,
    resync: float = 0.2,
    page_size: int = 1000,
    exclusive: bool = False,
    provider: str = "shapes",
    **rest: Any,
) -> ProviderConfigSpec:
    """Return a configuration with short intervals and unrestricted host access."""
    defaults: dict[str, Any] = {
        "allow": EVERYTHING,
        "scope": Scope(mode="Exclusive" if exclusive else "Shared"),
        "limits": Limits(page_size=page_size, request_timeout_seconds=5),
        "retry": Retry(initial_seconds=0.2, max_seconds=1.0),
        "deletion_guard": DeletionGuard(max_count=2),
    }
    return ProviderConfigSpec(
        provider=provider, endpoint=endpoint, resync_seconds=resync, **(defaults | rest)
    )


class Human:
    """A client that uses the API directly; it also reads the API's counters."""

    def __init__(self, url: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.url = url
        self._http = httpx.AsyncClient(
            base_url=url,
            timeout=10,
            limits=httpx.Limits(max_keepalive_connections=0),
            transport=transport,
        )
        self._journal_from = 0

    async def reset(self) -> None:
        """Remove all resources, faults and counts from the previous scenario."""
        await self._http.delete("/_faults")
        names = [each["name"] for each in await self.list_all()]
        for start in range(0, len(names), 50):
            await asyncio.gather(*(self.delete(name) for name in names[start : start + 50]))
        self._journal_from = max(
            (each["sequence"] for each in await self._entries(0)), default=self._journal_from
        )
        await self.reset_counts()

    async def create(
        self,
        name: str,
        kind: str = "Square",
        color: str = "Red",
        labels: Mapping[str, str] | None = None,
    ) -> None:
        body = {"name": name, "type": kind, "color": color, "labels": labels or {}}
        (await self._http.post("/shapes", json=body)).raise_for_status()

    async def update(self, name: str, **changed: object) -> None:
        body = {**(await self.get(name)), **changed}
        (await self._http.put(f"/shapes/{name}", json=body)).raise_for_status()

    async def delete(self, name: str) -> None:
        (await self._http.delete(f"/shapes/{name}")).raise_for_status()

    async def find(self, name: str) -> dict[str, Any] | None:
        response = await self._http.get(f"/shapes/{name}")
        return None if response.status_code == 404 else response.raise_for_status().json()

    async def get(self, name: str) -> dict[str, Any]:
        existing_shape = await self.find(name)
        assert existing_shape is not None, f"the API has no {name}"
        return existing_shape

    async def list_all(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        token: str | None = ""
        while token is not None:
            query = {"limit": "1000"} | ({"continue": token} if token else {})
            page = (await self._http.get("/shapes", params=query)).raise_for_status().json()
            items += page["items"]
            token = page.get("continue")
        return items

    async def inject_faults(self, **faults: object) -> None:
        (await self._http.put("/_faults", json=faults)).raise_for_status()

    async def clear_faults(self) -> None:
        (await self._http.delete("/_faults")).raise_for_status()

    # --- actual effects, according to the API

    async def _entries(self, after: int) -> list[dict[str, Any]]:
        response = await self._http.get("/_journal", params={"after": after})
        return response.raise_for_status().json()["entries"]

    async def journal(self) -> list[dict[str, Any]]:
        """Return every actual effect in this scenario."""
        return await self._entries(self._journal_from)

    async def effects(self, name: str | None = None) -> list[str]:
        """Return the effects on one object or all: ``POST``, or ``human POST`` from the human."""
        return [
            each["method"] if each["idempotency_key"] else f"human {each['method']}"
            for each in await self.journal()
            if name in (None, each["name"])
        ]

    async def requests(self) -> dict[str, dict[str, int]]:
        """Return the number of requests since ``reset_counts``, by method and status."""
        return (await self._http.get("/_stats")).raise_for_status().json()["requests"]

    async def reset_counts(self) -> None:
        (await self._http.delete("/_stats")).raise_for_status()

    async def close(self) -> None:
        await self._http.aclose()


class World:
    """The bus and reconciler of one scenario; ``human`` uses the API."""

    def __init__(self, bus: Path | str, human: Human, server: EmbeddedServer | None = None) -> None:
        """Use the bus at a URL, or a separate server with its data in a folder.

        A test may kill, restart or fill a separate server.
        """
        self.human = human
        self.server = server or EmbeddedServer()
        self.nc: Client
        self.client: SdkClient
        self.log: EventLog
        self.kinds = KindRegistry([SHAPE, RECORD])
        self.secrets: Path | None = None
        self._bus_location = bus
        self._writer: IntakeWriter
        self._reconciler: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self.parts: ProcessParts
        self.reconciler_nc: Client

    @classmethod
    def on_bus_of(cls, other_world: World) -> World:
        """Return a world with another reconciler on the bus of bus; closes world closes it."""
        world = cls(other_world._bus_location, other_world.human)
        world.server, world.nc, world.log = other_world.server, other_world.nc, other_world.log
        return world

    # --- the reconciler and the bus

    @property
    def url(self) -> str:
        """The URL of this world's bus."""
        return self._bus_location if isinstance(self._bus_location, str) else self.server.url

    async def start_reconciler(self, roles: Sequence[Role] = ROLES) -> ProcessParts:
        """Start the roles; return when they have read the whole log."""
        ready: asyncio.Future[ProcessParts] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._reconciler = self._spawn(self._run(roles, ready))
        await asyncio.wait({ready, self._reconciler}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            self._reconciler.result()
        self.parts = ready.result()
        return self.parts

    def _spawn(self, main: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.create_task(main)

    async def _run(self, roles: Sequence[Role], ready: asyncio.Future[ProcessParts]) -> None:
        async with (
            open_connection(self.url) as nc,
            run_roles(nc, roles, kinds=self.kinds, secrets=self.secrets) as parts,
        ):
            self.reconciler_nc = nc
            ready.set_result(parts)
            await self._stop.wait()

    async def stop_reconciler(self) -> None:
        if self._reconciler is not None:
            self._stop.set()
            reconciler, self._reconciler = self._reconciler, None
            await reconciler

    async def until_reconciler_ends(self, seconds: float = 30.0) -> BaseException | None:
        """Wait until the reconciler stops on its own; return its error."""
        assert self._reconciler is not None
        reconciler, self._reconciler = self._reconciler, None
        async with asyncio.timeout(seconds):
            await asyncio.wait({reconciler})
        return reconciler.exception()

    async def restart_reconciler(self) -> None:
        await self.stop_reconciler()
        await self.start_reconciler()

    async def kill_nats(self) -> None:
        await self.server.kill()

    async def stop_server(self) -> None:
        """Stop this world's separate server, if it has one."""
        await self.server.kill()

    async def start_nats(self) -> None:
        await self.server.start(self.server.data_dir, port=self.server.port)

    async def erase_caches(self) -> None:
        """Delete every projection and cached state; only the log remains."""
        for stream in (ROWS, STATES):
            await api_request(self.nc, f"STREAM.PURGE.{stream}", {})

    # --- declaring

    async def configure(self, spec: ProviderConfigSpec, name: str = "default") -> None:
        """Declare a configuration, and wait until the decider has accepted it."""
        fields = msgspec.to_builtins(spec, str_keys=True)
        metadata = Metadata(name, SYSTEM_NAMESPACE)
        config = Manifest(RECONCILER_API_VERSION, PROVIDER_CONFIG_KIND, metadata, fields)
        await self.client.declare(config)

    async def declare(
        self,
        name: str,
        kind: str = "Square",
        color: str = "Red",
        *,
        config: str | None = None,
        policy: Fields | None = None,
    ) -> None:
        await self.declare_all([manifest(name, kind, color, config=config, policy=policy)])

    async def declare_all(self, manifests: Sequence[Manifest]) -> None:
        """Publish declarations in order, whether or not a reconciler is running."""
        await self.client.publish(manifests)

    async def withdraw(self, name: str) -> None:
        await self.publish(shape(name), Withdrawn())

    async def publish(self, key: ResourceKey, data: IntakeData, what: Intake = "desired") -> None:
        await self._writer.publish([IntakeMessageOut(what, key, data, uuid.uuid4().hex)])

    async def ask(
        self, key: ResourceKey, data: IntakeData, *, message_id: str | None = None
    ) -> Reply:
        """Publish one declaration and wait for the decider's reply on an inbox."""
        payload = encode_intake(message_id or uuid.uuid4().hex, ACTOR, data, time=now())
        return await self.ask_raw(intake("desired", key), payload)

    async def ask_as(self, source: str, key: ResourceKey, data: IntakeData) -> Reply:
        """Publish as another service, and wait for the decider's reply."""
        what = cast("Intake", INTAKE_TYPE_NAMES[type(data)].split(".")[1])
        payload = encode_intake(uuid.uuid4().hex, source, data, time=now())
        return await self.ask_raw(intake(what, key), payload)

    def client_as(self, source: str) -> AbstractAsyncContextManager[SdkClient]:
        """Return another service's client."""
        return client_on(self.nc, source=source)

    async def ask_raw(self, subject: str, payload: bytes) -> Reply:
        """Publish bytes without the header that lets the stream detect a duplicate."""
        inbox = self.nc.new_inbox()
        subscription = await self.nc.subscribe(inbox)  # pyright: ignore[reportUnknownMemberType]
        await self.nc.request(
            subject, payload, timeout=TIMEOUT_SECONDS, headers={REPLY_HEADER: inbox}
        )
        response = await subscription.next_msg(timeout=TIMEOUT_SECONDS)
        await subscription.unsubscribe()
        return msgspec.json.decode(response.data, type=Reply)

    # --- reading and waiting

    async def until(
        self,
        condition: Callable[[], Awaitable[_T | None]],
        what: str,
        *,
        seconds: float = TIMEOUT_SECONDS,
    ) -> _T:
        """Wait until a condition has a true value, and return it; fail if the reconciler stops."""
        deadline = time.monotonic() + seconds
        while True:
            if self._reconciler is not None and self._reconciler.done():
                self._reconciler.result()
                raise AssertionError("the reconciler stopped on its own")
            try:
                value = await condition()
            except BusError:
                value = None  # the bus is unavailable: read again
            if value:
                return value
            assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
            await asyncio.sleep(_POLL_SECONDS)

    async def until_outcome(
        self,
        name: str | ResourceKey,
        expected: str,
        *,
        generation: int | None = None,
        reason: str | None = None,
    ) -> OutcomeRecorded:
        """Wait until the newest outcome of a resource is the expected one."""
        key = shape(name) if isinstance(name, str) else name

        async def is_recorded() -> OutcomeRecorded | None:
            recorded = await self.outcomes(key)
            if not recorded or recorded[-1].outcome != expected:
                return None
            newest = recorded[-1]
            is_expected = generation in (None, newest.generation) and reason in (
                None,
                newest.reason,
            )
            return newest if is_expected else None

        try:
            return await self.until(is_recorded, f"outcome {expected} of {key}")
        except AssertionError as error:
            outcomes = [f"{e.outcome}/{e.reason}@{e.generation}" for e in await self.outcomes(key)]
            log = [type(event).__name__ for event in await self.facts(key)]
            raise AssertionError(f"{error}; outcomes: {outcomes}; log: {log}") from error

    async def until_settled(self) -> None:
        """Wait until every message has been decided and every action executed."""

        async def is_settled() -> bool:
            listed = await api_request(self.nc, f"CONSUMER.LIST.{INTAKE}", {})
            # The server keeps the consumers of a closed reader for ten seconds.
            deciders = [each for each in listed["consumers"] if each["name"] in decider_consumers()]
            workers = await worker_consumers(self.nc)
            return not any(
                each["num_pending"] or each["num_ack_pending"] for each in (*deciders, *workers)
            )

        await self.until(is_settled, "everything decided and executed")

    async def until_observed_again(self, times: int = 2) -> None:
        """Wait until this many new listings are complete, and their observations decided."""
        observer = self.parts.observer
        assert observer is not None
        expected = observer.listings + 1 + times  # one may be in progress

        async def is_listed() -> bool:
            return observer.listings >= expected

        await self.until(is_listed, f"{times} more listings")
        await self.until_settled()

    async def history(self, name: str | ResourceKey) -> list[LogEvent]:
        key = shape(name) if isinstance(name, str) else name
        return [stored.event for stored in await self.client.history(key)]

    async def facts(self, name: str | ResourceKey) -> list[ResourceEvent]:
        return [event.data for event in await self.history(name)]

    async def until_scope_is_listed(self, config: str = "default") -> None:
        """Wait until a listing has counted the undeclared objects of a new scope."""

        async def is_listed() -> bool:
            return bool(every(UndeclaredCounted, await self.facts(config_key(config))))

        await self.until(is_listed, "the undeclared objects are counted")

    async def log_position(self) -> int:
        return (await stream_state(self.nc, LOG)).last_seq

    async def outcomes(self, key: ResourceKey) -> list[OutcomeRecorded]:
        """Return every outcome and rejection of a resource, as another service reads them."""
        messages = [
            *await read_subject(self.nc, LOG, outcome_filter(key.tokens)),
            *await read_subject(self.nc, REJECTIONS, rejection_filter(key.tokens)),
        ]
        messages.sort(key=lambda each: each.time_ns)
        facts = [decode_log(message.payload).data for message in messages]
        return [each for each in facts if isinstance(each, OutcomeRecorded)]

    async def status(self, name: str) -> StatusRow | None:
        """Return the status row of a resource."""
        return await self.client.status(shape(name))

    async def rows(self) -> Mapping[str, bytes]:
        """Return every stored row of the read models, as bytes."""
        return await JetStreamRows(self.nc).load()

    async def dead_letters(self) -> list[DeadLetterRecord]:
        messages = await read_subject(self.nc, DEADLETTERS, "deadletter.>")
        return [msgspec.json.decode(each.payload, type=DeadLetterRecord) for each in messages]

    def owner_of(self, name: str) -> dict[str, str]:
        """Return the owner label of a resource's object."""
        return {OWNER_LABEL: owner(self.log.log_id, shape(name))}

    # --- opening

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[World]:
        if isinstance(self._bus_location, Path):
            await self.server.start(self._bus_location)
        try:
            async with open_connection(self.url) as self.nc:
                await initialize(self.nc)
                self.log = await open_log(self.nc)
                self._writer = JetStreamIntakeWriter(self.nc, ACTOR)
                await self.human.reset()
                async with client_on(self.nc, source=ACTOR) as self.client:
                    yield self
                    await self.stop_reconciler()
        finally:
            if self._reconciler is not None:
                self._reconciler.cancel()
                await asyncio.gather(self._reconciler, return_exceptions=True)
            await self.stop_server()


def every(kind: type[_E], events: Sequence[object]) -> list[_E]:
    return [event for event in events if isinstance(event, kind)]


def only(kind: type[_E], events: Sequence[object]) -> _E:
    (matches,) = every(kind, events)
    return matches


def type_names(events: Sequence[object]) -> list[str]:
    return [type(event).__name__ for event in events]


def now() -> datetime:
    return datetime.now(UTC)
