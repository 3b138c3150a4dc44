"""`plan` predicts what `apply` does, and `apply --plan` does exactly that or nothing."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec
import pytest
import yaml

from events.log import ActionDecided, OutcomeName, OutcomeRecorded
from events.manifest import Manifest
from reconciler.sdk import Client, connect
from tests.cli.runner import Cli, InProcessCli, Up, shape

_T = TypeVar("_T")


def config(running: Up, name: str, **scope: str) -> str:
    body = {"provider": "shapes", "endpoint": running.ready["apiUrl"], "resyncSeconds": 0.5}
    document = {
        "apiVersion": "reconciler/v1",
        "kind": "ProviderConfig",
        "metadata": {"name": name, "namespace": "system"},
        "spec": {**body, "scope": {"prefix": f"{name}-", **scope}},
    }
    return json.dumps(document) + "\n"


def shape_with_config(name: str, config: str, color: str = "Red", **spec: Any) -> str:
    manifest = {
        "apiVersion": "shapes/v1",
        "kind": "Shape",
        "metadata": {"name": name},
        "spec": {
            "type": "Square",
            "color": color,
            "providerConfigRef": {"name": config},
            **spec,
        },
    }
    return json.dumps(manifest) + "\n"


def actions(plan: Any) -> dict[str, list[tuple[str, Any]]]:
    """Return the actions of a plan by resource, each with its changes."""
    return {
        resource["resource"]: [
            (
                action["operation"],
                {change["path"]: change["wanted"] for change in action["changes"]},
            )
            for action in resource["actions"]
        ]
        for resource in plan["resources"]
    }


def decided_operations(running: Up, resource: str) -> list[str]:
    history = call_sdk(running, lambda client: client.history(resource))
    return [
        stored.event.data.action.operation
        for stored in history
        if isinstance(stored.event.data, ActionDecided)
    ]


def call_sdk(running: Up, call: Callable[[Client], Awaitable[_T]]) -> _T:
    """Call the SDK on the bus of the running `up`."""

    async def run() -> _T:
        async with connect(running.ready["natsUrl"], source="tests") as client:
            return await call(client)

    return asyncio.run(run())


def wait_for_outcome(running: Up, resource: str, outcome: OutcomeName) -> None:
    """Wait for an outcome of a resource that no manifest declares."""
    call_sdk(running, lambda client: client.wait_for(resource, generation=0, outcomes=[outcome]))


def test_a_plan_shows_fields_and_declares_nothing(live: Cli) -> None:
    live.write("plan-a.yaml", shape("plan-a") + "---\n" + shape("plan-mauve", "Mauve"))
    result = live.run("plan", "-f", "plan-a.yaml")
    assert result.status == 1, "a document is refused"
    assert "  + Create plan-a\n" in result.out
    assert '      color: "Red"\n' in result.out
    assert "  ! refused: Invalid: spec.color: 'Mauve' is not allowed" in result.out
    assert "Plan: 1 to create, 1 refused (as of log position" in result.out
    assert live.run("describe", "plan-a").status == 1, "the log must not contain it"

    live.write("plan-a.yaml", shape("plan-a"))
    assert live.run("plan", "-f", "plan-a.yaml").status == 2
    live.ok("apply", "-f", "plan-a.yaml", "--wait")
    result = live.ok("plan", "-f", "plan-a.yaml")
    assert result.out.startswith("Plan: 1 unchanged (as of log position")

    live.write("plan-a.yaml", shape("plan-a", "Green"))
    result = live.run("plan", "-f", "plan-a.yaml")
    heading, *lines = result.out.splitlines()
    assert re.fullmatch(r"default/Shape/plan-a  observed \d+s ago", heading)
    assert (result.status, lines[:2]) == (2, ["  ~ Update plan-a", '      color: "Red" → "Green"'])
    assert re.search(r"\(as of log position \d+, oldest observation \d+s ago\)", result.out)
    refreshed = live.run("plan", "-f", "plan-a.yaml", "--refresh", "-o", "json").json
    assert refreshed["resources"][0]["observedAt"] == refreshed["madeAt"], "--refresh must list it"
    for command in (("diff", "-f"), ("apply", "--dry-run=server", "-f")):
        other_result = live.run(*command, "plan-a.yaml")
        assert (other_result.status, other_result.out.splitlines()[1:3]) == (2, lines[:2])
    result = live.run("plan", "-f", "plan-a.yaml", "-o", "json")
    (change,) = result.json["resources"][0]["actions"][0]["changes"]
    assert change == {"path": "color", "applied": "Red", "observed": "Red", "wanted": "Green"}


def test_a_withdrawal_is_planned_with_its_consequences(
    live: Cli, running_up: tuple[Cli, Up]
) -> None:
    orphaned = shape("plan-kept").replace("spec: {", "spec: {policy: {deletion: Orphan}, ")
    live.ok("apply", "-f", "-", "--wait", text=shape("plan-gone") + "---\n" + orphaned)
    result = live.run("delete", "Shape", "plan-gone", "plan-kept", "--dry-run")
    assert result.status == 2, result
    assert "default/Shape/plan-gone  (withdrawn)" in result.out
    assert "  - Delete plan-gone" in result.out
    assert "  = Release plan-kept (Orphaned)" in result.out
    plan = call_sdk(running_up[1], lambda client: client.plan(withdraw=["default/Shape/plan-gone"]))
    (deleted_resource,) = plan.resources
    assert (deleted_resource.withdrawn, deleted_resource.is_declared, deleted_resource.outcome) == (
        True,
        False,
        "Deleted",
    )
    assert live.ok("get", "Shape", "plan-gone", "-o", "json").json["status"]["declared"]
    assert live.ok("delete", "Shape", "plan-never", "--dry-run").status == 0


@pytest.mark.parametrize(("mode", "outcome"), [("Absent", "Converged"), ("ObserveOnly", "Drifted")])
def test_a_plan_continues_past_the_first_observation(
    live: Cli, running_up: tuple[Cli, Up], mode: str, outcome: str
) -> None:
    name = f"plan-look-{mode.lower()}"
    manifest = shape(name).replace("spec: {", f"spec: {{policy: {{mode: {mode}}}, ")
    live.write("look.yaml", manifest)
    (planned,) = live.run("plan", "-f", "look.yaml", "-o", "json").json["resources"]
    assert (planned["says"], planned["outcome"]) == ("Change", outcome)
    result = live.run("plan", "-f", "look.yaml")
    assert result.status == 2
    assert "Plan: 1 without a call (as of" in result.out
    live.run("apply", "-f", "look.yaml", "--wait")
    history = call_sdk(running_up[1], lambda client: client.history(f"default/Shape/{name}"))
    events = [stored.event.data for stored in history]
    assert [event.outcome for event in events if isinstance(event, OutcomeRecorded)] == [
        "Waiting",
        outcome,
    ]
    assert live.ok("plan", "-f", "look.yaml").out.startswith("Plan: 1 unchanged")


def test_effects_through_references_are_planned(live: Cli) -> None:
    target = shape("plan-target")
    referrer = shape("plan-referrer").replace(
        "type: Square", "type: {$ref: Shape/plan-target, field: outputs.type}"
    )
    referrer = referrer.replace("color: Red", "color: {$ref: Shape/plan-target, field: name}")
    live.write("plan-ref.yaml", f"{referrer}---\n{target}")
    result = live.run("plan", "-f", "plan-ref.yaml", "-o", "json")
    by_name = {each["resource"]: each for each in result.json["resources"]}
    assert by_name["default/Shape/plan-target"]["says"] == "Change"
    # A name is not a color: the plan finds the same problem as the decider.
    assert by_name["default/Shape/plan-referrer"]["reason"] == "InvalidInput"

    referrer = referrer.replace("color: {$ref: Shape/plan-target, field: name}", "color: Blue")
    live.write("plan-ref.yaml", f"{referrer}---\n{target}")
    result = live.run("plan", "-f", "plan-ref.yaml", "-o", "json")
    ((operation, fields),) = actions(result.json)["default/Shape/plan-referrer"]
    assert operation == "Create"
    assert (fields["type"], fields["color"]) == ("(known after apply)", "Blue")


def test_the_effects_of_an_exclusive_scope_are_planned_and_then_applied(
    live: Cli, running_up: tuple[Cli, Up], unique: str
) -> None:
    running, team = running_up[1], unique.lower()
    url = f"{running.ready['apiUrl']}/shapes/{team}-hand"
    live.write("shared.yaml", config(running, team, namespace=team))
    live.ok("apply", "-f", "shared.yaml", "--wait")
    live.write("own.yaml", shape_with_config(f"{team}-own", team))
    live.ok("apply", "-f", "own.yaml", "-n", team, "--wait")
    foreign_shape = {"name": f"{team}-hand", "type": "Circle", "color": "Blue"}
    httpx.post(f"{running.ready['apiUrl']}/shapes", json=foreign_shape).raise_for_status()
    wait_for_outcome(running, f"{team}/Shape/{team}-hand", "Unowned")

    live.write("exclusive.yaml", config(running, team, namespace=team, mode="Exclusive"))
    result = live.run("plan", "-f", "exclusive.yaml", "--out", "exclusive.plan")
    assert result.status == 2
    heading, *steps = result.out.splitlines()[2:5]
    assert heading.startswith(f"{team}/Shape/{team}-hand  (affected)  observed ")
    assert steps == [
        f"  = Adopt {team}-hand (ExclusiveScope)",
        f"  - Delete {team}-hand (requires approval)",
    ]
    assert f"{team}-own" not in result.out
    assert httpx.get(url).is_success, "a plan must not delete it"

    live.ok("apply", "--plan", "exclusive.plan")
    wait_for_outcome(running, f"system/ProviderConfig/{team}", "Held")
    live.ok("approve", f"system/ProviderConfig/{team}", "--hold", "ExclusiveScope")
    wait_for_outcome(running, f"{team}/Shape/{team}-hand", "Deleted")
    assert decided_operations(running, f"{team}/Shape/{team}-hand") == ["Delete"]
    assert httpx.get(url).status_code == httpx.codes.NOT_FOUND


def test_a_refreshed_plan_lists_objects_that_no_observer_reported(
    live: Cli, running_up: tuple[Cli, Up]
) -> None:
    running = running_up[1]
    live.write("plan-slow.yaml", config(running, "plans").replace("0.5", "3600"))
    live.ok("apply", "-f", "plan-slow.yaml", "--wait")
    live.write("plan-slow-own.yaml", shape_with_config("plans-own", "plans"))
    live.ok("apply", "-f", "plan-slow-own.yaml", "--wait")
    httpx.delete(f"{running.ready['apiUrl']}/shapes/plans-own").raise_for_status()
    live.ok("plan", "-f", "plan-slow-own.yaml")
    result = live.run("plan", "-f", "plan-slow-own.yaml", "--refresh")
    assert result.status == 2
    assert "  + Create plans-own" in result.out


@pytest.mark.parametrize("first", [None, "typo"], ids=["new", "changed prefix"])
def test_a_plan_lists_what_an_unknown_exclusive_scope_would_delete(
    live: Cli, running_up: tuple[Cli, Up], unique: str, first: str | None
) -> None:
    running, team = running_up[1], unique.lower()
    foreign_shape = {"name": f"{team}-hand", "type": "Circle", "color": "Blue"}
    httpx.post(f"{running.ready['apiUrl']}/shapes", json=foreign_shape).raise_for_status()
    if first is not None:
        prefix = f"{team}-{first}-"
        earlier = config(running, team, namespace=team, mode="Exclusive", prefix=prefix)
        live.ok("apply", "-f", "-", "--wait", text=earlier)
    live.write("exclusive.yaml", config(running, team, namespace=team, mode="Exclusive"))
    result = live.run("plan", "-f", "exclusive.yaml")
    assert "the log does not contain all of its objects; use --refresh to list them" in result.out
    assert "- Delete" not in result.out

    result = live.run("plan", "-f", "exclusive.yaml", "--refresh")
    assert f"  - Delete {team}-hand (requires approval)" in result.out.splitlines()
    assert "use --refresh" not in result.out
    assert "1 to delete" in result.out


def test_a_refreshed_plan_lists_only_the_apis_of_its_resources(
    live: Cli, running_up: tuple[Cli, Up]
) -> None:
    running = running_up[1]
    private = json.loads(config(running, "private"))
    private["spec"]["credentialsRef"] = {"env": "ROLE_TOKEN"}
    # A listing shows every change in its scope, so the scope contains no objects from other tests.
    live.ok("apply", "-f", "-", "--wait", text=config(running, "refreshed"))
    live.ok("apply", "-f", "-", "--wait", text=json.dumps(private))
    live.write("own.yaml", shape_with_config("refreshed-own", "refreshed"))
    live.ok("apply", "-f", "own.yaml", "--wait")
    try:
        result = live.run("plan", "-f", "own.yaml", "--refresh", "-o", "json")
        assert result.status == 0, result.out
        assert result.json["resources"][0]["observedAt"] == result.json["madeAt"]
        for text in (shape_with_config("private-own", "private"), json.dumps(private)):
            result = live.run("plan", "-f", "-", "--refresh", text=text)
            assert (result.status, result.err) == (
                1,
                "error: --refresh: cannot list the objects of ProviderConfig 'private' from this "
                "machine: spec.credentialsRef.env: the environment variable ROLE_TOKEN is "
                "not set here; set it\n",
            )
    finally:
        live.ok("delete", "ProviderConfig", "private", "--wait")


def test_41_an_outdated_plan_declares_nothing(live: Cli) -> None:
    live.write("moved.yaml", shape("moved-a") + "---\n" + shape("moved-b"))
    assert live.run("plan", "-f", "moved.yaml", "--out", "moved.plan").status == 2
    live.write("moved-a.yaml", shape("moved-a", "Green"))
    live.ok("apply", "-f", "moved-a.yaml", "--wait")
    result = live.run("apply", "--plan", "moved.plan")
    assert result.status == 1
    assert result.err == (
        "error: the plan is out of date, so nothing was declared; plan again: "
        "default/Shape/moved-a: planned at version 0, but now at version 4\n"
    )
    assert live.run("describe", "moved-b").status == 1


def test_an_outdated_plan_for_many_resources_names_the_first_ones(live: Cli) -> None:
    names = [f"crowd-{number}" for number in range(20)]
    live.write("crowd.yaml", "---\n".join(shape(name) for name in names))
    assert live.run("plan", "-f", "crowd.yaml", "--out", "crowd.plan").status == 2
    live.ok("apply", "-f", "crowd.yaml")
    result = live.run("apply", "--plan", "crowd.plan")
    assert (result.status, result.err.count("; default/Shape/crowd-")) == (1, 2)
    assert result.err.endswith(" and 17 more\n")


def test_41_only_resources_that_changed_after_the_check_are_refused(
    live: Cli, running_up: tuple[Cli, Up]
) -> None:
    live.write("late.yaml", shape("late-a") + "---\n" + shape("late-b"))
    shapes = [
        msgspec.convert(each, Manifest)
        for each in yaml.safe_load_all((live.folder / "late.yaml").read_text())
    ]
    plan = call_sdk(running_up[1], lambda client: client.plan(shapes))
    assert [each.says for each in plan.resources] == ["Change", "Change"]
    live.write("late-a.yaml", shape("late-a", "Green"))
    live.ok("apply", "-f", "late-a.yaml", "--wait")
    replies = call_sdk(running_up[1], lambda client: client.apply_planned(plan.resources))
    assert [each.reason for each in replies] == ["PlanOutdated", "Accepted"]
    assert [each.generation for each in replies[1:]] == [1]  # pyright: ignore


def test_a_plan_that_includes_its_configuration_is_applied_as_a_whole(
    live: Cli, running_up: tuple[Cli, Up]
) -> None:
    running = running_up[1]
    live.write(
        "whole.yaml", shape_with_config("planw-a", "planw") + "---\n" + config(running, "planw")
    )
    result = live.run("plan", "-f", "whole.yaml", "--out", "whole.plan", "-o", "json")
    assert [name for name, _ in actions(result.json)["default/Shape/planw-a"]] == ["Create"]
    live.ok("apply", "--plan", "whole.plan", "--wait", "--reason", "CHG-1234")
    assert decided_operations(running, "default/Shape/planw-a") == ["Create"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read bad.plan: No such file or directory; create it with `reconciler plan"),
        ("{}", "bad.plan: not a plan: Object missing required field `log`"),
        ("nothing", "bad.plan: not a plan: JSON is malformed"),
    ],
)
def test_an_invalid_plan_file_is_named(live: Cli, content: str | None, message: str) -> None:
    Path(live.folder / "bad.plan").unlink(missing_ok=True)
    if content is not None:
        live.write("bad.plan", content)
    result = live.run("apply", "--plan", "bad.plan")
    assert result.status == 1
    assert result.err.startswith(f"error: {message}")
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"name": "renamed"}, "default/Shape/edited: its manifest has the name default/Shape/ren"),
        ({"namespace": "shop"}, "default/Shape/edited: its manifest has the name shop/Shape/edi"),
        ({"name": "no name"}, "default/Shape/edited: its manifest has the name default/Shape/no "),
        ({"resource": "default/Shape/b"}, "default/Shape/b: its manifest has the name default/"),
        ({"resource": "nothing"}, "nothing: its manifest has the name default/Shape/edited"),
        ({"manifest": None}, "the plan contains no manifest"),
    ],
)
def test_an_edited_plan_file_is_refused(live: Cli, edit: dict[str, Any], message: str) -> None:
    live.write("edited.yaml", shape("edited"))
    live.run("plan", "-f", "edited.yaml", "--out", "edited.plan")
    plan = json.loads((live.folder / "edited.plan").read_text())
    [resource] = plan["resources"]
    for field, value in edit.items():
        is_metadata = field in ("name", "namespace")
        (resource["manifest"]["metadata"] if is_metadata else resource)[field] = value
    live.write("edited.plan", json.dumps(plan))
    result = live.run("apply", "--plan", "edited.plan")
    assert (result.status, result.out, len(result.err.splitlines())) == (1, "", 1)
    assert result.err.startswith(f"error: edited.plan: {message}")
    assert result.err.endswith("plan again\n")


def test_a_plan_for_another_log_is_refused(live: Cli) -> None:
    live.write("other.yaml", shape("other-log"))
    live.run("plan", "-f", "other.yaml", "--out", "other.plan")
    text = (live.folder / "other.plan").read_text()
    log = json.loads(text)["log"]
    live.write("other.plan", text.replace(f'"{log}"', '"another"'))
    result = live.run("apply", "--plan", "other.plan")
    assert (result.status, result.err) == (
        1,
        "error: the plan is for a different log; plan again on this server\n",
    )


def test_the_plan_option_excludes_the_file_option(live: Cli) -> None:
    result = live.run("apply", "--plan", "a.plan", "-f", "b.yaml")
    assert (result.status, result.err.splitlines()[0]) == (
        2,
        (
            "error: --plan: not allowed with --file or --dry-run, because the plan contains its "
            "manifests"
        ),
    )
    assert live.run("apply").status == 2


@pytest.mark.parametrize(
    "command",
    [
        ("plan",),
        ("plan", "-f", "two.yaml", "--nonsense"),
        ("plan", "-f", "two.yaml", "-n", "not/a/name"),
        ("diff", "a/b/c/d"),
        ("diff", "foo", "--from", "yesterday"),
        ("apply", "-f", "two.yaml", "--dry-run=server", "--prune"),
        ("delete", "--dry-run"),
    ],
    ids=" ".join,
)
def test_errors_and_changes_have_different_exit_statuses(
    local_cli: InProcessCli, command: tuple[str, ...]
) -> None:
    result = local_cli.run(*command)
    assert result.err.startswith("error: ")
    assert result.status == 1


def test_a_plan_shows_a_move_as_a_move(live: Cli) -> None:
    live.ok("apply", "-f", "-", "--wait", text=shape("plan-former"))
    renamed = shape("plan-new").replace(
        "{name: plan-new", "{annotations: {reconciler/moved-from: plan-former}, name: plan-new"
    )
    assert "moved-from" in renamed
    live.write("renamed.yaml", renamed)
    result = live.run("plan", "-f", "renamed.yaml")
    assert "Create" not in result.out
    assert "! waiting: MoveExpected: waiting to take over the object" in result.out
    live.ok("apply", "-f", "renamed.yaml")
    result = live.run("delete", "Shape", "plan-former", "--dry-run")
    assert "  = Move plan-former to default/Shape/plan-new" in result.out, result.out
    assert "  = Move plan-former from default/Shape/plan-former" in result.out
    assert "- Delete" not in result.out
    assert "  ~ Update plan-former" in result.out
