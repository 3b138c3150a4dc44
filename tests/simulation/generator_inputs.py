"""Draws the inputs of specs: other resources, secrets, or the definition of their kind.

They have their own random generator, so the rest of a plan does not depend on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from msgspec.structs import replace

from events.manifest import Fields
from tests.simulation import plan as p

_FIELDS = ("name", "uid", "outputs.address")
_SECRETS = ("first", "second")
_DATA_SHARE = 0.2
"""Share of the plans whose objects may hold data."""


def with_inputs(
    seed: int, traits: p.ApiTraits, shapes: Sequence[str], steps: list[p.Step], duration: float
) -> tuple[p.ApiTraits, list[p.Step]]:
    """In some plans, let declarations reference others, name secrets, or have a defined kind."""
    random = Random(f"plan/{seed}/inputs")
    draw = random.random()
    if draw < 0.25:
        return replace(traits, addresses=True), _add_references(random, shapes, steps)
    if draw < 0.40:
        return traits, _add_secrets(random, steps, duration)
    if draw < 0.55:
        return replace(traits, defined=True), _define_kind(random, steps, duration)
    return traits, steps


def with_data(
    seed: int, traits: p.ApiTraits, shapes: Sequence[str], steps: list[p.Step], duration: float
) -> tuple[p.ApiTraits, list[p.Step]]:
    """In some plans, let objects hold data, and draw the moments at which a human stores some.

    A damaged history may keep the only slot for actions, so that no approved one starts.
    """
    random = Random(f"plan/{seed}/data")
    is_damaged = any(isinstance(step, p.DamageLog) for step in steps)
    if is_damaged or random.random() >= _DATA_SHARE:
        return traits, steps
    moments = [round(random.uniform(0.5, duration), 3) for _ in range(random.randint(1, 6))]
    fills = [p.HumanFills(at=at, name=random.choice(shapes)) for at in moments]
    return replace(traits, data=True), [*steps, *fills]


def _add_references(random: Random, shapes: Sequence[str], steps: list[p.Step]) -> list[p.Step]:
    def refer(step: p.Step) -> p.Step:
        if not isinstance(step, p.Declare) or random.random() < 0.4:
            return step
        others = [name for name in (*shapes, "nobody") if name != step.shape]
        reference = {"$ref": f"Shape/{random.choice(others)}", "field": random.choice(_FIELDS)}
        return replace(step, fields={**step.fields, "note": reference})

    return [refer(step) for step in steps]


def _add_secrets(random: Random, steps: list[p.Step], duration: float) -> list[p.Step]:
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


def _define_kind(random: Random, steps: list[p.Step], duration: float) -> list[p.Step]:
    first = round(random.uniform(0.0, 2.0), 3)
    second = round(first + random.uniform(0.05, 0.8), 3)

    def adapt(step: p.Step) -> p.Step:
        if isinstance(step, p.Configure) and not step.at:
            return replace(step, at=second)
        if not isinstance(step, p.Declare):
            return step
        return replace(step, at=max(step.at, second), fields={"color": step.fields["color"]})

    def constants() -> Fields:
        constant_fields: Fields = {"note": f"made {random.randint(1, 3)}"}
        return constant_fields | (
            {"size": {"w": random.randint(1, 2)}} if random.random() < 0.5 else {}
        )

    changed_steps = [adapt(step) for step in steps]
    moments = [round(random.uniform(first, duration), 3) for _ in range(random.randint(0, 2))]
    moments += [first, round(duration - random.random() / 2, 3)]
    changed_steps += [p.Define(at=at, constants=constants()) for at in moments]
    for at in moments:
        if random.random() < 0.5:  # some processes receive it later than others
            changed_steps.append(p.OnRequest(at=at, what="feed", strike="delay", seconds=2.0))
    return changed_steps
