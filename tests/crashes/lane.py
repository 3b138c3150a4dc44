"""A bus and an API of one's own, on which cases of the matrix are run one after another.

Leases are short here, so that a case does not wait ten seconds for what a dead process held: the
consumers are the product's, with ``ack_wait`` and the pins' time-out of one second.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec
from nats.aio.client import Client

from events.envelope import decode_log, encode_intake
from events.intake import Approved, Declared, Withdrawn
from events.log import LogEvent, OutcomeRecorded
from events.manifest import RECONCILER_API_VERSION, Fields, Manifest, Metadata
from events.names import SYSTEM_NAMESPACE, ResourceKey
from events.provider_config import PROVIDER_CONFIG_KIND, Limits, ProviderConfigSpec, Retry, Scope
from events.subjects import intake, log_filter, outcome_filter
from infra.bus.streams import (
    INTAKE,
    LOG,
    decider_consumers,
    ensure_topology,
    ensure_worker_consumer,
    worker_consumers,
)
from infra.embedded import EmbeddedServer
from infra.jetstream.connection import api_request, close, connect
from infra.jetstream.errors import BusError
from infra.jetstream.outgoing import MESSAGE_ID, OutgoingMessage
from infra.jetstream.publish import publish, store_all
from infra.jetstream.reads import last_for_subjects, read_subject, stream_state
from infra.secrets import open_stores
from reconciler.provider.secrets import SecretKey
from tests.crashes.role_process import PATIENCE_SECONDS, RoleProcess, ready_to_fork
from tests.crashes.roles import SECRETS
from tests.faulty_api import FaultyApi
from tests.host_access import EVERYTHING
from tests.judge.from_bus import check
from tests.judge.history import AcknowledgedMessage

ACTOR = "team-a"
LEASE_SECONDS = 1.0
PREFIX = "s-"
"""What the default configuration looks at: other configurations have prefixes of their own."""

NOTHING_KEPT_OPEN = httpx.Limits(max_keepalive_connections=0)
"""An API that was killed, or that closes what is idle, must not end a request of the test's own."""

_LOOK_SECONDS = 0.02
_T = TypeVar("_T")


class Lane:
    """One bus, one API, and at most a few processes of the product on them."""

    def __init__(self, folder: Path) -> None:
        self.server = EmbeddedServer()
        self.api = FaultyApi()
        self.acknowledged: list[AcknowledgedMessage] = []
        self.by_hand: set[str] = set()
        self.configured: set[str] = set()
        self.nc: Client
        self.http: httpx.AsyncClient
        self._folder = folder
        self._secrets: dict[str, str] = {}
        self._logs = itertools.count()
        self._processes: list[RoleProcess] = []

    # --- beginning and end

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Lane]:
        """Start the servers, and end everything afterwards."""
        await ready_to_fork()
        try:
            await self.server.start(self._folder / "nats")
            await self.api.start(self._folder / "api")
            async with httpx.AsyncClient(
                base_url=self.api.url, timeout=10, limits=NOTHING_KEPT_OPEN
            ) as self.http:
                self.nc = await connect(self.server.url, name=ACTOR)
                await ensure_topology(self.nc)
                for consumer in decider_consumers():
                    await self._shorten_lease(INTAKE, consumer)
                await self.configure("default", PREFIX)
                try:
                    yield self
                finally:
                    await self.kill_processes()
                    await close(self.nc)
        finally:
            await self.api.kill()
            await self.server.kill()

    async def _shorten_lease(self, stream: str, consumer: str) -> None:
        info = await api_request(self.nc, f"CONSUMER.INFO.{stream}.{consumer}", None)
        config: dict[str, Any] = info["config"] | {"ack_wait": int(LEASE_SECONDS * 1e9)}
        if config.get("priority_timeout"):
            config["priority_timeout"] = int(LEASE_SECONDS * 1e9)
        body = {"stream_name": stream, "config": config, "action": "update"}
        await api_request(self.nc, f"CONSUMER.CREATE.{stream}.{consumer}", body)

    # --- processes

    def fork(self, failpoint: str = "", roles: Sequence[str] | str | None = None) -> RoleProcess:
        """Start a process of the product; all roles unless said otherwise."""
        log = self._log()
        process = (
            RoleProcess.fork(self.server.url, log, failpoint=failpoint)
            if roles is None
            else RoleProcess.fork(self.server.url, log, failpoint=failpoint, roles=roles)
        )
        self._processes.append(process)
        return process

    def spawn(self, environment: dict[str, str]) -> RoleProcess:
        """Start a process of the product afresh."""
        process = RoleProcess.spawn(self.server.url, self._log(), environment)
        self._processes.append(process)
        return process

    def _log(self) -> Path:
        return self._folder / f"process-{next(self._logs)}.log"

    async def settle(self) -> None:
        """Have what was declared so far decided, by a process that ends afterwards."""
        process = self.fork()
        await self.until_outcome(config_key("default"), "Converged")
        await self.until_at_rest()
        await process.stop()

    async def kill_processes(self) -> None:
        """End every process of the product that still lives."""
        await asyncio.gather(*(each.kill() for each in self._processes))

    async def restart_server(self) -> None:
        """Start nats-server again, where it was and on its data."""
        await self.server.kill()
        await self.server.start(self.server.data_dir, port=self.server.port)

    async def restart_api(self) -> None:
        """Start the API again, where it was and on its data."""
        port = self.api.port
        await self.api.kill()
        await self.api.start(self._folder / "api", port=port)

    # --- declaring

    async def declare(
        self, name: str, color: object = "Red", *, kind: str = "Shape", **spec: object
    ) -> None:
        """Declare a resource; when it returns, the bus has it."""
        fields: Fields = {"type": "Square", "color": color, **spec}
        manifest = Manifest("shapes/v1", kind, Metadata(name), fields)
        await self.tell(key(name, kind), Declared(manifest))

    async def declare_all(self, names: Sequence[str], *, withdrawn: bool = False) -> None:
        """Declare many resources at once, or take them back; when it returns, the bus has it."""
        now = datetime.now(UTC)
        messages: list[OutgoingMessage] = []
        acknowledged: list[AcknowledgedMessage] = []
        for name in names:
            metadata, spec = Metadata(name), {"type": "Square", "color": "Red"}
            data = (
                Withdrawn()
                if withdrawn
                else Declared(Manifest("shapes/v1", "Shape", metadata, spec))
            )
            identity = uuid.uuid4().hex
            payload = encode_intake(identity, ACTOR, data, time=now)
            messages.append(
                OutgoingMessage(intake("desired", key(name)), payload, {MESSAGE_ID: identity})
            )
            acknowledged.append(AcknowledgedMessage(key(name), identity))
        await store_all(self.nc, messages)
        self.acknowledged += acknowledged

    async def withdraw(self, name: str, kind: str = "Shape") -> None:
        """Take a declaration back."""
        await self.tell(key(name, kind), Withdrawn())

    async def configure(
        self,
        name: str,
        prefix: str,
        *,
        provider: str = "shapes",
        endpoint: str = "",
        resync_seconds: float = 0.5,
    ) -> None:
        """Declare where an API is, without an endpoint that of the lane, and a prefix of names."""
        self.configured.add(name)
        await self._shorten_lease(LOG, await ensure_worker_consumer(self.nc, name))
        spec = ProviderConfigSpec(
            provider,
            endpoint or self.api.url,
            scope=Scope(prefix=prefix),
            resync_seconds=resync_seconds,
            retry=Retry(initial_seconds=0.2, max_seconds=1.0),
            limits=Limits(request_timeout_seconds=5),
            allow=EVERYTHING,
        )
        fields = msgspec.to_builtins(spec, str_keys=True)
        metadata = Metadata(name, SYSTEM_NAMESPACE)
        config = Manifest(RECONCILER_API_VERSION, PROVIDER_CONFIG_KIND, metadata, fields)
        await self.tell(config.key, Declared(config))

    async def tell(
        self,
        of: ResourceKey,
        data: Declared | Withdrawn | Approved,
        *,
        message_id: str | None = None,
    ) -> str:
        """Publish until it is acknowledged; gives the message's id."""
        identity = message_id or uuid.uuid4().hex
        payload = encode_intake(identity, ACTOR, data, time=datetime.now(UTC))
        subject = intake("approval" if isinstance(data, Approved) else "desired", of)

        async def stored() -> bool:
            await publish(self.nc, subject, payload, headers={MESSAGE_ID: identity})
            return True

        await self.until(stored, f"{of} is declared")
        self.acknowledged.append(AcknowledgedMessage(of, identity))
        return identity

    async def withdraw_config(self, name: str) -> None:
        """Take a configuration back."""
        await self.tell(config_key(name), Withdrawn())

    # --- what people do

    async def put_secret(self, name: str, value: str) -> None:
        """Change a secret in the store of all processes that are started from now on."""
        await (
            open_stores(self._folder / SECRETS)
            .by_name["files"]
            .write(SecretKey("default", name), value)
        )
        self._secrets[name] = value

    async def break_api(self, **faults: object) -> None:
        """Let the API go wrong; see ``tests.faulty_api.faults``."""
        (await self.http.put("/_faults", json=faults)).raise_for_status()

    async def mend(self) -> None:
        """Have both servers running, and nothing go wrong."""
        if not self.server.is_running:
            await self.restart_server()
        if not self.api.is_running:
            await self.restart_api()
        await self.break_api()

    async def delete_by_hand(self, name: str) -> None:
        """Delete an object directly in the API."""
        self.by_hand.add(name)
        (await self.http.delete(f"/shapes/{name}")).raise_for_status()

    async def paint_by_hand(self, name: str, color: str) -> None:
        """Change an object directly in the API."""
        self.by_hand.add(name)
        body = (await self.http.get(f"/shapes/{name}")).raise_for_status().json()
        answer = await self.http.put(f"/shapes/{name}", json={**body, "color": color})
        answer.raise_for_status()

    async def make_by_hand(self, name: str, option: str = "") -> None:
        """Create an object directly in the API; ``option`` as in ``tests.faulty_api.options``."""
        self.by_hand.add(name)
        body = {"name": name, "type": "Square", "color": "Red"}
        path = f"/as/{option}/shapes" if option else "/shapes"
        (await self.http.post(path, json=body)).raise_for_status()

    async def let_expire(self, name: str) -> None:
        """Let an object be at its end."""
        (await self.http.put("/_expired", params={"name": name})).raise_for_status()

    async def effects(self, *names: str) -> list[str]:
        """What really happened to objects; what people did is told apart.

        A second name and an id of the server's begin with a resource's name and a dash.
        """
        entries = (await self.http.get("/_journal")).raise_for_status().json()["entries"]
        return [
            each["method"] if each["idempotency_key"] else f"human {each['method']}"
            for each in entries
            if each["name"].startswith(tuple(f"{name}-" for name in names)) or each["name"] in names
        ]

    async def count_effects(self) -> int:
        """Count everything that ever happened in the API."""
        return len((await self.http.get("/_journal")).raise_for_status().json()["entries"])

    async def count_objects(self) -> int:
        """Count what exists in the API."""
        return (await self.http.get("/_stats")).raise_for_status().json()["shapes"]

    async def count_events(self) -> int:
        """Count the events of the log."""
        return (await stream_state(self.nc, LOG)).last_seq

    # --- waiting and looking

    async def until(
        self,
        condition: Callable[[], Awaitable[_T]],
        what: str,
        *,
        seconds: float = PATIENCE_SECONDS,
    ) -> _T:
        """Wait until a condition gives something true; a bus or an API may be away meanwhile."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                value = await condition()
            except (BusError, httpx.TransportError):
                value = None
            if value:
                return value
            if time.monotonic() > deadline:
                said = "\n".join(each.error_output for each in self._processes[-2:])
                raise AssertionError(f"{what}: not within {seconds:g} s\n{said}")
            await asyncio.sleep(_LOOK_SECONDS)

    async def until_outcome(
        self, of: str | ResourceKey, expected: str, generation: int = 0
    ) -> None:
        """Wait until the newest outcome is this one, of this generation or a newer one."""
        shape = key(of) if isinstance(of, str) else of
        told: list[str] = []

        async def is_there() -> bool:
            told.clear()
            messages = await last_for_subjects(self.nc, LOG, [outcome_filter(shape.tokens)])
            for message in sorted(messages, key=lambda one: one.seq)[-1:]:
                data = decode_log(message.payload).data
                assert isinstance(data, OutcomeRecorded)
                told.append(f"{data.outcome} {data.reason} {data.message} @{data.generation}")
                return data.outcome == expected and data.generation >= generation
            return False

        try:
            await self.until(is_there, f"outcome {expected} of {shape}")
        except AssertionError as error:
            history = [type(each.data).__name__ for each in await self.history(shape)]
            raise AssertionError(f"told {told}, log {history}: {error}") from None

    async def until_at_rest(self) -> None:
        """Wait until nothing waits to be decided, and no action to be executed."""

        async def consumers() -> list[tuple[str, int, int]]:
            listed = await api_request(self.nc, f"CONSUMER.LIST.{INTAKE}", {})
            # The judge has read it, too; the server keeps such a consumer for ten seconds.
            deciders = [each for each in listed["consumers"] if each["name"] in decider_consumers()]
            return [
                (
                    each["name"],
                    each["num_pending"] + each["num_ack_pending"],
                    each["delivered"]["stream_seq"],
                )
                for each in (*deciders, *await worker_consumers(self.nc))
            ]

        async def nothing_waits() -> bool:
            # Read twice: one read misses what moves from one consumer to another meanwhile.
            first = await consumers()
            return not any(waiting for _, waiting, _ in first) and await consumers() == first

        await self.until(nothing_waits, "everything is decided and executed")

    async def history(self, of: str | ResourceKey) -> list[LogEvent]:
        """Every event of a resource."""
        shape = key(of) if isinstance(of, str) else of
        messages = await read_subject(self.nc, LOG, log_filter(shape))
        return [decode_log(message.payload) for message in messages]

    async def assert_sound(self) -> None:
        """Judge everything that ever happened here."""
        findings = await check(
            self.nc,
            self.api.url,
            acknowledged=self.acknowledged,
            by_hand=self.by_hand,
            secrets=self._secrets,
        )
        assert not findings, "\n".join(map(str, findings))


def key(name: str, kind: str = "Shape") -> ResourceKey:
    """Name a resource of the lane."""
    return ResourceKey("default", kind, name)


def config_key(name: str) -> ResourceKey:
    """Name a configuration."""
    return ResourceKey(SYSTEM_NAMESPACE, PROVIDER_CONFIG_KIND, name)
