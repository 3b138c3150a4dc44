"""`apply --set`: one set, all of it or nothing; what is left out goes when somebody says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.runner import Cli, Inside, shape, up


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    cli = Cli(tmp_path_factory.mktemp("sets"))
    with up(cli, "--resync", "0.5", "--with", "composition"):
        yield cli.folder


@pytest.fixture
def live(folder: Path) -> Cli:
    return Inside(folder)


def documents(*names: str, color: str = "Red") -> str:
    return "\n---\n".join(shape(name, color) for name in names)


def names(cli: Cli) -> list[str]:
    rows = cli.ok("get", "Shape", "-o", "json").json
    there = (row for row in rows if row["status"]["outcome"] != "Deleted")
    return sorted(row["metadata"]["name"] for row in there)


def test_a_set_is_declared_and_pruned(live: Cli) -> None:
    applied = ("apply", "-f", "-", "--set", "shop", "--wait")
    first = live.ok(*applied, text=documents("one", "two", "three"))
    assert "add default/Shape/one" in first.out
    assert names(live) == ["one", "three", "two"]
    assert "Composed" not in live.ok("get").out, "it is the reconciler's own"
    assert "ComposedSet" in live.ok("get", "--all").out
    assert "ManifestSet-shop" in live.ok("get", "ComposedSet").out
    assert "part of default/ManifestSet/shop: standard input:1" in live.ok("history", "one").out

    kept = live.ok(*applied, text=documents("one", color="Blue"))
    assert "change default/Shape/one" in kept.out
    assert "keep, though no file names it default/Shape/two" in kept.out
    assert names(live) == ["one", "three", "two"]

    dry = live.ok(
        "apply", "-f", "-", "--set", "shop", "--prune", "--dry-run", text=documents("one")
    )
    assert "withdraw default/Shape/two" in dry.out
    assert names(live) == ["one", "three", "two"]

    live.ok(*applied, "--prune", text=documents("one", color="Blue"))
    assert names(live) == ["one"]
    [again] = live.ok(*applied, "--prune", "-o", "json", text=documents("one", color="Blue")).json
    assert (again["reason"], again["outcome"]) == ("AsDeclared", "Converged")

    live.ok("delete", "ManifestSet/shop", "--wait")
    assert names(live) == []


def test_nothing_of_a_bad_set_is_declared_and_few_words_do_no_great_harm(live: Cli) -> None:
    bad = live.run("apply", "-f", "-", "--set", "bad", text=documents("good") + "\n---\nkind: 7\n")
    assert bad.status == 1
    assert bad.err.startswith("error: nothing was declared: standard input, document 2: ")
    elsewhere = shape("there").replace("name: there", "name: there, namespace: elsewhere")
    other = live.run("apply", "-f", "-", "--set", "bad", text=elsewhere)
    assert "it can be in the namespace of its set only, which is default" in other.err
    assert live.run("apply", "-f", "-", "--prune", text=documents("good")).status == 2
    assert live.run("apply", "-f", "-", "--set", "No Name", text=documents("good")).status == 2
    assert names(live) == []

    many = [f"many-{number}" for number in range(12)]
    live.ok("apply", "-f", "-", "--set", "many", "--wait", text=documents(*many))
    few = live.run("apply", "-f", "-", "--set", "many", "--prune", text=documents(*many[:1]))
    assert few.status == 1
    assert "11 of the 12 resources of default/ManifestSet/many would be withdrawn" in few.err
    assert len(names(live)) == 12
    text = documents(*many[:1])
    live.ok("apply", "-f", "-", "--set", "many", "--prune", "--yes", "--wait", text=text)
    assert names(live) == many[:1]
    live.ok("delete", "ManifestSet/many", "--wait")
