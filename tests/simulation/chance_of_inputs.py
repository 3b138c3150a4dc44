"""Draws of what a spec rests on: other resources, secrets, or the definition of its kind.

Drawn apart, so that all else of a plan stays as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from msgspec.structs import replace

from events.manifest import Fields
from tests.simulation import plan as p

_FIELDS = ("name", "uid", "outputs.address")
_SECRETS = ("first", "second")


def with_inputs(
    seed: int, traits: p.ApiTraits, shapes: Sequence[str], steps: list[p.Step], duration: float
) -> tuple[p.ApiTraits, list[p.Step]]:
    """Have some plans' declarations refer to others, name secrets, or be of a defined kind."""
    random = Random(f"plan/{seed}/inputs")
    draw = random.random()
    if draw < 0.25:
        return replace(traits, addresses=True), _referring(random, shapes, steps)
    if draw < 0.40:
        return traits, _naming_secrets(random, steps, duration)
    if draw < 0.55:
        return replace(traits, defined=True), _defined(random, steps, duration)
    return traits, steps


def _referring(random: Random, shapes: Sequence[str], steps: list[p.Step]) -> list[p.Step]:
    def refer(step: p.Step) -> p.Step:
        if not isinstance(step, p.Declare) or random.random() < 0.4:
            return step
        others = [name for name in (*shapes, "nobody") if name != step.shape]
        place = {"$ref": f"Shape/{random.choice(others)}", "field": random.choice(_FIELDS)}
        return replace(step, fields={**step.fields, "note": place})

    return [refer(step) for step in steps]


def _naming_secrets(random: Random, steps: list[p.Step], duration: float) -> list[p.Step]:
    def name(step: p.Step) -> p.Step:
        if not isinstance(step, p.Declare) or random.random() < 0.3:
            return step
        return replace(step, fields={**step.fields, "note": {"$secret": random.choice(_SECRETS)}})

    def moment() -> float:
        return round(random.uniform(0.0, duration), 3)

    changed_steps = [name(step) for step in steps]
    for secret in _SECRETS:
        if random.random() < 0.8:
            changed_steps.append(p.PutSecret(at=0.0, name=secret, value=f"planted-{secret}-0"))
        for number in range(1, random.randint(1, 4)):
            value = f"planted-{secret}-{number}" if random.random() < 0.8 else ""
            changed_steps.append(p.PutSecret(at=moment(), name=secret, value=value))
    for _ in range(random.randint(0, 3)):
        strike = random.choice(("refuse", "refuse", "crash before"))
        changed_steps.append(p.OnRequest(at=moment(), what="secret", strike=strike))
    return changed_steps


def _defined(random: Random, steps: list[p.Step], duration: float) -> list[p.Step]:
    first = round(random.uniform(0.0, 2.0), 3)
    second = round(first + random.uniform(0.05, 0.8), 3)

    def of_the_kind(step: p.Step) -> p.Step:
        if isinstance(step, p.Configure) and not step.at:
            return replace(step, at=second)
        if not isinstance(step, p.Declare):
            return step
        return replace(step, at=max(step.at, second), fields={"color": step.fields["color"]})

    def constants() -> Fields:
        made: Fields = {"note": f"made {random.randint(1, 3)}"}
        return made | ({"size": {"w": random.randint(1, 2)}} if random.random() < 0.5 else {})

    made = [of_the_kind(step) for step in steps]
    moments = [round(random.uniform(first, duration), 3) for _ in range(random.randint(0, 2))]
    moments += [first, round(duration - random.random() / 2, 3)]
    made += [p.Define(at=at, constants=constants()) for at in moments]
    for at in moments:
        if random.random() < 0.5:  # some processes hear of it later than others
            made.append(p.OnRequest(at=at, what="feed", strike="delay", seconds=2.0))
    return made
