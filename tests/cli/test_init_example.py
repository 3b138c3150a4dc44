"""The manifests for the first steps: written once, and they work as the message says."""

from __future__ import annotations

import shlex

from reconciler.cli.commands import HELP
from tests.cli.runner import Cli, Inside, Up


def test_the_commands_that_it_names_work(running_up: tuple[Cli, Up]) -> None:
    inside = Inside(running_up[0].folder)
    result = inside.ok("init-example", "first/steps")
    assert result.out.splitlines()[:2] == [
        "created first/steps/shape.yaml",
        "created first/steps/file.yaml",
    ]
    commands = [line for line in result.out.splitlines() if line.startswith("  ")]
    assert len(commands) == 3
    for line in commands:
        inside.ok(*shlex.split(line.partition("reconciler ")[2]))
    root = inside.folder / "first" / "steps" / "files"
    assert (root / "hello").read_text() == "Hello\n"
    inside.ok("apply", "-f", "first/steps/shape.yaml", "--wait")


def test_the_help_names_a_file_that_it_writes(inside: Cli) -> None:
    inside.ok("init-example")
    (named,) = [word for word in HELP.split() if word.endswith(".yaml")]
    assert (inside.folder / named).exists()


def test_it_never_overwrites(inside: Cli) -> None:
    inside.write("example/file.yaml", "mine\n")
    refused = inside.run("init-example")
    assert (refused.status, refused.out) == (1, "")
    assert refused.err == "error: example/file.yaml: already exists; name another directory\n"
    assert (inside.folder / "example" / "file.yaml").read_text() == "mine\n"
    assert not (inside.folder / "example" / "shape.yaml").exists()


def test_a_directory_that_cannot_be_written_is_named(inside: Cli) -> None:
    inside.write("taken", "")
    refused = inside.run("init-example", "taken")
    assert refused.status == 1
    assert (
        refused.err == "error: cannot write into taken: Not a directory; name another directory\n"
    )
