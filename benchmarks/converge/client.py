"""The benchmark's bus client, which uses the SDK like another team's service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress

import msgspec
from nats.aio.client import Client as Connection

from events.log import OutcomeName
from events.manifest import RECONCILER_API_VERSION, Fields, Manifest, Metadata
from events.names import SYSTEM_NAMESPACE, ResourceKey
from events.provider_config import PROVIDER_CONFIG_KIND, ProviderConfigSpec
from infra.bus.streams import INTAKE, LOG, worker_consumers
from infra.jetstream.connection import api_request
from infra.jetstream.reads import stream_state
from reconciler.sdk import Client, OutcomeStream

TIMEOUT_SECONDS = 120.0
_POLL_SECONDS = 0.02


class Bus:
    """A client that declares resources and follows all outcomes.

    ``nc`` is its connection, for data that no service would read.
    """

    def __init__(self, client: Client, nc: Connection) -> None:
        self.nc = nc
        self._client = client
        self._awaited: set[ResourceKey] = set()
        self._outcome: OutcomeName = "Converged"
        self._all_received = asyncio.Event()

    # --- declarations

    async def declare(self, names: Sequence[str], config: str = "default") -> None:
        """Declare resources, and return when all declarations are stored."""
        await self._client.publish(
            [_manifest(name, config) for name in names], timeout_seconds=TIMEOUT_SECONDS
        )

    async def withdraw(self, names: Sequence[str]) -> None:
        """Withdraw resources, and return when all withdrawals are accepted."""
        shapes = [_key(name) for name in names]
        await self._client.withdraw_many(shapes, timeout_seconds=TIMEOUT_SECONDS)

    async def configure(self, spec: ProviderConfigSpec, name: str = "default") -> None:
        """Declare a ProviderConfig, and wait until it has converged."""
        fields = msgspec.to_builtins(spec, str_keys=True)
        metadata = Metadata(name, SYSTEM_NAMESPACE)
        config = Manifest(RECONCILER_API_VERSION, PROVIDER_CONFIG_KIND, metadata, fields)
        self._expect([config.key], "Converged")
        await self._client.declare(config)
        await self.wait_for_expected()

    # --- outcomes

    def expect(self, names: Iterable[str], outcome: OutcomeName) -> None:
        """Set the outcome that ``wait_for_expected`` awaits for each of these resources."""
        self._expect((_key(name) for name in names), outcome)

    def _expect(self, keys: Iterable[ResourceKey], outcome: OutcomeName) -> None:
        self._awaited = set(keys)
        self._outcome = outcome
        self._all_received.clear()

    async def wait_for_expected(self) -> None:
        """Wait until every expected outcome has been received."""
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await self._all_received.wait()
        except TimeoutError:
            examples = [str(key) for key in sorted(self._awaited)[:5]]
            raise TimeoutError(
                f"{len(self._awaited)} resources are not {self._outcome} after "
                f"{TIMEOUT_SECONDS:.0f} s: {examples}"
            ) from None

    async def _process_outcomes(self, stream: OutcomeStream) -> None:
        async for outcome in stream:
            if outcome.outcome == self._outcome:
                self._awaited.discard(outcome.key)
                if not self._awaited:
                    self._all_received.set()

    # --- reading

    async def log_position(self) -> int:
        """Return the number of events in the log."""
        return (await stream_state(self.nc, LOG)).last_seq

    async def wait_until_idle(self) -> None:
        """Wait until all messages are processed and all actions are executed."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while await self._count_pending():
            if time.monotonic() > deadline:
                raise TimeoutError(f"messages are still pending after {TIMEOUT_SECONDS:.0f} s")
            await asyncio.sleep(_POLL_SECONDS)

    async def _count_pending(self) -> int:
        deciders = (await api_request(self.nc, f"CONSUMER.LIST.{INTAKE}", {}))["consumers"]
        consumers = [*deciders, *await worker_consumers(self.nc)]
        return sum(each["num_pending"] + each["num_ack_pending"] for each in consumers)

    @asynccontextmanager
    async def follow_outcomes(self) -> AsyncGenerator[None]:
        """Follow the outcomes within the context."""
        async with self._client.outcomes() as stream:
            task = asyncio.create_task(self._process_outcomes(stream))
            try:
                yield
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


def _manifest(name: str, config: str) -> Manifest:
    fields: Fields = {"type": "Square", "color": "Red", "providerConfigRef": {"name": config}}
    return Manifest("shapes/v1", "Shape", Metadata(name), fields)


def _key(name: str) -> ResourceKey:
    return ResourceKey("default", "Shape", name)
