"""The index of decisions lists every ADR once, with its title and its status."""

import re

from tests.cli.runner import REPOSITORY

FOLDER = REPOSITORY / "docs" / "adr"


def test_the_index_lists_every_decision_once() -> None:
    rows = re.findall(
        r"^\| \[(\d{4})\]\((\S+)\) \| (.+) \| (?:Accepted|Superseded by (\d{4})) \|$",
        (FOLDER / "index.md").read_text(),
        flags=re.MULTILINE,
    )
    texts = {page.name: page.read_text() for page in FOLDER.glob("[0-9]*.md")}
    titles = [f"# {number} {title}" for number, _, title, _ in rows]
    assert sorted(file for _, file, _, _ in rows) == sorted(texts)
    assert titles == [texts[file].partition("\n")[0] for _, file, _, _ in rows]
    for _, file, _, successor in rows:
        assert bool(successor) == ("Superseded by " in texts[file].partition("## ")[0]), file
