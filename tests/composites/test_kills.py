"""A rolling update while everything is killed: it continues, without duplicates or leftovers."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cli.runner import Cli, Up, up
from tests.engines import EngineAdmin
from tests.folders import short_folder

pytestmark = [pytest.mark.own_dockerd, pytest.mark.slow]

PATIENCE_SECONDS = 90.0


class Machine:
    """`up` with an Engine of its own, killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.cli = Cli(folder)
        self.running: Up
        self.admin: EngineAdmin
        self._up = ExitStack()

    def start(self) -> None:
        self.running = self._up.enter_context(
            up(self.cli, "--no-api", "--with", "docker,composition")
        )
        self.admin = EngineAdmin(self.running.ready["components"]["docker"])

    def kill(self) -> None:
        self.running.process.kill()
        self.running.process.wait()
        self._up.close()

    def end(self) -> None:
        self._up.close()

    def declare(self, image: str, seconds: int) -> None:
        spec = {
            "providerConfigRef": {"name": "composition"},
            "replicas": 3,
            "template": {
                "spec": {
                    "providerConfigRef": {"name": "docker"},
                    "image": image,
                    "command": ["/bin/sleep", str(seconds)],
                    "stopSeconds": 0,
                }
            },
        }
        manifest = {
            "apiVersion": "composition/v1",
            "kind": "Deployment",
            "metadata": {"name": "web"},
            "spec": spec,
        }
        self.cli.ok("apply", "-f", "-", text=json.dumps(manifest))

    def containers(self) -> list[dict[str, Any]]:
        return self.admin.http.get("/containers/json", params={"all": "1"}).json()

    def commands(self) -> list[str]:
        return sorted(f"{each['Command']} {each['State']}" for each in self.containers())

    def until_rolled(self, seconds: int) -> None:
        expected = [f"/bin/sleep {seconds} running"] * 3
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.commands() != expected or not self._is_ready():
            output = self.cli.run("get").out
            assert time.monotonic() < deadline, f"{self.commands()}\n{output}"
            time.sleep(0.2)

    def _is_ready(self) -> bool:
        result = self.cli.run("get", "Deployment", "web", "-o", "json")
        if result.status:
            return False
        conditions = result.json["status"]["conditions"]
        return all(each["status"] == "True" for each in conditions)

    def wait_until_deleted(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.containers() or self.cli.ok("get", "-o", "json").json:
            assert time.monotonic() < deadline, self.cli.run("get").out
            time.sleep(0.2)


@pytest.fixture
def machine() -> Iterator[Machine]:
    with short_folder() as folder:
        machine = Machine(folder)
        try:
            machine.start()
            yield machine
        finally:
            machine.end()


@pytest.mark.timeout(300)
def test_37_a_roll_continues_after_any_process_is_killed(machine: Machine) -> None:
    chance = random.Random(37)
    image = machine.admin.import_image("web:1", "ENV PATH=/bin")

    def die_within(seconds: float) -> None:
        time.sleep(chance.uniform(0.1, seconds))
        machine.kill()
        machine.start()

    machine.declare(image, 1001)
    die_within(2)
    machine.until_rolled(1001)
    for seconds in (1002, 1003):
        machine.declare(image, seconds)
        die_within(3)
        die_within(3)
        machine.until_rolled(seconds)
    machine.cli.ok("delete", "Deployment", "web")
    die_within(2)
    machine.wait_until_deleted()
    machine.cli.ok("replay", "--verify")
