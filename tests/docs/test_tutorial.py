"""The tutorial, command by command: the output is what the page shows."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.cli.runner import REPOSITORY
from tests.docs.page import blocks, is_shown, mismatch, terminal

PAGE = (REPOSITORY / "docs" / "tutorial.md").read_text()


@pytest.mark.timeout(300)  # runs many commands in sequence
def test_the_tutorial_prints_the_shown_output(tmp_path: Path) -> None:
    with terminal(tmp_path, "/tmp/tutorial", "/tmp/orders") as opened:
        opened.follow(blocks(PAGE))
        assert httpx.get(opened.api_url + "/shapes").json()["items"] == []
        assert not (tmp_path / "orders" / "etc" / "orders.env").exists()
    assert opened.run_commands == [
        *("apply", "get", "watch", "why", "why", "history", "describe", "events"),
        *("get", "describe", "get"),
        *("plan", "apply", "diff", "rollback", "apply"),
        *("apply", "delete", "wait", "approve", "wait", "history"),
        *("apply", "wait", "wait", "reconcile"),
        *("delete", "wait", "get", "delete", "delete", "wait"),
        *("events", "replay", "doctor"),
        *("apply", "explain", "apply", "apply", "deadletters", "deadletters"),
        *("watch", "plan", "apply", "watch"),
        *("delete", "delete", "get"),
    ]


def test_the_first_manifest_is_the_example() -> None:
    (block,) = PAGE.split("<!-- from examples/foo.yaml -->\n```yaml\n")[1:]
    assert block.split("```")[0] == (REPOSITORY / "examples" / "foo.yaml").read_text()


def test_a_file_is_a_block_after_its_path() -> None:
    markdown = "Save this as `/tmp/x.yaml`:\n\n```yaml\na: 1\n```\n\n```yaml\nb: 2\n```\n"
    assert [(block.path, block.text) for block in blocks(markdown)] == [("/tmp/x.yaml", "a: 1\n")]


def test_output_is_compared_line_by_line_in_order() -> None:
    output = "NAME  AGE\nfoo   3s\nbar   4s\n"
    assert mismatch("NAME AGE\nbar …\n", output) is None
    assert mismatch("bar …\nfoo …\n", output) == "foo …"
    assert mismatch("foo\n", output) == "foo"
    assert is_shown("… foo  gone …", "12:00  default/foo") is False
    assert is_shown("…  foo  gone", "12:00 foo gone") is True
