"""`wait`, `pause`, `resume` and `reconcile`: on one running stack."""

from __future__ import annotations

import httpx
import pytest

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
def seldom(live: Cli, running_up: tuple[Cli, Up], unique: str) -> str:
    """A shape of an API that is listed once an hour."""
    name, url = unique.lower(), running_up[1].ready["apiUrl"]
    text = CONFIG.format(name=name, url=url) + "---\n" + SHAPE.format(name=name)
    live.ok("apply", "-f", "-", "--wait", text=text)
    return name


def test_waiting_ends_when_it_is_so_or_in_time_or_when_it_has_failed(live: Cli) -> None:
    live.ok("apply", "-f", "-", text=shape("awaited"))
    assert live.ok("wait", "awaited").rows[0][:2] == ["default/Shape/awaited", "Ready"]
    live.ok("wait", "Shape", "awaited", "--for", "Converged")
    live.ok("wait", "Shape/awaited", "--for", "condition=Ready")
    ran = live.run("wait", "awaited", "--for", "deleted", "--timeout", "300ms")
    assert (ran.status, ran.rows[0][1:4]) == (3, ["Converged", "(timed", "out)"])
    live.ok("delete", "awaited")
    live.ok("wait", "default/Shape/awaited", "--for", "deleted")
    live.ok("wait", "default/Shape/awaited", "--for", "deleted")  # it is already deleted


def test_a_wait_for_what_has_failed_ends_at_once(live: Cli) -> None:
    paused = shape("awaited-paused").replace("spec: {", "spec: {policy: {paused: true}, ")
    live.ok("apply", "-f", "-", text=paused)
    ran = live.run("wait", "awaited-paused")
    assert (ran.status, ran.rows[0][1]) == (1, "Paused")
    live.ok("wait", "awaited-paused", "--for", "paused")


def test_what_is_paused_is_left_alone_until_it_is_resumed(
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
    ran = live.run("pause", "Shape", "never-there")
    assert (ran.status, ran.rows[0][1:3]) == (1, ["Rejected", "NotFound"])
    ran = live.run("reconcile", "Shape", "never-there")
    assert (ran.status, ran.rows[0][1:3]) == (1, ["Rejected", "NotDeclared"])


def test_a_resource_is_refreshed_immediately_at_any_listing_interval(
    live: Cli, running_up: tuple[Cli, Up], seldom: str
) -> None:
    url = f"{running_up[1].ready['apiUrl']}/shapes/{seldom}-a"
    httpx.delete(url).raise_for_status()
    ran = live.ok("reconcile", f"{seldom}-a", "--wait", "--reason", "somebody called")
    assert ran.rows[0][1] == "Converged"
    assert httpx.get(url).status_code == 200
    history = live.ok("history", f"{seldom}/Shape/{seldom}-a", "-o", "json").json
    requests = [each for each in history if each["event"] == "ReconcileAccepted"]
    (kinds_of_request,) = [each["what"] for each in requests]
    assert kinds_of_request.endswith(" requested a reconciliation (reason: somebody called)")


def test_a_refresh_that_finds_nothing_new_is_recorded_too(live: Cli, seldom: str) -> None:
    live.ok("reconcile", "-n", seldom, "Shape", "--wait")
    history = live.ok("history", f"{seldom}/Shape/{seldom}-a", "-o", "json").json
    assert [each["event"] for each in history][-2:] == ["ReconcileAccepted", "ExternalObserved"]


def test_everything_of_a_configuration_is_listed_now(
    live: Cli, running_up: tuple[Cli, Up], seldom: str
) -> None:
    url = f"{running_up[1].ready['apiUrl']}/shapes/{seldom}-a"
    httpx.delete(url).raise_for_status()
    live.ok("reconcile", "ProviderConfig", seldom)
    live.ok("wait", f"{seldom}-a", "--for", "condition=Ready")
    while httpx.get(url).status_code != 200:
        pass
