"""No remedy names a command that removes evidence of the log's length (ADR 0010)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITNESSES = ("LOG_1", "INTAKE", "STATES", "KV_reconciler", "reconciler")
REMOVAL_COMMAND = re.compile(
    r"nats\s+(?:stream|s|kv)\s+(?:rm|del|delete|purge|rmm)\s+[\"'{]*([\w$={}]+)"
)


def find_removals(text: str) -> list[str]:
    """Return the streams that text tells users to remove, or to remove messages from."""
    joined = re.sub(r"\"\s*\n\s*f?\"", "", text)  # a message that spans several lines
    return [
        name
        for name in REMOVAL_COMMAND.findall(joined)
        if name in WITNESSES or name in ("LOG}", "INTAKE}", "STATES}", "ROWS}")
    ]


def files() -> list[Path]:
    folders = ("reconciler", "infra", "events", "projections", "docs", "examples", "benchmarks")
    paths = [path for name in folders for path in (ROOT / name).rglob("*")]
    return [path for path in (*paths, ROOT / "README.md") if path.suffix in (".py", ".md")]


def test_forbidden_commands_are_found() -> None:
    assert find_removals("run `nats stream purge KV_reconciler`") == ["KV_reconciler"]
    assert find_removals('"Delete it (`nats stream rm "\n    f"{INTAKE}`)"') == ["INTAKE}"]
    assert find_removals("nats kv del reconciler checkpoint") == ["reconciler"]
    assert find_removals("nats stream purge DEADLETTERS --subject x") == []


@pytest.mark.parametrize("folder", ["reconciler", "infra", "events", "projections", "docs", "rest"])
def test_no_text_advises_removing_a_witness(folder: str) -> None:
    folders = ("reconciler", "infra", "events", "projections", "docs")
    for path in files():
        first = path.relative_to(ROOT).parts[0]
        if first == folder or (folder == "rest" and first not in folders):
            assert find_removals(path.read_text()) == [], path
