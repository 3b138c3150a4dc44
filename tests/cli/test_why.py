"""`why`, as people ask it."""

from __future__ import annotations

from pathlib import Path

from tests.cli.runner import Cli, shape

BADGE = "<!-- applied by tests/scenarios/test_definitions.py -->"


def test_29_why_a_field_has_its_value(live: Cli) -> None:
    for color in ("Red", "Green"):
        live.write("why.yaml", shape("why-foo", color))
        live.ok("apply", "-f", "why.yaml", "--wait")
    ran = live.ok("why", "why-foo", "color")
    lines = ran.out.splitlines()
    who = lines[0].partition("because ")[2].partition(" ")[0]
    assert lines[0] == (
        f'default/Shape/why-foo: color is "Green" because {who} declared it in generation 2.'
    )
    assert lines[1].split() == ["STATE", "VALUE", "SINCE", "POSITION", "CAUSE"]
    assert lines[2].split()[:2] == ["desired", '"Green"']
    assert lines[2].endswith(f"  {who} declared it")
    assert lines[3].split()[0] == '"Red"'
    assert f"{who} declared generation 2, which changes color: Red → Green" in ran.out

    lines = live.ok("why", "why-foo").out.splitlines()
    assert lines[0] == (
        f"default/Shape/why-foo is as declared: {who} declared generation 2 and the worker updated "
        "the object."
    )

    ran = live.ok("why", "Shape/why-foo", "-o", "json")
    assert ran.json["answer"] == lines[0]
    assert [each["event"] for each in ran.json["chain"]] == [
        "SpecDeclared",
        "ActionDecided",
        "ActionSucceeded",
        "OutcomeRecorded",
    ]


def test_a_field_of_a_defined_kind_has_the_declared_value(live: Cli) -> None:
    page = (Path(__file__).parents[2] / "docs/kinds/kind-definition.md").read_text()
    manifests = page.split(BADGE)[1].split("```")[1].removeprefix("yaml\n")
    api = live.ok("get", "ProviderConfig", "default", "-o", "json").json["spec"]["endpoint"]
    text = manifests.replace("Badge", "Token").replace("badge", "token")
    live.ok("apply", "-f", "-", "--wait", text=text.replace("http://127.0.0.1:8080", api))
    lines = live.ok("why", "Token/welcome", "shade").out.splitlines()
    who = lines[0].partition("because ")[2].partition(" ")[0]
    assert lines[0] == (
        f'default/Token/welcome: shade is "red" because {who} declared it in generation 1; the '
        "kind resolves the spec to the fields color, type."
    )
    assert lines[2].split()[:2] == ["desired", '"red"']
    assert [line.split() for line in lines[3:5]] == [
        ["applied", "never", "set"],
        ["observed", "never", "set"],
    ]
    color = live.ok("why", "Token/welcome", "color").out.splitlines()[0]
    assert color.endswith('color is "Red" because the decider resolved it in generation 1.')


def test_a_field_that_never_was_and_a_resource_that_never_was(live: Cli) -> None:
    live.write("why.yaml", shape("why-bar"))
    live.ok("apply", "-f", "why.yaml", "--wait")
    ran = live.run("why", "why-bar", "colour")
    assert (ran.status, ran.err) == (
        1,
        (
            "error: default/Shape/why-bar never had a field 'colour'; `reconciler explain Shape` "
            "lists the fields\n"
        ),
    )
    ran = live.run("why", "why-nobody")
    assert ran.status == 1
    assert "the log has no resource 'why-nobody'" in ran.err
