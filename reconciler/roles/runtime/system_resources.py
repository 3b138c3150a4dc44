"""Resources that every process loads by name from the log: configurations and definitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import structlog

from events.integrity import LogDamage
from events.log import LogEvent, ResourceEvent, SpecDeclared, SpecWithdrawn
from events.names import SYSTEM_NAMESPACE, ResourceKey
from reconciler.ports import EventLog

_log = structlog.get_logger(__name__)

Listener = Callable[[str], None]
"""Receives the name of a resource that was declared, changed or withdrawn."""


class SystemResources:
    """All resources of one system kind, updated by the events passed to it.

    A resource with a damaged history is not used at all, because its valid part may be an older
    declaration with another scope or API.
    """

    kind: ClassVar[str]
    event_types: ClassVar[frozenset[type[ResourceEvent]]] = frozenset({SpecDeclared, SpecWithdrawn})

    def __init__(self) -> None:
        self._prefix = f"{SYSTEM_NAMESPACE}/{self.kind}/"
        self._versions: dict[str, int] = {}
        self._damaged: set[str] = set()
        self._listeners: list[Listener] = []

    def declare(self, name: str, data: SpecDeclared) -> None:
        """Use the newest declaration of a resource."""
        raise NotImplementedError

    def withdraw(self, name: str, data: SpecWithdrawn) -> None:  # noqa: ARG002 - for subclasses
        """Process the withdrawal of a resource. By default, stop using it."""
        self.remove(name)

    def remove(self, name: str) -> None:
        """Stop using a resource."""
        raise NotImplementedError

    @property
    def names(self) -> set[str]:
        """Names of all resources that were ever declared."""
        return self._versions.keys() | self._damaged

    def version(self, name: str) -> int:
        """Return the version of a resource's newest declaration or withdrawal, or 0."""
        return self._versions.get(name, 0)

    async def load(self, log: EventLog) -> None:
        """Load the current declarations."""
        known: dict[ResourceKey, int] = {}
        for stored in await log.read_kind(SYSTEM_NAMESPACE, self.kind):
            known[stored.event.key] = stored.position
            self.apply(stored.event)
        newest = await log.newest_positions(list(known))
        outdated = [key for key, position in known.items() if newest[key] != position]
        if outdated:
            await self.load_histories(log, outdated)

    async def load_histories(self, log: EventLog, keys: Sequence[ResourceKey]) -> None:
        """Read histories that may have more events, such as newer ones or events after damage."""
        for resource in (await log.load(keys, use_cache=False)).values():
            if resource.damage is not None:
                self.mark_damage(resource.damage)
            for event in resource.events:
                self.apply(event)

    def mark_damage(self, damage: LogDamage) -> None:
        """Stop using a resource whose history is damaged."""
        name = self._name(damage.resource)
        if name is None or name in self._damaged:
            return
        message = f"a {self.kind} is ignored because its log is damaged"
        _log.error(message, name=name, where=str(damage))
        self._damaged.add(name)
        self.remove(name)
        self._notify(name)

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` on every later change."""
        self._listeners.append(listener)

    def apply(self, event: LogEvent) -> None:
        """Fold an event of any resource; events of other kinds are ignored."""
        name = self._name(event.subject)
        if name is None or not isinstance(event.data, (SpecDeclared, SpecWithdrawn)):
            return
        if name in self._damaged or event.resourceversion <= self._versions.get(name, 0):
            return  # already applied: the decider applies its own appends first
        self._versions[name] = event.resourceversion
        if isinstance(event.data, SpecDeclared):
            self.declare(name, event.data)
        else:
            self.withdraw(name, event.data)
        self._notify(name)

    def _name(self, resource: str) -> str | None:
        has_prefix = resource.startswith(self._prefix)
        return resource.removeprefix(self._prefix) if has_prefix else None

    def _notify(self, name: str) -> None:
        for listener in self._listeners:
            listener(name)
