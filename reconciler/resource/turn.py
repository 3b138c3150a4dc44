"""The inputs and the result of a turn: one decision about one resource."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from events.excerpt import shorten
from events.hold import Hold
from events.intake import IntakeData, Reply, WaitPurpose
from events.log import (
    AvailabilityNoted,
    LogEvent,
    OutcomeName,
    ProgressNoted,
    RenewalScheduled,
    ResourceEvent,
    RetryScheduled,
)
from events.manifest import Fields, Manifest
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec
from reconciler.provider import Capabilities
from reconciler.provider.kind import Kind, Readiness
from reconciler.resource.owner_label import owner
from reconciler.resource.state import ResourceState, declaration_id

_ALL_CAPABILITIES = Capabilities(
    idempotency_keys=True, deterministic_names=True, labels=True, conditional_writes=True
)


class Command(msgspec.Struct, frozen=True, gc=False):
    """One intake message for a resource, with its position and its sender."""

    position: int
    message_id: str
    actor: str
    data: IntakeData
    # position of the first message with this source and id; None if not looked up (ADR 0016)
    first_position: int | None = None
    stored_at: datetime | None = None  # bus time of the message

    @property
    def effective_position(self) -> int:
        """Intake position of the message, or of its first copy if that is known."""
        return self.position if self.first_position is None else self.first_position


class TwinHold(NamedTuple):
    """Whether an API is held because it has objects that are newer than the log (ADR 0065).

    ``version`` is the version of the event that last set or ended the hold. ``approved_by`` is the
    id of the message that last ended a hold. It becomes part of the keys of later actions.
    """

    version: int
    is_held: bool
    approved_by: str = ""


class ApiSilence(NamedTuple):
    """Whether an API responds, as of the event that last recorded a change (ADR 0080).

    ``since``: time of the last response of a silent API. ``ended_at``: end of its last silence.
    """

    version: int
    event: str
    since: datetime | None = None
    ended_at: datetime | None = None


def key_epoch(epoch: str, hold: TwinHold | None) -> str:
    """Return the epoch of an API's idempotency keys: the log's epoch and the last approval."""
    return epoch if hold is None or not hold.approved_by else f"{epoch}:{hold.approved_by}"


class Context(msgspec.Struct, frozen=True):
    """The inputs of a decision that are not in the resource's own history."""

    key: ResourceKey
    now: datetime
    jitter: float  # in [0, 1)
    log_id: str
    kind: Kind | None  # None if the kind is not registered
    # by name, because a declaration may change the one that is used
    configs: dict[str, ProviderConfigSpec]
    takes_steps: bool = True  # if False, only record the commands, and decide later
    bus_time: datetime | None = None  # bus time at which the newest message was stored
    epoch: str = ""  # epoch of the log, set by `init` or its last restore
    restored_as_of: str = ""  # time of the restored backup
    withdrawn_configs: Collection[str] = ()  # names of withdrawn `configs` that are still used
    twins: Mapping[str, TwinHold] = {}  # by ProviderConfig name
    silences: Mapping[str, ApiSilence] = {}  # by ProviderConfig name; none if never silent
    # Counts of undeclared objects by kind, by name of a ProviderConfig whose scope waits for
    # approval. A kind with a count of 0 does not wait.
    new_scopes: Mapping[str, Mapping[str, int]] = {}
    # known providers with their kinds; None if they are unknown
    providers: Mapping[str, tuple[str, ...]] | None = None
    # Targets by referencing resource, to detect cycles that a declaration would close.
    reference_graph: Mapping[str, tuple[str, ...]] = {}
    # Raises `InvalidManifestError` for the spec of an unusable definition.
    check_definition: Callable[[ResourceKey, Fields], None] = lambda _key, _fields: None
    # Raises `InvalidManifestError` or `UnknownKindError` for an invalid part of a composition.
    check_part: Callable[[Manifest], None] = lambda _manifest: None
    # Like `check_part`, for a part that differs from a checked one only in its name.
    check_part_name: Callable[[Manifest], None] = lambda _manifest: None
    # Whether a ready object of a kind, by name, may stop being ready by itself.
    may_lose_readiness: Callable[[str], bool] = lambda _kind: False
    # Remedy for a missing kind or provider. It depends on the process, so it appears only in
    # refusals, never in events.
    missing_hint: Callable[[datetime], str] = lambda _now: (
        "install its package where the roles run, then restart the roles"
    )

    @property
    def owner(self) -> str:
        """Value of the owner label for this resource."""
        return owner(self.log_id, self.key)

    @property
    def bus_now(self) -> datetime:
        """The bus clock's time as of the newest message, or the local time if that is unknown."""
        return self.bus_time or self.now

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of the kind's API; all of them for an unknown kind, as it is not called."""
        known = None if self.kind is None else self.kind.capabilities
        return _ALL_CAPABILITIES if known is None else known

    def key_epoch(self, config_name: str) -> str:
        """Return the epoch for the idempotency keys of this API's actions."""
        return key_epoch(self.epoch, self.twins.get(config_name))

    def grace_seconds(self, config_name: str, state: ResourceState) -> float:
        """Return the time in seconds that the API may take to show a write of this resource.

        It is the maximum of the ProviderConfig's, the provider's and the resource's learned grace.
        """
        config = self.configs.get(config_name)
        capabilities = None if self.kind is None else self.kind.capabilities
        return max(
            0.0 if config is None else config.consistency_grace_seconds,
            0.0 if capabilities is None else capabilities.consistency_grace_seconds,
            state.observed.grace_seconds,
        )


class Conclusion(msgspec.Struct, frozen=True, gc=False):
    """The outcome of a resource that has no next step."""

    outcome: OutcomeName
    reason: str
    message: str = ""
    action_id: str | None = None
    ready: Readiness | None = None  # readiness of the object; None to derive it from the outcome


class NothingToReport(msgspec.Struct, frozen=True, gc=False):
    """The resource has no next step, and its last outcome still applies."""


NOTHING_TO_REPORT = NothingToReport()


def on_hold(hold: Hold, message: str, action_id: str | None = None) -> Conclusion:
    """Return the conclusion that the resource is held."""
    return Conclusion("Held", hold, message, action_id)


PAUSED = Conclusion(
    "Paused", "PausedByPolicy", "spec.policy.paused is true; Reconciler takes no action"
)

Step = ResourceEvent | Conclusion | NothingToReport
"""The next event to record, or the conclusion if there is no next event."""


class CommandResult(NamedTuple):
    """The events of one command, before the next step is decided, and the reply to its sender."""

    events: tuple[ResourceEvent, ...] = ()
    reply: Reply | None = None
    # whether the command shows the object's current state, so that loss or drift may follow
    shows_object: bool = False
    may_be_repeat: bool = False  # whether the command may repeat an older declaration


NOTHING_NEW = CommandResult()


_TIMER_TYPES: Final[frozenset[type[ResourceEvent]]] = frozenset(
    {RetryScheduled, RenewalScheduled, ProgressNoted, AvailabilityNoted}
)


class Turn(NamedTuple):
    """The result of a turn: the new state, the events to append, and a reply for each command."""

    state: ResourceState
    events: Sequence[LogEvent]
    replies: Sequence[Reply | None]
    # commands that created a generation, and may repeat older declarations
    repeats: Sequence[Command]

    @property
    def timers(self) -> list[tuple[datetime, WaitPurpose]]:
        """The deadlines that this turn scheduled, each with its purpose."""
        deadlines: list[tuple[datetime, WaitPurpose]] = []
        for event in self.events:
            if type(event.data) not in _TIMER_TYPES:  # faster than the patterns below
                continue
            match event.data:
                case RetryScheduled(at):
                    deadlines.append((at, "Retry"))
                case RenewalScheduled(at=at):
                    deadlines.append((at, "Renewal"))
                case ProgressNoted(at=datetime() as at):
                    deadlines.append((at, "Progress"))
                case AvailabilityNoted(next_at=datetime() as at):
                    deadlines.append((at, "Availability"))
                case _:
                    pass
        return deadlines


# --- replies to declarations, approvals and releases


def is_handled(command: Command, state: ResourceState) -> bool:
    """Return whether a message with this source and id was already handled."""
    known = declaration_id(command.actor, command.message_id)
    desired = state.desired
    return command.position == desired.position or known in desired.declaration_ids


def accept(
    state: ResourceState, command: Command, *events: ResourceEvent, reason: str = "Accepted"
) -> CommandResult:
    """Return a positive reply, with the events of the command if it changes anything."""
    return CommandResult(events, Reply(True, reason, state.desired.generation, command.position))


def refuse(
    state: ResourceState, command: Command, reason: str, message: str, *events: ResourceEvent
) -> CommandResult:
    """Return a negative reply with its reason."""
    reply = Reply(False, reason, state.desired.generation, command.position, shorten(message))
    return CommandResult(events, reply)
