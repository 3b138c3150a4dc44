"""Scenario 28: commands about actions that wait for approval."""

from __future__ import annotations

import httpx
import pytest

from tests.cli.runner import Cli, Up, wait_until

CONFIG = (
    "apiVersion: reconciler/v1\nkind: ProviderConfig\nmetadata: {{name: {name}}}\n"
    "spec: {{provider: shapes, endpoint: '{url}', approve: {approve}, "
    "scope: {{prefix: {name}-}}}}\n"
)
SHAPE = (
    "apiVersion: shapes/v1\nkind: Shape\nmetadata: {{name: {name}-a, namespace: {name}}}\n"
    "spec: {{providerConfigRef: {{name: {name}}}, type: Square, color: {color}}}\n"
)


@pytest.fixture
def guarded(live: Cli, running_up: tuple[Cli, Up], unique: str) -> str:
    """Declare a configuration whose writes all require approval; return its name."""
    name, url = unique.lower(), running_up[1].ready["apiUrl"]
    live.ok("apply", "-f", "-", "--wait", text=CONFIG.format(name=name, url=url, approve="Always"))
    return name


def read_color(running_up: tuple[Cli, Up], name: str) -> str:
    response = httpx.get(f"{running_up[1].ready['apiUrl']}/shapes/{name}-a")
    return "" if response.status_code == 404 else response.json()["color"]


def apply(live: Cli, name: str, color: str) -> None:
    live.ok("apply", "-f", "-", text=SHAPE.format(name=name, color=color))


def wait_for_plan(live: Cli, name: str) -> str:
    """Wait until a plan requires approval; return its id."""
    rows = wait_until(
        live,
        ("get", "-n", name, "--outcome", "Held"),
        lambda rows: [row["status"]["reason"] for row in rows] == ["Approval"],
    )
    return rows[0]["status"]["pendingPlan"]


def test_28_a_pending_plan_is_shown_approved_and_applied(
    live: Cli, running_up: tuple[Cli, Up], guarded: str
) -> None:
    resource = f"{guarded}/Shape/{guarded}-a"
    planned = live.run("plan", "-f", "-", text=SHAPE.format(name=guarded, color="Red"))
    assert "+ Create" in planned.out
    assert "(requires approval)" in planned.out
    apply(live, guarded, "Red")
    plan = wait_for_plan(live, guarded)
    assert read_color(running_up, guarded) == ""

    apply(live, guarded, "Blue")
    wait_until(
        live,
        ("get", "-n", guarded),
        lambda rows: rows[0]["status"].get("pendingPlan") not in (plan, None),
    )
    result = live.run("approve", resource, "--plan", plan[:12])
    assert (result.status, "PlanOutdated" in result.out) == (1, True)
    assert read_color(running_up, guarded) == ""

    plan = wait_for_plan(live, guarded)
    command = f"reconciler approve {resource} --plan {plan[:12]}"
    assert f"To approve exactly this: {command}" in live.ok("why", resource).out
    assert command in " ".join(live.ok("describe", resource).out.split())
    result = live.ok(*command.split()[1:], "--reason", "as agreed")
    live.ok("apply", "-f", "-", "--wait", text=SHAPE.format(name=guarded, color="Blue"))
    assert read_color(running_up, guarded) == "Blue"
    history = {line["event"]: line for line in live.ok("history", resource, "-o", "json").json}
    approved = f" approved plan {plan[:12]} (reason: as agreed)"
    assert history["HoldApproved"]["what"].endswith(approved)
    assert history["HoldApproved"]["actor"].startswith("cli")


def test_28_a_rejected_plan_is_not_applied_until_it_is_approved(
    live: Cli, running_up: tuple[Cli, Up], guarded: str
) -> None:
    resource = f"{guarded}/Shape/{guarded}-a"
    apply(live, guarded, "Red")
    plan = wait_for_plan(live, guarded)
    live.ok("reject", "--all", "--config", guarded, "--reason", "not on a Friday")
    rows = wait_until(
        live,
        ("get", "-n", guarded, "--outcome", "Held"),
        lambda rows: [row["status"]["reason"] for row in rows] == ["NotApproved"],
    )
    assert "not on a Friday" in rows[0]["status"]["message"]
    assert live.run("approve", "--all", "--hold", "Approval", "-n", guarded).status == 1
    assert read_color(running_up, guarded) == ""
    live.ok("approve", resource, "--plan", plan)
    wait_until(
        live,
        ("get", "-n", guarded, "--outcome", "Converged"),
        lambda rows: len(rows) == 1,
    )
    assert read_color(running_up, guarded) == "Red"


def test_28_a_pending_plan_is_applied_when_approval_is_no_longer_required(
    live: Cli, running_up: tuple[Cli, Up], guarded: str
) -> None:
    apply(live, guarded, "Red")
    wait_for_plan(live, guarded)
    url = running_up[1].ready["apiUrl"]
    live.ok(
        "apply", "-f", "-", "--wait", text=CONFIG.format(name=guarded, url=url, approve="Never")
    )
    wait_until(live, ("get", "-n", guarded, "--outcome", "Converged"), lambda rows: len(rows) == 1)
    assert read_color(running_up, guarded) == "Red"


def test_an_ambiguous_plan_or_hold_is_refused(live: Cli) -> None:
    result = live.run("approve", "Shape", "foo", "--plan", "41")
    assert (result.status, "at least 8 characters" in result.err) == (2, True)
    result = live.run("approve", "Shape", "foo", "bar", "--plan", "41162a45fb69")
    assert (result.status, "one resource" in result.err) == (2, True)
    result = live.run("approve", "Shape", "foo", "--hold", "DataLoss", "--plan", "41162a45fb69")
    assert (result.status, "--plan: allowed only with --hold Approval" in result.err) == (2, True)
    result = live.run("approve", "Shape", "foo")
    assert (result.status, "missing option --hold" in result.err) == (2, True)
    result = live.run("reject", "Shape", "unheard-of", "--reason", "no")
    assert (result.status, "the resource has no action waiting for approval" in result.out) == (
        1,
        True,
    )
