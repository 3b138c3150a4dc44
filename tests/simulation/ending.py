"""Lets a world come to rest, and returns what is wrong then."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from events.envelope import decode_log
from events.hold import Hold
from projections.read_models import ReadModels, rebuild
from reconciler.roles.projector.scrubber import CHECK_SECONDS, FIRST_DELAY_SECONDS
from tests.judge.end import is_held
from tests.judge.log import undecided_for_long
from tests.memory_bus.clock import date_of
from tests.simulation import plan as p
from tests.simulation.person import answer_holds
from tests.simulation.world import World

_QUIET_SECONDS = 12.0
_SCRUBBED_SECONDS = FIRST_DELAY_SECONDS + CHECK_SECONDS + 40.0
_MAX_LETTING_GO = 12
_MAX_ROUNDS = 40
_MAX_ANSWERS = 3


def undecided(world: World) -> list[str]:
    """Return what waits for its decision although only other resources are in trouble.

    To be called before the faults stop: afterwards all is decided.
    """
    if not all(_troubles_only_others(step) for step in world.plan.steps):
        return []
    world.checks.record()
    undecided_messages = undecided_for_long(world.checks.history, world.loop.time())
    return [f"{subject}: {text}" for subject, text in undecided_messages]


def _troubles_only_others(step: p.Step) -> bool:
    if isinstance(step, p.Full):
        return step.what == "dead letters"
    return isinstance(step, p.Declare | p.Withdraw | p.Configure | p.Garbage)


def end(world: World) -> list[str]:
    """Let everything come to rest and return what is wrong; remove the holds, and repeat."""
    for _ in range(_MAX_LETTING_GO):
        _settle(world)
        violations = list(world.checks.violations) or list(_problems(world))
        if violations or not _is_anything_retained(world):
            return violations
        world.trace("--- what is held is let go")
        world.publisher.let_go()
        world.publisher.approve_all()
    return ["it is held, whatever was let go and approved"]


def _is_anything_retained(world: World) -> bool:
    ledger = world.checks.ledger
    return any(
        is_held(ledger, resource, forever=False)
        for key, resource in ledger.resources.items()
        if key not in world.damaged
    )


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
    traces_before, messages = _traces(world), world.intake.last_position
    world.run_for(_QUIET_SECONDS)
    if any(each.observed.doubted is not None for each in world.checks.turns.states.values()):
        messages = world.intake.last_position  # every listing reports what is doubted again
    if (_traces(world), world.intake.last_position) != (traces_before, messages):
        world.checks.fail("an idle fleet cost more than listings")


def _come_to_rest(world: World) -> None:
    for _ in range(_MAX_ROUNDS):
        traces_before = _traces(world)
        is_early = _is_any_within_its_grace(world) or _is_any_lookup_due(world)
        world.run_for(_QUIET_SECONDS)
        if world.checks.violations:
            return
        is_quiet = _traces(world) == traces_before and not is_early
        if is_quiet and world.intake.is_idle and world.actions.is_idle:
            return
    world.checks.fail("it never came to rest")


def _is_any_within_its_grace(world: World) -> bool:
    """Return whether looks at a resource do not count yet: each listing publishes them again.

    The grace that the return of an object has shown lasts up to two minutes after each write.
    """
    now = date_of(world.loop.time())
    return any(
        state.actions.effect_at is not None
        and now < state.actions.effect_at + timedelta(seconds=state.observed.grace_seconds)
        for state in world.checks.turns.states.values()
    )


def _is_any_lookup_due(world: World) -> bool:
    """Return whether a refused action waits for its lookup, because an earlier attempt is in doubt.

    A lookup waits for the grace that the return of an object has shown, too.
    """
    now = date_of(world.loop.time())
    flights = (each.actions.in_flight for each in world.checks.turns.states.values())
    return any(
        flight is not None
        and flight.failed is not None
        and flight.failed.error_class == "Refused"
        and flight.failed_at is not None
        and now < flight.failed_at + timedelta(seconds=flight.retry_seconds)
        for flight in flights
    )


def _traces(world: World) -> tuple[int, int, int]:
    return world.log.last_position, world.api.calls, len(world.api.changes)


def _problems(world: World) -> Iterator[str]:
    """Return what is wrong with the end of a run."""
    yield from (actor.failure for actor in world.actors.values() if actor.failure)
    yield from world.loop.failures
    yield from world.checks.end()
    yield from _rows_of_finalizers(world)
    yield from _damage(world)
    yield from _read_models(world)
    yield from world.checks.turns.unrepeatable_turns()


# --- what is derived from the log (invariant 1)


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


def _rows_of_finalizers(world: World) -> Iterator[str]:
    """Nothing holds a resource that people cannot see."""
    for actor in world.actors.values():
        if actor.models is None:
            continue
        for key, resource in world.checks.ledger.resources.items():
            stands = resource.finalizers if key not in world.damaged else {}
            row = actor.models.status.get(str(key))
            if stands and (row is None or row.finalizers != stands):
                yield f"{actor.plan.name}: it does not show the finalizers of {key}"


def _damage(world: World) -> Iterator[str]:
    """Who verifies the log has found all damage by now, and holds what is damaged."""
    for actor in world.actors.values():
        if actor.models is None or "projector" not in actor.plan.roles:
            continue
        for key in world.damaged:
            row = actor.models.status.get(str(key))
            if row is None or row.reason != Hold.LOG_DAMAGED:
                yield f"{actor.plan.name}: the log of {key} is damaged, and nobody has told"
        damaged_keys = {str(key) for key in world.damaged}
        for name in actor.models.damage.keys() - damaged_keys:
            if not name.startswith("position/"):  # where an event was lost, whosever it was
                yield f"{actor.plan.name}: the log of {name} is not damaged, but is said to be"
