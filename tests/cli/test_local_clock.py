"""Warnings from commands on a machine whose clock is wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.cli.runner import Cli
from tests.needs import FAKETIME_LIBRARIES

SHAPE = (
    "apiVersion: shapes/v1\nkind: Shape\nmetadata: {{name: {name}}}\n"
    "spec: {{type: Square, color: Red}}\n"
)

pytestmark = pytest.mark.faketime


@pytest.fixture
def resource(live: Cli, unique: str) -> str:
    """Declare a resource; return its key."""
    name = unique.lower()
    live.ok("apply", "-f", "-", "--wait", text=SHAPE.format(name=name))
    return f"default/Shape/{name}"


def fake_clock(hours: int) -> dict[str, str]:
    """Return the environment of a process whose wall clock is off by ``hours``."""
    return {
        "LD_PRELOAD": FAKETIME_LIBRARIES[0],
        "FAKETIME": f"{hours:+d}h",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }


@pytest.mark.parametrize(
    "command", [("get",), ("events", "--since", "2h"), ("deadletters", "list", "--since", "2h")]
)
@pytest.mark.parametrize(("hours", "relation"), [(-1, "behind"), (1, "ahead of")])
def test_a_command_that_uses_the_clock_warns_of_a_difference(
    live: Cli, resource: str, command: tuple[str, ...], hours: int, relation: str
) -> None:
    result = Cli(live.folder).run(*command, **fake_clock(hours))
    assert result.status == 0, result
    assert f"warning: this machine's clock is 3600 s {relation} the bus's clock" in result.err
    assert "warning" not in live.run(*command).err


def test_a_command_that_does_not_use_the_clock_does_not_compare_it(
    live: Cli, resource: str
) -> None:
    separate_cli = Cli(live.folder)
    assert "warning" not in separate_cli.run("get", "-o", "json", **fake_clock(1)).err
    assert "warning" not in separate_cli.run("history", resource, **fake_clock(1)).err


def test_the_bus_clock_determines_what_is_in_the_future(live: Cli, resource: str) -> None:
    declared_at = datetime.now(UTC) - timedelta(minutes=1)
    result = Cli(live.folder).run(
        "history", resource, "--since", declared_at.isoformat(), **fake_clock(-1)
    )
    assert (result.status, "SpecDeclared" in result.out or "declared" in result.out) == (0, True), (
        result
    )
