"""The benchmark's client of the bus: declares, and follows the outcome stream."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress

import msgspec
from nats.aio.client import Client

from events.envelope import decode_log
from events.intake import Declared, Withdrawn
from events.log import OutcomeName, OutcomeRecorded
from events.manifest import (
    PROVIDER_CONFIG_API_VERSION,
    PROVIDER_CONFIG_KIND,
    Manifest,
    Metadata,
    ProviderConfigSpec,
)
from events.names import SYSTEM_NAMESPACE, ShapeKey
from infra.bus.intake import JetStreamIntakeWriter
from infra.bus.streams import INTAKE, OUTCOMES, SHAPES, WORKERS
from infra.jetstream.connection import api_request
from infra.jetstream.follow import follow
from infra.jetstream.reads import stream_state
from reconciler.ports import IntakeMessageOut

PATIENCE_SECONDS = 120.0
_LOOK_SECONDS = 0.02
_ACTOR = "benchmark"


class Bus:
    """One connection that declares, and sees every outcome from its beginning on."""

    def __init__(self, nc: Client) -> None:
        self.nc = nc
        self._writer = JetStreamIntakeWriter(nc, _ACTOR)
        self._awaited: set[str] = set()
        self._outcome: OutcomeName = "Converged"
        self._all_came = asyncio.Event()

    # --- declaring

    async def declare(self, names: Sequence[str]) -> None:
        """Declare shapes, and return when all declarations are stored."""
        manifests = [_manifest(name) for name in names]
        await self._writer.publish(
            [
                IntakeMessageOut("desired", each.key, Declared(each), uuid.uuid4().hex)
                for each in manifests
            ]
        )

    async def withdraw(self, names: Sequence[str]) -> None:
        """Withdraw shapes, and return when that is stored."""
        await self._writer.publish(
            [
                IntakeMessageOut("desired", _key(name), Withdrawn(), uuid.uuid4().hex)
                for name in names
            ]
        )

    async def configure(self, spec: ProviderConfigSpec) -> None:
        """Declare the one ProviderConfig, and wait until it is taken in."""
        fields = msgspec.to_builtins(spec, str_keys=True)
        metadata = Metadata("default", SYSTEM_NAMESPACE)
        config = Manifest(PROVIDER_CONFIG_API_VERSION, PROVIDER_CONFIG_KIND, metadata, fields)
        self._expect([config.key], "Converged")
        await self._writer.publish(
            [IntakeMessageOut("desired", config.key, Declared(config), uuid.uuid4().hex)]
        )
        await self.expected()

    # --- outcomes

    def expect(self, names: Iterable[str], outcome: OutcomeName) -> None:
        """Await an outcome of each of these shapes from now on."""
        self._expect((_key(name) for name in names), outcome)

    def _expect(self, keys: Iterable[ShapeKey], outcome: OutcomeName) -> None:
        self._awaited = {str(key) for key in keys}
        self._outcome = outcome
        self._all_came.clear()

    async def expected(self) -> None:
        """Wait for the last of the outcomes that are awaited."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._all_came.wait()
        except TimeoutError:
            raise TimeoutError(
                f"{len(self._awaited)} shapes are not {self._outcome} after "
                f"{PATIENCE_SECONDS:.0f} s: {sorted(self._awaited)[:5]}"
            ) from None

    async def _follow_outcomes(self, started: asyncio.Event) -> None:
        last = (await stream_state(self.nc, OUTCOMES)).last_seq
        async with follow(self.nc, OUTCOMES, start_seq=last + 1) as messages:
            started.set()
            async for batch in messages:
                for message in batch:
                    self._take(message.payload)

    def _take(self, payload: bytes) -> None:
        event = decode_log(payload)
        assert isinstance(event.data, OutcomeRecorded)
        if event.data.outcome == self._outcome:
            self._awaited.discard(event.subject)
            if not self._awaited:
                self._all_came.set()

    # --- looking

    async def log_position(self) -> int:
        """Give the number of events in the log."""
        return (await stream_state(self.nc, SHAPES)).last_seq

    async def until_nothing_waits(self) -> None:
        """Wait until all messages are decided and all actions executed."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while await self._waiting():
            if time.monotonic() > deadline:
                raise TimeoutError(f"messages still wait after {PATIENCE_SECONDS:.0f} s")
            await asyncio.sleep(_LOOK_SECONDS)

    async def _waiting(self) -> int:
        deciders = (await api_request(self.nc, f"CONSUMER.LIST.{INTAKE}", {}))["consumers"]
        workers = await api_request(self.nc, f"CONSUMER.INFO.{SHAPES}.{WORKERS}", None)
        return sum(each["num_pending"] + each["num_ack_pending"] for each in (*deciders, workers))

    @asynccontextmanager
    async def following(self) -> AsyncGenerator[None]:
        """Follow the outcomes while the context lasts."""
        started = asyncio.Event()
        task = asyncio.create_task(self._follow_outcomes(started))
        try:
            await started.wait()
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def _manifest(name: str) -> Manifest:
    return Manifest("shapes/v1", "Shape", Metadata(name), {"type": "Square", "color": "Red"})


def _key(name: str) -> ShapeKey:
    return ShapeKey("default", "Shape", name)
