"""The README's tour, command by command, as it is written there."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "reconciler"]
ENDLESS = {"watch"}
SHELL = {"mkdir", "touch", "cat"}
ORDERS = "/tmp/orders"
PATIENCE_SECONDS = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tour")
    shutil.copytree(ROOT / "examples", folder / "examples")
    return folder


def move_the_orders(folder: Path, nats_url: str) -> None:
    """Have the example speak of this tour's server and folder."""
    path = folder / "examples" / "orders" / "manifests.yaml"
    text = path.read_text().replace("nats://127.0.0.1:4222", nats_url)
    path.write_text(text.replace(ORDERS, str(folder / "orders")))


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[dict[str, Any]]:
    command = [*PROGRAM, "up", "--resync", "0.5", "--port", "0", "--api-port", "0"]
    process = subprocess.Popen(
        [*command, "--output", "json"], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    yield json.loads(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_SECONDS) == 0


def tour() -> list[list[str]]:
    """Every command line of the section, in order."""
    section = (ROOT / "README.md").read_text().split("## A tour")[1].split("\n## ")[0]
    blocks = [part.split("```")[0] for part in section.split("```sh\n")[1:]]
    return [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]


def call_the_api(words: list[str], api_url: str) -> int:
    method = words[words.index("-X") + 1] if "-X" in words else "GET"
    path = words[-1].split(":8080", 1)[1]
    return httpx.request(method, api_url + path).status_code


def watch_the_drift(words: list[str], folder: Path, environment: dict[str, str]) -> None:
    """See what the README says that is to be seen: the drift, and that it was repaired."""
    process = subprocess.Popen(
        [*PROGRAM, *words[2:]], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    seen: list[str] = []
    with process:
        for line in process.stdout:
            seen.append(line.split()[2])
            if seen[-2:] == ["Drift", "Converged"]:
                break
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 0
    assert seen == ["Converged", "Drift", "Converged"]


@pytest.mark.timeout(300)  # as many commands as a person types, one after the other
def test_the_tour(folder: Path, running: dict[str, Any]) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "RECONCILER_NATS_URL"}
    ran: list[str] = []
    orders = str(folder / "orders")
    move_the_orders(folder, running["natsUrl"])
    for words in tour():
        if words[0] == "curl":
            assert call_the_api(words, running["apiUrl"]) in {200, 204}, words
            continue
        if words[0] in SHELL:
            subprocess.run([each.replace(ORDERS, orders) for each in words], check=True)
            continue
        assert words[:2] == ["./run", "reconciler"], words
        if words[2] in ENDLESS:
            watch_the_drift(words, folder, environment)
            continue
        done = subprocess.run(
            [*PROGRAM, *words[2:]],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        ran.append(words[2])
    assert ran == [
        *("apply", "get", "why", "history", "describe", "events", "get", "describe"),
        *("apply", "replay", "doctor", "delete"),
    ]
    assert httpx.get(running["apiUrl"] + "/shapes/foo").status_code == 404


def test_links_lead_somewhere() -> None:
    for part in (ROOT / "README.md").read_text().split("](")[1:]:
        assert (ROOT / part.split(")")[0]).exists(), part
