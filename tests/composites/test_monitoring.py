"""The page of the monitoring example, command by command, on an Engine of its own."""

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
PATIENCE_SECONDS = 60
PULLED = "docker pull busybox:1"
GRAFANA = {"Container/mon-grafana", "File/mon-grafana-dashboard"}


def commands(root: str) -> list[str]:
    """Every line of the page, without the one that starts `up`."""
    blocks = re.findall(r"```sh\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    first, *rest = [line for block in blocks for line in block.splitlines()]
    assert first == "./run up --with docker,composition --resync 2"
    return [line.replace(ROOT, root) for line in rest]


def generations(parts: dict[str, Any]) -> dict[str, Any]:
    """Which objects there are, by which declarations; when drift is seen is not said here."""
    return {name: (uid, generation) for name, (uid, generation, _) in parts.items()}


class Monitoring:
    """The stack as its people see it."""

    def __init__(self, shell: Shell, root: Path, admin: EngineAdmin) -> None:
        self.shell, self.root, self.admin = shell, root, admin
        self._rest = iter(commands(str(root)))

    def go_on(self, last: str) -> str:
        """Run the page's commands up to one that begins so; return what it said."""
        for line in self._rest:
            if line == PULLED:
                continue  # the image is there: it is made of what this machine has
            output = self.shell.run(line)
            if line.startswith(last):
                return output
        raise AssertionError(f"{last!r} is not on the page")

    def declared(self) -> dict[str, Any]:
        """Who is there: by kind and name its uid and its generation."""
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

    def until_ready(self) -> Any:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            output = self.shell.run("./run reconciler get Monitoring mon -o json")
            status = json.loads(output)["status"]
            conditions = {each["type"]: each["status"] for each in status["conditions"]}
            if status["outcome"] == "Converged" and conditions.get("Ready", "True") == "True":
                return status
            assert time.monotonic() < deadline, output
            time.sleep(0.2)

    def list_objects(self) -> set[str]:
        """What there is of it in the Engine and in the folder."""
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


@pytest.mark.timeout(300)  # as many commands as a person types, one after the other
def test_one_component_is_switched_off_and_on_and_all_others_are_left_alone(
    monitoring: Monitoring,
) -> None:
    monitoring.go_on("./run reconciler get Monitoring mon -o yaml")
    status = monitoring.until_ready()
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

    output = monitoring.go_on("docker ps")
    assert "grafana" not in output
    off = monitoring.parts()
    assert off == {name: each for name, each in parts_before.items() if name not in GRAFANA}
    assert objects_before - monitoring.list_objects() == {
        "Container/mon-grafana",
        "File/mon/dashboard.json",
    }

    monitoring.go_on("./run reconciler apply")
    monitoring.until_ready()
    on = monitoring.parts()
    assert {name for name in parts_before if on[name] != parts_before[name]} == GRAFANA
    assert monitoring.list_objects() == objects_before

    assert monitoring.go_on("cat") == '{"title": "Mine"}\n'
    monitoring.until_ready()
    running = monitoring.parts()
    assert monitoring.list_objects() == objects_before
    assert {name for name in on if on[name][1] != running[name][1]} == set()

    output = monitoring.go_on("./run reconciler get Monitoring")
    assert "Failed" in output
    named = (
        "component 'node-exporter': duplicate part default/Container/mon-node-exporter-cpu; remove "
        "one, or rename it"
    )
    assert named in output
    assert generations(monitoring.parts()) == generations(running)

    output = monitoring.go_on("docker volume ls")
    assert "mon" not in output
    assert monitoring.parts() == {}
    assert monitoring.list_objects() == set()
