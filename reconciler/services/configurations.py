"""The declared ``ProviderConfig``s, as the log has them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import structlog

from events.log import LogEvent, SpecDeclared, SpecWithdrawn
from events.manifest import PROVIDER_CONFIG_KIND, ProviderConfigSpec
from events.names import SYSTEM_NAMESPACE
from reconciler.ports import ShapeLog

_log = structlog.get_logger(__name__)

Listener = Callable[[str], None]
"""Called with the name of a configuration that was declared, changed or withdrawn."""


class Configurations:
    """Every declared configuration by name, kept up to date by the events that are shown to it."""

    def __init__(self) -> None:
        self.by_name: dict[str, ProviderConfigSpec] = {}
        self._versions: dict[str, int] = {}
        self._listeners: list[Listener] = []

    async def load(self, log: ShapeLog) -> None:
        """Read what is declared by now."""
        for stored in await log.of_kind(SYSTEM_NAMESPACE, PROVIDER_CONFIG_KIND):
            self.apply(stored.event)

    def listen(self, listener: Listener) -> None:
        """Have ``listener`` called at every change from now on."""
        self._listeners.append(listener)

    def apply(self, event: LogEvent) -> None:
        """Fold an event of any shape; most say nothing about a configuration."""
        if type(event.data) not in (SpecDeclared, SpecWithdrawn):
            return
        namespace, kind, name = event.subject.split("/")
        if kind != PROVIDER_CONFIG_KIND or namespace != SYSTEM_NAMESPACE:
            return
        if event.shapeversion <= self._versions.get(name, 0):
            return  # seen already: our own append came first
        self._versions[name] = event.shapeversion
        if isinstance(event.data, SpecDeclared):
            self._declare(name, event.data)
        else:
            self.by_name.pop(name, None)
        for listener in self._listeners:
            listener(name)

    def _declare(self, name: str, data: SpecDeclared) -> None:
        try:
            self.by_name[name] = msgspec.convert(data.fields, ProviderConfigSpec)
        except msgspec.ValidationError as error:  # written by another release
            _log.error("ProviderConfig cannot be used", name=name, error=str(error))
            self.by_name.pop(name, None)
