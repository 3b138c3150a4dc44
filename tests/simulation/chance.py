"""Generates a plan from a seed."""

from __future__ import annotations

import random
from random import Random
from typing import Any

from msgspec.structs import replace

from events.manifest import ApprovalLevel, Fields
from tests.memory_bus.faults import BUS_REQUESTS, RequestType, Strike
from tests.simulation import plan as p
from tests.simulation.chance_of_holds import copies_of, looks_of, of_holders, possible
from tests.simulation.chance_of_inputs import with_inputs
from tests.simulation.chance_of_limits import limits_of

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
_FIRST_RETRY = 1_000
_FIRST_OVERTAKEN = 2_000
_FIRST_REFUSED = 3_000
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
_UNREPORTED: tuple[Strike, ...] = ("crash after", "crash after", "lose reply", "break")
_UNHEARD: tuple[Strike, ...] = ("crash after", "pause before", "pause before", "pause after")
_BUS_STRIKES: tuple[Strike, ...] = (
    "lose request",
    "lose reply",
    "delay",
    "crash before",
    "crash after",
    "pause before",
    "pause after",
)
_LIKELY_SORTS: tuple[RequestType, ...] = (
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
    """Draws random values; most moments are close to one of a few, so that steps collide."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"plan/{seed}")
        self.duration = self.seconds(12, 30)
        self._busy = [self.seconds(0.5, self.duration * 0.85) for _ in range(3)]

    def one(self, share: float) -> bool:
        return self.random.random() < share

    def seconds(self, low: float, high: float) -> float:
        return round(self.random.uniform(low, high), 3)

    def moment(self) -> float:
        if self.one(0.6):
            near = self.random.choice(self._busy) + self.random.gauss(0.0, 0.5)
            return round(min(max(near, 0.1), self.duration), 3)
        return self.seconds(0.1, self.duration)

    def fields(self) -> Fields:
        fields: dict[str, Any] = {"color": self.random.choice(_COLORS)}
        if self.one(0.3):
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
        steps += _of_a_service(dice, shapes, number)
    steps += _of_retries(dice, steps)
    for _ in range(choose((0, 1, 2, 4, 8))):
        steps.append(_of_a_human(dice, dice.moment(), shapes))
    trouble = choose((0.0, 0.5, 1.0, 1.0, 2.0))
    for _ in range(round(trouble * dice.random.randint(3, 16))):
        steps.append(_of_fate(dice, dice.moment(), [each.name for each in processes]))
    traits = _of_real_apis(seed, _traits(dice))
    if not traits.idempotency_keys:
        steps += _of_lost_marks(dice, steps)
    steps += of_holders(dice.random, dice.moment, shapes, exclusive=traits.exclusive)
    if sum("decider" in each.roles for each in processes) > 1 and dice.one(0.12):
        steps += _of_overtaking(dice, choose(shapes))
    workers = [each.name for each in processes if "worker" in each.roles]
    if dice.one(0.5 if len(workers) > 1 else 0.1):
        steps += _of_a_refused_redelivery(dice, choose(shapes), workers)
    if dice.one(0.2):
        steps += _of_a_passing_obstacle(dice, choose(shapes))
    limits, full = limits_of(
        seed,
        dice.duration,
        [step.at for step in steps if isinstance(step, p.Declare)],
        shapes[0],
        is_damaged=any(isinstance(step, p.DamageLog) for step in steps),
    )
    steps = possible(traits, steps) + full + _of_lost_timers(seed, traits, dice.duration)
    steps += looks_of(seed, shapes, dice.duration)
    steps += copies_of(seed, traits, shapes, dice.duration)
    traits, steps = with_inputs(seed, traits, shapes, steps, dice.duration)
    steps.sort(key=lambda step: step.at)
    return p.Plan(seed, dice.duration, traits, processes, tuple(steps), limits)


def _processes(seed: int, dice: _Dice) -> tuple[p.ProcessPlan, ...]:
    everything = ("decider", "worker", "observer", "projector")
    clock = 0.0 if dice.one(0.7) else dice.seconds(-3.0, 3.0)
    clock *= Random(f"plan/{seed}/clock").choice((1, 1, 1200))  # seconds, or up to an hour
    processes = [p.ProcessPlan("all", everything, clock)]
    if dice.one(0.3):
        processes = [
            p.ProcessPlan("decider-1", ("decider",), clock),
            p.ProcessPlan("worker-1", ("worker",)),
            p.ProcessPlan("looks", ("observer", "projector")),
        ]
    processes += [p.ProcessPlan("decider-2", ("decider",))] * dice.one(0.6)
    processes += [p.ProcessPlan("decider-3", ("decider", "worker"))] * dice.one(0.2)
    processes += [p.ProcessPlan("worker-2", ("worker",))] * dice.one(0.5)
    processes += [p.ProcessPlan("looks-2", ("observer",))] * dice.one(0.15)
    processes += [p.ProcessPlan("projects-2", ("projector",))] * dice.one(0.15)
    return tuple(processes)


def _traits(dice: _Dice) -> p.ApiTraits:
    keys, names = dice.one(0.88), dice.one(0.9)
    return p.ApiTraits(
        idempotency_keys=keys,
        labels=dice.one(0.85) or not keys,  # without either, only a person can determine the result
        conditional_writes=dice.one(0.85),
        grace_seconds=0.0 if dice.one(0.8) else 1.5,
        exclusive=dice.one(0.2),
        ownership="Log" if dice.one(0.8) else "Label",
        names=names,
        loss_guard=dice.random.choice((0, 0, 0, 1, 2)),
        keeps_refusals=keys and dice.one(0.5),
        replaces=dice.random.choice(("", "", "in place", "beside")) if names else "",
    )


def _of_real_apis(seed: int, traits: p.ApiTraits) -> p.ApiTraits:
    """Add the peculiarities of real APIs, drawn separately: the rest of a plan is unchanged."""
    random = Random(f"plan/{seed}/real")
    lifetime, starting = random.choice((0, 0, 4, 7)), random.choice((0, 0, 0, 1.5, 3))
    can_be_marked = traits.idempotency_keys or traits.names
    return replace(
        traits,
        lifetime_seconds=float(lifetime),
        starting_seconds=float(starting),
        listing=random.random() < 0.85 or traits.exclusive,
        two_calls=random.random() < 0.25 and can_be_marked,
        approve=_approve(random, traits, lifetime),
        lag_seconds=_lag(seed, traits),
    )


def _lag(seed: int, traits: p.ApiTraits) -> float:
    """Where a second object has an id of its own, no conflict shows that a listing lags behind.

    Not in an exclusive scope: there, a released object that comes late is taken for a stray.
    """
    if traits.names or not traits.idempotency_keys or traits.exclusive:
        return 0.0
    return Random(f"plan/{seed}/lag").choice((0.0, 2.0, 4.0, 7.0))


def _approve(random: Random, traits: p.ApiTraits, lifetime: int) -> ApprovalLevel:
    """Not where objects never expire, or where an unmanaged object has a declared name."""
    level: ApprovalLevel = random.choice(("Never", "Never", "Deletions", "Always"))
    is_unclear = traits.exclusive and not traits.names
    return "Never" if lifetime or is_unclear else level


def _of_lost_timers(seed: int, traits: p.ApiTraits, duration: float) -> list[p.Step]:
    """Where objects end, the timers that are due next may be lost."""
    random = Random(f"plan/{seed}/timers")
    if not traits.lifetime_seconds or random.random() < 0.5:
        return []
    moments = sorted(round(random.uniform(2.0, duration), 3) for _ in range(3))
    return [p.TimersFail(at=at, how="lost", count=3) for at in moments]


def _of_a_service(dice: _Dice, shapes: list[str], number: int) -> list[p.Step]:
    at, shape, draw = dice.moment(), dice.random.choice(shapes), dice.random.random()
    copies = 2 if dice.one(0.15) else 1
    if number and draw < 0.12:
        return [p.Repeat(at=at, number=dice.random.randrange(number))]
    if draw < 0.32:
        withdraw = p.Withdraw(at=at, number=number, shape=shape, copies=copies)
        if dice.one(0.8):
            return [withdraw]
        soon = max(0.1, at + dice.seconds(-0.5, 0.5))
        return [withdraw, p.HumanReplaces(at=soon, name=shape, fields=dice.fields())]
    if draw < 0.36:
        return [p.Garbage(at=at, shape=shape, payload=dice.random.choice(_GARBAGE))]
    if draw < 0.40:
        present = dice.one(0.5)
        return [p.Configure(at=at, present=present, concurrency=dice.random.randint(1, 4))]
    policy = dice.random.choice(_POLICIES)
    labels = {"team": "a"} if dice.one(0.2) else {}
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


def _of_retries(dice: _Dice, steps: list[p.Step]) -> list[p.Step]:
    """A declaration repeats another one, changes nothing, and is resent much later."""
    generated_steps: list[p.Step] = []
    for step in steps:
        if isinstance(step, p.Declare | p.Withdraw) and dice.one(0.15):
            number = _FIRST_RETRY + len(generated_steps)
            at = round(max(0.1, step.at + dice.seconds(-1.0, 2.0)), 3)
            generated_steps.append(replace(step, at=at, number=number))
            generated_steps.append(
                p.Repeat(at=round(at + dice.seconds(0.5, 10.0), 3), number=number)
            )
    return generated_steps


def _of_overtaking(dice: _Dice, shape: str) -> list[p.Step]:
    """A decider is paused with a declaration while another one decides a newer one.

    Then the old one is resent. Its content is unique, so only its id identifies it.
    """
    at = dice.seconds(1.0, max(1.5, dice.duration - 11.0))
    old = p.Declare(
        at=at, number=_FIRST_OVERTAKEN, shape=shape, fields=dice.fields(), labels={"team": "late"}
    )
    new_at, again_at = at + dice.seconds(3.2, 5.0), at + dice.seconds(8.0, 10.5)
    new = p.Declare(
        at=round(new_at, 3), number=_FIRST_OVERTAKEN + 1, shape=shape, fields=dice.fields()
    )
    return [
        p.OnRequest(at=at, what="append", strike="pause before", seconds=dice.seconds(5.5, 7.5)),
        old,
        new,
        p.Repeat(at=round(again_at, 3), number=old.number),
    ]


def _of_a_refused_redelivery(dice: _Dice, shape: str, workers: list[str]) -> list[p.Step]:
    """A worker dies or stands still at its call, the next one is refused; then all is otherwise.

    Who stood still may die right after the call that it makes then.
    """
    at = dice.seconds(2.0, max(2.5, dice.duration - 12.0))
    first = p.Declare(
        at=dice.seconds(0.1, 1.0), number=_FIRST_REFUSED, shape=shape, fields=dice.fields()
    )
    next_step: p.Step = p.Withdraw(at=at, number=_FIRST_REFUSED + 1, shape=shape)
    if dice.one(0.4):
        next_step = replace(first, at=at, number=_FIRST_REFUSED + 1, fields=dice.fields())
    newer_at = round(at + dice.seconds(0.3, 12.0), 3)
    newer = replace(first, at=newer_at, number=_FIRST_REFUSED + 2, fields=dice.fields())
    strike = dice.random.choice(_UNHEARD)
    seconds = dice.seconds(10.5, 15.0) if strike.startswith("pause") else 0.0
    refusal: Strike = dice.random.choice(("refuse", "throttle"))
    dies_at = round(at + seconds + dice.seconds(0.02, 0.3), 3) if dice.one(0.4) else 0.0
    deaths = [p.Crash(at=dies_at, process=each, down_seconds=1.0) for each in workers if dies_at]
    return [
        *deaths,
        first,
        p.OnRequest(at=at, what="write", strike=strike, seconds=seconds),
        p.OnRequest(at=at, what="write again", strike=refusal),
        next_step,
        newer,
    ]


def _of_a_passing_obstacle(dice: _Dice, shape: str) -> list[p.Step]:
    """The obstacle of a creation is deleted before any read."""
    at = dice.seconds(1.5, dice.duration)
    fields = dice.fields()
    return [
        p.HumanMakes(at=round(at - 0.05, 3), name=shape, fields=dice.fields()),
        p.OnRequest(at=at, what="read", strike="delay", seconds=1.5),
        p.Declare(at=at, number=_FIRST_REFUSED + 10, shape=shape, fields=fields),
        p.HumanDeletes(at=round(at + 1.0, 3), name=shape),
    ]


def _of_a_human(dice: _Dice, at: float, shapes: list[str]) -> p.Step:
    name, draw = dice.random.choice([*shapes, "zoo"]), dice.random.random()
    if draw < 0.35:
        return p.HumanDeletes(at=at, name=name)
    if draw < 0.60:
        label_of = dice.random.choice(["", "", "", *shapes])
        return p.HumanMakes(at=at, name=name, fields=dice.fields(), label_of=label_of)
    if draw < 0.65:
        return p.HumanReplaces(at=at, name=name, fields=dice.fields())
    if draw < 0.90:
        fields = dice.fields() if dice.one(0.7) else {"note": "mine"}
        return p.HumanEdits(at=at, name=name, fields=fields)
    return p.HumanStripsLabels(at=at, name=name)


def _of_fate(dice: _Dice, at: float, processes: list[str]) -> p.Step:
    draw, choose = dice.random.random(), dice.random.choice
    if draw < 0.25:
        return _strike(dice, at, "write", choose(_WRITE_STRIKES))
    if draw < 0.60:
        what = choose(_LIKELY_SORTS) if dice.one(0.7) else choose(BUS_REQUESTS)
        return _strike(dice, at, what, choose(_BUS_STRIKES))
    if draw < 0.64:
        return _strike(dice, at, choose(("read", "list")), choose(("refuse", "throttle", "delay")))
    if draw < 0.75:
        return _of_a_process(dice, at, choose(processes))
    return _of_the_surroundings(dice, at)


def _of_lost_marks(dice: _Dice, steps: list[p.Step]) -> list[p.Step]:
    """If only our label shows what an unreported call has created, a person removes it."""
    generated_steps: list[p.Step] = []
    for declare in steps:
        if isinstance(declare, p.Declare) and dice.one(0.3):
            soon = round(declare.at + dice.seconds(0.1, 8.0), 3)
            strike = dice.random.choice(_UNREPORTED)
            generated_steps.append(_strike(dice, declare.at, "write", strike))
            generated_steps.append(p.HumanStripsLabels(at=soon, name=declare.shape))
    return generated_steps


def _of_a_process(dice: _Dice, at: float, process: str) -> p.Step:
    if dice.one(0.5):
        return p.Crash(at=at, process=process, down_seconds=dice.seconds(0.5, 8.0))
    return p.Pause(at=at, process=process, seconds=dice.seconds(1.0, 16.0))


def _of_the_surroundings(dice: _Dice, at: float) -> p.Step:
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
