"""Install commands in docs and messages name this distribution and an extra that it has."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
WITH_EXTRA = re.compile(r"install\s+(?:\"\s*f?\")?'([^'\[\s]+)\[([^\]]+)\]'")
LOCATIONS = ("README.md", "docs", "examples", "reconciler", "infra", "events", "projections")


def test_an_install_command_names_this_distribution() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    names = (project["name"], "{DISTRIBUTION}", ".")
    extras = {*project["optional-dependencies"], "{extra}", "EXTRA"}  # in messages for any extra
    files = [REPOSITORY / "README.md"]
    files += [
        each for location in LOCATIONS for each in (REPOSITORY / location).rglob("*.[mp][dy]")
    ]
    found = [
        (str(path.relative_to(REPOSITORY)), *match)
        for path in files
        if "adr" not in path.parts
        for match in WITH_EXTRA.findall(path.read_text())
    ]
    assert len(found) > 10
    assert [
        each for each in found if each[1] not in names or not extras.issuperset(each[2].split(","))
    ] == []


def test_no_example_assumes_the_bus_address() -> None:
    """`up` uses port 4222 only if it is free, and the bus there may be another team's."""
    files = [path for path in (REPOSITORY / "examples").rglob("*") if path.is_file()]
    assert len(files) > 10
    assert [path.name for path in files if b":4222" in path.read_bytes()] == []
