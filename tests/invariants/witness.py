"""A kind whose provider reads the log before each effect, and records the requested actions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

from events.external import ExternalObject
from events.log import Action, ActionDecided, ActionRetried
from events.provider_config import ProviderConfigSpec, Scope
from reconciler.provider import Effect, Provider
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.kind import Kind, KindRegistry
from reconciler.provider.secrets import Secrets
from shapes_api.kinds.shapes import SHAPE, ShapesProvider
from tests.scenarios.harness import World


@dataclass
class Witness:
    """Every executed action, and those that the log did not record beforehand."""

    world: World
    executed: list[Action] = field(default_factory=list[Action])
    unrecorded: list[Action] = field(default_factory=list[Action])

    def kinds(self) -> KindRegistry:
        kind: Kind = replace(SHAPE, connect=self._connect)
        return KindRegistry([kind])

    def _connect(
        self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit
    ) -> Provider:
        return _WatchedProvider(ShapesProvider(config, secrets, permit), self)

    async def record(self, action: Action) -> None:
        self.executed.append(action)
        recorded = await self.world.facts(action.external_name)
        intents = [each for each in recorded if isinstance(each, (ActionDecided, ActionRetried))]
        if action not in [intent.action for intent in intents]:
            self.unrecorded.append(action)


class _WatchedProvider:
    """Implements ``reconciler.provider.Provider`` around another provider."""

    def __init__(self, inner: Provider, witness: Witness) -> None:
        self._inner = inner
        self._witness = witness

    async def create(self, action: Action) -> Effect:
        await self._witness.record(action)
        return await self._inner.create(action)

    async def update(self, action: Action) -> Effect:
        await self._witness.record(action)
        return await self._inner.update(action)

    async def delete(self, action: Action) -> Effect:
        await self._witness.record(action)
        return await self._inner.delete(action)

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        return await self._inner.read(external_name, uid)

    def pages(self, scope: Scope, *, page_size: int) -> AsyncIterator[Sequence[ExternalObject]]:
        return self._inner.pages(scope, page_size=page_size)

    async def close(self) -> None:
        await self._inner.close()
