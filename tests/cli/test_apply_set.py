"""`apply --set` declares a whole set or nothing, and withdraws omitted resources on request."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.cli.runner import Cli, CommandResult, shape


@dataclass(frozen=True)
class Team:
    """Commands in one namespace."""

    cli: Cli
    namespace: str

    def run(self, *arguments: str, text: str | None = None) -> CommandResult:
        return self.cli.run(*arguments, "-n", self.namespace, text=text)

    def ok(self, *arguments: str, text: str | None = None) -> CommandResult:
        return self.cli.ok(*arguments, "-n", self.namespace, text=text)


@pytest.fixture
def team(live: Cli, unique: str) -> Team:
    """Commands in the test's own namespace."""
    return Team(live, unique.lower())


def documents(*names: str, color: str = "Red") -> str:
    return "\n---\n".join(shape(name, color) for name in names)


def names(team: Team) -> list[str]:
    rows = team.ok("get", "Shape", "-o", "json").json
    existing = (row for row in rows if row["status"]["outcome"] != "Deleted")
    return sorted(row["metadata"]["name"] for row in existing)


def test_a_set_is_declared_and_pruned(team: Team) -> None:
    apply_command = ("apply", "-f", "-", "--set", "shop", "--wait")
    first = team.ok(*apply_command, text=documents("one", "two", "three"))
    assert f"add {team.namespace}/Shape/one" in first.out
    assert names(team) == ["one", "three", "two"]
    assert "Composed" not in team.ok("get").out, "internal kinds are hidden"
    assert "ComposedSet" in team.ok("get", "--all").out
    assert "ManifestSet-shop" in team.ok("get", "ComposedSet").out
    history = team.ok("history", "one").out
    assert f"part of {team.namespace}/ManifestSet/shop: standard input:1" in history

    kept_result = team.ok(*apply_command, text=documents("one", color="Blue"))
    assert f"change {team.namespace}/Shape/one" in kept_result.out
    assert f"keep {team.namespace}/Shape/two, which no file declares" in kept_result.out
    assert names(team) == ["one", "three", "two"]

    dry = team.ok(
        "apply", "-f", "-", "--set", "shop", "--prune", "--dry-run", text=documents("one")
    )
    assert f"withdraw {team.namespace}/Shape/two" in dry.out
    planning = ("apply", "-f", "-", "--set", "shop", "--dry-run=server")
    assert team.run(*planning, text=documents("one", color="Blue")).status == 0
    assert team.run(*planning, "--prune", text=documents("one", color="Blue")).status == 2
    assert names(team) == ["one", "three", "two"]

    team.ok(*apply_command, "--prune", text=documents("one", color="Blue"))
    assert names(team) == ["one"]
    [reply] = team.ok(
        *apply_command, "--prune", "-o", "json", text=documents("one", color="Blue")
    ).json
    assert (reply["reason"], reply["outcome"]) == ("AsDeclared", "Converged")

    team.ok("delete", "ManifestSet/shop", "--wait")
    assert names(team) == []


def test_a_set_whose_content_was_withdrawn_can_be_applied_again(team: Team) -> None:
    apply_command = ("apply", "-f", "-", "--set", "lost", "--wait")
    team.ok(*apply_command, text=documents("one", "two"))
    contents = team.ok("get", "ComposedContent", "-o", "name").out.split()
    team.ok("delete", *contents, "--wait")

    kept_result = team.ok(*apply_command, text=documents("one", color="Blue"))
    assert f"keep {team.namespace}/Shape/two, which no file declares" in kept_result.out
    assert names(team) == ["one", "two"]
    assert team.ok("get", "ComposedContent", "-o", "name").out.split()


def test_an_invalid_set_declares_nothing_and_a_mass_withdrawal_needs_consent(team: Team) -> None:
    invalid_result = team.run(
        "apply", "-f", "-", "--set", "bad", text=documents("good") + "\n---\nkind: 7\n"
    )
    assert invalid_result.status == 1
    assert invalid_result.err.startswith(
        "error: nothing was declared: standard input, document 2: "
    )
    elsewhere = shape("there").replace("name: there", "name: there, namespace: elsewhere")
    other_result = team.run("apply", "-f", "-", "--set", "bad", text=elsewhere)
    assert f"must be in the namespace of its set, {team.namespace!r}" in other_result.err
    assert team.run("apply", "-f", "-", "--prune", text=documents("good")).status == 2
    assert team.run("apply", "-f", "-", "--set", "No Name", text=documents("good")).status == 2
    assert f"namespace {team.namespace} has never had a resource" in team.run("get", "Shape").err

    many = [f"many-{number}" for number in range(12)]
    team.ok("apply", "-f", "-", "--set", "many", "--wait", text=documents(*many))
    refused = team.run("apply", "-f", "-", "--set", "many", "--prune", text=documents(*many[:1]))
    assert refused.status == 1
    resources_of_set = f"resources of {team.namespace}/ManifestSet/many"
    assert f"11 of the 12 {resources_of_set} would be withdrawn" in refused.err
    assert len(names(team)) == 12
    text = documents(*many[:1])
    team.ok("apply", "-f", "-", "--set", "many", "--prune", "--yes", "--wait", text=text)
    assert names(team) == many[:1]
    team.ok("delete", "ManifestSet/many", "--wait")


def test_48_a_plan_shows_the_move_of_a_resource_between_two_sets(team: Team) -> None:
    def apply(name: str, *members: str, options: tuple[str, ...] = ("--prune",)) -> CommandResult:
        command = ("apply", "-f", "-", "--set", name, *options)
        return team.run(*command, text=documents(*members))

    planning = ("--prune", "--dry-run=server")
    mover = f"{team.namespace}/Shape/mover"
    old, new = (f"{team.namespace}/ManifestSet/{each}" for each in ("old", "new"))
    assert apply("old", "mover", "stay", options=("--wait",)).status == 0
    plan = apply("new", "mover", options=planning)
    assert (plan.status, f"move {mover} from {old}" in plan.out) == (2, True)
    apply("new", "mover")
    team.ok("wait", "ManifestSet/new", "--for", "Degraded")
    plan = apply("old", "stay", options=planning)
    assert (plan.status, f"move {mover} to {new}" in plan.out) == (2, True)
    assert "withdraw" not in plan.out
    apply("old", "stay")
    team.ok("wait", "ManifestSet/new", "--for", "Converged")
    team.ok("wait", "ManifestSet/old", "--for", "Converged")
    assert names(team) == ["mover", "stay"]
    assert "Delete" not in team.ok("history", "mover").out


def test_48_a_plan_shows_a_renamed_resource_of_a_set(team: Team) -> None:
    command = ("apply", "-f", "-", "--set", "names", "--prune")
    team.ok(*command, "--wait", text=documents("former", "beside"))
    renamed = shape("new").replace(
        "name: new", "name: new, annotations: {reconciler/moved-from: former}"
    )
    text = "\n---\n".join((renamed, shape("beside")))
    plan = team.run(*command, "--dry-run=server", text=text)
    new, former = (f"{team.namespace}/Shape/{name}" for name in ("new", "former"))
    assert (plan.status, f"move {new} from {former}" in plan.out) == (2, True)
    assert "withdraw" not in plan.out
    team.ok(*command, "--wait", text=text)
    assert names(team) == ["beside", "new"]
    assert "Create" not in team.ok("history", "new").out
