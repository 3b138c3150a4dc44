"""`approve`, `finalizer` and `release` on a running stack."""

from __future__ import annotations

import asyncio
import signal
from typing import Any, get_args

import httpx
import pytest

from events.hold import Hold
from infra.bus.streams import INTAKE
from infra.jetstream.connection import connect as connect_to_bus
from infra.jetstream.reads import stream_state
from reconciler.cli.requests.approvals import HoldName
from reconciler.sdk import connect
from tests.cli.runner import (
    PATIENCE_SECONDS,
    STOP_SECONDS,
    Cli,
    InProcessCli,
    Up,
    shape,
    wait_until,
)

INVOICE = "billing/last-invoice"


def wait_for_outcome(live: Cli, name: str, outcome: str) -> Any:
    """Wait for an outcome in the history, because a deleted resource has no row."""
    return wait_until(
        live,
        ("history", f"default/Shape/{name}"),
        lambda lines: any(f" is {outcome}" in line["what"] for line in lines[-1:]),
    )


def events(live: Cli, key: str, event: str) -> list[dict[str, Any]]:
    return [line for line in live.ok("history", key, "-o", "json").json if line["event"] == event]


def add_billing_finalizer(url: str, name: str) -> None:
    """Add the finalizer of another service to a resource."""

    async def request() -> None:
        async with connect(url, source="billing") as billing:
            await billing.request_finalizer(f"default/Shape/{name}", INVOICE)

    asyncio.run(request())


def test_the_command_accepts_every_approvable_hold():
    assert set(get_args(HoldName)) == {hold for hold in Hold if hold.is_approvable}


def is_held_by(rows: list[dict[str, Any]], hold: str) -> bool:
    return [row["status"]["reason"] for row in rows] == [hold] * 3


@pytest.fixture
def unmanaged(live: Cli, running_up: tuple[Cli, Up], unique: str) -> str:
    """Create three undeclared objects in an exclusive scope whose guard allows one deletion."""
    name = unique.lower()
    api_url = running_up[1].ready["apiUrl"]
    for number in range(3):
        body = {"name": f"{name}-{number}", "type": "Square", "color": "Red"}
        httpx.post(f"{api_url}/shapes", json=body).raise_for_status()
    manifest = (
        f"apiVersion: reconciler/v1\nkind: ProviderConfig\nmetadata: {{name: {name}}}\n"
        f"spec: {{provider: shapes, endpoint: '{api_url}', resyncSeconds: 0.5, "
        f"scope: {{mode: Exclusive, prefix: {name}-, namespace: {name}}}, "
        "deletionGuard: {maxCount: 1}}\n"
    )
    live.ok("apply", "-f", "-", text=manifest)
    wait_until(live, ("get", "-n", name), lambda rows: is_held_by(rows, "ExclusiveScope"))
    config = f"system/ProviderConfig/{name}"
    wait_until(live, ("get", config), lambda row: row["status"]["reason"] == "ExclusiveScope")
    live.ok("approve", config, "--hold", "ExclusiveScope")
    wait_until(live, ("get", "-n", name), lambda rows: is_held_by(rows, "DeletionGuard"))
    return name


def test_held_deletions_are_reported_and_approved_by_name_and_all_together(
    live: Cli, unmanaged: str
) -> None:
    doctor = {check["check"]: check for check in live.run("doctor", "-o", "json").json}
    assert doctor["held"]["status"] == "warn"
    assert "DeletionGuard" in doctor["held"]["details"]

    first = f"{unmanaged}/Shape/{unmanaged}-0"
    result = live.run("approve", first, "--hold", "LossGuard")
    assert result.status == 1
    assert "the resource is not held by 'LossGuard' but by 'DeletionGuard'" in result.out

    command = f"reconciler approve {first} --hold DeletionGuard"
    assert live.ok("why", first, "-o", "json").json["approval"] == command
    result = live.ok("approve", first, first, "--hold", "DeletionGuard", "--reason", "old objects")
    assert [row[:2] for row in result.rows] == [[first, "Accepted"]]
    wait_until(live, ("get", "-n", unmanaged), lambda rows: len(rows) == 2)
    (approved,) = events(live, first, "HoldApproved")
    assert approved["what"].endswith(" approved DeletionGuard (reason: old objects)")
    assert approved["actor"].startswith("cli")
    result = live.run("approve", first, "--hold", "DeletionGuard")
    assert (
        result.status,
        "the resource is not held by 'DeletionGuard'; its outcome is Deleted" in result.out,
    ) == (1, True)

    approve_all = ("approve", "--all", "--hold", "DeletionGuard", "--config", unmanaged)
    replies = live.ok(*approve_all, "-o", "json").json
    assert {reply["resource"] for reply in replies} == {
        f"{unmanaged}/Shape/{unmanaged}-{n}" for n in (1, 2)
    }
    wait_until(live, ("get", "-n", unmanaged), lambda rows: rows == [])
    result = live.run(*approve_all)
    assert result.status == 1
    assert f"no resource of ProviderConfig {unmanaged} is held by DeletionGuard" in result.err


def test_an_unknown_resource_cannot_be_approved(live: Cli) -> None:
    result = live.run("approve", "Shape", "unheard-of", "--hold", "UnknownResult", "--abandon")
    assert result.status == 1
    assert "the resource is not held by 'UnknownResult'; the log has no events for it" in result.out
    assert live.run("history", "unheard-of").status == 1


def test_a_finalizer_blocks_the_deletion_until_it_is_removed(live: Cli) -> None:
    live.ok("apply", "-f", "-", "--wait", text=shape("final"))
    added = live.ok("finalizer", "add", "Shape", "final", INVOICE)
    assert f"finalizer {INVOICE} added" in added.out
    replies = live.ok("finalizer", "add", "default/Shape/final", INVOICE, "-o", "json").json
    assert [reply["reason"] for reply in replies] == ["Unchanged"]

    result = live.run("delete", "Shape", "final", "--wait", "-o", "json")
    assert (result.status, result.json[0]["outcome"], result.json[0]["reason"]) == (
        1,
        "Held",
        "Finalizers",
    )
    result = live.ok("finalizer", "remove", "Shape", "final", "billing/first-invoice")
    assert (
        "the resource has no such finalizer; `reconciler describe` lists its finalizers"
        in result.out
    )

    reason = ("--reason", "it is paid")
    removed = live.ok("finalizer", "remove", "Shape", "final", INVOICE, *reason)
    assert f"finalizer {INVOICE} removed" in removed.out
    wait_for_outcome(live, "final", "Deleted")
    (event,) = events(live, "default/Shape/final", "FinalizerRemoved")
    assert event["what"].endswith(f" removed the finalizer {INVOICE} (reason: it is paid)")


def test_another_services_finalizer_is_removed_only_by_force(
    live: Cli, running_up: tuple[Cli, Up]
) -> None:
    live.ok("apply", "-f", "-", "--wait", text=shape("forced"))
    add_billing_finalizer(running_up[1].ready["natsUrl"], "forced")

    for verb in ("add", "remove"):
        result = live.run("finalizer", verb, "Shape", "forced", INVOICE)
        assert result.status == 1
        assert f"'{INVOICE}' belongs to billing" in result.out
    assert events(live, "default/Shape/forced", "FinalizerRemoved") == []

    live.ok("finalizer", "remove", "Shape", "forced", INVOICE, "--force", "--reason", "shut down")
    (removed,) = events(live, "default/Shape/forced", "FinalizerRemoved")
    by_force = f" removed the finalizer {INVOICE} by force (reason: shut down)"
    assert removed["what"].endswith(by_force)


@pytest.mark.parametrize(
    ("options", "outcome", "status"), [((), "Deleted", 404), (("--orphan",), "Released", 200)]
)
def test_a_forced_release_removes_all_holds_and_keeps_the_object_only_with_orphan(
    live: Cli, running_up: tuple[Cli, Up], options: tuple[str, ...], outcome: str, status: int
) -> None:
    name = f"unblocked-{outcome.lower()}"
    api_url = running_up[1].ready["apiUrl"]
    live.ok("apply", "-f", "-", "--wait", text=shape(name))
    add_billing_finalizer(running_up[1].ready["natsUrl"], name)
    result = live.run("release", "Shape", name, "--reason", "billing is shut down")
    assert result.status == 1
    assert "the resource is still declared; withdraw it before you release it" in result.out

    live.run("delete", "Shape", name, "--wait")
    assert httpx.get(f"{api_url}/shapes/{name}").status_code == 200
    live.ok("release", "Shape", name, "--reason", "billing is shut down", *options)

    wait_for_outcome(live, name, outcome)
    assert httpx.get(f"{api_url}/shapes/{name}").status_code == status
    (forced,) = events(live, f"default/Shape/{name}", "ReleaseForced")
    assert "billing is shut down" in forced["what"]
    result = live.ok("release", "Shape", name, "--reason", "once more")
    assert "nothing blocks the resource, and it owns no object; nothing to release" in result.out


@pytest.mark.parametrize(
    "command",
    [
        ("release", "Shape", "mistyped", "--reason", "x"),
        ("finalizer", "remove", "Shape", "mistyped", INVOICE),
    ],
)
def test_a_mistyped_name_does_not_look_like_success(live: Cli, command: tuple[str, ...]) -> None:
    result = live.run(*command, "-o", "json")
    assert (result.status, result.json[0]["reason"]) == (1, "NotFound")


@pytest.mark.parametrize(
    ("command", "status", "message"),
    [
        ("approve Shape foo", 2, "use one of Approval, DeletionGuard, LossGuard"),
        ("approve --hold LossGuard", 2, "approve: use either KIND NAME... or --all"),
        ("approve Shape foo --all --hold LossGuard", 2, "approve: use either KIND NAME... or"),
        ("approve Shape --hold LossGuard", 2, "no Shape named; use at least one name"),
        ("approve Shape foo --hold Held", 2, 'Invalid value "Held" for --hold'),
        ("approve Shape foo --hold LossGuard --config a", 2, "--config: allowed only with --all"),
        ("approve Shape foo --hold LossGuard --abandon", 2, "only with --hold UnknownResult"),
        (f"approve Shape foo --hold LossGuard --reason {'x' * 1001}", 2, "has 1001 characters"),
        ("approve a/b/c/d --hold LossGuard", 2, "or NAMESPACE/KIND/NAME"),
        ("approve --all --hold LossGuard -n a.b", 2, "namespace 'a.b' is not allowed"),
        ("finalizer add Shape foo", 2, "finalizer: use NAME FINALIZER, KIND"),
        ("finalizer add default/Shape/foo a b", 2, "finalizer: use NAME FINALIZER, KIND"),
        ("finalizer add Shape foo a b", 2, "finalizer: use NAME FINALIZER, KIND"),
        ("finalizer add Shape foo -x", 2, "-x"),
        ("finalizer add Shape foo x.", 2, "finalizer 'x.' is not allowed"),
        ("finalizer add Shape foo x --force", 2, "--force and --reason: allowed only with remove"),
        ("finalizer keep Shape foo x", 2, '"add", "remove"'),
        ("release Shape foo", 2, "missing option --reason"),
        ("release Shape --reason x", 2, "no Shape named; use at least one name"),
        (f"release Shape foo --reason {'x' * 1001}", 2, "has 1001 characters"),
        ("get --wideness", 2, "error: Unknown option: --wideness (see `reconciler get --help`)"),
        ("deadletters show", 2, "see `reconciler deadletters show --help`"),
        ("deadletters list --limit 0", 2, "--limit 0: must be at least 1"),
        ("restore x --replicas 0", 2, "--replicas 0: must be 1 to 5"),
    ],
)
def test_ambiguous_arguments_are_refused_before_anything_is_sent(
    local_cli: Cli, command: str, status: int, message: str
) -> None:
    result = local_cli.run(*command.split(), "--nats-url", "nats://127.0.0.1:1")
    assert (result.status, result.out) == (status, "")
    assert message in result.err
    assert result.err.count("\n") == 1
    assert "cannot reach" not in result.err


def test_an_interrupted_request_is_reported_as_interrupted(
    idle: InProcessCli, idle_url: str
) -> None:
    count_before = asyncio.run(_count_messages(idle_url, 0))
    process = idle.start("approve", "Shape", "foo", "--hold", "LossGuard", "--timeout", "5m")
    asyncio.run(_count_messages(idle_url, count_before + 1))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=STOP_SECONDS)
    assert (process.returncode, out) == (130, "")
    bus = f"bus: {idle_url} (environment RECONCILER_NATS_URL)\n"
    assert err == f"{bus}error: interrupted; requests that were sent may still take effect\n"


async def _count_messages(url: str, minimum: int) -> int:
    """Wait until the intake has at least ``minimum`` messages; return their number."""
    nc = await connect_to_bus(url, name="test")
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (count := (await stream_state(nc, INTAKE)).messages) < minimum:  # noqa: ASYNC110 - a poll
                await asyncio.sleep(0.05)
        return count
    finally:
        await nc.close()
