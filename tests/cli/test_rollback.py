"""`rollback`: an older generation is declared again, whole, and over nothing newer."""

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

WHOLE = """
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


def declared(live: Cli, name: str) -> dict[int, dict[str, Any]]:
    """What each generation declared, as the log has it."""
    events = [one["data"] for one in live.ok("history", name, "--raw", "-o", "json").json]
    declarations_by_generation = {
        one.pop("generation"): one for one in events if one["event"] == "SpecDeclared"
    }
    return dict(sorted(declarations_by_generation.items()))


def test_all_that_a_generation_declared_is_declared_again(live: Cli) -> None:
    live.ok("apply", "-f", "-", "--wait", text=WHOLE.replace("NAME", "rolled"))
    changed = WHOLE.replace("NAME", "rolled").replace("Red", "Blue").replace("Orphan", "Delete")
    live.ok("apply", "-f", "-", "--wait", text=changed.replace("tiles", "walls"))
    dry = live.ok("rollback", "Shape/rolled", "--to", "1", "--dry-run")
    manifest = yaml.safe_load(dry.out)
    assert manifest["spec"]["policy"] == {"deletion": "Orphan", "ignoreFields": ["size.width"]}
    assert manifest["metadata"]["annotations"]["reconciler/external-name"] == "rolled-there"
    assert live.ok("rollback", "rolled", "--to", "1", "--dry-run", "-o", "json").json == manifest
    assert list(declared(live, "rolled")) == [1, 2]

    [rollback_result] = live.ok(
        "rollback", "Shape", "rolled", "--to", "1", "--wait", "-o", "json"
    ).json
    assert (rollback_result["outcome"], rollback_result["generation"]) == ("Converged", 3)
    declared_generations = declared(live, "rolled")
    assert declared_generations[3] == declared_generations[1] != declared_generations[2]
    live.ok("delete", "Shape", "rolled")


def test_an_earlier_state_of_a_namespace_is_declared_again(live: Cli) -> None:
    """As the guide undoes one night; what was withdrawn by then stays so."""
    whole = WHOLE.replace("Orphan", "Delete")
    for name in ("changed", "deleted", "unwanted"):
        live.ok("apply", "-f", "-", "-n", "night", "--wait", text=whole.replace("NAME", name))
    live.ok("delete", "Shape/unwanted", "-n", "night", "--wait")
    evening = str(live.ok("events", "--limit", "1", "-o", "json").json[0]["position"])
    changed = whole.replace("NAME", "changed").replace("Red", "Blue")
    live.ok("apply", "-f", "-", "-n", "night", "--wait", text=changed)
    live.ok("delete", "Shape/deleted", "-n", "night", "--wait")

    command = ("get", "-n", "night", "-l", "!reconciler/part-of", "--at", evening, "-o", "json")
    rows_before = [one for one in live.ok(*command).json if one["status"].get("declared")]
    live.ok("apply", "-f", "-", "--wait", text=json.dumps(rows_before))
    for name in ("changed", "deleted"):
        declared_generations = list(declared(live, f"night/Shape/{name}").values())
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
    declared_generations = declared(live, "rolled-by-hand")
    assert declared_generations[3] == declared_generations[1]


def test_what_was_withdrawn_is_brought_back(live: Cli) -> None:
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
def test_a_generation_without_content_is_refused_with_those_that_there_are(
    live: Cli, generation: str, message: str
) -> None:
    if live.run("history", "gone").status:
        live.ok("apply", "-f", "-", "--wait", text=shape("gone"))
        live.ok("delete", "Shape", "gone", "--wait")
        live.ok("apply", "-f", "-", "--wait", text=shape("gone"))
    for more in ([], ["--dry-run"]):
        ran = live.run("rollback", "gone", "--to", generation, *more)
        assert (ran.status, ran.out) == (1, "")
        assert ran.err == f"error: {message}declared generations: 1, 3; withdrawals: 2\n"


def test_nothing_newer_is_overwritten_unseen(
    live: Cli, running_up: tuple[Cli, Up], monkeypatch: pytest.MonkeyPatch
) -> None:
    live.ok("apply", "-f", "-", "--wait", text=shape("raced"))
    live.ok("apply", "-f", "-", "--wait", text=shape("raced", "Blue"))
    look = declarations.find_generation

    async def overtaken(connection: Connection, expected: Reference, generation: int | None) -> Any:
        found = await look(connection, expected, generation)
        newer = msgspec.convert(yaml.safe_load(shape("raced", "Purple")), Manifest)
        async with connect(running_up[1].ready["natsUrl"], source="tests") as client:
            await client.declare(newer)
        return found

    monkeypatch.setattr(declarations, "find_generation", overtaken)
    ran = live.run("rollback", "raced", "--to", "1", "-o", "json")
    assert ran.status == 1
    assert ran.json[0]["reason"] == "StaleGeneration"
    assert "the resource is at generation 3" in ran.json[0]["message"]
    assert list(declared(live, "raced")) == [1, 2, 3]


def test_without_a_number_it_is_the_newest_other_one_that_was_ready(live: Cli) -> None:
    for color in ("Red", "Blue"):
        live.ok("apply", "-f", "-", "--wait", text=shape("undone", color))
    never_ready = shape("undone", "Green").replace("color", "policy: {paused: true}, color")
    live.ok("apply", "-f", "-", text=never_ready)
    ran = live.ok("rollback", "undone")
    assert ran.out.splitlines()[1].endswith("  generation 2 declared again, which ends the pause")
    live.ok("wait", "undone")
    declared_generations = declared(live, "undone")
    newest = max(declared_generations)
    assert declared_generations[newest] == declared_generations[2]
    live.ok("rollback", "undone", "--wait")
    assert declared(live, "undone")[newest + 1] == declared_generations[1]

    live.ok("apply", "-f", "-", "--wait", text=shape("undone-never"))
    ran = live.run("rollback", "undone-never")
    assert (ran.status, ran.err) == (
        1,
        "error: no other generation of default/Shape/undone-never was ready; choose one with "
        "--to: declared generations: 1\n",
    )


def test_what_is_no_generation_is_wrong_usage(live: Cli) -> None:
    assert live.run("rollback", "foo", "--to", "first").status == 2
    assert live.run("rollback", "never-there", "--to", "1").err == (
        "error: the log has no resource 'never-there'; `reconciler get -A` lists all resources\n"
    )
