"""`why`, as people ask it."""

from __future__ import annotations

from tests.cli.runner import Cli, shape


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
