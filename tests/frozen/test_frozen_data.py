"""The code continues from a recorded data folder in its format, and refuses an older one."""

from __future__ import annotations

import tarfile
from pathlib import Path

from tests.cli.runner import Cli, shape, up
from tests.frozen.record import RECORDED, definition

OLDER = 6
REFUSED = Path(__file__).parent / f"format-{OLDER}.tar.xz"


def test_a_recorded_data_folder_is_resumed(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    with tarfile.open(RECORDED) as archive:
        archive.extractall(tmp_path, filter="data")
    with up(cli, "--resync", "0.5") as running:
        cli.ok("replay", "--verify")
        past = cli.ok("history", "default/Shape/changed", "-o", "json").out
        assert past.count("SpecDeclared") >= 2

        # The recorded declarations still apply.
        cli.write("badge.yaml", definition(running.ready["apiUrl"]))
        cli.ok("apply", "-f", "badge.yaml", "--wait")
        listed_rows = cli.ok("get", "-A", "-o", "json").json
        rows = {
            f"{row['kind']}/{row['metadata']['name']}": row["status"]["outcome"]
            for row in listed_rows
        }
        expected = {"Shape/kept": "Converged", "Badge/welcome": "Converged", "Shape/held": "Held"}
        assert rows.items() >= expected.items()
        cli.ok("finalizer", "remove", "Shape", "held", "billing/invoice")
        cli.write("changed.yaml", shape("changed", "Green"))
        cli.ok("apply", "-f", "changed.yaml", "--wait")
        checks = cli.ok("doctor", "-o", "json").json
        assert not [each for each in checks if each["status"] != "ok"], checks
        running.stop()


def test_a_data_folder_of_an_older_format_is_refused_in_one_line(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    with tarfile.open(REFUSED) as archive:
        archive.extractall(tmp_path, filter="data")
    for _ in range(2):  # the first attempt changes nothing
        ran = cli.run("up")
        assert ran.status == 1
        (line,) = ran.err.splitlines()
        assert f"older format {OLDER}" in line
        assert "use the revision that wrote it" in line
