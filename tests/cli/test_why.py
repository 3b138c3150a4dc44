"""`why`, as people ask it."""

from __future__ import annotations

from tests.cli.runner import Cli, shape


def test_29_why_a_field_has_its_value(live: Cli) -> None:
    for color in ("Red", "Green"):
        live.write("why.yaml", shape("why-foo", color))
        live.ok("apply", "-f", "why.yaml", "--wait")
    ran = live.ok("why", "why-foo", "color")
    lines = ran.out.splitlines()
    assert lines[0] == "default/Shape/why-foo color"
    assert lines[1].startswith('  wanted    "Green"  since 20')
    assert "by SpecDeclared of cli:" in lines[1]
    assert lines[2].strip().startswith('"Red"')
    assert "SpecDeclared generation 2: color: Red -> Green" in ran.out

    ran = live.ok("why", "Shape/why-foo", "-o", "json")
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
        "error: default/Shape/why-bar never had a field 'colour': `reconciler explain Shape`\n",
    )
    ran = live.run("why", "why-nobody")
    assert ran.status == 1
    assert "the log knows no resource 'why-nobody'" in ran.err
