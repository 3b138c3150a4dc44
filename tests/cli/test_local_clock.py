"""What a command says whose machine's clock is wrong, which only it is moved for."""

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
    """A resource that was declared just now."""
    name = unique.lower()
    live.ok("apply", "-f", "-", "--wait", text=SHAPE.format(name=name))
    return f"default/Shape/{name}"


def moved(hours: int) -> dict[str, str]:
    """Return the environment of a process whose wall clock is wrong by so much."""
    return {
        "LD_PRELOAD": FAKETIME_LIBRARIES[0],
        "FAKETIME": f"{hours:+d}h",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }


@pytest.mark.parametrize(
    "command", [("get",), ("events", "--since", "2h"), ("deadletters", "list", "--since", "2h")]
)
@pytest.mark.parametrize(("hours", "where"), [(-1, "behind"), (1, "ahead of")])
def test_a_command_that_shows_ages_or_takes_a_span_says_that_the_clock_is_wrong(
    live: Cli, resource: str, command: tuple[str, ...], hours: int, where: str
) -> None:
    ran = Cli(live.folder).run(*command, **moved(hours))
    assert ran.status == 0, ran
    assert f"warning: this machine's clock is 3600 s {where} the bus's clock" in ran.err
    assert "warning" not in live.run(*command).err


def test_a_command_that_reads_no_clock_does_not_ask_for_one(live: Cli, resource: str) -> None:
    apart = Cli(live.folder)
    assert "warning" not in apart.run("get", "-o", "json", **moved(1)).err
    assert "warning" not in apart.run("history", resource, **moved(1)).err


def test_what_is_to_come_is_judged_by_the_clock_of_the_bus(live: Cli, resource: str) -> None:
    declared = datetime.now(UTC) - timedelta(minutes=1)
    ran = Cli(live.folder).run("history", resource, "--since", declared.isoformat(), **moved(-1))
    assert (ran.status, "SpecDeclared" in ran.out or "declared" in ran.out) == (0, True), ran
