"""The steps of one run as data, which can be generated, printed, stored and shrunk.

Times are seconds after the start. A fault on a request is armed at its time, and strikes the next
request of its type by any process (or by ``process``), so that each fault can be dropped without
changing the others.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from events.intake import OnWithdrawal
from events.manifest import ApprovalLevel, Fields
from reconciler.roles.decider.actions_in_flight import MAX_ACTIONS
from reconciler.roles.process import Role
from tests.memory_bus.faults import DamageLog, OnRequest, TimedStep, TimersFail


class Declare(TimedStep, frozen=True, tag=True):
    """A service declares a resource. ``number`` names the message, so that it can be repeated."""

    number: int
    shape: str
    fields: Fields
    policy: Fields = {}  # noqa: RUF012 - msgspec copies it
    labels: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it
    copies: int = 1
    moved_from: str = ""  # the resource whose object it takes over
    external_name: str = ""  # the name of its object, if not that of the resource


class Withdraw(TimedStep, frozen=True, tag=True):
    """A service withdraws a declaration."""

    number: int
    shape: str
    copies: int = 1


class Repeat(TimedStep, frozen=True, tag=True):
    """A message is published again with the same id long after the bus has forgotten it."""

    number: int


class Garbage(TimedStep, frozen=True, tag=True):
    """A client publishes an invalid message."""

    shape: str
    payload: str
    copies: int = 1


class Configure(TimedStep, frozen=True, tag=True):
    """The configuration of the API is declared or changed; if not ``present``, withdrawn.

    ``forced``: an operator then ends it immediately, although resources use it.
    """

    present: bool = True
    forced: bool = False
    resync_seconds: float = 3.0
    concurrency: int = 4


class RequestFinalizer(TimedStep, frozen=True, tag=True):
    """Another service asks a resource to wait for it; the finalizer has the service's name."""

    number: int
    shape: str
    service: str


class ReleaseFinalizer(TimedStep, frozen=True, tag=True):
    """A finalizer is removed by its holder, or another client tries to, possibly by force."""

    number: int
    shape: str
    service: str
    by: str
    force: bool = False


class ForceRelease(TimedStep, frozen=True, tag=True):
    """An operator removes everything that keeps a withdrawn resource."""

    number: int
    shape: str
    orphan: bool = False


class Look(TimedStep, frozen=True, tag=True):
    """A client requests a reconciliation of a resource."""

    number: int
    shape: str


class Refer(TimedStep, frozen=True, tag=True):
    """A client declares a ``ShapeRef``, or withdraws it (``target`` empty)."""

    number: int
    name: str
    target: str = ""
    on_withdrawal: OnWithdrawal = "Keep"


class Define(TimedStep, frozen=True, tag=True):
    """The kind of the resources is defined or redefined with these constant fields."""

    constants: Fields


class PutSecret(TimedStep, frozen=True, tag=True):
    """An operator changes a secret, or removes it (``value`` empty)."""

    name: str
    value: str


class Approve(TimedStep, frozen=True, tag=True):
    """A person approves the hold of a resource; without a hold, this has no effect."""

    shape: str


class Listing(TimedStep, frozen=True, tag=True):
    """Another team's observer publishes a listing of the whole scope.

    ``short``: an item is lost; ``open``: it is never completed; ``late``: its items arrive long
    after it began.
    """

    how: Literal["whole", "short", "open", "late"] = "whole"


class HumanCreates(TimedStep, frozen=True, tag=True):
    """A human creates an object; ``label_of`` copies the owner label of a resource onto it."""

    name: str
    fields: Fields
    label_of: str = ""


class HumanEdits(TimedStep, frozen=True, tag=True):
    """A human changes fields of an object."""

    name: str
    fields: Fields


class HumanDeletes(TimedStep, frozen=True, tag=True):
    """A human deletes an object."""

    name: str


class HumanWipes(TimedStep, frozen=True, tag=True):
    """A human deletes everything."""


class HumanReplaces(TimedStep, frozen=True, tag=True):
    """A human deletes an object and immediately creates another with that name."""

    name: str
    fields: Fields


class HumanFills(TimedStep, frozen=True, tag=True):
    """A human stores data in an object, or in its replacement, which changes no version."""

    name: str


class HumanStripsLabels(TimedStep, frozen=True, tag=True):
    """A human removes all labels from an object, or only empties its owner label."""

    name: str
    empties: bool = False


class CopyWrites(TimedStep, frozen=True, tag=True):
    """Another copy of the log writes the object of a resource, at a version far ahead of ours.

    It has our label, and the key of an action that our log has not decided.
    """

    shape: str
    fields: Fields


class Crash(TimedStep, frozen=True, tag=True):
    """A process is killed and, after a while, restarted."""

    process: str
    down_seconds: float


class Pause(TimedStep, frozen=True, tag=True):
    """A process is paused for a while, and then continues with its old state."""

    process: str
    seconds: float


class Erase(TimedStep, frozen=True, tag=True):
    """Data that can be rebuilt from the log is lost."""

    what: Literal["rows", "states", "timers"]


class BusAway(TimedStep, frozen=True, tag=True):
    """The bus does not respond."""

    seconds: float


class Full(TimedStep, frozen=True, tag=True):
    """A stream has room for only ``room`` more messages for a while.

    ``again_seconds``: the interval at which it gets that room again, as if old messages expired.
    """

    what: Literal["log", "intake", "dead letters"]
    seconds: float
    room: int = 0
    again_seconds: float = 0.0


class FollowersLag(TimedStep, frozen=True, tag=True):
    """The replicas that serve reads lag behind."""

    seconds: float


class Repin(TimedStep, frozen=True, tag=True):
    """The server considers all readers of the intake dead, and lets others read."""


class Redeliver(TimedStep, frozen=True, tag=True):
    """The bus redelivers the newest acknowledged messages or actions."""

    what: Literal["intake", "actions"]
    count: int


class ApiAway(TimedStep, frozen=True, tag=True):
    """The API refuses every connection."""

    seconds: float


class ListingFails(TimedStep, frozen=True, tag=True):
    """The next listing ends early with an error, or omits an object without an error."""

    how: Literal["half-way", "leaves out"]
    index: int = 0


Step = (
    Declare
    | Withdraw
    | Repeat
    | Garbage
    | Configure
    | RequestFinalizer
    | ReleaseFinalizer
    | ForceRelease
    | Look
    | Refer
    | Define
    | PutSecret
    | Approve
    | Listing
    | DamageLog
    | HumanCreates
    | CopyWrites
    | HumanEdits
    | HumanDeletes
    | HumanWipes
    | HumanReplaces
    | HumanFills
    | HumanStripsLabels
    | OnRequest
    | Crash
    | Pause
    | Erase
    | BusAway
    | Full
    | FollowersLag
    | Repin
    | TimersFail
    | Redeliver
    | ApiAway
    | ListingFails
)


class ApiTraits(msgspec.Struct, frozen=True, omit_defaults=True):
    """The API's capabilities, and how its scope is shared.

    ``grace_seconds``: listings lag by up to this time. ``lag_seconds``: listings show a new
    object only after this time, and no grace is declared for that. ``names``: names are unique;
    otherwise every creation creates another object with its own id.
    ``loss_guard``: the number of missing objects that are doubted, 0 for never.
    ``keeps_refusals``: the first response to a key is stored, even a refusal, and repeated.
    ``replaces``: a size cannot be changed; a new object
    replaces the old one, or exists beside it for a while. ``lifetime_seconds``: the time after a
    write at which an object expires, 0 for never. ``starting_seconds``: the time after a write in
    which an object cannot be used, and shows that. ``listing``: whether objects can be listed;
    otherwise they are read individually. ``two_calls``: one call creates a White object, a second
    paints it. ``approve``: which actions wait for a person. ``wrong_uids``: the response to a
    creation has a uid that no object has; the objects show their keys.
    ``addresses``: an object's address is derived from its id and color. ``defined``: the resources'
    kind is defined at run time, over an installed one. ``data``: objects may hold data, whose loss
    a person must approve.
    """

    idempotency_keys: bool = True
    names: bool = True
    loss_guard: int = 0
    keeps_refusals: bool = False
    labels: bool = True
    conditional_writes: bool = True
    grace_seconds: float = 0.0
    lag_seconds: float = 0.0
    exclusive: bool = False
    ownership: Literal["Log", "Label"] = "Log"
    replaces: Literal["", "in place", "beside"] = ""
    lifetime_seconds: float = 0.0
    starting_seconds: float = 0.0
    listing: bool = True
    two_calls: bool = False
    addresses: bool = False
    defined: bool = False
    approve: ApprovalLevel = "Never"
    wrong_uids: bool = False
    data: bool = False


class ProcessPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process: its roles, and the error of its clock."""

    name: str
    roles: tuple[Role, ...]
    clock_seconds: float = 0.0


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """The limits of the bus: those of the real one, unless a plan lowers them."""

    max_ack_pending: int = 2_000
    max_actions_pending: int = 4_096
    rows_per_save: int = 900
    max_actions: int = MAX_ACTIONS


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run: its API, its processes and its steps."""

    seed: int
    seconds: float
    api: ApiTraits
    processes: tuple[ProcessPlan, ...]
    steps: tuple[Step, ...]
    limits: Limits = Limits()


def encode_plan(plan: Plan) -> bytes:
    """Encode a plan as JSON."""
    return msgspec.json.format(msgspec.json.encode(plan))


def decode_plan(payload: bytes) -> Plan:
    """Decode a plan; raises ``msgspec.DecodeError``."""
    return msgspec.json.decode(payload, type=Plan)


def lines(plan: Plan) -> list[str]:
    """Describe a plan with one line per step."""
    text_lines = [
        f"seed {plan.seed}, {plan.seconds:g} s, API {_in_words(plan.api)}, "
        f"limits {_in_words(plan.limits)}"
    ]
    text_lines += [
        f"process {each.name}: {'+'.join(each.roles)}"
        + (f", clock {each.clock_seconds:+g} s" if each.clock_seconds else "")
        for each in plan.processes
    ]
    text_lines += [f"{step.at:8.3f}  {describe_step(step)}" for step in plan.steps]
    return text_lines


def describe_step(step: Step) -> str:
    """Describe a step in one line."""
    return f"{type(step).__name__} {_in_words(step)}"


def _in_words(struct: Any) -> str:
    content: dict[str, Any] = msgspec.to_builtins(struct)
    named = {name: each for name, each in content.items() if name not in ("at", "step")}
    return " ".join(f"{name}={each!r}" for name, each in named.items()) or "(defaults)"
