"""The generated reference pages agree with the code."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
GENERATOR: dict[str, Any] = runpy.run_path(str(REPOSITORY / "docs/reference.py"))
PAGES: dict[str, str] = GENERATOR["pages"]()
MESSAGES: list[str] = re.findall(r"^### (\w+)$", PAGES["events.md"], re.MULTILINE)


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_up_to_date(name: str) -> None:
    stored = (REPOSITORY / "docs/reference" / name).read_text()
    assert stored == PAGES[name], "run `./run python docs/reference.py` and commit the pages"


@pytest.mark.parametrize("message", MESSAGES)
def test_each_field_of_a_message_has_a_description(message: str) -> None:
    fields = list(GENERATOR["field_meanings"](message))
    assert [each.name for each in fields if not each.about] == []


def test_the_page_of_events_describes_the_types_of_their_fields() -> None:
    assert {"SpecDeclared", "Declared", "ListingItem", "Action", "ExternalObject"} <= set(MESSAGES)
