"""What must hold when the faults have stopped and everything has come to rest."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from events.envelope import InvalidMessageError, decode_intake, decode_log
from events.external import ExternalObject
from events.intake import Declared, Reported, Withdrawn
from events.log import (
    Action,
    ActionAbandoned,
    ActionDecided,
    ActionFailed,
    ActionSucceeded,
    Condition,
    SpecDeclared,
    SpecWithdrawn,
)
from events.manifest import Fields, InvalidManifestError, Policy, take_apart
from events.names import InvalidNameError, ResourceKey
from events.reference import REFERENCE_KIND
from events.subjects import parse_stored_intake
from projections.read_models import ReadModels, rebuild
from reconciler.resource.owner_label import OWNER_LABEL, owner
from reconciler.resource.state import ResourceState, Spec
from reconciler.roles.scrubber import FIRST_AFTER_SECONDS
from tests.explanations import explained
from tests.memory_bus.clock import seconds_of
from tests.memory_bus.log import LOG_ID
from tests.simulation.api import REFUSED_COLOR
from tests.simulation.checks import check_determinism
from tests.simulation.ending_of_holds import anything_is_kept, is_kept, problems_of_holds
from tests.simulation.inputs import expected_fields, is_blocked, is_rightly_refused
from tests.simulation.person import answer_holds
from tests.simulation.vault import without_values
from tests.simulation.world import World

_QUIET_SECONDS = 12.0
_SCRUBBED_SECONDS = FIRST_AFTER_SECONDS + 15.0
_MAX_LETTING_GO = 12
_MAX_ROUNDS = 40
_MAX_ANSWERS = 3
_DECLARED_KINDS = ("Shape", REFERENCE_KIND)
_RETRIED = ("Transient", "Throttled", "Unknown")


def end(world: World) -> list[str]:
    """Let everything come to rest and give what is wrong then; let go what is held, and again."""
    for _ in range(_MAX_LETTING_GO):
        _settle(world)
        found = list(world.checks.violations) or list(_problems(world))
        if found or not anything_is_kept(world):
            return found
        world.tell("--- what is held is let go")
        world.publisher.let_go()
        world.publisher.approve_all()
    return ["it is held, whatever was let go and approved"]


def _is_told_again(state: ResourceState) -> bool:
    """What is doubted is told at every listing; what is held and due is woken, ever less often."""
    is_held = state.outcome is not None and state.outcome.outcome == "Held"
    return state.observed.doubted is not None or (is_held and state.due is not None)


def _settle(world: World) -> None:
    """Let everything come to rest, and then stay there; tell the checks if it does not.

    What waits for a person by then is answered by one.
    """
    if world.damaged:
        for _ in range(_MAX_ANSWERS):
            world.run_for(_SCRUBBED_SECONDS)  # messages of held resources are tried again meanwhile
            if not answer_holds(world):
                break
        return
    _come_to_rest(world)
    for _ in range(_MAX_ANSWERS):
        if world.checks.violations or not answer_holds(world):
            break
        _come_to_rest(world)
    else:
        world.checks.fail("a person is asked again and again")
    if world.checks.violations:
        return
    before, messages = _traces(world), world.intake.last_position
    world.run_for(_QUIET_SECONDS)
    if any(_is_told_again(state) for state in world.checks.states.values()):
        messages = world.intake.last_position
    if (_traces(world), world.intake.last_position) != (before, messages):
        world.checks.fail("an idle fleet cost more than listings")


def _come_to_rest(world: World) -> None:
    for _ in range(_MAX_ROUNDS):
        before = _traces(world)
        world.run_for(_QUIET_SECONDS)
        if world.checks.violations:
            return
        if _traces(world) == before and world.intake.is_idle and world.actions.is_idle:
            return
    world.checks.fail("it never came to rest")


def _traces(world: World) -> tuple[int, int, int]:
    return world.log.last_position, world.api.calls, len(world.api.changes)


def _problems(world: World) -> Iterator[str]:
    """Give what is wrong with the end of a run."""
    yield from (actor.failure for actor in world.actors.values() if actor.failure)
    yield from world.loop.failures
    wanted = _declarations(world)
    for key in (wanted.keys() | world.checks.states.keys()) - world.damaged:
        if key.kind in _DECLARED_KINDS:
            yield from _of_resource(world, key, wanted.get(key))
    yield from problems_of_holds(world)
    yield from _leaks(world)
    yield from _open_actions(world)
    yield from _unexplained(world)
    yield from _unseen(world)
    yield from _read_models(world)
    again = check_determinism(world.checks.turns)
    if again is not None:
        yield again


# --- what is declared exists as declared


class _Wanted:
    """What was declared last, or that it was withdrawn."""

    def __init__(self, fields: Fields | None, labels: dict[str, str], policy: Policy) -> None:
        self.fields = fields
        self.labels = labels
        self.policy = policy


def _declarations(world: World) -> dict[ResourceKey, _Wanted]:
    """Read from the intake what was wanted last of each resource, in the order of its positions."""
    wanted: dict[ResourceKey, tuple[int, _Wanted]] = {}
    first = _first_positions(world)
    for message in world.intake.messages:
        try:
            what, key = parse_stored_intake(message.subject)
            if what != "desired" or key.kind not in _DECLARED_KINDS:
                continue
            said = decode_intake(message.payload, expected="desired", fallback_id="-")
            position = first[key, said.id]
            if key in wanted and position < wanted[key][0]:
                continue
            if isinstance(said.data, Withdrawn):
                wanted[key] = position, _Wanted(None, {}, Policy())
            elif isinstance(said.data, Declared):
                if is_rightly_refused(world, key, said.id, message.stored_at):
                    continue
                taken = take_apart(said.data.manifest)
                kind = world.kinds.find(key.kind)
                fields = taken.fields if kind is None else kind.check_declared(taken.fields)
                wanted[key] = position, _Wanted(fields, taken.labels, taken.policy)
        except (InvalidMessageError, InvalidManifestError, InvalidNameError):
            continue
    return {key: each for key, (_, each) in wanted.items()}


def _first_positions(world: World) -> dict[tuple[ResourceKey, str], int]:
    """Where each message counts: where it made a generation, or else where it came first.

    Sent again later, under the same id, it says nothing new.
    """
    first: dict[tuple[ResourceKey, str], int] = {}
    for message in world.intake.messages:
        try:
            _, key = parse_stored_intake(message.subject)
            said = decode_intake(message.payload, expected="desired", fallback_id="-")
        except (InvalidMessageError, InvalidNameError):
            continue
        first.setdefault((key, said.id), message.position)
    return first | {
        (event.key, event.causeid): event.causeposition
        for _, event in world.log.events
        if isinstance(event.data, SpecDeclared | SpecWithdrawn)
    }


def _of_resource(world: World, key: ResourceKey, wanted: _Wanted | None) -> Iterator[str]:
    state = world.checks.states.get(key)
    if state is None:
        if wanted is not None and wanted.fields is not None:
            yield f"{key}: its declaration is lost"
        return
    declared = wanted is not None and wanted.fields is not None
    if state.desired.is_declared != declared:
        yield f"{key}: declared is {state.desired.is_declared}, but should be {declared}"
        return
    if wanted is not None and wanted.fields is not None:
        spec = state.desired.spec
        assert spec is not None
        if (spec.fields, spec.labels, spec.policy) != (wanted.fields, wanted.labels, wanted.policy):
            yield f"{key}: {spec.fields} {spec.policy} is decided, the newest declaration is other"
            return
    if _refers_to_damage(world, key, state):
        return  # whether its target is declared cannot be told
    if state.outcome is None and (state.desired.generation or state.observed.object is not None):
        yield f"{key}: no outcome was told"
        return
    problem = None if key.kind == REFERENCE_KIND else _problem(world, key, state)
    if problem is not None:
        told = state.outcome and (state.outcome.outcome, state.outcome.reason)
        there = _object_of(world, key, state)
        yield f"{key}: {problem}; told: {told}; the API has {there}"


def _object_of(world: World, key: ResourceKey, state: ResourceState) -> ExternalObject | None:
    """Find the object; a replacement may have another name, and several objects one."""
    if state.owned is None:
        return world.api.read(key.name)
    return world.api.read(state.owned.external_name, state.owned.uid)


def _refers_to_damage(world: World, key: ResourceKey, state: ResourceState) -> bool:
    if state.desired.spec is None:
        return False
    return any(
        ResourceKey.parse(each.target) in world.damaged for each in state.desired.spec.references
    )


def _problem(world: World, key: ResourceKey, state: ResourceState) -> str | None:
    """Compare a resource at rest with what the API really has."""
    found = _object_of(world, key, state)
    ours = found is not None and found.uid in world.checks.ours
    told = "" if state.outcome is None else state.outcome.outcome
    if is_kept(world, key):
        return None
    if not state.desired.is_declared or state.desired.spec is None:
        is_left = ours and told != "Disputed" and not _was_given_up(world, found)
        return "it is withdrawn, but ours is there" if is_left else None
    policy = state.desired.spec.policy
    if policy.paused or policy.mode == "ObserveOnly":
        return None
    if told in ("Conflict", "Disputed"):
        arrived_late = found is not None and found.uid in late_arrivals(world)
        return _conflict_problem(world, key, found, ours=ours and not arrived_late)
    if policy.mode == "Absent":
        return "it is declared absent, but ours is there" if ours else None
    if _is_stopped(world, state.desired.spec, told):
        return None
    if told != "Converged":
        return "it is declared, and not converged"
    if found is None or not ours:
        return "it is said to have converged, and is not there"
    end_of_it = found.outputs.get("expires")
    if (
        policy.mode == "Present"
        and end_of_it
        and seconds_of(datetime.fromisoformat(end_of_it)) < world.loop.time()
    ):
        return f"it was at its end at {end_of_it}, and not renewed"
    if any(each.type == "Ready" and each.status != "True" for each in _conditions(state)):
        return "it is ready, and said not to be"
    return _content_problem(world, key, state, found)


def _is_stopped(world: World, spec: Spec, told: str) -> bool:
    """Whether it was told why a declared resource cannot be as declared, and that is true."""
    match told:
        case "Failed":
            return spec.fields.get("color") == REFUSED_COLOR
        case "Drifted":
            return spec.policy.mode == "CreateOnly"
        case "Waiting":
            return is_blocked(world, spec)
        case _:
            return False


def _conditions(state: ResourceState) -> tuple[Condition, ...]:
    return () if state.outcome is None else state.outcome.conditions


def _conflict_problem(
    world: World, key: ResourceKey, found: ExternalObject | None, *, ours: bool
) -> str | None:
    if found is None:
        return "there is nothing to conflict with"
    label = found.labels.get(OWNER_LABEL)
    another = label is not None and label != owner(LOG_ID, key)
    return "it conflicts with an object that is ours" if ours and not another else None


def _content_problem(
    world: World, key: ResourceKey, state: ResourceState, found: ExternalObject
) -> str | None:
    assert state.desired.spec is not None
    ignored = state.desired.spec.policy.ignore_fields
    wanted, shown = expected_fields(world, state.desired.spec), without_values(found)
    for name, value in wanted.items():
        if name not in ignored and shown.fields.get(name) != value and name != "size":
            return f"{name} is {shown.fields.get(name)!r}, declared is {value!r}"
    declared_size = wanted.get("size", {})
    for name, value in declared_size.items():
        if found.fields.get("size", {}).get(name) != value:
            return f"size.{name} is not as declared"
    if world.plan.api.labels:
        labels = {**state.desired.spec.labels, OWNER_LABEL: owner(LOG_ID, key)}
        if not labels.items() <= found.labels.items():
            return f"its labels are {found.labels}"
    return None


# --- nothing leaked, nothing lost


def late_arrivals(world: World) -> set[str]:
    """Give what was made by a call that arrived when its action had come to its end.

    A later attempt was refused meanwhile, because somebody else's object stood there for a while.
    No log can know of it; it is shown as a conflict.
    """
    ended: dict[str, float] = {}
    for _, event in world.log.events:
        if isinstance(event.data, ActionFailed) and event.data.error.error_class not in _RETRIED:
            ended[event.data.action_id] = seconds_of(event.time)
    return {
        change.after.uid
        for change in world.api.changes
        if change.before is None
        and change.after is not None
        and change.after.uid is not None
        and change.at >= ended.get(world.checks.action_of.get(change.key, ""), float("inf"))
    }


def _leaks(world: World) -> Iterator[str]:
    states, late = world.checks.states, late_arrivals(world)
    owned = {
        each.uid: key
        for key, state in states.items()
        for each in (state.owned, state.retiring)
        if each is not None
    }
    pending = {
        state.actions.in_flight.action.external_name
        for state in states.values()
        if state.actions.in_flight is not None and _is_paused(state)
    }
    # Whose it is that a write of ours has met is judged when what is wanted is known.
    waiting = {
        state.observed.object.uid
        for state in states.values()
        if state.outcome is not None
        and state.outcome.outcome == "Waiting"
        and state.observed.object is not None
    }
    damaged = {key.name for key in world.damaged}
    for found in world.api.objects.values():
        name = found.name
        if damaged & {name, name.rpartition("-")[0]} or _is_given_up(world, found):
            continue
        is_ours = found.uid in world.checks.ours and found.uid not in late
        if is_ours and found.uid not in owned.keys() | waiting and name not in pending:
            yield f"{name}: {found.uid} is ours, and the log does not own it: a leak"
    there = {found.uid for found in world.api.objects.values()}
    for uid, key in owned.items():
        state = states[key]
        is_doubted = state.observed.doubted is not None or key in world.damaged
        is_retiring = state.retiring is not None and uid == state.retiring.uid
        if is_retiring and not _is_removed_now(state):
            continue  # something holds its removal, and it is looked at no more
        if uid not in there and not _is_paused(state) and not is_doubted:
            yield f"{key}: the log owns {uid}, which is not there"


def _is_removed_now(state: ResourceState) -> bool:
    """Return whether nothing keeps what was replaced from going."""
    outcome, spec = state.outcome, state.desired.spec
    is_observed_only = spec is not None and spec.policy.mode == "ObserveOnly"
    return not is_observed_only and (outcome is None or outcome.outcome == "Converged")


def _was_given_up(world: World, found: ExternalObject | None) -> bool:
    return found is not None and _is_given_up(world, found)


def _is_given_up(world: World, found: ExternalObject) -> bool:
    """Tell whether it was made by an action that a person gave up, whatever it had done."""
    made_by = {
        change.after.uid: world.checks.action_of.get(change.key)
        for change in world.api.changes
        if change.before is None and change.after is not None
    }
    return made_by.get(found.uid) in world.checks.holds.given_up


def _open_actions(world: World) -> Iterator[str]:
    """Every decided action came to an end, unless its resource is paused."""
    open_actions: dict[str, tuple[ResourceKey, Action]] = {}
    for _, event in world.log.events:
        match event.data:
            case ActionDecided(action):
                open_actions[action.action_id] = (event.key, action)
            case ActionSucceeded(action_id=ended) | ActionAbandoned(action_id=ended):
                open_actions.pop(ended, None)
            case ActionFailed(action_id=ended, error=error) if error.error_class not in _RETRIED:
                open_actions.pop(ended, None)
            case _:
                pass
    for action_id, (key, _action) in open_actions.items():
        state = world.checks.states[key]
        if not _is_paused(state) and key not in world.damaged:
            yield f"{action_id}: it was decided, and never came to an end"


def _unexplained(world: World) -> Iterator[str]:
    """The log has every effect that the API saw as done, or says that it is not known."""
    if world.damaged:
        return
    known = explained(event for _, event in world.log.events)
    succeeded = {
        event.data.action_id
        for _, event in world.log.events
        if isinstance(event.data, ActionSucceeded)
    }
    for action_id in _reported_as_done(world) - succeeded:
        yield f"{action_id}: it was reported as done, and the log does not say so"
    for change in world.api.changes:
        action_id = world.checks.action_of.get(change.key)
        if action_id is None or action_id in known:
            continue
        key = ResourceKey.parse(action_id.partition("@")[0])
        if not _is_paused(world.checks.states[key]):  # else what came of it is found out later
            yield f"{action_id}: it had an effect, and the log says that it had none"


def _reported_as_done(world: World) -> set[str]:
    done: set[str] = set()
    for message in world.intake.messages:
        what, _ = parse_stored_intake(message.subject)
        if what == "result":
            told = decode_intake(message.payload, expected="result", fallback_id="-").data
            if isinstance(told, Reported) and told.error is None and not told.is_lookup:
                done.add(told.action_id)
    return done


def _unseen(world: World) -> Iterator[str]:
    """Every message that nobody can read is a dead letter in the end, or is counted."""
    seen = {position for _, position in world.decisions.dead_letters} | world.decisions.given_up
    for message in world.intake.messages:
        if message.position in seen:
            continue
        try:
            what, _ = parse_stored_intake(message.subject)
            decode_intake(message.payload, expected=what, fallback_id="-")
        except (InvalidMessageError, InvalidManifestError, InvalidNameError, ValueError) as error:
            yield f"message {message.position} cannot be used, and nobody was told: {error}"


def _is_paused(state: ResourceState) -> bool:
    return (
        state.desired.is_declared
        and state.desired.spec is not None
        and state.desired.spec.policy.paused
    )


# --- what is derived


def _read_models(world: World) -> Iterator[str]:
    """The live read models, the stored rows and those rebuilt from the log are the same bytes."""
    if world.damaged:
        return  # what was folded in before the damage is more than a new reading gives
    history = [
        (position, decode_log(payload)) for position, payload in enumerate(world.log.payloads, 1)
    ]
    expected = dict(rebuild(history).rows())
    if world.rows.content != expected:
        yield f"the stored rows are not those of the log: {_changed(world.rows.content, expected)}"
    for actor in world.actors.values():
        if actor.models is not None and _rows(actor.models) != expected:
            yield f"{actor.plan.name}: its read models are not those of the log"


def _rows(models: ReadModels) -> dict[str, bytes]:
    return dict(models.rows())


def _changed(left: dict[str, bytes], right: dict[str, bytes]) -> str:
    return ", ".join(
        f"{name}: {left.get(name)!r} is not {right.get(name)!r}"
        for name in sorted(left.keys() | right.keys())
        if left.get(name) != right.get(name)
    )
