"""Today's code starts on each recorded data folder, and goes on where that one stopped."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tests.cli.runner import Cli, shape, up
from tests.frozen.record import FOLDER, definition

NOT_READ = {1: FOLDER / "0.1.0.tar.xz", 3: FOLDER / "0.1.0-format-3.tar.xz"}
"""By their formats, which are no longer read (ADR 0020)."""

RECORDED = sorted({*FOLDER.glob("*.tar.xz")} - {*NOT_READ.values()})


def test_there_is_one() -> None:
    assert RECORDED


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda path: path.name.split(".tar")[0])
def test_a_recorded_data_folder_is_taken_up(recorded: Path, tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    with tarfile.open(recorded) as archive:
        archive.extractall(tmp_path, filter="data")
    with up(cli, "--resync", "0.5") as running:
        cli.ok("replay", "--verify")
        past = cli.ok("history", "changed", "-o", "json").out
        assert past.count("SpecDeclared") >= 2

        # What was declared then is held to now.
        cli.write("badge.yaml", definition(running.ready["apiUrl"]))
        cli.ok("apply", "-f", "badge.yaml", "--wait")
        found = cli.ok("get", "-A", "-o", "json").json
        rows = {row["metadata"]["name"]: row["status"]["outcome"] for row in found}
        assert rows.items() >= {"kept": "Converged", "welcome": "Converged", "held": "Held"}.items()
        cli.ok("finalizer", "remove", "Shape", "held", "billing/invoice")
        cli.write("changed.yaml", shape("changed", "Green"))
        cli.ok("apply", "-f", "changed.yaml", "--wait")
        checks = cli.ok("doctor", "-o", "json").json
        assert not [each for each in checks if each["status"] != "ok"], checks
        running.stop()


@pytest.mark.parametrize("older", NOT_READ)
def test_a_data_folder_of_an_older_format_is_refused_in_one_line(
    older: int, tmp_path: Path
) -> None:
    cli = Cli(tmp_path)
    with tarfile.open(NOT_READ[older]) as archive:
        archive.extractall(tmp_path, filter="data")
    for _ in range(2):  # the first attempt changes nothing
        ran = cli.run("up")
        assert ran.status == 1
        (line,) = ran.err.splitlines()
        assert f"older format {older}" in line
        assert "use the revision that wrote it" in line
