"""A kind whose provider looks into the log before each effect, and keeps what it was asked for."""

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
    """Every action that was executed, and those of which the log did not speak by then."""

    world: World
    executed: list[Action] = field(default_factory=list[Action])
    unannounced: list[Action] = field(default_factory=list[Action])

    def kinds(self) -> KindRegistry:
        kind: Kind = replace(SHAPE, connect=self._connect)
        return KindRegistry([kind])

    def _connect(
        self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit
    ) -> Provider:
        return _Watched(ShapesProvider(config, secrets, permit), self)

    async def see(self, action: Action) -> None:
        self.executed.append(action)
        recorded = await self.world.facts(action.external_name)
        intents = [each for each in recorded if isinstance(each, (ActionDecided, ActionRetried))]
        if action not in [intent.action for intent in intents]:
            self.unannounced.append(action)


class _Watched:
    """Implements ``reconciler.provider.Provider`` over another one."""

    def __init__(self, inner: Provider, witness: Witness) -> None:
        self._inner = inner
        self._witness = witness

    async def create(self, action: Action) -> Effect:
        await self._witness.see(action)
        return await self._inner.create(action)

    async def update(self, action: Action) -> Effect:
        await self._witness.see(action)
        return await self._inner.update(action)

    async def delete(self, action: Action) -> Effect:
        await self._witness.see(action)
        return await self._inner.delete(action)

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        return await self._inner.read(external_name, uid)

    def pages(self, scope: Scope, *, page_size: int) -> AsyncIterator[Sequence[ExternalObject]]:
        return self._inner.pages(scope, page_size=page_size)

    async def close(self) -> None:
        await self._inner.close()
