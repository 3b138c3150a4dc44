"""A rolling update continues after everything is killed, without duplicates or leftovers."""

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

TIMEOUT_SECONDS = 90.0


class RestartableUp:
    """`up` with its own Engine, which can be killed and restarted."""

    def __init__(self, folder: Path) -> None:
        self.cli = Cli(folder)
        self.running: Up
        self.engine: EngineAdmin
        self._up = ExitStack()

    def start(self) -> None:
        self.running = self._up.enter_context(
            up(self.cli, "--no-api", "--with", "docker,composition")
        )
        self.engine = EngineAdmin(self.running.ready["components"]["docker"])

    def kill(self) -> None:
        self.running.process.kill()
        self.running.process.wait()
        self._up.close()

    def close(self) -> None:
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
        return self.engine.http.get("/containers/json", params={"all": "1"}).json()

    def commands_with_states(self) -> list[str]:
        return sorted(f"{each['Command']} {each['State']}" for each in self.containers())

    def wait_until_rolled_out(self, seconds: int) -> None:
        expected = [f"/bin/sleep {seconds} running"] * 3
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while self.commands_with_states() != expected or not self._is_ready():
            output = self.cli.run("get").out
            assert time.monotonic() < deadline, f"{self.commands_with_states()}\n{output}"
            time.sleep(0.2)

    def _is_ready(self) -> bool:
        result = self.cli.run("get", "Deployment", "web", "-o", "json")
        if result.status:
            return False
        conditions = result.json["status"]["conditions"]
        return all(each["status"] == "True" for each in conditions)

    def wait_until_deleted(self) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while self.containers() or self.cli.ok("get", "-o", "json").json:
            assert time.monotonic() < deadline, self.cli.run("get").out
            time.sleep(0.2)


@pytest.fixture
def machine() -> Iterator[RestartableUp]:
    with short_folder() as folder:
        machine = RestartableUp(folder)
        try:
            machine.start()
            yield machine
        finally:
            machine.close()


@pytest.mark.timeout(300)
def test_37_a_rollout_continues_after_any_process_is_killed(machine: RestartableUp) -> None:
    rng = random.Random(37)
    image = machine.engine.import_image("web:1", "ENV PATH=/bin")

    def kill_and_restart_within(seconds: float) -> None:
        time.sleep(rng.uniform(0.1, seconds))
        machine.kill()
        machine.start()

    machine.declare(image, 1001)
    kill_and_restart_within(2)
    machine.wait_until_rolled_out(1001)
    for seconds in (1002, 1003):
        machine.declare(image, seconds)
        kill_and_restart_within(3)
        kill_and_restart_within(3)
        machine.wait_until_rolled_out(seconds)
    machine.cli.ok("delete", "Deployment", "web")
    kill_and_restart_within(2)
    machine.wait_until_deleted()
    machine.cli.ok("replay", "--verify")
