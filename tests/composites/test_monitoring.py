"""The commands on the monitoring example's page, run on a separate Docker Engine."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.runner import REPOSITORY, Cli, up
from tests.engines import EngineAdmin
from tests.folders import short_folder
from tests.host_access import allow_more
from tests.needs import skip_unless_in_ci
from tests.shop.test_page import Shell

pytestmark = [pytest.mark.own_dockerd, pytest.mark.slow]

FOLDER = REPOSITORY / "examples" / "monitoring"
ROOT = "/srv/monitoring"
TIMEOUT_SECONDS = 60
PULLED_IMAGES = "docker pull busybox:1"
GRAFANA = {"Container/mon-grafana", "File/mon-grafana-dashboard"}


def commands(root: str) -> list[str]:
    """Return every command on the page except the one that starts `up`."""
    blocks = re.findall(r"```sh\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    first, *rest = [line for block in blocks for line in block.splitlines()]
    assert first == "./run up --with docker,composition --resync 2"
    return [line.replace(ROOT, root) for line in rest]


def generations(parts: dict[str, Any]) -> dict[str, Any]:
    """Return the uid and generation of each part, without the times of drift."""
    return {name: (uid, generation) for name, (uid, generation, _) in parts.items()}


class Monitoring:
    """The monitoring stack as its users see it."""

    def __init__(self, shell: Shell, root: Path, admin: EngineAdmin) -> None:
        self.shell, self.root, self.admin = shell, root, admin
        self._rest = iter(commands(str(root)))

    def run_until(self, last: str) -> str:
        """Run the page's commands up to one with this prefix; return its output."""
        for line in self._rest:
            if line == PULLED_IMAGES:
                continue  # the test builds the image locally
            output = self.shell.run(line)
            if line.startswith(last):
                return output
        raise AssertionError(f"{last!r} is not on the page")

    def declared(self) -> dict[str, Any]:
        """Return the uid and generation of each declared resource by kind and name."""
        output = json.loads(self.shell.run("./run reconciler get -o json"))
        return {
            f"{each['kind']}/{each['metadata']['name']}": (
                each["status"].get("uid"),
                each["metadata"]["generation"],
                each["status"].get("outcome"),
            )
            for each in output
            if each["kind"] in ("Container", "File", "Volume", "Monitoring")
        }

    def parts(self) -> dict[str, Any]:
        return {
            name: each for name, each in self.declared().items() if not name.startswith("Monitor")
        }

    def wait_until_ready(self) -> Any:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            output = self.shell.run("./run reconciler get Monitoring mon -o json")
            status = json.loads(output)["status"]
            conditions = {each["type"]: each["status"] for each in status["conditions"]}
            if status["outcome"] == "Converged" and conditions.get("Ready", "True") == "True":
                return status
            assert time.monotonic() < deadline, output
            time.sleep(0.2)

    def list_objects(self) -> set[str]:
        """Return the stack's files, containers and volumes."""
        files = {
            f"File/{path.relative_to(self.root)}"
            for path in self.root.rglob("*")
            if path.is_file() and not path.name.startswith(".reconciler-")
        }
        containers = {f"Container{each['Names'][0]}" for each in self.admin.containers("")}
        volumes = self.admin.http.get("/volumes").json()["Volumes"] or ()
        return files | containers | {f"Volume/{each['Name']}" for each in volumes}


@pytest.fixture
def monitoring() -> Iterator[Monitoring]:
    if shutil.which("docker") is None:
        skip_unless_in_ci("docker is not installed")
    with short_folder() as folder:
        shutil.copytree(FOLDER, folder / "examples/monitoring")
        root = folder / "files"
        cli = Cli(folder)
        with up(cli, "--no-api", "--with", "docker,composition", "--resync", "2") as running:
            manifests = folder / "examples/monitoring/manifests.yaml"
            manifests.write_text(manifests.read_text().replace(ROOT, str(root)))
            allow_more(cli, "docker", binds=f"{root}/*/*")
            admin = EngineAdmin(running.ready["components"]["docker"])
            admin.import_image("busybox:1", "ENV PATH=/bin")
            yield Monitoring(Shell(cli), root, admin)
            admin.remove_all("")
            assert running.stop()[0] == 0


@pytest.mark.timeout(300)  # all commands that a user types, in order
def test_a_component_can_be_disabled_and_enabled_without_touching_the_others(
    monitoring: Monitoring,
) -> None:
    monitoring.run_until("./run reconciler get Monitoring mon -o yaml")
    status = monitoring.wait_until_ready()
    assert status["outputs"]["components"]["node-exporter"] == {"parts": 2, "ready": 2}
    parts_before, objects_before = monitoring.parts(), monitoring.list_objects()
    assert all(uid for uid, _, _ in parts_before.values())
    assert len(parts_before) == 11
    assert len(objects_before) == 11
    assert parts_before.keys() > GRAFANA
    config = (monitoring.root / "mon/prometheus.yml").read_text()
    alertmanager = monitoring.admin.inspect("mon-alertmanager")
    assert alertmanager is not None
    address = alertmanager["NetworkSettings"]["IPAddress"]
    assert config == f"retention: 30d\nalertmanager: {address}\n"

    output = monitoring.run_until("docker ps")
    assert "grafana" not in output
    off = monitoring.parts()
    assert off == {name: each for name, each in parts_before.items() if name not in GRAFANA}
    assert objects_before - monitoring.list_objects() == {
        "Container/mon-grafana",
        "File/mon/dashboard.json",
    }

    monitoring.run_until("./run reconciler apply")
    monitoring.wait_until_ready()
    on = monitoring.parts()
    assert {name for name in parts_before if on[name] != parts_before[name]} == GRAFANA
    assert monitoring.list_objects() == objects_before

    assert monitoring.run_until("cat") == '{"title": "Mine"}\n'
    monitoring.wait_until_ready()
    running = monitoring.parts()
    assert monitoring.list_objects() == objects_before
    assert {name for name in on if on[name][1] != running[name][1]} == set()

    output = monitoring.run_until("./run reconciler get Monitoring")
    assert "Failed" in output
    named = (
        "component 'node-exporter': duplicate part default/Container/mon-node-exporter-cpu; remove "
        "one, or rename it"
    )
    assert named in output
    assert generations(monitoring.parts()) == generations(running)

    output = monitoring.run_until("docker volume ls")
    assert "mon" not in output
    assert monitoring.parts() == {}
    assert monitoring.list_objects() == set()
