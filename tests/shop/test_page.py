"""The shop's page, command by command, as it is written there: `up`, Docker and PostgreSQL."""

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
HEALED_SECONDS = 30
CONTAINERS = ("shop-orders", "shop-billing", "shop-printer")
REFUSED = {"docker volume rm shop-receipts"}
"""What the page says that is refused."""


def commands() -> list[str]:
    """Every line of the page, without the one that starts `up`."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    first, *rest = [line for block in blocks for line in block.splitlines()]
    assert first == "./run up --with docker,postgres --resync 2"
    return rest


class Shell:
    """A user's second terminal, in the folder of the `up`."""

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

    def until(self, line: str, holds: Callable[[str], object], what: str) -> str:
        """Wait until what a command shows is so."""
        deadline = time.monotonic() + HEALED_SECONDS
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


def is_drift(message: str) -> bool:
    """Whether a history ends with a drift that was undone."""
    return "DriftDetected" in message and "Converged" in message.splitlines()[-1]


def all_run(message: str) -> bool:
    up_now = [line.split()[0] for line in message.splitlines() if line.split()[1] == "Up"]
    return sorted(up_now) == sorted(CONTAINERS) and "(Paused)" not in message


RUNNING = "docker ps -a --format '{{.Names}} {{.Status}}'"


class Visitor:
    """What must be so after some of the page's commands."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self._pages_shown = 0

    def sql_goes_through(self, message: str = "") -> None:
        """Containers do SQL: orders are taken, billed, and counted in the volume."""
        look = "./run reconciler logs shop-orders"
        self.shell.until(look, lambda said: "INSERT 0 1" in said, "orders are taken")
        count_before = self._billed()
        deadline = time.monotonic() + HEALED_SECONDS
        while self._billed() <= count_before:
            assert time.monotonic() < deadline, "more and more orders are billed"
            time.sleep(0.2)

    def _billed(self) -> int:
        return int(self.shell.run("docker exec shop-printer cat /receipts/billed").strip() or 0)

    def healed(self, *names: str) -> Callable[[str], None]:
        """Return a check that these had a drift that was none of ours, and are as before."""

        def check(message: str) -> None:
            for name in names:
                look = f"./run reconciler history {name}"
                self.shell.until(f"{look} --limit 8 -o wide", is_drift, f"{name} is healed")
                data = [each["data"] for each in json.loads(self.shell.run(f"{look} --raw"))]
                drifts = [each for each in data if each["event"] == "DriftDetected"]
                assert drifts[-1].get("suspectedAction", "") == "", "no action of ours did it"
            self.shell.until(RUNNING, all_run, "all three run, and no others")
            self.sql_goes_through()

        return check

    def no_password(self, message: str) -> None:
        secret = (
            self.shell.folder / "reconciler-data/secrets/default/shop-app-password"
        ).read_text()
        assert len(secret) > 20
        assert secret not in message
        assert secret not in self.shell.run("./run reconciler history shop-orders --raw")

    def get(self, message: str) -> None:
        """All are as declared at first; later what others need is kept."""
        self._pages_shown += 1
        if self._pages_shown == 1:
            self.all_converged(message)
            return
        assert len(re.findall(r" Held +2 withdrawn .* Referenced ", message)) == 4, message
        assert "referenced by default/Container/shop-printer" in message
        assert all_run(self.shell.run(RUNNING))

    def all_converged(self, message: str) -> None:
        assert message.count(" Converged ") == 9, message

    def another_came(self, message: str) -> None:
        self.shell.until(
            RUNNING, lambda said: "mine Up" in said and "shop-billing Up" in said, "another came"
        )

    def waits_for_a_person(self, message: str) -> None:
        self.shell.until(
            "./run reconciler get --outcome Held",
            lambda said: said.count("DataLoss") == 2,
            "database and volume wait for a person",
        )

    def is_refused(self, message: str) -> None:
        assert "volume is in use" in message

    def assert_nothing_remains(self, message: str) -> None:
        assert "shop" not in message

    @property
    def checks(self) -> dict[str, Callable[[str], None]]:
        return {
            "./run reconciler apply -f examples/shop --wait": self.all_converged,
            "./run reconciler get": self.get,
            "./run reconciler logs shop-orders --tail 3": self.sql_goes_through,
            "./run reconciler history DatabaseRole/shop-app": self.no_password,
            "docker kill shop-billing": self.healed("shop-billing"),
            "docker rm -f shop-printer": self.healed("shop-printer"),
            "docker pause shop-orders": self.healed("shop-orders"),
            "docker rename shop-billing mine": self.another_came,
            "docker rm -f mine": self.healed("shop-billing"),
            'psql -c "ALTER ROLE \\"shop-app\\" PASSWORD \'guessed\'"': self.healed(
                "Grant/shop-app-connects", "DatabaseRole/shop-app"
            ),
            "docker volume rm shop-receipts": self.is_refused,
            "./run reconciler delete -f examples/shop": self.waits_for_a_person,
            "docker ps -a": self.assert_nothing_remains,
            "docker volume ls": self.assert_nothing_remains,
            "psql -c '\\l' -c '\\du'": self.assert_nothing_remains,
        }


@pytest.mark.timeout(300)  # as many commands as a person types, one after the other
def test_the_page(shell: Shell) -> None:
    checks = Visitor(shell).checks
    lines = commands()
    assert checks.keys() <= set(lines), "each is on the page"
    for line in lines:
        if line == "docker pull postgres:15":
            continue  # the image is there: it is made of what this machine has
        output = shell.run(line, is_refused=line in REFUSED)
        if line in checks:
            checks[line](output)
    assert not list((shell.folder / "reconciler-data/secrets").rglob("shop*"))
