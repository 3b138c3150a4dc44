"""The commands in the guide's sections about backups and damage, as written there."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

from tests.cli.runner import Cli, InProcessCli, shape, up
from tests.docs.test_links import DOCS

PAGE = DOCS / "how-to/back-up-and-restore.md"


def commands(heading: str) -> list[list[str]]:
    """Every command line of a section, in order."""
    section = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    blocks = [part.split("```")[0] for part in section.split("```sh\n")[1:]]
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    return [words for words in lines if words]


def test_a_backup_is_made_and_restored_as_the_guide_describes(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    save, *restore = commands("Back up and restore the log")
    names = [words[1] for words in (save, *restore)]
    assert names == ["backup", "restore", "replay", "get", "up"]
    local_cli = InProcessCli(cli.folder)
    with up(cli):
        cli.write("foo.yaml", shape("foo"))
        local_cli.ok("apply", "-f", "foo.yaml", "--wait")
        local_cli.ok(*save[1:])
    shutil.rmtree(cli.folder / "reconciler-data" / "nats")
    with up(cli, "--roles", "none", "--no-api"):
        for words in restore:
            if words[1] != "up":
                result = local_cli.ok(*words[1 : words.index(">") if ">" in words else None])
                assert words[1] != "restore" or "Start only the decider first" in result.out
                assert words[1] != "get" or "endpoint: http://127.0.0.1:" in result.out
        assert [row[:3] for row in local_cli.ok("get").rows] == [["Shape", "foo", "Converged"]]
        *inspect, repair = commands("When the log is damaged")
        for words in inspect:
            local_cli.run(*words[1:])
        identity = local_cli.ok("backup", "again.backup", "-o", "json").json["logId"]
        local_cli.ok(*[identity if word == "LOG-ID" else word for word in repair[1:]])
