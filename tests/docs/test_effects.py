"""The table of effects in the docs agrees with the code."""

from __future__ import annotations

import itertools
from pathlib import Path

from events.log import Effect
from reconciler.resource.effect import EFFECTS_BY_SEVERITY, effect_after

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "actions.md"
BEGIN = "<!-- effects: by tests/docs/test_effects.py from reconciler/resource/effect.py -->\n"
END = "<!-- /effects -->"


def table() -> str:
    lines = [["effect so far", *(f"`{each}`" for each in EFFECTS_BY_SEVERITY)], ["---"] * 5]
    for known_effect in Effect:
        after = [effect_after(known_effect, attempt) for attempt in EFFECTS_BY_SEVERITY]
        lines.append([f"`{known_effect}`", *map(str, after)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def test_the_documented_effects_match_the_code() -> None:
    text = PAGE.read_text()
    block = text[text.index(BEGIN) + len(BEGIN) : text.index(END)]
    assert block == table(), "run `python -m tests.docs.test_effects` to regenerate it"


def test_no_attempt_makes_an_effect_more_certain() -> None:
    for known_effect, attempt in itertools.product(Effect, EFFECTS_BY_SEVERITY):
        after = effect_after(known_effect, attempt)
        assert after.may_arrive >= (known_effect.may_arrive or attempt.may_arrive), (
            known_effect,
            attempt,
        )
        assert after.may_exist >= (known_effect.may_exist or attempt.may_exist), (
            known_effect,
            attempt,
        )
        assert after.is_nothing == (known_effect.is_nothing and attempt.is_nothing), (
            known_effect,
            attempt,
        )


def test_only_an_operator_ends_a_hold() -> None:
    assert {effect_after(Effect.HELD, attempt) for attempt in EFFECTS_BY_SEVERITY} == {Effect.HELD}
    others = set(Effect) - {Effect.HELD}
    for known_effect, attempt in itertools.product(others, EFFECTS_BY_SEVERITY):
        assert effect_after(known_effect, attempt) is not Effect.HELD


if __name__ == "__main__":
    page = PAGE.read_text()
    first, last = page.index(BEGIN) + len(BEGIN), page.index(END)
    PAGE.write_text(page[:first] + table() + page[last:])
