"""`rollback` declares a complete older generation again, and does not overwrite a newer one."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import yaml

from events.manifest import Manifest
from reconciler.cli.connection import Connection
from reconciler.cli.naming import Reference
from reconciler.cli.requests import declarations
from reconciler.sdk import connect
from tests.cli.runner import Cli, Up, shape

COMPLETE_MANIFEST = """
apiVersion: shapes/v1
kind: Shape
metadata:
  name: NAME
  labels: {team: tiles}
  annotations: {reconciler/external-name: NAME-there, why: "because"}
spec:
  type: Square
  color: Red
  providerConfigRef: {name: default}
  policy: {deletion: Orphan, ignoreFields: [size.width]}
"""


def read_declarations(live: Cli, name: str) -> dict[int, dict[str, Any]]:
    """Return the declaration of each generation in the log."""
    events = [line["data"] for line in live.ok("history", name, "--raw", "-o", "json").json]
    declarations_by_generation = {
        event.pop("generation"): event for event in events if event["event"] == "SpecDeclared"
    }
    return dict(sorted(declarations_by_generation.items()))


def test_rollback_declares_a_complete_generation_again(live: Cli) -> None:
    live.ok("apply", "-f", "-", "--wait", text=COMPLETE_MANIFEST.replace("NAME", "rolled"))
    changed = (
        COMPLETE_MANIFEST.replace("NAME", "rolled")
        .replace("Red", "Blue")
        .replace("Orphan", "Delete")
    )
    live.ok("apply", "-f", "-", "--wait", text=changed.replace("tiles", "walls"))
    dry = live.ok("rollback", "Shape/rolled", "--to", "1", "--dry-run")
    manifest = yaml.safe_load(dry.out)
    assert manifest["spec"]["policy"] == {"deletion": "Orphan", "ignoreFields": ["size.width"]}
    assert manifest["metadata"]["annotations"]["reconciler/external-name"] == "rolled-there"
    assert live.ok("rollback", "rolled", "--to", "1", "--dry-run", "-o", "json").json == manifest
    assert list(read_declarations(live, "rolled")) == [1, 2]

    [rollback_result] = live.ok(
        "rollback", "Shape", "rolled", "--to", "1", "--wait", "-o", "json"
    ).json
    assert (rollback_result["outcome"], rollback_result["generation"]) == ("Converged", 3)
    declared_generations = read_declarations(live, "rolled")
    assert declared_generations[3] == declared_generations[1] != declared_generations[2]
    live.ok("delete", "Shape", "rolled")


def test_an_earlier_state_of_a_namespace_can_be_declared_again(live: Cli) -> None:
    """As in the guide; resources that were already withdrawn stay withdrawn."""
    manifest_text = COMPLETE_MANIFEST.replace("Orphan", "Delete")
    for name in ("changed", "deleted", "unwanted"):
        live.ok(
            "apply", "-f", "-", "-n", "night", "--wait", text=manifest_text.replace("NAME", name)
        )
    live.ok("delete", "Shape/unwanted", "-n", "night", "--wait")
    evening = str(live.ok("events", "--limit", "1", "-o", "json").json[0]["position"])
    changed = manifest_text.replace("NAME", "changed").replace("Red", "Blue")
    live.ok("apply", "-f", "-", "-n", "night", "--wait", text=changed)
    live.ok("delete", "Shape/deleted", "-n", "night", "--wait")

    command = ("get", "-n", "night", "-l", "!reconciler/part-of", "--at", evening, "-o", "json")
    rows_before = [row for row in live.ok(*command).json if row["status"].get("declared")]
    live.ok("apply", "-f", "-", "--wait", text=json.dumps(rows_before))
    for name in ("changed", "deleted"):
        declared_generations = list(read_declarations(live, f"night/Shape/{name}").values())
        assert declared_generations[-1] == declared_generations[0]
        assert declared_generations[-1]["fields"]["color"] == "Red"
    rows = live.ok("get", "-n", "night", "-o", "json").json
    assert [row["metadata"]["name"] for row in rows] == ["changed", "deleted"]
    live.ok("delete", "Shape", "changed", "deleted", "-n", "night")


def test_a_dry_run_can_be_applied(live: Cli) -> None:
    live.ok("apply", "-f", "-", "--wait", text=shape("rolled-by-hand"))
    live.ok("apply", "-f", "-", "--wait", text=shape("rolled-by-hand", "Blue"))
    printed = live.ok("rollback", "rolled-by-hand", "--to", "1", "--dry-run").out
    live.ok("apply", "-f", "-", "--wait", text=printed)
    declared_generations = read_declarations(live, "rolled-by-hand")
    assert declared_generations[3] == declared_generations[1]


def test_a_withdrawn_resource_can_be_rolled_back(live: Cli) -> None:
    live.ok("apply", "-f", "-", "--wait", text=shape("back"))
    live.ok("delete", "Shape", "back", "--wait")
    live.ok("rollback", "back", "--to", "1", "--wait")
    assert live.ok("get", "Shape", "back", "-o", "json").json["metadata"]["generation"] == 3


@pytest.mark.parametrize(
    ("generation", "message"),
    [
        ("2", "generation 2 of default/Shape/gone is a withdrawal, which declares nothing; "),
        ("7", "default/Shape/gone has no generation 7; "),
        ("0", "default/Shape/gone has no generation 0; "),
    ],
)
def test_an_unusable_generation_is_refused_with_a_list_of_the_usable_ones(
    live: Cli, generation: str, message: str
) -> None:
    if live.run("history", "gone").status:
        live.ok("apply", "-f", "-", "--wait", text=shape("gone"))
        live.ok("delete", "Shape", "gone", "--wait")
        live.ok("apply", "-f", "-", "--wait", text=shape("gone"))
    for more in ([], ["--dry-run"]):
        result = live.run("rollback", "gone", "--to", generation, *more)
        assert (result.status, result.out) == (1, "")
        assert result.err == f"error: {message}declared generations: 1, 3; withdrawals: 2\n"


def test_a_concurrent_newer_declaration_is_not_overwritten(
    live: Cli, running_up: tuple[Cli, Up], monkeypatch: pytest.MonkeyPatch
) -> None:
    live.ok("apply", "-f", "-", "--wait", text=shape("raced"))
    live.ok("apply", "-f", "-", "--wait", text=shape("raced", "Blue"))
    find_generation = declarations.find_generation

    async def declare_newer_before_rollback(
        connection: Connection, expected: Reference, generation: int | None
    ) -> Any:
        found = await find_generation(connection, expected, generation)
        newer = msgspec.convert(yaml.safe_load(shape("raced", "Purple")), Manifest)
        async with connect(running_up[1].ready["natsUrl"], source="tests") as client:
            await client.declare(newer)
        return found

    monkeypatch.setattr(declarations, "find_generation", declare_newer_before_rollback)
    result = live.run("rollback", "raced", "--to", "1", "-o", "json")
    assert result.status == 1
    assert result.json[0]["reason"] == "StaleGeneration"
    assert "the resource is at generation 3" in result.json[0]["message"]
    assert list(read_declarations(live, "raced")) == [1, 2, 3]


def test_rollback_without_a_target_chooses_the_newest_other_ready_generation(live: Cli) -> None:
    for color in ("Red", "Blue"):
        live.ok("apply", "-f", "-", "--wait", text=shape("undone", color))
    never_ready = shape("undone", "Green").replace("color", "policy: {paused: true}, color")
    live.ok("apply", "-f", "-", text=never_ready)
    result = live.ok("rollback", "undone")
    assert result.out.splitlines()[1].endswith(
        "  generation 2 declared again, which ends the pause"
    )
    live.ok("wait", "undone")
    declared_generations = read_declarations(live, "undone")
    newest = max(declared_generations)
    assert declared_generations[newest] == declared_generations[2]
    live.ok("rollback", "undone", "--wait")
    assert read_declarations(live, "undone")[newest + 1] == declared_generations[1]

    live.ok("apply", "-f", "-", "--wait", text=shape("undone-never"))
    result = live.run("rollback", "undone-never")
    assert (result.status, result.err) == (
        1,
        "error: no other generation of default/Shape/undone-never was ready; choose one with "
        "--to: declared generations: 1\n",
    )


def test_an_invalid_generation_is_a_usage_error(live: Cli) -> None:
    assert live.run("rollback", "foo", "--to", "first").status == 2
    assert live.run("rollback", "never-there", "--to", "1").err == (
        "error: the log has no resource 'never-there'; `reconciler get -A` lists all resources\n"
    )
