"""What waits for approval, as people see and decide it: scenario 28."""

from __future__ import annotations

import httpx
import pytest

from tests.cli.runner import Cli, Up, until

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
    """A configuration of which every write waits for approval."""
    name, url = unique.lower(), running_up[1].ready["apiUrl"]
    live.ok("apply", "-f", "-", "--wait", text=CONFIG.format(name=name, url=url, approve="Always"))
    return name


def colour(running_up: tuple[Cli, Up], name: str) -> str:
    answer = httpx.get(f"{running_up[1].ready['apiUrl']}/shapes/{name}-a")
    return "" if answer.status_code == 404 else answer.json()["color"]


def apply(live: Cli, name: str, color: str) -> None:
    live.ok("apply", "-f", "-", text=SHAPE.format(name=name, color=color))


def waiting(live: Cli, name: str) -> str:
    """Wait until a plan waits, and return its name."""
    rows = until(
        live,
        ("get", "-n", name, "--outcome", "Held"),
        lambda rows: [each["status"]["reason"] for each in rows] == ["Approval"],
    )
    return rows[0]["status"]["pendingPlan"]


def test_28_what_waits_is_shown_approved_and_done(
    live: Cli, running_up: tuple[Cli, Up], guarded: str
) -> None:
    resource = f"{guarded}/Shape/{guarded}-a"
    planned = live.run("plan", "-f", "-", text=SHAPE.format(name=guarded, color="Red"))
    assert "+ Create" in planned.out
    assert "(requires approval)" in planned.out
    apply(live, guarded, "Red")
    plan = waiting(live, guarded)
    assert colour(running_up, guarded) == ""

    apply(live, guarded, "Blue")
    until(
        live,
        ("get", "-n", guarded),
        lambda rows: rows[0]["status"].get("pendingPlan") not in (plan, None),
    )
    ran = live.run("approve", resource, "--plan", plan[:12])
    assert (ran.status, "PlanOutdated" in ran.out) == (1, True)
    assert colour(running_up, guarded) == ""

    plan = waiting(live, guarded)
    ran = live.ok("approve", resource, "--plan", plan[:12], "--reason", "as agreed")
    live.ok("apply", "-f", "-", "--wait", text=SHAPE.format(name=guarded, color="Blue"))
    assert colour(running_up, guarded) == "Blue"
    history = {each["event"]: each for each in live.ok("history", resource, "-o", "json").json}
    approved = f" approved plan {plan[:12]} (reason: as agreed)"
    assert history["HoldApproved"]["what"].endswith(approved)
    assert history["HoldApproved"]["actor"].startswith("cli")


def test_28_a_rejected_plan_stays_undone_until_it_is_approved(
    live: Cli, running_up: tuple[Cli, Up], guarded: str
) -> None:
    resource = f"{guarded}/Shape/{guarded}-a"
    apply(live, guarded, "Red")
    plan = waiting(live, guarded)
    live.ok("reject", "--all", "--config", guarded, "--reason", "not on a Friday")
    rows = until(
        live,
        ("get", "-n", guarded, "--outcome", "Held"),
        lambda rows: [each["status"]["reason"] for each in rows] == ["NotApproved"],
    )
    assert "not on a Friday" in rows[0]["status"]["message"]
    assert live.run("approve", "--all", "--hold", "Approval", "-n", guarded).status == 1
    assert colour(running_up, guarded) == ""
    live.ok("approve", resource, "--plan", plan)
    until(
        live,
        ("get", "-n", guarded, "--outcome", "Converged"),
        lambda rows: len(rows) == 1,
    )
    assert colour(running_up, guarded) == "Red"


def test_28_a_configuration_that_requires_no_approval_any_more_releases_it(
    live: Cli, running_up: tuple[Cli, Up], guarded: str
) -> None:
    apply(live, guarded, "Red")
    waiting(live, guarded)
    url = running_up[1].ready["apiUrl"]
    live.ok(
        "apply", "-f", "-", "--wait", text=CONFIG.format(name=guarded, url=url, approve="Never")
    )
    until(live, ("get", "-n", guarded, "--outcome", "Converged"), lambda rows: len(rows) == 1)
    assert colour(running_up, guarded) == "Red"


def test_a_plan_is_named_well_or_not_at_all(live: Cli) -> None:
    ran = live.run("approve", "Shape", "foo", "--plan", "41")
    assert (ran.status, "at least 8 characters" in ran.err) == (2, True)
    ran = live.run("approve", "Shape", "foo", "bar", "--plan", "41162a45fb69")
    assert (ran.status, "one resource" in ran.err) == (2, True)
    ran = live.run("approve", "Shape", "foo", "--hold", "DataLoss", "--plan", "41162a45fb69")
    assert (ran.status, "--plan: allowed only with --hold Approval" in ran.err) == (2, True)
    ran = live.run("approve", "Shape", "foo")
    assert (ran.status, "missing option --hold" in ran.err) == (2, True)
    ran = live.run("reject", "Shape", "unheard-of", "--reason", "no")
    assert (ran.status, "no action of the resource waits for approval" in ran.out) == (1, True)
