"""The main workflow, with each role run as a user that has only the required permissions."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from events.dead_letter import Stage
from events.names import ResourceKey
from events.subjects import intake
from infra.bus.dead_letters import discard, read_discarded, store_letters
from infra.bus.streams import INTAKE, LOG, REJECTIONS
from infra.jetstream.connection import api_request
from reconciler.errors import DeclarationRefusedError
from reconciler.ports import DeadLetter, IntakeDelivery
from reconciler.sdk import Client, OutcomeStream
from reconciler.wiring import ROLES as RUNNING_ROLES
from reconciler.wiring import Role, open_connection, run_roles
from tests.cli.runner import Cli, CommandResult, InProcessCli
from tests.security.guarded import PATIENCE_SECONDS, Guarded, shape

Run = Callable[..., CommandResult]
EXAMPLES = Path(__file__).parents[2] / "examples"


async def test_a_service_declares_and_withdraws_without_denials(
    guarded: Guarded, name: str
) -> None:
    violations_before = guarded.violations()
    key = f"acme/Shape/{name}"
    async with guarded.sdk_as("acme") as client, httpx.AsyncClient(base_url=guarded.api.url) as api:
        reply = await client.declare(shape("acme", name))
        assert (reply.reason, reply.generation) == ("Accepted", 1)
        outcome = await client.wait_for(key, generation=1)
        assert outcome.outcome == "Converged"

        (await api.delete(f"/shapes/{name}")).raise_for_status()
        await _wait_until_exists(api, name)

        reply = await client.withdraw(key)
        deleted_outcome = await client.wait_for(key, generation=reply.generation)
        assert deleted_outcome.outcome == "Deleted"
        assert (await api.get(f"/shapes/{name}")).status_code == 404
    # The client requests the log's stream information twice: for its format, and to follow it.
    requests = [line for line in guarded.violations() if line not in violations_before]
    assert [line for line in requests if "$JS.API.STREAM.INFO.LOG_1" not in line] == []
    assert len(requests) == 2


async def _wait_until_exists(api: httpx.AsyncClient, name: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await api.get(f"/shapes/{name}")).status_code == 404:  # noqa: ASYNC110 - a poll
            await asyncio.sleep(0.05)


async def test_a_service_declares_many_and_waits_for_all(guarded: Guarded, unique: str) -> None:
    names = [f"{unique.lower()}-{number}" for number in range(20)]  # enough for an atomic batch
    async with guarded.sdk_as("acme") as client:
        await client.declare_many([shape("acme", name) for name in names])
        outcomes = await client.wait_for_many({f"acme/Shape/{name}": 1 for name in names})
        assert {outcome.outcome for outcome in outcomes.values()} == {"Converged"}
        await client.withdraw_many([f"acme/Shape/{name}" for name in names])


async def test_a_service_follows_its_outcomes_from_now_and_from_the_beginning(
    guarded: Guarded, name: str
) -> None:
    async with guarded.sdk_as("acme") as client:
        async with client.outcomes("acme") as outcomes:
            await client.publish([shape("acme", name)])
            await _wait_until_converged(outcomes, f"acme/Shape/{name}")
        async with client.outcomes("acme", "Shape", name, after=0) as outcomes:
            await _wait_until_converged(outcomes, f"acme/Shape/{name}")
        async with client.outcomes("acme", after=0, durable="acme") as outcomes:
            await _wait_until_converged(outcomes, f"acme/Shape/{name}")


async def _wait_until_converged(outcomes: OutcomeStream, key: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for outcome in outcomes:
            assert outcome.key.namespace == "acme"
            if str(outcome.key) == key and outcome.outcome == "Converged":
                return


async def test_the_examples_run_as_a_service(guarded: Guarded, name: str) -> None:
    assert await _run_example(guarded, "declare_and_wait.py", name) == [
        f"default/Shape/{name} Red: Converged, generation 1",
        f"default/Shape/{name} Purple: Converged, generation 2",
        f"default/Shape/{name} withdrawn: Deleted, generation 3",
    ]
    output_lines = await _run_example(guarded, "plain_service.py", f"{name}-plain")
    assert output_lines[-1] == f"default/Shape/{name}-plain: Converged, generation 1"


async def _run_example(guarded: Guarded, program: str, *arguments: str) -> list[str]:
    """Run a program as a user does, with only a key in its environment."""
    key_variables = {
        "RECONCILER_NATS_URL": guarded.bus.url,
        "RECONCILER_NKEY": str(guarded.key("default")),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / program),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **key_variables},
    )
    try:
        async with asyncio.timeout(2 * PATIENCE_SECONDS):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, err.decode()
    return out.decode().splitlines()


@pytest.mark.parametrize("role", RUNNING_ROLES)
async def test_a_role_restarts_on_a_log_with_a_history(guarded: Guarded, role: Role) -> None:
    count_before = len(guarded.violations())
    async with (
        open_connection(guarded.bus.url, access=guarded.access(role)) as nc,
        run_roles(nc, (role,)),
    ):
        pass
    assert guarded.violations()[count_before:] == []


@pytest.mark.parametrize(
    ("role", "stage"),
    [
        ("decider", "intake"),
        ("decider", "request"),
        ("worker", "action"),
        ("observer", "observation"),
    ],
)
async def test_a_role_stores_dead_letters_and_counts_discarded_messages(
    guarded: Guarded, name: str, role: str, stage: Stage
) -> None:
    subject = intake("observed", ResourceKey("acme", "Shape", name))
    delivery = IntakeDelivery(1, subject, b"", "", None, 1, None)
    dead_letters = [
        DeadLetter(stage, name, delivery),
        DeadLetter(stage, name, delivery, name, name),
    ]
    async with guarded.bus_as(role) as nc:
        assert await store_letters(nc, dead_letters) == []
        await discard(nc, dead_letters)
    async with guarded.bus_as("operator") as nc:
        counts = await read_discarded(nc)
        assert ("acme", stage) in {(count.namespace, count.stage) for count in counts}


async def test_services_do_not_receive_the_outcomes_of_other_services(
    guarded: Guarded, name: str
) -> None:
    async with (
        guarded.sdk_as("acme") as acme,
        guarded.sdk_as("other") as other_client,
        other_client.outcomes("other") as outcomes,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        await _declare_and_wait(acme, "acme", name)
        await _declare_and_wait(other_client, "other", f"{name}-o")
        async for outcome in outcomes:
            assert outcome.key.namespace == "other"
            if outcome.key.name == f"{name}-o":
                break


async def _declare_and_wait(client: Client, namespace: str, name: str) -> None:
    reply = await client.declare(shape(namespace, name))
    await client.wait_for(f"{namespace}/Shape/{name}", generation=reply.generation)


@pytest.fixture
def commands(guarded: Guarded, tmp_path: Path) -> Run:
    """Run commands as a user; fail if the server denies a request."""
    cli: Cli = InProcessCli(tmp_path)

    def run_as(
        user: str, *arguments: str, text: str | None = None, status: int = 0
    ) -> CommandResult:
        count_before = len(guarded.violations())
        result = cli.run(
            *arguments, "--nkey", str(guarded.key(user)), "--nats-url", guarded.bus.url, text=text
        )
        assert result.status == status, f"{arguments}: {result}"
        assert guarded.violations()[count_before:] == []
        return result

    return run_as


def circle(name: str) -> str:
    """Return the manifest of a circle as JSON."""
    return json.dumps(
        {
            "apiVersion": "shapes/v1",
            "kind": "Shape",
            "metadata": {"name": name},
            "spec": {"type": "Circle", "color": "Blue"},
        }
    )


def test_every_command_runs_as_an_operator(commands: Run, name: str) -> None:
    commands("operator", "apply", "-f", "-", "--wait", text=circle(name))
    commands("operator", "get", "-A")
    commands("operator", "describe", f"Shape/{name}")
    commands("operator", "history", name)
    commands("operator", "replay")
    commands("operator", "doctor")
    commands("operator", "deadletters", "list")
    commands("operator", "delete", "Shape", name, "--wait")


def test_an_operator_approves_and_releases_held_resources(commands: Run, name: str) -> None:
    commands("operator", "apply", "-f", "-", "--wait", text=circle(name))
    commands("operator", "finalizer", "add", "Shape", name, "billing/last-invoice")
    commands("operator", "delete", "Shape", name, "--wait", status=1)
    commands("operator", "approve", "Shape", name, "--hold", "LossGuard", status=1)
    commands("operator", "approve", "--all", "--hold", "UnknownResult", status=1)
    commands("operator", "finalizer", "remove", "Shape", name, "billing/first-invoice")
    commands("operator", "release", "Shape", name, "--reason", "billing is shut down")


def test_an_operator_handles_dead_letters(commands: Run, guarded: Guarded, name: str) -> None:
    asyncio.run(_declare_invalid_shape(guarded, name))
    key = ("--resource", f"acme/Shape/{name}")
    deadline = time.monotonic() + PATIENCE_SECONDS
    number = 0
    while not number and time.monotonic() < deadline:
        dead_letters = commands("operator", "deadletters", "list", *key, "-o", "json").json
        number = dead_letters[-1]["number"] if dead_letters else 0
    commands("operator", "deadletters", "show", str(number))
    commands("operator", "deadletters", "retry", str(number), status=1)
    commands("operator", "deadletters", "dismiss", str(number), "--note", "a test")


async def _declare_invalid_shape(guarded: Guarded, name: str) -> None:
    async with guarded.sdk_as("acme") as client:
        with pytest.raises(DeclarationRefusedError):
            await client.declare(shape("acme", name, "Mauve"))


OPERATOR_COMMANDS = [
    ("approve", "Shape", "foo", "--hold", "LossGuard"),
    ("approve", "--all", "--hold", "LossGuard"),
    ("finalizer", "add", "Shape", "foo", "billing/last-invoice"),
    ("finalizer", "remove", "Shape", "foo", "billing/last-invoice", "--force"),
    ("release", "Shape", "foo", "--reason", "mine"),
    ("delete", "Shape", "foo"),
    ("deadletters", "list"),
    ("deadletters", "dismiss", "1"),
    ("doctor",),
    ("backup", "stolen.backup"),
]


@pytest.mark.parametrize("arguments", OPERATOR_COMMANDS, ids=" ".join)
def test_a_service_gets_a_one_line_error_for_each_forbidden_command(
    guarded: Guarded, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    namespace_option = (
        () if arguments[0] in ("deadletters", "doctor", "backup") else ("-n", "other")
    )
    result = InProcessCli(tmp_path).run(
        *arguments,
        *namespace_option,
        "--nkey",
        str(guarded.key("acme")),
        "--nats-url",
        guarded.bus.url,
    )
    assert (result.status, result.out) == (1, "")
    first_line = result.err.removeprefix(f"bus: {guarded.bus.url} (flag --nats-url)\n")
    assert first_line.startswith("error: ")
    assert guarded.pairs["acme"].public in first_line
    assert "may not" in first_line
    assert first_line.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("user", ["operator", "auditor"])
def test_operators_and_auditors_watch_outcomes(guarded: Guarded, cli: Cli, user: str) -> None:
    key = str(guarded.key(user))
    process = cli.start(
        "watch", "--since-start", "-o", "json", "--nats-url", guarded.bus.url, "--nkey", key
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["outcome"]
    process.terminate()
    process.communicate(timeout=PATIENCE_SECONDS)


def test_a_denied_document_does_not_hide_the_results_of_the_others(
    guarded: Guarded, tmp_path: Path, name: str
) -> None:
    """Otherwise it would look as if nothing was declared or deleted."""
    cli, key = InProcessCli(tmp_path), str(guarded.key("acme"))
    both = "\n---\n".join(
        circle(name).replace('"name"', f'"namespace": "{namespace}", "name"', 1)
        for namespace in ("acme", "other")
    )
    options = ("-f", "-", "-o", "json", "--nkey", key, "--nats-url", guarded.bus.url)
    for command in ("apply", "delete"):
        result = cli.run(command, *options, text=both)
        assert result.status == 1
        accepted, denied = result.json
        assert accepted["resource"] == f"acme/Shape/{name}"
        assert accepted["accepted"]
        assert (denied["resource"], denied["reason"]) == (f"other/Shape/{name}", "Denied")
        assert "permission denied" in denied["message"]


def test_a_service_sends_a_kind_whose_name_resembles_an_installed_one(
    guarded: Guarded, tmp_path: Path, name: str
) -> None:
    """A service may not read the definitions, which are needed to recognize a typo."""
    text = circle(name).replace("Shape", "Shapes").replace('"name"', '"namespace": "acme", "name"')
    options = ("-f", "-", "--nkey", str(guarded.key("acme")), "--nats-url", guarded.bus.url)
    result = InProcessCli(tmp_path).run("apply", *options, text=text)
    assert "kind 'Shapes' is not registered" in result.out  # the decider's reply


def test_an_installer_can_run_init(commands: Run) -> None:
    commands("installer", "init")


async def test_an_installer_resumes_what_another_client_paused(
    guarded: Guarded, commands: Run
) -> None:
    paused = [(INTAKE, "decider-misfits"), (LOG, "acme"), (REJECTIONS, "acme")]
    async with open_connection(guarded.admin_url) as nc:
        for stream, name in paused:
            until = {"pause_until": "2099-01-01T00:00:00Z"}
            await api_request(nc, f"CONSUMER.PAUSE.{stream}.{name}", until)
        await asyncio.to_thread(commands, "installer", "init")
        for stream, name in paused:
            assert not (await api_request(nc, f"CONSUMER.INFO.{stream}.{name}", None)).get("paused")


def test_an_auditor_reads_the_log_and_its_models(commands: Run, name: str) -> None:
    commands("auditor", "get", "-A")
    commands("auditor", "history", "ProviderConfig/default")
    commands("auditor", "describe", "ProviderConfig/default")
    commands("auditor", "replay", "--verify")
    commands("auditor", "events")
    commands("auditor", "why", "ProviderConfig/default")
    commands("auditor", "diff", "ProviderConfig/default", "--from-generation", "1")
    commands("auditor", "plan", "-f", "-", text=circle(name), status=2)


def test_checks_that_an_auditor_may_not_read_are_skipped_by_doctor(
    guarded: Guarded, tmp_path: Path
) -> None:
    key = ("--nkey", str(guarded.key("auditor")), "--nats-url", guarded.bus.url)
    checks = InProcessCli(tmp_path).ok("doctor", "-o", "json", *key).json
    skipped = [check for check in checks if check["status"] == "skip"]
    assert skipped
    assert all("may not" in check["details"] for check in skipped)
    assert "log" in {check["check"] for check in checks if check["status"] == "ok"}
    unreadable = {"streams", "replicas", "stream limits", "stages", "dead letters", "discarded"}
    assert {check["check"] for check in skipped} == unreadable, "as docs/how-to/operate.md states"


def test_a_service_that_applies_a_set_learns_which_role_it_needs(
    guarded: Guarded, tmp_path: Path, name: str
) -> None:
    options = ("-f", "-", "-n", "acme", "--nkey", str(guarded.key("acme")))
    result = InProcessCli(tmp_path).run(
        "apply", *options, "--set", name, "--nats-url", guarded.bus.url, text=circle(name)
    )
    assert (result.status, result.out) == (1, "")
    _, error = result.err.splitlines()
    assert error.startswith(
        "error: nothing was declared: --set reads the members of the set from the log, so it "
        "requires an operator's permissions: permission denied: "
    )
