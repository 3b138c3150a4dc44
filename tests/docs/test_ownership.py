"""The table of verdicts in the docs agrees with the code."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import get_args

from events.provider_config import Ownership
from reconciler.resource.ownership import Evidence, LabelOwner, Verdict, verdict

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "ownership.md"
BEGIN = "<!-- verdicts: by tests/docs/test_ownership.py from reconciler/resource/ownership.py -->\n"
END = "<!-- /verdicts -->"
NAMES: tuple[bool | None, ...] = (None, True, False)
LABEL_WORDS: dict[LabelOwner, str] = {
    "ours": "this resource",
    "another's": "another owner",
    "nothing": "-",
}
NAME_WORDS = {None: "-", True: "has the prefix", False: "lacks the prefix"}
STRATEGIES: tuple[Ownership, ...] = get_args(Ownership)


def cell(judged: Verdict) -> str:
    return judged.owner if judged.owner != "owned" else f"**owned** ({judged.reason})"


def table() -> str:
    head = ["log", "owner label", "name", "scope", *(f"`{each}`" for each in STRATEGIES)]
    lines = [head, ["---"] * len(head)]
    for log, label, name, exclusive in itertools.product(
        (True, False), get_args(LabelOwner), NAMES, (False, True)
    ):
        evidence = Evidence(log=log, label=label, name=name, exclusive=exclusive)
        judged = [cell(verdict(evidence, strategy)) for strategy in STRATEGIES]
        lines.append(
            [
                "owns it" if log else "does not own it",
                LABEL_WORDS[label],
                NAME_WORDS[name],
                "exclusive" if exclusive else "shared",
                *judged,
            ]
        )
    for words, evidence in (
        ("creation with unknown result", Evidence(log=False, label="ours", uncertain=True)),
        ("owned this uid before", Evidence(log=False, label="nothing", returned=True)),
    ):
        judged = [cell(verdict(evidence, strategy)) for strategy in STRATEGIES]
        label = "any" if evidence.label == "nothing" else LABEL_WORDS[evidence.label]
        lines.append([words, label, "any", "any", *judged])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def test_the_documented_verdicts_match_the_code() -> None:
    text = PAGE.read_text()
    block = text[text.index(BEGIN) + len(BEGIN) : text.index(END)]
    assert block == table(), "run `python -m tests.docs.test_ownership` to regenerate it"


def test_a_disputed_object_never_becomes_ours() -> None:
    for log, label, name, exclusive, referenced, uncertain in itertools.product(
        (True, False), get_args(LabelOwner), NAMES, (True, False), (True, False), (True, False)
    ):
        evidence = Evidence(log, label, name, exclusive, referenced=referenced, uncertain=uncertain)
        for strategy in STRATEGIES:
            judged = verdict(evidence, strategy)
            assert judged.owner == "owned" or judged.claim is None
            if label == "another's":
                assert judged.owner != "owned"


if __name__ == "__main__":
    page = PAGE.read_text()
    first, last = page.index(BEGIN) + len(BEGIN), page.index(END)
    PAGE.write_text(page[:first] + table() + page[last:])
