"""Use an API's objects to detect that another copy of this log writes to it (ADR 0065)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog

from events.external import ExternalObject
from events.intake import ApiReported, NewerObject
from events.log import ActionFailed, ActionHeld, ActionSucceeded, ExternalObserved, LogEvent
from events.names import ResourceKey
from events.provider_config import config_key
from reconciler.ports import EventLog, IntakeMessageOut, IntakeWriter
from reconciler.resource.api_health import MAX_NEWER_OBJECTS
from reconciler.resource.twin import KeySpaces, labeled_resource, newer_action
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.runtime.pauses import in_slices
from reconciler.roles.runtime.runtime import REAL, Runtime

_HISTORIES_PER_LOAD = 64

_logger = structlog.get_logger(__name__)


class Suspect(NamedTuple):
    """An object, and the resource that would be notified of it."""

    resource: ResourceKey
    object: ExternalObject


class Comparison(NamedTuple):
    """Result of comparing an API's objects with the log.

    ``must_wait``: the API has newer objects, and must be held before its listing is used.
    ``unclear``: resources whose object cannot be compared, because a history is damaged.
    """

    must_wait: bool
    unclear: frozenset[ResourceKey] = frozenset()

    def allows(self, key: ResourceKey) -> bool:
        """Return whether a resource may be notified of its object."""
        return not self.must_wait and key not in self.unclear


class TwinDetector:
    """Compares the objects of APIs with the log, and reports newer ones."""

    def __init__(
        self,
        *,
        name: str,
        log: EventLog,
        intake: IntakeWriter,
        configurations: Configurations,
        runtime: Runtime = REAL,
    ) -> None:
        self._name = name
        self._log = log
        self._intake = intake
        self._configurations = configurations
        self._now = runtime.now
        self._new_id = runtime.new_id

    async def report(
        self,
        config: str,
        kind: str,
        objects: Sequence[Suspect],
        known_version: Callable[[ResourceKey], int],
    ) -> Comparison:
        """Report the objects of a configuration that are newer than the log.

        Return whether they may be used. The log is read only for objects that are newer than the
        version that this process has.
        """
        hold = self._configurations.twins.get(config)
        spaces = KeySpaces.of(self._log.log_id, self._log.epoch, hold)
        suspects: list[Suspect] = []
        async for chunk in in_slices(objects):
            suspects += [each for each in chunk if _is_suspect(each.object, spaces, known_version)]
        newer: list[NewerObject] = []
        unclear: set[ResourceKey] = set()
        for start in range(0, len(suspects), _HISTORIES_PER_LOAD):
            chunk = suspects[start : start + _HISTORIES_PER_LOAD]
            newer += await self._find_newer(kind, chunk, spaces, unclear)
        if not newer:
            return Comparison(must_wait=False, unclear=frozenset(unclear))
        _logger.warning(
            "an API has objects that are newer than this log",
            config=config,
            total=len(newer),
            example=newer[0].action,
        )
        version = 0 if hold is None else hold.version
        reported = ApiReported(
            "Twin",
            self._name,
            self._now(),
            version,
            newer=tuple(newer[:MAX_NEWER_OBJECTS]),
            total=len(newer),
        )
        message = IntakeMessageOut("result", config_key(config), reported, self._new_id())
        await self._intake.publish([message])
        must_wait = hold is None or not hold.is_held
        return Comparison(must_wait, frozenset(unclear))

    async def _find_newer(
        self, kind: str, suspects: Sequence[Suspect], spaces: KeySpaces, unclear: set[ResourceKey]
    ) -> list[NewerObject]:
        """Return the objects for which the log has neither an observation nor the last action.

        Resources whose history cannot be compared are added to `unclear`.
        """
        named = [(each, labeled_resource(each.object, spaces.log_id)) for each in suspects]
        keys = {
            key
            for each, labeled_key in named
            for key in (each.resource, labeled_key)
            if key is not None
        }
        histories = await self._log.load(sorted(keys), from_leader=True, use_cache=False)
        newer: list[NewerObject] = []
        for each, resource in named:
            if resource is None:
                continue
            if any(histories[key].damage is not None for key in (resource, each.resource)):
                # Ownership is also unknown, because a decider may not have detected the damage yet.
                unclear.add(each.resource)
                continue
            events = histories[resource].events
            known = events[-1].resourceversion if events else 0
            action = newer_action(each.object, spaces, known)
            recorded = (*events, *histories[each.resource].events)
            if action is None or any(_records(event, each.object) for event in recorded):
                continue
            newer.append(NewerObject(kind, each.object.name, each.object.uid, action, known))
        return newer


def _is_suspect(
    existing: ExternalObject, spaces: KeySpaces, known_version: Callable[[ResourceKey], int]
) -> bool:
    resource = labeled_resource(existing, spaces.log_id)
    return resource is not None and bool(newer_action(existing, spaces, known_version(resource)))


def _records(event: LogEvent, existing: ExternalObject) -> bool:
    """Return whether an event records an object as its last writer left it.

    While the API is held, an action's result records the object that it found, so later listings
    contain nothing new.
    """
    match event.data:
        case ExternalObserved() | ActionSucceeded() | ActionFailed() | ActionHeld():
            recorded = event.data.object
        case _:
            return False
    return recorded is not None and (recorded.uid, recorded.written_by) == (
        existing.uid,
        existing.written_by,
    )
