"""The commands of the shop's page, with `up`, Docker and PostgreSQL."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from tests.cli.runner import COMMAND, REPOSITORY, Cli, up
from tests.engines import EngineAdmin
from tests.folders import short_folder
from tests.needs import skip_unless_in_ci
from tests.shop.image import make_image, psql_problem

pytestmark = [pytest.mark.own_dockerd, pytest.mark.postgres, pytest.mark.slow]

PAGE = REPOSITORY / "examples" / "shop" / "README.md"
REPAIR_TIMEOUT_SECONDS = 30
CONTAINERS = ("shop-orders", "shop-billing", "shop-printer")
REFUSED_COMMANDS = {"docker volume rm shop-receipts"}
"""Commands that fail according to the page."""


def commands() -> list[str]:
    """Return the page's commands after the one that starts `up`."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    first_command, *later_commands = [line for block in blocks for line in block.splitlines()]
    assert first_command == "./run up --with docker,postgres --resync 2"
    return later_commands


class Shell:
    """A user's second terminal, in the folder of `up`."""

    def __init__(self, cli: Cli) -> None:
        self._cli = cli
        self.folder = cli.folder
        self._exported: list[str] = []
        program = cli.folder / "run"
        program.write_text(f'#!/bin/sh\nshift\nexec {" ".join(COMMAND)} "$@"\n')
        program.chmod(0o755)

    def run(self, line: str, *, is_refused: bool = False) -> str:
        if line.startswith("export "):
            self._exported.append(line)
        script = "\n".join([*self._exported, line])
        process = subprocess.run(
            ["/bin/sh", "-c", script],
            cwd=self._cli.folder,
            env={**self._cli.environment(), "PGDATABASE": "postgres", "COLUMNS": "400"},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        error_text = process.stdout + process.stderr
        assert (process.returncode != 0) == is_refused, (line, error_text)
        return error_text

    def wait_until(self, line: str, holds: Callable[[str], object], what: str) -> str:
        """Wait until the output of a command fulfills a condition."""
        deadline = time.monotonic() + REPAIR_TIMEOUT_SECONDS
        while not holds(output := self.run(line)):
            assert time.monotonic() < deadline, f"{what}: {output}"
            time.sleep(0.2)
        return output


@pytest.fixture
def shell() -> Iterator[Shell]:
    problem = psql_problem() or (None if shutil.which("docker") else "docker is not installed")
    if problem is not None:
        skip_unless_in_ci(problem)
    with short_folder() as folder:
        folder.chmod(0o755)  # as root PostgreSQL runs as another user
        shutil.copytree(REPOSITORY / "examples", folder / "examples")
        cli = Cli(folder)
        with up(cli, "--no-api", "--with", "docker,postgres", "--resync", "2") as running:
            make_image(EngineAdmin(running.ready["components"]["docker"]))
            yield Shell(cli)
            assert running.stop()[0] == 0


def ends_with_repaired_drift(message: str) -> bool:
    """Whether a history ends with a drift that was corrected."""
    return "DriftDetected" in message and "Converged" in message.splitlines()[-1]


def are_all_running(message: str) -> bool:
    running_names = [line.split()[0] for line in message.splitlines() if line.split()[1] == "Up"]
    return sorted(running_names) == sorted(CONTAINERS) and "(Paused)" not in message


RUNNING = "docker ps -a --format '{{.Names}} {{.Status}}'"


class PageChecks:
    """Checks after some of the page's commands."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self._get_count = 0

    def check_orders_are_billed(self, message: str = "") -> None:
        """Check that the containers take orders, bill them, and count them in the volume."""
        command = "./run reconciler logs shop-orders"
        self.shell.wait_until(command, lambda output: "INSERT 0 1" in output, "orders are taken")
        count_before = self._count_billed()
        deadline = time.monotonic() + REPAIR_TIMEOUT_SECONDS
        while self._count_billed() <= count_before:
            assert time.monotonic() < deadline, "no more orders are billed"
            time.sleep(0.2)

    def _count_billed(self) -> int:
        return int(self.shell.run("docker exec shop-printer cat /receipts/billed").strip() or 0)

    def check_repaired(self, *names: str) -> Callable[[str], None]:
        """Return a check that resources had an out-of-band drift, and were repaired."""

        def check(message: str) -> None:
            for name in names:
                command = f"./run reconciler history {name}"
                self.shell.wait_until(
                    f"{command} --limit 8 -o wide", ends_with_repaired_drift, f"{name} is repaired"
                )
                data = [each["data"] for each in json.loads(self.shell.run(f"{command} --raw"))]
                drifts = [each for each in data if each["event"] == "DriftDetected"]
                assert drifts[-1].get("suspectedAction", "") == "", "no action may be suspected"
            self.shell.wait_until(
                RUNNING, are_all_running, "exactly the three containers are running"
            )
            self.check_orders_are_billed()

        return check

    def check_no_password(self, message: str) -> None:
        secret = (
            self.shell.folder / "reconciler-data/secrets/default/shop-app-password"
        ).read_text()
        assert len(secret) > 20
        assert secret not in message
        assert secret not in self.shell.run("./run reconciler history shop-orders --raw")

    def check_get(self, message: str) -> None:
        """Check that all are as declared at first, and that referenced resources are kept later."""
        self._get_count += 1
        if self._get_count == 1:
            self.check_all_converged(message)
            return
        assert len(re.findall(r" Held +2 withdrawn .* Referenced ", message)) == 4, message
        assert "referenced by default/Container/shop-printer" in message
        assert are_all_running(self.shell.run(RUNNING))

    def check_all_converged(self, message: str) -> None:
        assert message.count(" Converged ") == 9, message

    def check_replacement_started(self, message: str) -> None:
        self.shell.wait_until(
            RUNNING,
            lambda output: "mine Up" in output and "shop-billing Up" in output,
            "a replacement is running",
        )

    def check_approval_required(self, message: str) -> None:
        self.shell.wait_until(
            "./run reconciler get --outcome Held",
            lambda output: output.count("DataLoss") == 2,
            "database and volume await approval",
        )

    def check_volume_in_use(self, message: str) -> None:
        assert "volume is in use" in message

    def check_nothing_remains(self, message: str) -> None:
        assert "shop" not in message

    @property
    def checks(self) -> dict[str, Callable[[str], None]]:
        return {
            "./run reconciler apply -f examples/shop --wait": self.check_all_converged,
            "./run reconciler get": self.check_get,
            "./run reconciler logs shop-orders --tail 3": self.check_orders_are_billed,
            "./run reconciler history DatabaseRole/shop-app": self.check_no_password,
            "docker kill shop-billing": self.check_repaired("shop-billing"),
            "docker rm -f shop-printer": self.check_repaired("shop-printer"),
            "docker pause shop-orders": self.check_repaired("shop-orders"),
            "docker rename shop-billing mine": self.check_replacement_started,
            "docker rm -f mine": self.check_repaired("shop-billing"),
            'psql -c "ALTER ROLE \\"shop-app\\" PASSWORD \'guessed\'"': self.check_repaired(
                "Grant/shop-app-connects", "DatabaseRole/shop-app"
            ),
            "docker volume rm shop-receipts": self.check_volume_in_use,
            "./run reconciler delete -f examples/shop": self.check_approval_required,
            "docker ps -a": self.check_nothing_remains,
            "docker volume ls": self.check_nothing_remains,
            "psql -c '\\l' -c '\\du'": self.check_nothing_remains,
        }


@pytest.mark.timeout(300)  # a user's commands, one after another
def test_the_page(shell: Shell) -> None:
    checks = PageChecks(shell).checks
    lines = commands()
    assert checks.keys() <= set(lines), "each checked command must be on the page"
    for line in lines:
        if line == "docker pull postgres:15":
            continue  # the image was built from this machine's programs
        output = shell.run(line, is_refused=line in REFUSED_COMMANDS)
        if line in checks:
            checks[line](output)
    assert not list((shell.folder / "reconciler-data/secrets").rglob("shop*"))
