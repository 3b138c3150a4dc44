"""Commits during kills: the newest is declared completely, and nothing remains."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.runner import Cli, Up, shape, up
from tests.git.repositories import Repository
from tests.host_access import allow_more

pytestmark = pytest.mark.slow

TIMEOUT_SECONDS = 60.0


class Machine:
    """`up` with its API, which can be killed and restarted."""

    def __init__(self, folder: Path) -> None:
        self.cli = Cli(folder)
        self.running: Up
        self._up = ExitStack()

    def start(self) -> None:
        arguments = ("--with", "composition", "--resync", "1")
        self.running = self._up.enter_context(up(self.cli, *arguments))

    def kill(self) -> None:
        self.running.process.kill()
        self.running.process.wait()
        self._up.close()

    def kill_and_restart_within(self, seconds: float, rng: random.Random) -> None:
        time.sleep(rng.uniform(0.05, seconds))
        self.kill()
        self.start()

    def end(self) -> None:
        self._up.close()

    def colors(self) -> dict[str, str]:
        """Return the colors of the shapes in the API."""
        response = httpx.get(f"{self.running.ready['apiUrl']}/shapes", params={"limit": "1000"})
        return {each["name"]: each["color"] for each in response.json()["items"]}

    def ids(self) -> dict[str, str]:
        """Return the ids of the shapes in the API."""
        response = httpx.get(f"{self.running.ready['apiUrl']}/shapes", params={"limit": "1000"})
        return {each["name"]: each["uid"] for each in response.json()["items"]}

    def until(self, expected: dict[str, str]) -> None:
        self.wait_for(lambda: self.colors() == expected and self._is_ready(), f"{expected}")

    def wait_for(self, condition: Callable[[], bool], expected: str) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                output = self.cli.run("get", "GitSource", "-o", "yaml").out
                pytest.fail(f"{self.colors()} instead of {expected}\n{output}")
            time.sleep(0.2)

    def _is_ready(self) -> bool:
        result = self.cli.run("get", "GitSource", "-o", "json")
        sources: list[Any] = [] if result.status else result.json
        conditions = [each["status"]["conditions"] for each in sources]
        return bool(conditions) and all(
            each and all(one["status"] == "True" for one in each) for each in conditions
        )

    def declared(self) -> Counter[str]:
        """Count the declared resources of each kind, including internal ones."""
        rows = self.cli.ok("get", "-A", "--all", "-o", "json").json
        return Counter(each["kind"] for each in rows if each["status"]["outcome"] != "Deleted")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "machine")
    machine.cli.folder.mkdir()
    try:
        machine.start()
        yield machine
    finally:
        machine.end()


@pytest.mark.timeout(300)
def test_38_the_newest_commit_is_declared_completely_after_any_kill(
    machine: Machine, tmp_path: Path
) -> None:
    rng = random.Random(38)
    repository = Repository(tmp_path / "shop")
    colors = {f"s{number:02}": "Red" for number in range(60)}

    def commit() -> None:
        repository.write({f"{name}.yaml": shape(name, color) for name, color in colors.items()})
        repository.commit()

    commit()
    source = {
        "apiVersion": "git/v1",
        "kind": "GitSource",
        "metadata": {"name": "shop"},
        "spec": {
            "providerConfigRef": {"name": "composition"},
            "url": repository.url,
            "intervalSeconds": 1,
        },
    }
    allow_more(machine.cli, "composition", addresses=repository.url)
    machine.cli.ok("apply", "-f", "-", text=json.dumps(source))
    machine.kill_and_restart_within(1.5, rng)
    for number in range(6):
        for name in rng.sample(sorted(colors), 20):
            colors[name] = rng.choice(["Red", "Blue", "Green"])
        deleted_name = rng.choice(sorted(colors))
        colors.pop(deleted_name)
        repository.remove(f"{deleted_name}.yaml")
        colors[f"n{number}"] = "Yellow"
        commit()
        machine.cli.run("reconcile", "GitSource/shop")
        machine.kill_and_restart_within(1, rng)
    machine.until(colors)
    machine.cli.ok("replay", "--verify")
    declared_names = machine.declared()
    assert declared_names["Shape"] == len(colors)
    assert declared_names["ComposedSet"] == 1
    machine.wait_for(
        lambda: machine.declared()["ComposedContent"] <= 3, "only the newest commit's content"
    )
    machine.cli.ok("delete", "GitSource", "shop")
    machine.kill_and_restart_within(1, rng)
    machine.wait_for(
        lambda: not machine.colors() and not machine.declared()["ComposedContent"], "nothing"
    )


@pytest.mark.timeout(300)
def test_48_a_manifest_that_moves_between_sources_keeps_its_object_after_any_kill(
    machine: Machine, tmp_path: Path
) -> None:
    rng = random.Random(48)
    repository = Repository(tmp_path / "shop")
    repository.write({f"{each}/{each}.yaml": shape(each, "Red") for each in ("a", "b")})
    repository.write({"a/mover.yaml": shape("mover", "Red")})
    repository.commit()
    allow_more(machine.cli, "composition", addresses=repository.url)
    for name in ("a", "b"):
        source = {
            "apiVersion": "git/v1",
            "kind": "GitSource",
            "metadata": {"name": name},
            "spec": {
                "providerConfigRef": {"name": "composition"},
                "url": repository.url,
                "path": name,
                "intervalSeconds": 1,
            },
        }
        machine.cli.ok("apply", "-f", "-", text=json.dumps(source))
    expected = {"a": "Red", "b": "Red", "mover": "Red"}
    machine.until(expected)
    ids = machine.ids()
    for origin, target in (("a", "b"), ("b", "a"), ("a", "b"), ("b", "a")):
        repository.git("mv", f"{origin}/mover.yaml", f"{target}/mover.yaml")
        repository.commit()
        machine.cli.run("reconcile", f"GitSource/{rng.choice('ab')}")
        machine.kill_and_restart_within(1, rng)
        machine.wait_for(
            lambda name=target: (
                f"default.GitSource.{name}"
                in machine.cli.run("get", "Shape", "mover", "-o", "json").out
            ),
            f"the shape belongs to {target}",
        )
        assert machine.ids() == ids
    machine.until(expected)
    assert machine.ids() == ids
    machine.cli.ok("replay", "--verify")
