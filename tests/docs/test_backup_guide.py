"""The commands of the guide's sections about backups and damage, as they are written there."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

from tests.cli.runner import Cli, Inside, shape, up
from tests.docs.test_links import DOCS

PAGE = DOCS / "how-to/back-up-and-restore.md"


def commands(heading: str) -> list[list[str]]:
    """Every command line of a section, in order."""
    section = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    blocks = [part.split("```")[0] for part in section.split("```sh\n")[1:]]
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    return [words for words in lines if words]


def test_a_backup_is_made_and_restored_as_the_guide_says(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    save, *restore = commands("Back up and restore the log")
    names = [words[1] for words in (save, *restore)]
    assert names == ["backup", "restore", "replay", "get", "up"]
    inside = Inside(cli.folder)
    with up(cli):
        cli.write("foo.yaml", shape("foo"))
        inside.ok("apply", "-f", "foo.yaml", "--wait")
        inside.ok(*save[1:])
    shutil.rmtree(cli.folder / "reconciler-data" / "nats")
    with up(cli, "--roles", "none", "--no-api"):
        for words in restore:
            if words[1] != "up":
                ran = inside.ok(*words[1 : words.index(">") if ">" in words else None])
                assert words[1] != "restore" or "Start only the decider first" in ran.out
                assert words[1] != "get" or "endpoint: http://127.0.0.1:" in ran.out
        assert [row[:3] for row in inside.ok("get").rows] == [["Shape", "foo", "Converged"]]
        *look, repair = commands("When the log is damaged")
        for words in look:
            inside.run(*words[1:])
        identity = inside.ok("backup", "again.backup", "-o", "json").json["logId"]
        inside.ok(*[identity if word == "LOG-ID" else word for word in repair[1:]])
