"""`wait`, `pause`, `resume` and `reconcile` on one running stack."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Never, cast

import httpx
import pytest
from msgspec.structs import replace

from events.log import Condition, PartAvailability
from events.names import ResourceKey
from reconciler.cli.exits import Exit
from reconciler.cli.results import Result, exit_status, wait_for_results
from reconciler.errors import WaitTimeoutError
from reconciler.sdk.client import Client
from reconciler.sdk.outcomes import UNCONFIRMED_MESSAGE, OnOutcome, Outcome
from tests.cli.runner import Cli, Up, shape

CONFIG = (
    "apiVersion: reconciler/v1\nkind: ProviderConfig\nmetadata: {{name: {name}}}\n"
    "spec: {{provider: shapes, endpoint: '{url}', resyncSeconds: 3600, "
    "scope: {{prefix: {name}-}}}}\n"
)
SHAPE = (
    "apiVersion: shapes/v1\nkind: Shape\nmetadata: {{name: {name}-a, namespace: {name}}}\n"
    "spec: {{providerConfigRef: {{name: {name}}}, type: Square, color: Red}}\n"
)


@pytest.fixture
def hourly(live: Cli, running_up: tuple[Cli, Up], unique: str) -> str:
    """Declare a shape in an API that is listed once an hour; return its namespace."""
    name, url = unique.lower(), running_up[1].ready["apiUrl"]
    text = CONFIG.format(name=name, url=url) + "---\n" + SHAPE.format(name=name)
    live.ok("apply", "-f", "-", "--wait", text=text)
    return name


def test_wait_returns_when_the_condition_holds_or_its_timeout_expires(live: Cli) -> None:
    live.ok("apply", "-f", "-", text=shape("awaited"))
    assert live.ok("wait", "awaited").rows[0][:2] == ["default/Shape/awaited", "Ready"]
    live.ok("wait", "Shape", "awaited", "--for", "Converged")
    live.ok("wait", "Shape/awaited", "--for", "condition=Ready")
    result = live.run("wait", "awaited", "--for", "deleted", "--timeout", "300ms")
    assert (result.status, result.rows[0][1:4]) == (3, ["Converged", "(timed", "out)"])
    live.ok("delete", "awaited")
    live.ok("wait", "default/Shape/awaited", "--for", "deleted")
    live.ok("wait", "default/Shape/awaited", "--for", "deleted")  # it is already deleted


def test_wait_fails_immediately_for_a_paused_resource(live: Cli) -> None:
    paused = shape("awaited-paused").replace("spec: {", "spec: {policy: {paused: true}, ")
    live.ok("apply", "-f", "-", text=paused)
    result = live.run("wait", "awaited-paused")
    assert (result.status, result.rows[0][1]) == (1, "Paused")
    live.ok("wait", "awaited-paused", "--for", "paused")


def test_a_paused_resource_is_not_changed_until_it_is_resumed(
    live: Cli, running_up: tuple[Cli, Up]
) -> None:
    live.ok("apply", "-f", "-", "--wait", text=shape("at-rest"))
    live.ok("pause", "at-rest", "--reason", "INC-42: hands off")
    live.ok("wait", "at-rest", "--for", "paused")
    assert live.ok("pause", "at-rest").rows[0][3] == "Unchanged"
    url = f"{running_up[1].ready['apiUrl']}/shapes/at-rest"
    httpx.delete(url).raise_for_status()
    live.ok("reconcile", "at-rest")
    assert httpx.get(url).status_code == 404
    live.ok("resume", "at-rest", "--reason", "it is over")
    live.ok("wait", "at-rest")
    assert httpx.get(url).status_code == 200
    history = live.ok("history", "at-rest").out
    assert "INC-42: hands off" in history
    assert "it is over" in history
    (policy,) = [live.ok("get", "at-rest", "-o", "json").json["spec"].get("policy", {})]
    assert policy == {}


def test_an_undeclared_resource_is_neither_paused_nor_refreshed(live: Cli) -> None:
    result = live.run("pause", "Shape", "never-there")
    assert (result.status, result.rows[0][1:3]) == (1, ["Rejected", "NotFound"])
    result = live.run("reconcile", "Shape", "never-there")
    assert (result.status, result.rows[0][1:3]) == (1, ["Rejected", "NotDeclared"])


def test_a_resource_is_refreshed_immediately_whatever_its_listing_interval(
    live: Cli, running_up: tuple[Cli, Up], hourly: str
) -> None:
    url = f"{running_up[1].ready['apiUrl']}/shapes/{hourly}-a"
    httpx.delete(url).raise_for_status()
    result = live.ok("reconcile", f"{hourly}-a", "--wait", "--reason", "a user called")
    assert result.rows[0][1] == "Converged"
    assert httpx.get(url).status_code == 200
    history = live.ok("history", f"{hourly}/Shape/{hourly}-a", "-o", "json").json
    requests = [line for line in history if line["event"] == "ReconcileAccepted"]
    (sentence,) = [line["what"] for line in requests]
    assert sentence.endswith(" requested a reconciliation (reason: a user called)")


def test_a_refresh_without_changes_is_also_recorded(live: Cli, hourly: str) -> None:
    live.ok("reconcile", "-n", hourly, "Shape", "--wait")
    history = live.ok("history", f"{hourly}/Shape/{hourly}-a", "-o", "json").json
    assert [line["event"] for line in history][-2:] == ["ReconcileAccepted", "ExternalObserved"]


def test_reconciling_a_configuration_lists_its_objects_immediately(
    live: Cli, running_up: tuple[Cli, Up], hourly: str
) -> None:
    url = f"{running_up[1].ready['apiUrl']}/shapes/{hourly}-a"
    httpx.delete(url).raise_for_status()
    live.ok("reconcile", "ProviderConfig", hourly)
    live.ok("wait", f"{hourly}-a", "--for", "condition=Ready")
    while httpx.get(url).status_code != 200:
        pass


class MomentaryClient:
    """A client whose wait times out, because an object has not stayed ready."""

    async def wait_for_many(
        self, generations: Mapping[str, int], *, on_outcome: OnOutcome, **_options: Any
    ) -> Never:
        (name,) = generations
        now = datetime(2026, 1, 1, tzinfo=UTC)
        ready = (Condition("Ready", "True", "Ready"),)
        key, known = ResourceKey.parse(name), PartAvailability(since=now)
        outcome = Outcome(1, key, "Converged", 1, "AsDeclared", "", ready, now, "e1")
        on_outcome(replace(outcome, availability=known))
        raise WaitTimeoutError("not settled")


async def test_an_object_that_has_not_stayed_ready_is_not_reported_as_converged() -> None:
    result = Result("default/Container/web", True, "Accepted", 1)
    await wait_for_results(cast("Client", MomentaryClient()), [result], 1.0)
    assert (result.timed_out, result.ready, result.message) == (True, False, UNCONFIRMED_MESSAGE)
    assert exit_status([result], ("Converged",)) == Exit.TIMEOUT
