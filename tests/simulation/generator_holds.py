"""Draws what holds a resource: other services, approvals, other teams' observers, damage.

Also removes steps whose results no feature of the API can show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from random import Random

from events.manifest import Fields
from tests.judge.from_simulation import PERSON
from tests.simulation import plan as p
from tests.simulation.publishing import GUARD

_SERVICES = ("billing", "backup")
_FIRST_NUMBER = 100
_FIRST_LOOK_NUMBER = 100 * _FIRST_NUMBER
_FIRST_RIVAL_NUMBER = 300 * _FIRST_NUMBER
_FIRST_WITHDRAWAL_NUMBER = 200 * _FIRST_NUMBER
_STRAYS = ("stray-1", "stray-2", "stray-3", "stray-4")


def holder_steps(
    random: Random, moment: Callable[[], float], shapes: Sequence[str], *, exclusive: bool
) -> list[p.Step]:
    """Draw finalizers, references, approvals, listings and damage."""
    numbers = iter(range(_FIRST_NUMBER, 10 * _FIRST_NUMBER))
    steps: list[p.Step] = []
    for share, limit, draw in (
        (0.35, 3, _finalizer),
        (0.30, 3, _reference),
        (0.20, 2, _forced_release),
        (0.30, 3, _approval),
        (0.25, 3, _listing),
    ):
        if random.random() < share:
            for _ in range(random.randint(1, limit)):
                steps += draw(random, moment, shapes, numbers.__next__)
    if random.random() < 0.12:
        steps.append(p.HumanWipes(at=moment()))
    if exclusive and random.random() < 0.4:
        fields: Fields = {"color": "Red"}
        names = _STRAYS[: random.randint(1, GUARD + 2)]
        steps += [p.HumanCreates(at=moment(), name=name, fields=fields) for name in names]
        steps += [p.Approve(at=moment(), shape=random.choice(names)) for _ in range(2)]
    if random.random() < 0.06:
        how = random.choice(("flip", "lose"))
        index = random.randint(0, 20)
        steps.append(p.DamageLog(at=moment(), shape=random.choice(shapes), how=how, index=index))
    return steps


def _finalizer(
    random: Random, moment: Callable[[], float], shapes: Sequence[str], number: Callable[[], int]
) -> list[p.Step]:
    shape, service = random.choice(shapes), random.choice(_SERVICES)
    steps: list[p.Step] = [
        p.RequestFinalizer(at=moment(), number=number(), shape=shape, service=service)
    ]
    if random.random() < 0.6:
        by = service if random.random() < 0.7 else PERSON
        force = random.random() < 0.5
        steps.append(
            p.ReleaseFinalizer(
                at=moment(), number=number(), shape=shape, service=service, by=by, force=force
            )
        )
    return steps


def _reference(
    random: Random, moment: Callable[[], float], shapes: Sequence[str], number: Callable[[], int]
) -> list[p.Step]:
    name, target = random.choice(("ref-1", "ref-2")), random.choice([*shapes, "nobody"])
    policy = random.choice(("Keep", "Keep", "Release", "Ignore"))
    steps: list[p.Step] = [
        p.Refer(at=moment(), number=number(), name=name, target=target, on_withdrawal=policy)
    ]
    if random.random() < 0.4:
        steps.append(p.Refer(at=moment(), number=number(), name=name))
    return steps


def _forced_release(
    random: Random, moment: Callable[[], float], shapes: Sequence[str], number: Callable[[], int]
) -> list[p.Step]:
    orphan = random.random() < 0.4
    shape = random.choice(shapes)
    return [p.ForceRelease(at=moment(), number=number(), shape=shape, orphan=orphan)]


def _approval(
    random: Random, moment: Callable[[], float], shapes: Sequence[str], _number: object
) -> list[p.Step]:
    return [p.Approve(at=moment(), shape=random.choice(shapes))]


def with_withdrawals(
    seed: int, shapes: Sequence[str], steps: list[p.Step], duration: float
) -> list[p.Step]:
    """Withdraw the configuration together with its resources, in any order.

    Often, little is declared afterwards, so the configuration ends. Sometimes it is released by
    force, or declared again. The other draws of a seed do not depend on this one.
    """
    random = Random(f"plan/{seed}/withdrawals")
    if random.random() >= 0.3:
        return steps
    at = random.uniform(1.0, max(1.5, duration - 9.0))
    if random.random() < 0.7:
        steps = [each for each in steps if each.at < at or not _declares(each)]

    def near(seconds: float) -> float:
        return round(min(max(0.1, at + random.uniform(-1.0, seconds)), duration), 3)

    numbers = count(_FIRST_WITHDRAWAL_NUMBER)
    forced = random.random() < 0.25
    new: list[p.Step] = [p.Configure(at=near(1.0), present=False, forced=forced)]
    new += [p.Withdraw(at=near(1.0), number=next(numbers), shape=each) for each in shapes]
    if random.random() < 0.5:
        fields: Fields = {"color": random.choice(("Red", "Blue"))}
        shape = random.choice(shapes)
        new.append(p.Declare(at=near(8.0), number=next(numbers), shape=shape, fields=fields))
    if random.random() < 0.2:
        new.append(p.Configure(at=near(12.0)))
    return steps + new


def _declares(step: p.Step) -> bool:
    return isinstance(step, p.Declare | p.Repeat | p.Configure)


def look_steps(seed: int, shapes: Sequence[str], duration: float) -> list[p.Step]:
    """Draw requested reconciliations; the other draws of a seed do not depend on them."""
    random = Random(f"plan/{seed}/looks")
    if random.random() >= 0.3:
        return []
    numbers = range(_FIRST_LOOK_NUMBER, _FIRST_LOOK_NUMBER + random.randint(1, 3))
    return [
        p.Look(at=round(random.uniform(0, duration), 3), number=number, shape=random.choice(shapes))
        for number in numbers
    ]


def copy_steps(
    seed: int, traits: p.ApiTraits, shapes: Sequence[str], duration: float
) -> list[p.Step]:
    """Draw writes by a copy of the log; the other draws of a seed do not depend on them."""
    random = Random(f"plan/{seed}/copies")
    if random.random() >= 0.1 or not (traits.idempotency_keys and traits.names and traits.labels):
        return []
    return [
        p.CopyWrites(
            at=round(random.uniform(0, duration), 3),
            shape=random.choice(shapes),
            fields={"color": random.choice(("Red", "Green", "Blue"))},
        )
        for _ in range(random.randint(1, 3))
    ]


def rival_steps(
    seed: int, traits: p.ApiTraits, shapes: Sequence[str], duration: float
) -> list[p.Step]:
    """Draw a resource with the external name of another one, which often disappears.

    The other draws of a seed do not depend on it.
    """
    random = Random(f"plan/{seed}/rivals")
    if random.random() >= 0.15 or not traits.names:
        return []
    shape = random.choice(shapes)
    numbers = iter(range(_FIRST_RIVAL_NUMBER, _FIRST_RIVAL_NUMBER + 20))

    def moment() -> float:
        return round(random.uniform(0.5, duration), 3)

    steps: list[p.Step] = [p.HumanDeletes(at=moment(), name=shape)] * random.randint(0, 3)
    for _ in range(random.randint(1, 6)):
        fields: Fields = {"color": random.choice(("Red", "Green", "Blue"))}
        policy: Fields = random.choice(({}, {}, {"adoption": "Adopt"}, {"mode": "ObserveOnly"}))
        steps.append(
            p.Declare(
                at=moment(),
                number=next(numbers),
                shape="rival",
                fields=fields,
                policy=policy,
                external_name=shape,
            )
        )
    for name in ("rival", shape):
        steps += [
            p.Withdraw(at=moment(), number=next(numbers), shape=name)
            for _ in range(random.randint(0, 1))
        ]
    return steps


def _listing(
    random: Random, moment: Callable[[], float], _shapes: object, _number: object
) -> list[p.Step]:
    return [p.Listing(at=moment(), how=random.choice(("whole", "short", "open", "late")))]


def possible_steps(traits: p.ApiTraits, steps: Sequence[p.Step]) -> list[p.Step]:
    """Return the steps without those from which no recovery is possible with this API."""
    remaining_steps: list[p.Step] = list(steps)
    if not traits.names and not traits.idempotency_keys:
        remaining_steps = [
            step for step in remaining_steps if not (_hides_an_object(step) or _is_late(step))
        ]
    return remaining_steps


def _hides_an_object(step: p.Step) -> bool:
    """Return whether a lookup may miss an object, so that its creation is repeated."""
    is_incomplete = isinstance(step, p.ListingFails) and step.how == "leaves out"
    return is_incomplete or (isinstance(step, p.Listing) and step.how == "short")


def _is_late(step: p.Step) -> bool:
    """Return whether a call may arrive after its lookup, so that it is repeated.

    Only the label shows the lookup which resource an object belongs to.
    """
    if isinstance(step, p.OnRequest):
        waits = step.strike in ("pause before", "pause after")
        return waits or (step.what == "write" and step.strike == "delay")
    return isinstance(step, p.Pause | p.HumanStripsLabels)
