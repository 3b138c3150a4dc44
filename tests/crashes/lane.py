"""A separate bus and API, on which cases of the matrix run one after another.

The consumers are the product's, but their ``ack_wait`` and pin timeout are one second. A case then
does not wait ten seconds for the messages of a dead process.
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
from events.intake import Approved, Declared, ForcedRelease, Withdrawn
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
from tests.crashes.role_process import TIMEOUT_SECONDS, RoleProcess, wait_until_fork_server_is_ready
from tests.crashes.roles import SECRETS
from tests.faulty_api import FaultyApi
from tests.host_access import EVERYTHING
from tests.judge.from_bus import check
from tests.judge.history import AcknowledgedMessage

ACTOR = "team-a"
LEASE_SECONDS = 1.0
PREFIX = "s-"
"""Prefix of the default configuration; the other configurations have different prefixes."""

NO_KEEPALIVE = httpx.Limits(max_keepalive_connections=0)
"""No idle connections: an API that was killed or closes one must not fail a test's own request."""

_POLL_SECONDS = 0.02
_T = TypeVar("_T")


class Lane:
    """One bus and one API, with a few processes of the product."""

    def __init__(self, folder: Path) -> None:
        self.server = EmbeddedServer()
        self.api = FaultyApi()
        self.acknowledged: list[AcknowledgedMessage] = []
        self.out_of_band_names: set[str] = set()
        self.configured: set[str] = set()
        self.nc: Client
        self.http: httpx.AsyncClient
        self._folder = folder
        self._secrets: dict[str, str] = {}
        self._logs = itertools.count()
        self._processes: list[RoleProcess] = []

    # --- start and stop

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Lane]:
        """Start the servers, and stop everything afterwards."""
        await wait_until_fork_server_is_ready()
        try:
            await self.server.start(self._folder / "nats")
            await self.api.start(self._folder / "api")
            async with httpx.AsyncClient(
                base_url=self.api.url, timeout=10, limits=NO_KEEPALIVE
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
        """Start a process of the product, by default with all roles."""
        log = self._log()
        process = (
            RoleProcess.fork(self.server.url, log, failpoint=failpoint)
            if roles is None
            else RoleProcess.fork(self.server.url, log, failpoint=failpoint, roles=roles)
        )
        self._processes.append(process)
        return process

    def spawn(self, environment: dict[str, str]) -> RoleProcess:
        """Start a process of the product in a new interpreter."""
        process = RoleProcess.spawn(self.server.url, self._log(), environment)
        self._processes.append(process)
        return process

    def _log(self) -> Path:
        return self._folder / f"process-{next(self._logs)}.log"

    async def settle(self) -> None:
        """Process all declarations so far, with a process that is stopped afterwards."""
        process = self.fork()
        await self.wait_for_outcome(config_key("default"), "Converged")
        await self.wait_until_idle()
        await process.stop()

    async def kill_processes(self) -> None:
        """Kill every process of the product that is still running."""
        await asyncio.gather(*(each.kill() for each in self._processes))

    async def restart_server(self) -> None:
        """Restart nats-server on the same port and data."""
        await self.server.kill()
        await self.server.start(self.server.data_dir, port=self.server.port)

    async def restart_api(self) -> None:
        """Restart the API on the same port and data."""
        port = self.api.port
        await self.api.kill()
        await self.api.start(self._folder / "api", port=port)

    # --- declarations

    async def declare(
        self, name: str, color: object = "Red", *, kind: str = "Shape", **spec: object
    ) -> None:
        """Declare a resource, and return when the bus has stored the declaration."""
        fields: Fields = {"type": "Square", "color": color, **spec}
        manifest = Manifest("shapes/v1", kind, Metadata(name), fields)
        await self.publish(key(name, kind), Declared(manifest))

    async def declare_all(self, names: Sequence[str], *, withdrawn: bool = False) -> None:
        """Declare or withdraw many resources, and return when the bus has stored all messages."""
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
        """Withdraw a resource."""
        await self.publish(key(name, kind), Withdrawn())

    async def configure(
        self,
        name: str,
        prefix: str,
        *,
        provider: str = "shapes",
        endpoint: str = "",
        resync_seconds: float = 0.5,
    ) -> None:
        """Declare a configuration with a name prefix; the default endpoint is the lane's API."""
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
        await self.publish(config.key, Declared(config))

    async def publish(
        self,
        resource: ResourceKey,
        data: Declared | Withdrawn | Approved | ForcedRelease,
        *,
        message_id: str | None = None,
    ) -> str:
        """Publish a message until it is acknowledged, and return its ID."""
        identity = message_id or uuid.uuid4().hex
        payload = encode_intake(identity, ACTOR, data, time=datetime.now(UTC))
        is_approval = isinstance(data, Approved | ForcedRelease)
        subject = intake("approval" if is_approval else "desired", resource)

        async def is_stored() -> bool:
            await publish(self.nc, subject, payload, headers={MESSAGE_ID: identity})
            return True

        await self.wait_until(is_stored, f"{resource} is declared")
        self.acknowledged.append(AcknowledgedMessage(resource, identity))
        return identity

    async def withdraw_config(self, name: str) -> None:
        """Withdraw a configuration, and end it although resources use it."""
        await self.publish(config_key(name), Withdrawn())
        await self.publish(config_key(name), ForcedRelease("the test stops the calls"))

    # --- out-of-band changes

    async def put_secret(self, name: str, value: str) -> None:
        """Change a secret in the store of all processes that start later."""
        await (
            open_stores(self._folder / SECRETS)
            .by_name["files"]
            .write(SecretKey("default", name), value)
        )
        self._secrets[name] = value

    async def break_api(self, **faults: object) -> None:
        """Set the faults of the API; see ``tests.faulty_api.faults``."""
        (await self.http.put("/_faults", json=faults)).raise_for_status()

    async def repair(self) -> None:
        """Restart a server that is down, and end all faults of the API."""
        if not self.server.is_running:
            await self.restart_server()
        if not self.api.is_running:
            await self.restart_api()
        await self.break_api()

    async def delete_object(self, name: str) -> None:
        """Delete an object directly in the API."""
        self.out_of_band_names.add(name)
        (await self.http.delete(f"/shapes/{name}")).raise_for_status()

    async def recolor_object(self, name: str, color: str) -> None:
        """Change an object directly in the API."""
        self.out_of_band_names.add(name)
        body = (await self.http.get(f"/shapes/{name}")).raise_for_status().json()
        response = await self.http.put(f"/shapes/{name}", json={**body, "color": color})
        response.raise_for_status()

    async def create_object(self, name: str, option: str = "") -> None:
        """Create an object directly in the API; ``option`` as in ``tests.faulty_api.options``."""
        self.out_of_band_names.add(name)
        body = {"name": name, "type": "Square", "color": "Red"}
        path = f"/as/{option}/shapes" if option else "/shapes"
        (await self.http.post(path, json=body)).raise_for_status()

    async def expire_object(self, name: str) -> None:
        """Mark an object as expired."""
        (await self.http.put("/_expired", params={"name": name})).raise_for_status()

    async def effects(self, *names: str) -> list[str]:
        """Return the writes to objects in the API; out-of-band ones are prefixed with "human".

        Second names and server-assigned IDs begin with the resource's name and a dash.
        """
        entries = (await self.http.get("/_journal")).raise_for_status().json()["entries"]
        return [
            each["method"] if each["idempotency_key"] else f"human {each['method']}"
            for each in entries
            if each["name"].startswith(tuple(f"{name}-" for name in names)) or each["name"] in names
        ]

    async def count_effects(self) -> int:
        """Count all writes to the API."""
        return len((await self.http.get("/_journal")).raise_for_status().json()["entries"])

    async def count_objects(self) -> int:
        """Count the objects in the API."""
        return (await self.http.get("/_stats")).raise_for_status().json()["shapes"]

    async def count_events(self) -> int:
        """Count the events of the log."""
        return (await stream_state(self.nc, LOG)).last_seq

    # --- waiting and reading

    async def wait_until(
        self,
        condition: Callable[[], Awaitable[_T]],
        what: str,
        *,
        seconds: float = TIMEOUT_SECONDS,
    ) -> _T:
        """Wait until a condition returns a true value; the bus or the API may be unavailable."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                value = await condition()
            except (BusError, httpx.TransportError):
                value = None
            if value:
                return value
            if time.monotonic() > deadline:
                output = "\n".join(each.error_output for each in self._processes[-2:])
                raise AssertionError(f"{what}: not within {seconds:g} s\n{output}")
            await asyncio.sleep(_POLL_SECONDS)

    async def wait_for_outcome(
        self, resource: str | ResourceKey, expected: str, generation: int = 0
    ) -> None:
        """Wait until the newest outcome is the expected one, for this or a later generation."""
        shape = key(resource) if isinstance(resource, str) else resource
        outcomes: list[str] = []

        async def has_outcome() -> bool:
            outcomes.clear()
            messages = await last_for_subjects(self.nc, LOG, [outcome_filter(shape.tokens)])
            for message in sorted(messages, key=lambda each: each.seq)[-1:]:
                data = decode_log(message.payload).data
                assert isinstance(data, OutcomeRecorded)
                outcomes.append(f"{data.outcome} {data.reason} {data.message} @{data.generation}")
                return data.outcome == expected and data.generation >= generation
            return False

        try:
            await self.wait_until(has_outcome, f"outcome {expected} of {shape}")
        except AssertionError as error:
            history = [type(each.data).__name__ for each in await self.history(shape)]
            raise AssertionError(f"outcomes {outcomes}, log {history}: {error}") from None

    async def wait_until_idle(self) -> None:
        """Wait until no message is waiting for a decider and no action for a worker."""

        async def consumers() -> list[tuple[str, int, int]]:
            listed = await api_request(self.nc, f"CONSUMER.LIST.{INTAKE}", {})
            # The judge's consumers are listed, too; the server keeps them for ten seconds.
            deciders = [each for each in listed["consumers"] if each["name"] in decider_consumers()]
            return [
                (
                    each["name"],
                    each["num_pending"] + each["num_ack_pending"],
                    each["delivered"]["stream_seq"],
                )
                for each in (*deciders, *await worker_consumers(self.nc))
            ]

        async def is_idle() -> bool:
            # Read twice: one read misses a message that moves to another consumer meanwhile.
            first = await consumers()
            return not any(waiting for _, waiting, _ in first) and await consumers() == first

        await self.wait_until(is_idle, "everything is decided and executed")

    async def history(self, resource: str | ResourceKey) -> list[LogEvent]:
        """Return all events of a resource."""
        shape = key(resource) if isinstance(resource, str) else resource
        messages = await read_subject(self.nc, LOG, log_filter(shape))
        return [decode_log(message.payload) for message in messages]

    async def assert_sound(self) -> None:
        """Assert that the judge finds no problem on this bus and API."""
        findings = await check(
            self.nc,
            self.api.url,
            acknowledged=self.acknowledged,
            by_hand=self.out_of_band_names,
            secrets=self._secrets,
        )
        assert not findings, "\n".join(map(str, findings))


def key(name: str, kind: str = "Shape") -> ResourceKey:
    """Return the key of a resource on the lane."""
    return ResourceKey("default", kind, name)


def config_key(name: str) -> ResourceKey:
    """Return the key of a configuration."""
    return ResourceKey(SYSTEM_NAMESPACE, PROVIDER_CONFIG_KIND, name)
