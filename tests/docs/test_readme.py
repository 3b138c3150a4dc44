"""The README's tour, command by command: the output is what the page shows."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.cli.runner import REPOSITORY
from tests.docs.page import blocks, terminal

README = (REPOSITORY / "README.md").read_text()
MAX_LINES = 150


def tour() -> str:
    return README.split("## Walkthrough")[1].split("\n## ")[0]


@pytest.mark.timeout(300)  # runs many commands in sequence
def test_the_tour(tmp_path: Path) -> None:
    with terminal(tmp_path) as opened:
        opened.start("--resync", "0.5")
        opened.follow(blocks(tour()))
        assert httpx.get(opened.api_url + "/shapes/foo").status_code == 404
    assert opened.run_commands == ["apply", "get", "watch", "why", "plan", "delete"]


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= MAX_LINES


def test_links_lead_to_existing_targets() -> None:
    for part in README.split("](")[1:]:
        path, _, anchor = part.split(")")[0].partition("#")
        target = REPOSITORY / path
        assert target.exists(), path
        assert not anchor or f"\n## {anchor}\n" in target.read_text().lower(), f"{path}#{anchor}"
