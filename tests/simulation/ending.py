"""Lets a world come to rest, and returns its problems."""

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
from tests.simulation.person import resolve_holds
from tests.simulation.world import World

_QUIET_SECONDS = 12.0
_SCRUB_SECONDS = FIRST_DELAY_SECONDS + CHECK_SECONDS + 40.0
_MAX_RELEASES = 12
_MAX_ROUNDS = 40
_MAX_RESOLUTIONS = 3


def find_undecided(world: World) -> list[str]:
    """Return the messages still undecided although the faults affect only other resources.

    Call this before the faults stop, because afterwards every message is decided.
    """
    if not all(_affects_only_other_resources(step) for step in world.plan.steps):
        return []
    world.checks.record()
    undecided_messages = undecided_for_long(world.checks.history, world.loop.time())
    return [f"{subject}: {text}" for subject, text in undecided_messages]


def _affects_only_other_resources(step: p.Step) -> bool:
    if isinstance(step, p.Full):
        return step.what == "dead letters"
    return isinstance(step, p.Declare | p.Withdraw | p.Configure | p.Garbage)


def settle_and_check(world: World) -> list[str]:
    """Let everything come to rest and return the problems; remove the holds, and repeat."""
    for _ in range(_MAX_RELEASES):
        _settle(world)
        violations = list(world.checks.violations) or list(_problems(world))
        if violations or not _is_anything_retained(world):
            return violations
        world.trace("--- the holds are removed")
        world.publisher.release_all()
        world.publisher.approve_all()
    return ["a resource is still held after all holds were removed and approved"]


def _is_anything_retained(world: World) -> bool:
    ledger = world.checks.ledger
    return any(
        is_held(ledger, resource, forever=False)
        for key, resource in ledger.resources.items()
        if key not in world.damaged
    )


def _settle(world: World) -> None:
    """Let everything come to rest, and report a violation if it does not stay at rest.

    A person resolves the holds that need one.
    """
    if world.damaged:
        for _ in range(_MAX_RESOLUTIONS):
            world.run_for(_SCRUB_SECONDS)  # messages of held resources are retried
            if not resolve_holds(world):
                break
        return
    _come_to_rest(world)
    for _ in range(_MAX_RESOLUTIONS):
        if world.checks.violations or not resolve_holds(world):
            break
        _come_to_rest(world)
    else:
        world.checks.fail("the holds never stop waiting for a person")
    if world.checks.violations:
        return
    progress_before, messages = _progress(world), world.intake.last_position
    world.run_for(_QUIET_SECONDS)
    if any(each.observed.doubted is not None for each in world.checks.turns.states.values()):
        messages = world.intake.last_position  # every listing reports doubted objects again
    if (_progress(world), world.intake.last_position) != (progress_before, messages):
        world.checks.fail("an idle system did more than list")


def _come_to_rest(world: World) -> None:
    for _ in range(_MAX_ROUNDS):
        progress_before = _progress(world)
        is_early = (
            _is_any_within_its_grace(world)
            or _is_any_lookup_due(world)
            or _is_any_becoming_available(world)
        )
        world.run_for(_QUIET_SECONDS)
        if world.checks.violations:
            return
        is_quiet = _progress(world) == progress_before and not is_early
        if is_quiet and world.intake.is_idle and world.actions.is_idle:
            return
    world.checks.fail("it never came to rest")


def _is_any_within_its_grace(world: World) -> bool:
    """Return whether a resource ignores observations for now: each listing repeats them.

    After an object has reappeared, the grace lasts up to two minutes after each write.
    """
    now = date_of(world.loop.time())
    return any(
        state.actions.effect_at is not None
        and now < state.actions.effect_at + timedelta(seconds=state.observed.grace_seconds)
        for state in world.checks.turns.states.values()
    )


def _is_any_becoming_available(world: World) -> bool:
    """Return whether a replacement must stay ready for longer: interruptions double the time."""
    now = date_of(world.loop.time())
    states = world.checks.turns.states.values()
    return any(each.availability.at is not None and now < each.availability.at for each in states)


def _is_any_lookup_due(world: World) -> bool:
    """Return whether a refused action is waiting for its lookup (an earlier attempt is in doubt).

    A lookup, too, waits for the grace that a reappeared object has extended.
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


def _progress(world: World) -> tuple[int, int, int]:
    return world.log.last_position, world.api.calls, len(world.api.changes)


def _problems(world: World) -> Iterator[str]:
    """Return the problems at the end of a run."""
    yield from (actor.failure for actor in world.actors.values() if actor.failure)
    yield from world.loop.failures
    yield from world.checks.end()
    yield from _finalizer_row_problems(world)
    yield from _damage_problems(world)
    yield from _read_model_problems(world)
    yield from _silence_problems(world)
    yield from world.checks.turns.unrepeatable_turns()


def _silence_problems(world: World) -> Iterator[str]:
    """Check that each silence of an API has ended, because the API responds by now.

    Without listings, nothing calls an API as long as no resource has an object there.
    """
    if not world.plan.api.listing:
        return
    for key, state in world.checks.turns.states.items():
        if state.api.silence.since is not None and key not in world.damaged:
            yield f"{key}: its API responds, but the log records that it is silent"


# --- state derived from the log (invariant 1)


def _read_model_problems(world: World) -> Iterator[str]:
    """Check that live read models and stored rows equal those rebuilt from the log."""
    if world.damaged:
        return  # the models include events that can no longer be read
    history = [
        (position, decode_log(payload)) for position, payload in enumerate(world.log.payloads, 1)
    ]
    expected = dict(rebuild(history).rows())
    if world.rows.content != expected:
        differences = _describe_differences(world.rows.content, expected)
        yield f"the stored rows differ from those rebuilt from the log: {differences}"
    for actor in world.actors.values():
        if actor.models is not None and _rows(actor.models) != expected:
            yield f"{actor.plan.name}: its read models differ from those rebuilt from the log"


def _rows(models: ReadModels) -> dict[str, bytes]:
    return dict(models.rows())


def _describe_differences(left: dict[str, bytes], right: dict[str, bytes]) -> str:
    return ", ".join(
        f"{name}: {left.get(name)!r} is not {right.get(name)!r}"
        for name in sorted(left.keys() | right.keys())
        if left.get(name) != right.get(name)
    )


def _finalizer_row_problems(world: World) -> Iterator[str]:
    """Check that the status shows all finalizers."""
    for actor in world.actors.values():
        if actor.models is None:
            continue
        for key, resource in world.checks.ledger.resources.items():
            expected = resource.finalizers if key not in world.damaged else {}
            row = actor.models.status.get(str(key))
            if expected and (row is None or row.finalizers != expected):
                yield f"{actor.plan.name}: it does not show the finalizers of {key}"


def _damage_problems(world: World) -> Iterator[str]:
    """Check that each projector has found all damage and holds the damaged resources."""
    for actor in world.actors.values():
        if actor.models is None or "projector" not in actor.plan.roles:
            continue
        for key in world.damaged:
            row = actor.models.status.get(str(key))
            if row is None or row.reason != Hold.LOG_DAMAGED:
                yield f"{actor.plan.name}: the log of {key} is damaged, but this is not reported"
        damaged_keys = {str(key) for key in world.damaged}
        for name in actor.models.damage.keys() - damaged_keys:
            if not name.startswith("position/"):  # an event of an unknown resource was lost
                yield f"{actor.plan.name}: the log of {name} is reported as damaged, but is intact"
