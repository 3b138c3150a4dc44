"""Tables on terminals of any width."""

from __future__ import annotations

import pytest

from reconciler.cli.console import Table, print_table

NAME = "payments/Container/a-rather-long-name-that-somebody-chose-0123456789"
MESSAGE = "the image cannot be pulled: no route to the registry, tried 4 times, and again in 32 s"
COLUMNS = ("RESOURCE", "OUTCOME", "MESSAGE")
ROWS = [(NAME, "Degraded", MESSAGE), ("default/Shape/foo", "Converged", "")]


def emulate_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))


@pytest.mark.parametrize("width", [200, 120, 92, 90])
def test_text_is_wrapped_between_words_and_no_value_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    emulate_terminal(monkeypatch, width)
    print_table(COLUMNS, ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= width for line in lines)
    assert any(NAME in line for line in lines)
    assert "RESOURCE" in lines[0]
    words = " ".join(line[len(NAME) :] for line in lines).split()
    assert [word for word in words if word in MESSAGE.split()] == MESSAGE.split()


@pytest.mark.parametrize("width", [80, 40, 10])
def test_each_row_is_a_paragraph_if_the_table_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    emulate_terminal(monkeypatch, width)
    print_table(COLUMNS, ROWS)
    assert capsys.readouterr().out.splitlines() == [
        f"RESOURCE  {NAME}",
        "OUTCOME   Degraded",
        f"MESSAGE   {MESSAGE}",
        "",
        "RESOURCE  default/Shape/foo",
        "OUTCOME   Converged",
        "",
    ]


def test_later_rows_use_the_same_columns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = Table(("NAME", "OUTCOME"))
    table.print([("something-long", "Held")], headings=True)
    table.print([("short", "Converged")])
    lines = capsys.readouterr().out.splitlines()
    words = ("OUTCOME", "Held", "Converged")
    assert {line.index(word) for line, word in zip(lines, words, strict=True)} == {16}
