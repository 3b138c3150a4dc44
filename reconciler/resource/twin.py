"""Objects that prove that a second copy of this log exists, and the hold on their API (ADR 0065).

Two copies of a data directory have the same log id, so they write the same owner labels. Any client
can copy a label together with the idempotency key. But the key of an action that this log has not
decided yet exists only if another copy of the log decided it. No client can compute it, because it
contains the random epoch with which the log began.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from events.epochs import epochs_in, has_empty_epoch
from events.external import ExternalObject
from events.hold import Hold
from events.log import ActionDecided, ActionRetried, event_id
from events.names import ResourceKey
from events.provider_config import config_key
from reconciler.resource.attempt import idempotency_key
from reconciler.resource.owner_label import OWNER_LABEL, resource_of
from reconciler.resource.turn import Context, Step, TwinHold, key_epoch, on_hold

MAX_NEWER_VERSIONS: Final = 256
"""Number of versions beyond the known one whose keys are compared with an object's key."""

_RECENT: Final = 64
"""Number of newest events that are checked first. They wrote nearly every changed object."""


class KeySpaces(NamedTuple):
    """The inputs of a log's idempotency keys: its id and its epochs, newest first."""

    log_id: str
    epochs: tuple[str, ...]

    @classmethod
    def of(cls, log_id: str, epoch: str, hold: TwinHold | None) -> KeySpaces:
        """Return the key space of an API. An epoch contains earlier ones."""
        api_epoch = key_epoch(epoch, hold)
        epochs = [api_epoch] if api_epoch != epoch else []
        empty = ("",) if has_empty_epoch(epoch) else ()
        return cls(log_id, (*epochs, *epochs_in(epoch), *empty))

    def keys(self, resource: ResourceKey, version: int) -> Iterator[str]:
        """Return the possible keys of an action that was decided with this version."""
        action_id = event_id(resource, version)
        return (idempotency_key(self.log_id, action_id, epoch) for epoch in self.epochs)


def labeled_resource(existing: ExternalObject, log_id: str) -> ResourceKey | None:
    """Return the resource of this log that the owner label of an object names."""
    name = resource_of(existing.labels.get(OWNER_LABEL, ""), log_id)
    return ResourceKey.parse(name) if name else None


def newer_action(existing: ExternalObject, spaces: KeySpaces, known_version: int) -> str | None:
    """Return the id of the action that wrote an object, if the log lacks that action."""
    resource = labeled_resource(existing, spaces.log_id)
    if resource is None or existing.written_by is None:
        return None
    oldest = max(known_version - _RECENT, 0)
    if any(
        existing.written_by in spaces.keys(resource, v) for v in range(known_version, oldest, -1)
    ):
        return None
    for version in range(known_version + 1, known_version + MAX_NEWER_VERSIONS + 1):
        if existing.written_by in spaces.keys(resource, version):
            return event_id(resource, version)
    return None


def hold_for_twin(step: ActionDecided | ActionRetried, context: Context) -> Step:
    """Return the step, or the hold on its API."""
    name = step.action.provider_config
    hold = context.twins.get(name)
    if hold is None or not hold.is_held:
        return step
    return on_hold(
        Hold.TWIN,
        f"ProviderConfig {name!r} is held, because its API has objects that are newer than this "
        f"log; to continue: `reconciler approve {config_key(name)} --hold {Hold.TWIN}`",
    )
