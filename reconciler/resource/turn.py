"""What goes into a turn of a resource, and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from events.excerpt import shortened
from events.hold import Hold
from events.intake import IntakeData, Reply, WaitPurpose
from events.log import (
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

_ANYTHING = Capabilities(
    idempotency_keys=True, deterministic_names=True, labels=True, conditional_writes=True
)


class Command(msgspec.Struct, frozen=True, gc=False):
    """One intake message for a resource: where it stands, who sent it, what it says."""

    position: int
    message_id: str
    actor: str
    data: IntakeData
    first_position: int | None = None  # of its source and id, if somebody has looked (ADR 0016)
    stored_at: datetime | None = None  # by the bus's clock

    @property
    def counts_from(self) -> int:
        """Its place in the order of what was said: where it came first, as far as is known."""
        return self.position if self.first_position is None else self.first_position


class TwinHold(NamedTuple):
    """Whether an API is held because it has objects that are newer than the log (ADR 0065).

    ``version`` is that of the event that last set or ended the hold. ``approved_by`` is the id of
    the message that ended one last: actions that are decided later have other keys.
    """

    version: int
    is_held: bool
    approved_by: str = ""


def key_epoch(epoch: str, hold: TwinHold | None) -> str:
    """Return the epoch for the keys of an API's actions: that of the log, and of an approval."""
    return epoch if hold is None or not hold.approved_by else f"{epoch}:{hold.approved_by}"


class Context(msgspec.Struct, frozen=True):
    """The inputs of a decision that are not in the resource's own log."""

    key: ResourceKey
    now: datetime
    jitter: float  # in [0, 1)
    log_id: str
    kind: Kind | None  # None: no such kind is registered here
    configs: dict[str, ProviderConfigSpec]  # by name: a declaration may change which one is used
    begins: bool = True  # False: what is said is recorded, and what follows is decided later
    bus_time: datetime | None = None  # by the bus's clock, when it stored the newest message
    epoch: str = ""  # names the log's last restoration
    restored_as_of: str = ""  # the time of the backup that it used
    twins: Mapping[str, TwinHold] = {}  # by configuration
    providers: Mapping[str, tuple[str, ...]] | None = None  # with their kinds, where that is known
    # Who refers to whom, as far as a declaration's own references lead: for circles.
    refers: Mapping[str, tuple[str, ...]] = {}
    # Raises `InvalidManifestError` for the spec of a definition that nobody here could use.
    check_definition: Callable[[ResourceKey, Fields], None] = lambda _key, _fields: None
    # Raises the same, or `UnknownKindError`, for a resource that another is to be made of.
    check_part: Callable[[Manifest], None] = lambda _manifest: None
    # The same for one that has another name than a part that was checked, and else is equal.
    check_part_name: Callable[[Manifest], None] = lambda _manifest: None
    # What to do about a missing kind or provider: for the words of a refusal, which is no event.
    missing_hint: Callable[[datetime], str] = lambda _now: (
        "install its package where the roles run, then restart the roles"
    )

    @property
    def owner(self) -> str:
        """The owner label's value for this resource."""
        return owner(self.log_id, self.key)

    @property
    def capabilities(self) -> Capabilities:
        """What the kind's API can do; of an unknown kind nothing will be called anyway."""
        known = None if self.kind is None else self.kind.capabilities
        return _ANYTHING if known is None else known

    def key_epoch(self, config_name: str) -> str:
        """Return what sets the keys of an API's actions apart from those of another copy."""
        return key_epoch(self.epoch, self.twins.get(config_name))

    def grace_seconds(self, config_name: str, state: ResourceState) -> float:
        """How long an API may take to show an effect of a resource.

        As declared, as its provider says, or as the resource has seen.
        """
        config = self.configs.get(config_name)
        capabilities = None if self.kind is None else self.kind.capabilities
        return max(
            0.0 if config is None else config.consistency_grace_seconds,
            0.0 if capabilities is None else capabilities.consistency_grace_seconds,
            state.observed.grace_seconds,
        )


class Conclusion(msgspec.Struct, frozen=True, gc=False):
    """There is no next step: this is how the resource stands."""

    outcome: OutcomeName
    reason: str
    message: str = ""
    action_id: str | None = None
    ready: Readiness | None = None  # of the object; None where it does not count


class NothingToReport(msgspec.Struct, frozen=True, gc=False):
    """There is no next step, and the last outcome is still true."""


NOTHING_TO_REPORT = NothingToReport()


def on_hold(hold: Hold, message: str, action_id: str | None = None) -> Conclusion:
    """Return that a resource waits for what ends this hold."""
    return Conclusion("Held", hold, message, action_id)


PAUSED = Conclusion(
    "Paused", "PausedByPolicy", "spec.policy.paused is true; Reconciler takes no action"
)

Step = ResourceEvent | Conclusion | NothingToReport
"""The next event to record, or how the resource stands if there is none."""


class CommandResult(NamedTuple):
    """What one command adds to the history, before anything is decided."""

    events: tuple[ResourceEvent, ...] = ()
    reply: Reply | None = None
    shows_object: bool = False  # it says how the object stands now: it may be lost, or drifted
    may_be_repeat: bool = False  # of an old declaration, sent again


NOTHING_NEW = CommandResult()


class Turn(NamedTuple):
    """What came of a turn: the state after it, the events to append, an answer for each command."""

    state: ResourceState
    events: Sequence[LogEvent]
    replies: Sequence[Reply | None]
    repeats: Sequence[Command]  # made a generation, and may be old ones that were sent again

    @property
    def timers(self) -> list[tuple[datetime, WaitPurpose]]:
        """The waits that this turn decided, each to be timed."""
        found: list[tuple[datetime, WaitPurpose]] = []
        for event in self.events:
            match event.data:
                case RetryScheduled(at):
                    found.append((at, "Retry"))
                case RenewalScheduled(at=at):
                    found.append((at, "Renewal"))
                case ProgressNoted(at=datetime() as at):
                    found.append((at, "Progress"))
                case _:
                    pass
        return found


# --- the answers to who declares, approves or releases


def is_handled(command: Command, state: ResourceState) -> bool:
    """Return whether a message was handled before, under the same source and id."""
    known = declaration_id(command.actor, command.message_id)
    desired = state.desired
    return command.position == desired.position or known in desired.declaration_ids


def accept(
    state: ResourceState, command: Command, *events: ResourceEvent, reason: str = "Accepted"
) -> CommandResult:
    """Reply that it was done, or that there was nothing to do."""
    return CommandResult(events, Reply(True, reason, state.desired.generation, command.position))


def refuse(
    state: ResourceState, command: Command, reason: str, message: str, *events: ResourceEvent
) -> CommandResult:
    """Reply that it is not done, and why."""
    reply = Reply(False, reason, state.desired.generation, command.position, shortened(message))
    return CommandResult(events, reply)
