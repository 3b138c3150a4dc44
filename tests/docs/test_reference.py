"""The generated pages of the reference say what the code says."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGES: dict[str, str] = runpy.run_path(str(REPOSITORY / "docs/reference.py"))["pages"]()


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_up_to_date(name: str) -> None:
    stored = (REPOSITORY / "docs/reference" / name).read_text()
    assert stored == PAGES[name], "run `./run python docs/reference.py` and commit the pages"
