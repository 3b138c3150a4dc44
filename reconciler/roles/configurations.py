"""The declared ``ProviderConfig``s, as the log has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import structlog

from events.integrity import LogDamage
from events.log import LogEvent, SpecDeclared, SpecWithdrawn
from events.names import SYSTEM_NAMESPACE, ResourceKey
from events.provider_config import PROVIDER_CONFIG_KIND, ProviderConfigSpec, config_name
from reconciler.ports import EventLog

_log = structlog.get_logger(__name__)

Listener = Callable[[str], None]
"""Called with the name of a configuration that was declared, changed or withdrawn."""


class Configurations:
    """Every declared configuration by name, kept up to date by the events that are shown to it.

    One whose history is damaged is not used at all: what is sound of it may be an older
    declaration, of another scope or another API.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, ProviderConfigSpec] = {}
        self._versions: dict[str, int] = {}
        self._damaged: set[str] = set()
        self._listeners: list[Listener] = []

    @property
    def names(self) -> set[str]:
        """Every configuration that was ever declared."""
        return self._versions.keys() | self._damaged

    async def load(self, log: EventLog) -> None:
        """Read what is declared by now."""
        known: dict[ResourceKey, int] = {}
        for stored in await log.of_kind(SYSTEM_NAMESPACE, PROVIDER_CONFIG_KIND):
            known[stored.event.key] = stored.position
            self.apply(stored.event)
        newest = await log.newest_positions(list(known))
        cut = [key for key, position in known.items() if newest[key] != position]
        if cut:
            await self._look_closer(log, cut)

    async def _look_closer(self, log: EventLog, keys: Sequence[ResourceKey]) -> None:
        """Read histories that go on behind what was read: by now, or behind damage."""
        for resource in (await log.load(keys, use_cache=False)).values():
            if resource.damage is not None:
                self.mark_damage(resource.damage)
            for event in resource.events:
                self.apply(event)

    def mark_damage(self, damage: LogDamage) -> None:
        """Use a configuration no more whose history is not what was written."""
        name = config_name(damage.resource)
        if name is None or name in self._damaged:
            return
        _log.error("a ProviderConfig is not used, its log is damaged", name=name, where=str(damage))
        self._damaged.add(name)
        self.by_name.pop(name, None)
        self._tell(name)

    def listen(self, listener: Listener) -> None:
        """Have ``listener`` called at every change from now on."""
        self._listeners.append(listener)

    def apply(self, event: LogEvent) -> None:
        """Fold an event of any resource; most say nothing about a configuration."""
        if type(event.data) not in (SpecDeclared, SpecWithdrawn):
            return
        name = config_name(event.subject)
        if name is None:
            return
        if name in self._damaged or event.resourceversion <= self._versions.get(name, 0):
            return  # seen already: our own append came first
        self._versions[name] = event.resourceversion
        if isinstance(event.data, SpecDeclared):
            self._declare(name, event.data)
        else:
            self.by_name.pop(name, None)
        self._tell(name)

    def _tell(self, name: str) -> None:
        for listener in self._listeners:
            listener(name)

    def _declare(self, name: str, data: SpecDeclared) -> None:
        try:
            self.by_name[name] = msgspec.convert(data.fields, ProviderConfigSpec)
        except msgspec.ValidationError as error:  # written by another release
            _log.error("ProviderConfig cannot be used", name=name, error=str(error))
            self.by_name.pop(name, None)
