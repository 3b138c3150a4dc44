"""`init-example` writes manifests once, and they work as its output describes."""

from __future__ import annotations

import shlex

from reconciler.cli.commands import HELP
from tests.cli.runner import Cli, InProcessCli, Up


def test_the_printed_commands_work(running_up: tuple[Cli, Up]) -> None:
    local_cli = InProcessCli(running_up[0].folder)
    result = local_cli.ok("init-example", "first/steps")
    assert result.out.splitlines()[:2] == [
        "created first/steps/shape.yaml",
        "created first/steps/file.yaml",
    ]
    commands = [line for line in result.out.splitlines() if line.startswith("  ")]
    assert len(commands) == 3
    for line in commands:
        local_cli.ok(*shlex.split(line.partition("reconciler ")[2]))
    root = local_cli.folder / "first" / "steps" / "files"
    assert (root / "hello").read_text() == "Hello\n"
    local_cli.ok("apply", "-f", "first/steps/shape.yaml", "--wait")


def test_the_help_names_a_written_file(local_cli: Cli) -> None:
    local_cli.ok("init-example")
    (file_name,) = [word for word in HELP.split() if word.endswith(".yaml")]
    assert (local_cli.folder / file_name).exists()


def test_existing_files_are_never_overwritten(local_cli: Cli) -> None:
    local_cli.write("example/file.yaml", "mine\n")
    refused = local_cli.run("init-example")
    assert (refused.status, refused.out) == (1, "")
    assert refused.err == "error: example/file.yaml: already exists; name another directory\n"
    assert (local_cli.folder / "example" / "file.yaml").read_text() == "mine\n"
    assert not (local_cli.folder / "example" / "shape.yaml").exists()


def test_an_unwritable_directory_is_named(local_cli: Cli) -> None:
    local_cli.write("taken", "")
    refused = local_cli.run("init-example", "taken")
    assert refused.status == 1
    assert (
        refused.err == "error: cannot write into taken: Not a directory; name another directory\n"
    )
