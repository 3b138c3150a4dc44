"""Generates a plan from a seed."""

from __future__ import annotations

import random
from random import Random
from typing import Any

from msgspec.structs import replace

from events.manifest import ApprovalLevel, Fields
from tests.memory_bus.faults import BUS_REQUESTS, RequestType, Strike
from tests.simulation import plan as p
from tests.simulation.generator_holds import (
    copy_steps,
    holder_steps,
    look_steps,
    possible_steps,
    rival_steps,
    with_withdrawals,
)
from tests.simulation.generator_inputs import with_data, with_inputs
from tests.simulation.generator_limits import draw_limits

_COLORS = ("Red", "Green", "Blue", "Red", "Green", "Blue", "Invisible")
_POLICIES: tuple[Fields, ...] = (
    {},
    {},
    {},
    {"adoption": "Adopt"},
    {"adoption": "Adopt"},
    {"deletion": "Orphan"},
    {"adoption": "Adopt", "deletion": "Orphan"},
    {"mode": "CreateOnly"},
    {"mode": "ObserveOnly"},
    {"mode": "Absent"},
    {"mode": "Absent", "adoption": "Adopt"},
    {"ignoreFields": ["note"]},
    {"paused": True},
)
_FIRST_RETRY_NUMBER = 1_000
_FIRST_OVERTAKEN_NUMBER = 2_000
_FIRST_REFUSED_NUMBER = 3_000
_FIRST_RENAME_NUMBER = 4_000
_RENAME_SHARE = 0.2
_NEW_NAMES = ("renamed-1", "renamed-2")
_GARBAGE = ("", "not JSON", '{"specversion":"1.0"}', '{"apiVersion":"sim/v1","kind":"Shape"}')
_WRITE_STRIKES: tuple[Strike, ...] = (
    "lose request",
    "lose reply",
    "delay",
    "crash before",
    "crash after",
    "crash after",
    "pause before",
    "pause after",
    "refuse",
    "throttle",
    "break",
)
_UNREPORTED_STRIKES: tuple[Strike, ...] = ("crash after", "crash after", "lose reply", "break")
_INTERRUPTING_STRIKES: tuple[Strike, ...] = (
    "crash after",
    "pause before",
    "pause before",
    "pause after",
)
_BUS_STRIKES: tuple[Strike, ...] = (
    "lose request",
    "lose reply",
    "delay",
    "crash before",
    "crash after",
    "pause before",
    "pause after",
)
_LIKELY_REQUESTS: tuple[RequestType, ...] = (
    "append",
    "append",
    "append",
    "publish",
    "publish",
    "publish",
    "publish",
    "ack",
    "ack",
    "action ack",
    "action ack",
    "pull",
    "actions",
)


class _Dice:
    """Draws random values; most times are close to one of three, so that steps collide."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"plan/{seed}")
        self.duration = self.seconds(12, 30)
        self._busy = [self.seconds(0.5, self.duration * 0.85) for _ in range(3)]

    def is_drawn(self, share: float) -> bool:
        return self.random.random() < share

    def seconds(self, low: float, high: float) -> float:
        return round(self.random.uniform(low, high), 3)

    def moment(self) -> float:
        if self.is_drawn(0.6):
            near = self.random.choice(self._busy) + self.random.gauss(0.0, 0.5)
            return round(min(max(near, 0.1), self.duration), 3)
        return self.seconds(0.1, self.duration)

    def fields(self) -> Fields:
        fields: dict[str, Any] = {"color": self.random.choice(_COLORS)}
        if self.is_drawn(0.3):
            sizes = self.random.sample(("w", "h"), self.random.randint(1, 2))
            fields["size"] = {name: self.random.randint(1, 2) for name in sizes}
        return fields


def plan_of(seed: int) -> p.Plan:
    """Return the plan of a seed, which is the same as long as this file is unchanged."""
    dice = _Dice(seed)
    choose = dice.random.choice
    shapes = ["foo", "bar", "baz", "qux"][: choose((1, 1, 2, 2, 3, 4))]
    processes = _processes(seed, dice)
    steps: list[p.Step] = [p.Configure(at=0.0, resync_seconds=choose((2.0, 3.0, 5.0)))]
    for number in range(dice.random.randint(4, 22)):
        steps += _service_steps(dice, shapes, number)
    steps += _retry_steps(dice, steps)
    for _ in range(choose((0, 1, 2, 4, 8))):
        steps.append(_human_step(dice, dice.moment(), shapes))
    trouble = choose((0.0, 0.5, 1.0, 1.0, 2.0))
    for _ in range(round(trouble * dice.random.randint(3, 16))):
        steps.append(_fault_step(dice, dice.moment(), [each.name for each in processes]))
    traits = _with_real_api_traits(seed, _traits(dice))
    if not traits.idempotency_keys:
        steps += _lost_label_steps(dice, steps)
    steps += holder_steps(dice.random, dice.moment, shapes, exclusive=traits.exclusive)
    if sum("decider" in each.roles for each in processes) > 1 and dice.is_drawn(0.12):
        steps += _overtaking_steps(dice, choose(shapes))
    workers = [each.name for each in processes if "worker" in each.roles]
    if dice.is_drawn(0.5 if len(workers) > 1 else 0.1):
        steps += _refused_redelivery_steps(dice, choose(shapes), workers)
    if dice.is_drawn(0.2):
        steps += _brief_obstacle_steps(dice, choose(shapes))
    limits, full = draw_limits(
        seed,
        dice.duration,
        [step.at for step in steps if isinstance(step, p.Declare)],
        shapes[0],
        is_damaged=any(isinstance(step, p.DamageLog) for step in steps),
    )
    steps = possible_steps(traits, steps) + full + _lost_timer_steps(seed, traits, dice.duration)
    steps += look_steps(seed, shapes, dice.duration)
    steps = with_withdrawals(seed, shapes, steps, dice.duration)
    steps += copy_steps(seed, traits, shapes, dice.duration)
    if not any(isinstance(step, p.CopyWrites) for step in steps):
        steps += rival_steps(seed, traits, shapes, dice.duration)
    steps += _rename_steps(seed, shapes, dice.duration)
    traits, steps = with_inputs(seed, traits, shapes, steps, dice.duration)
    traits, steps = with_data(seed, traits, shapes, steps, dice.duration)
    steps.sort(key=lambda step: step.at)
    return p.Plan(seed, dice.duration, traits, processes, tuple(steps), limits)


def _processes(seed: int, dice: _Dice) -> tuple[p.ProcessPlan, ...]:
    everything = ("decider", "worker", "observer", "projector")
    clock = 0.0 if dice.is_drawn(0.7) else dice.seconds(-3.0, 3.0)
    clock *= Random(f"plan/{seed}/clock").choice((1, 1, 1200))  # seconds, or up to an hour
    processes = [p.ProcessPlan("all", everything, clock)]
    if dice.is_drawn(0.3):
        processes = [
            p.ProcessPlan("decider-1", ("decider",), clock),
            p.ProcessPlan("worker-1", ("worker",)),
            p.ProcessPlan("looks", ("observer", "projector")),
        ]
    processes += [p.ProcessPlan("decider-2", ("decider",))] * dice.is_drawn(0.6)
    processes += [p.ProcessPlan("decider-3", ("decider", "worker"))] * dice.is_drawn(0.2)
    processes += [p.ProcessPlan("worker-2", ("worker",))] * dice.is_drawn(0.5)
    processes += [p.ProcessPlan("looks-2", ("observer",))] * dice.is_drawn(0.15)
    processes += [p.ProcessPlan("projects-2", ("projector",))] * dice.is_drawn(0.15)
    return tuple(processes)


def _traits(dice: _Dice) -> p.ApiTraits:
    keys, names = dice.is_drawn(0.88), dice.is_drawn(0.9)
    return p.ApiTraits(
        idempotency_keys=keys,
        labels=dice.is_drawn(0.85)
        or not keys,  # without either, only a person can determine the result
        conditional_writes=dice.is_drawn(0.85),
        grace_seconds=0.0 if dice.is_drawn(0.8) else 1.5,
        exclusive=dice.is_drawn(0.2),
        ownership="Log" if dice.is_drawn(0.8) else "Label",
        names=names,
        loss_guard=dice.random.choice((0, 0, 0, 1, 2)),
        keeps_refusals=keys and dice.is_drawn(0.5),
        replaces=dice.random.choice(("", "", "in place", "beside")) if names else "",
    )


def _with_real_api_traits(seed: int, traits: p.ApiTraits) -> p.ApiTraits:
    """Add the traits of real APIs, drawn separately: the rest of a plan does not depend on them."""
    random = Random(f"plan/{seed}/real")
    lifetime, starting = random.choice((0, 0, 4, 7)), random.choice((0, 0, 0, 1.5, 3))
    can_be_marked = traits.idempotency_keys or traits.names
    return replace(
        traits,
        lifetime_seconds=float(lifetime),
        starting_seconds=float(starting),
        listing=random.random() < 0.85 or traits.exclusive,
        two_calls=random.random() < 0.25 and can_be_marked,
        approve=_approval_level(random, traits, lifetime),
        lag_seconds=_listing_lag(seed, traits),
    )


def _listing_lag(seed: int, traits: p.ApiTraits) -> float:
    """Draw a lag for listings, if a second object gets its own id and so causes no conflict.

    An exclusive scope has no lag: it would treat a released object that is listed late as a stray.
    """
    if traits.names or not traits.idempotency_keys or traits.exclusive:
        return 0.0
    return Random(f"plan/{seed}/lag").choice((0.0, 2.0, 4.0, 7.0))


def _approval_level(random: Random, traits: p.ApiTraits, lifetime: int) -> ApprovalLevel:
    """Draw a level, unless objects expire or an unmanaged one may have a declared name."""
    level: ApprovalLevel = random.choice(("Never", "Never", "Deletions", "Always"))
    is_unclear = traits.exclusive and not traits.names
    return "Never" if lifetime or is_unclear else level


def _lost_timer_steps(seed: int, traits: p.ApiTraits, duration: float) -> list[p.Step]:
    """Draw the loss of the next timers, if objects expire."""
    random = Random(f"plan/{seed}/timers")
    if not traits.lifetime_seconds or random.random() < 0.5:
        return []
    moments = sorted(round(random.uniform(2.0, duration), 3) for _ in range(3))
    return [p.TimersFail(at=at, how="lost", count=3) for at in moments]


def _rename_steps(seed: int, shapes: list[str], duration: float) -> list[p.Step]:
    """Draw renames of one resource, which is withdrawn at about the same time."""
    random, end = Random(f"plan/{seed}/renames"), Random(f"plan/{seed}/renames/end")
    steps: list[p.Step] = []
    if random.random() >= _RENAME_SHARE:
        return steps
    former, numbers = random.choice(shapes), iter(range(_FIRST_RENAME_NUMBER, 5_000))
    for name in _NEW_NAMES[: random.choice((1, 1, 2))]:
        at = round(random.uniform(2.0, duration), 3)
        withdrawn_at = round(max(0.1, at + random.choice((0.0, 0.3, 2.0, -0.3, -2.0))), 3)
        fields: Fields = {"color": random.choice(("Red", "Green"))}
        number, withdrawal = next(numbers), next(numbers)
        steps += [
            p.Declare(at=at, number=number, shape=name, fields=fields, moved_from=former),
            p.Withdraw(at=withdrawn_at, number=withdrawal, shape=former),
        ]
        if random.random() < 0.4:
            follow_up = round(at + random.uniform(0.1, 8.0), 3)
            steps.append(p.Withdraw(at=follow_up, number=next(numbers), shape=name))
        if end.random() < 0.25:  # no longer renamed
            follow_up = round(at + end.uniform(0.1, 3.0), 3)
            number = next(numbers)
            steps.append(p.Declare(at=follow_up, number=number, shape=name, fields=fields))
        former = random.choice((former, name))
    return steps


def _service_steps(dice: _Dice, shapes: list[str], number: int) -> list[p.Step]:
    at, shape, draw = dice.moment(), dice.random.choice(shapes), dice.random.random()
    copies = 2 if dice.is_drawn(0.15) else 1
    if number and draw < 0.12:
        return [p.Repeat(at=at, number=dice.random.randrange(number))]
    if draw < 0.32:
        withdraw = p.Withdraw(at=at, number=number, shape=shape, copies=copies)
        if dice.is_drawn(0.8):
            return [withdraw]
        soon = max(0.1, at + dice.seconds(-0.5, 0.5))
        return [withdraw, p.HumanReplaces(at=soon, name=shape, fields=dice.fields())]
    if draw < 0.36:
        return [p.Garbage(at=at, shape=shape, payload=dice.random.choice(_GARBAGE))]
    if draw < 0.40:
        present = dice.is_drawn(0.5)
        return [p.Configure(at=at, present=present, concurrency=dice.random.randint(1, 4))]
    policy = dice.random.choice(_POLICIES)
    labels = {"team": "a"} if dice.is_drawn(0.2) else {}
    declare = p.Declare(
        at=at,
        number=number,
        shape=shape,
        fields=dice.fields(),
        policy=policy,
        labels=labels,
        copies=copies,
    )
    return [declare]


def _retry_steps(dice: _Dice, steps: list[p.Step]) -> list[p.Step]:
    """Draw declarations that repeat another one without a change and are resent much later."""
    generated_steps: list[p.Step] = []
    for step in steps:
        if isinstance(step, p.Declare | p.Withdraw) and dice.is_drawn(0.15):
            number = _FIRST_RETRY_NUMBER + len(generated_steps)
            at = round(max(0.1, step.at + dice.seconds(-1.0, 2.0)), 3)
            generated_steps.append(replace(step, at=at, number=number))
            generated_steps.append(
                p.Repeat(at=round(at + dice.seconds(0.5, 10.0), 3), number=number)
            )
    return generated_steps


def _overtaking_steps(dice: _Dice, shape: str) -> list[p.Step]:
    """Pause a decider with a declaration while another decider decides a newer one.

    Then the old declaration is resent. Its content is unique, so only its id identifies it.
    """
    at = dice.seconds(1.0, max(1.5, dice.duration - 11.0))
    old = p.Declare(
        at=at,
        number=_FIRST_OVERTAKEN_NUMBER,
        shape=shape,
        fields=dice.fields(),
        labels={"team": "late"},
    )
    new_at, repeat_at = at + dice.seconds(3.2, 5.0), at + dice.seconds(8.0, 10.5)
    new = p.Declare(
        at=round(new_at, 3), number=_FIRST_OVERTAKEN_NUMBER + 1, shape=shape, fields=dice.fields()
    )
    return [
        p.OnRequest(at=at, what="append", strike="pause before", seconds=dice.seconds(5.5, 7.5)),
        old,
        new,
        p.Repeat(at=round(repeat_at, 3), number=old.number),
    ]


def _refused_redelivery_steps(dice: _Dice, shape: str, workers: list[str]) -> list[p.Step]:
    """Kill or pause a worker at its call, refuse the next call, then change the declaration.

    The paused worker may be killed right after the call that it makes when it continues.
    """
    at = dice.seconds(2.0, max(2.5, dice.duration - 12.0))
    first = p.Declare(
        at=dice.seconds(0.1, 1.0), number=_FIRST_REFUSED_NUMBER, shape=shape, fields=dice.fields()
    )
    next_step: p.Step = p.Withdraw(at=at, number=_FIRST_REFUSED_NUMBER + 1, shape=shape)
    if dice.is_drawn(0.4):
        next_step = replace(first, at=at, number=_FIRST_REFUSED_NUMBER + 1, fields=dice.fields())
    newer_at = round(at + dice.seconds(0.3, 12.0), 3)
    newer = replace(first, at=newer_at, number=_FIRST_REFUSED_NUMBER + 2, fields=dice.fields())
    strike = dice.random.choice(_INTERRUPTING_STRIKES)
    seconds = dice.seconds(10.5, 15.0) if strike.startswith("pause") else 0.0
    refusal: Strike = dice.random.choice(("refuse", "throttle"))
    dies_at = round(at + seconds + dice.seconds(0.02, 0.3), 3) if dice.is_drawn(0.4) else 0.0
    crashes = [p.Crash(at=dies_at, process=each, down_seconds=1.0) for each in workers if dies_at]
    return [
        *crashes,
        first,
        p.OnRequest(at=at, what="write", strike=strike, seconds=seconds),
        p.OnRequest(at=at, what="write again", strike=refusal),
        next_step,
        newer,
    ]


def _brief_obstacle_steps(dice: _Dice, shape: str) -> list[p.Step]:
    """Delete the object that blocks a creation before it is read."""
    at = dice.seconds(1.5, dice.duration)
    fields = dice.fields()
    return [
        p.HumanCreates(at=round(at - 0.05, 3), name=shape, fields=dice.fields()),
        p.OnRequest(at=at, what="read", strike="delay", seconds=1.5),
        p.Declare(at=at, number=_FIRST_REFUSED_NUMBER + 10, shape=shape, fields=fields),
        p.HumanDeletes(at=round(at + 1.0, 3), name=shape),
    ]


def _human_step(dice: _Dice, at: float, shapes: list[str]) -> p.Step:
    name, draw = dice.random.choice([*shapes, "zoo"]), dice.random.random()
    if draw < 0.35:
        return p.HumanDeletes(at=at, name=name)
    if draw < 0.60:
        label_of = dice.random.choice(["", "", "", *shapes])
        return p.HumanCreates(at=at, name=name, fields=dice.fields(), label_of=label_of)
    if draw < 0.65:
        return p.HumanReplaces(at=at, name=name, fields=dice.fields())
    if draw < 0.90:
        fields = dice.fields() if dice.is_drawn(0.7) else {"note": "mine"}
        return p.HumanEdits(at=at, name=name, fields=fields)
    return p.HumanStripsLabels(at=at, name=name, empties=draw > 0.97)


def _fault_step(dice: _Dice, at: float, processes: list[str]) -> p.Step:
    draw, choose = dice.random.random(), dice.random.choice
    if draw < 0.25:
        return _strike(dice, at, "write", choose(_WRITE_STRIKES))
    if draw < 0.60:
        what = choose(_LIKELY_REQUESTS) if dice.is_drawn(0.7) else choose(BUS_REQUESTS)
        return _strike(dice, at, what, choose(_BUS_STRIKES))
    if draw < 0.64:
        return _strike(dice, at, choose(("read", "list")), choose(("refuse", "throttle", "delay")))
    if draw < 0.75:
        return _process_fault(dice, at, choose(processes))
    return _environment_fault(dice, at)


def _lost_label_steps(dice: _Dice, steps: list[p.Step]) -> list[p.Step]:
    """Have a person remove the only label that shows what an unreported call created."""
    generated_steps: list[p.Step] = []
    for declare in steps:
        if isinstance(declare, p.Declare) and dice.is_drawn(0.3):
            soon = round(declare.at + dice.seconds(0.1, 8.0), 3)
            strike = dice.random.choice(_UNREPORTED_STRIKES)
            generated_steps.append(_strike(dice, declare.at, "write", strike))
            generated_steps.append(p.HumanStripsLabels(at=soon, name=declare.shape))
    return generated_steps


def _process_fault(dice: _Dice, at: float, process: str) -> p.Step:
    if dice.is_drawn(0.5):
        return p.Crash(at=at, process=process, down_seconds=dice.seconds(0.5, 8.0))
    return p.Pause(at=at, process=process, seconds=dice.seconds(1.0, 16.0))


def _environment_fault(dice: _Dice, at: float) -> p.Step:
    draw, choose = dice.random.random(), dice.random.choice
    if draw < 0.25:
        how = choose(("half-way", "half-way", "leaves out"))
        return p.ListingFails(at=at, how=how, index=dice.random.randint(0, 2))
    if draw < 0.40:
        return p.Erase(at=at, what=choose(("rows", "states", "timers")))
    if draw < 0.52:
        return p.BusAway(at=at, seconds=dice.seconds(0.2, 6.0))
    if draw < 0.68:
        return p.FollowersLag(at=at, seconds=dice.seconds(0.5, 8.0))
    if draw < 0.82:
        return p.Repin(at=at)
    if draw < 0.88:
        return p.TimersFail(at=at, how=choose(("lost", "doubled", "late")), count=choose((1, 3)))
    if draw < 0.94:
        return p.Redeliver(at=at, what=choose(("intake", "actions")), count=choose((1, 2, 5)))
    return p.ApiAway(at=at, seconds=dice.seconds(0.5, 6.0))


def _strike(dice: _Dice, at: float, what: RequestType, strike: Strike) -> p.OnRequest:
    waits = strike in ("delay", "pause before", "pause after", "lose reply")
    return p.OnRequest(
        at=at, what=what, strike=strike, seconds=dice.seconds(0.2, 14.0) if waits else 0.0
    )
