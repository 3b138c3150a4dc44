"""`why` on a running stack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from tests.cli.runner import Cli, shape, wait_until

BADGE = "<!-- applied by tests/scenarios/test_definitions.py -->"


def test_29_why_explains_the_value_of_a_field(live: Cli) -> None:
    for color in ("Red", "Green"):
        live.write("why.yaml", shape("why-foo", color))
        live.ok("apply", "-f", "why.yaml", "--wait")
    result = live.ok("why", "why-foo", "color")
    lines = result.out.splitlines()
    actor = lines[0].partition("because ")[2].partition(" ")[0]
    assert lines[0] == (
        f'default/Shape/why-foo: color is "Green" because {actor} declared it in generation 2.'
    )
    assert lines[1].split() == ["STATE", "VALUE", "SINCE", "POSITION", "CAUSE"]
    assert lines[2].split()[:2] == ["desired", '"Green"']
    assert lines[2].endswith(f"  {actor} declared it")
    assert lines[3].split()[0] == '"Red"'
    assert f"{actor} declared generation 2, which changes color: Red → Green" in result.out

    lines = live.ok("why", "why-foo").out.splitlines()
    assert lines[0] == (
        f"default/Shape/why-foo is as declared: {actor} declared generation 2 and the worker "
        "updated the object."
    )

    result = live.ok("why", "Shape/why-foo", "-o", "json")
    assert result.json["answer"] == lines[0]
    assert [line["event"] for line in result.json["chain"]] == [
        "SpecDeclared",
        "ActionDecided",
        "ActionSucceeded",
        "OutcomeRecorded",
    ]


def test_why_explains_a_field_of_a_defined_kind_by_its_declared_value(live: Cli) -> None:
    page = (Path(__file__).parents[2] / "docs/kinds/kind-definition.md").read_text()
    manifests = page.split(BADGE)[1].split("```")[1].removeprefix("yaml\n")
    api = live.ok("get", "ProviderConfig", "default", "-o", "json").json["spec"]["endpoint"]
    text = manifests.replace("Badge", "Token").replace("badge", "token")
    live.ok("apply", "-f", "-", "--wait", text=text.replace("http://127.0.0.1:8080", api))
    lines = live.ok("why", "Token/welcome", "shade").out.splitlines()
    actor = lines[0].partition("because ")[2].partition(" ")[0]
    assert lines[0] == (
        f'default/Token/welcome: shade is "red" because {actor} declared it in generation 1; the '
        "kind resolves the spec to the fields color, type."
    )
    assert lines[2].split()[:2] == ["desired", '"red"']
    assert [line.split() for line in lines[3:5]] == [
        ["applied", "never", "set"],
        ["observed", "never", "set"],
    ]
    color = live.ok("why", "Token/welcome", "color").out.splitlines()[0]
    assert color.endswith('color is "Red" because the decider resolved it in generation 1.')


def test_why_for_an_unknown_field_or_resource_is_an_error(live: Cli) -> None:
    live.write("why.yaml", shape("why-bar"))
    live.ok("apply", "-f", "why.yaml", "--wait")
    result = live.run("why", "why-bar", "colour")
    assert (result.status, result.err) == (
        1,
        (
            "error: default/Shape/why-bar has never had a field 'colour'; "
            "`reconciler explain Shape` lists the fields\n"
        ),
    )
    result = live.run("why", "why-nobody")
    assert result.status == 1
    assert "the log has no resource 'why-nobody'" in result.err


PEBBLE = """
apiVersion: reconciler/v1
kind: KindDefinition
metadata: {name: Pebble, namespace: system}
spec:
  apiVersion: pebbles/v1
  provider: pebbles
  over: Shape
  fields:
    shade: {to: color, normalize: [Title], values: [Red, Blue]}
    size: {to: type, default: Circle, values: [Circle, Square]}
---
apiVersion: reconciler/v1
kind: ProviderConfig
metadata: {name: pebbles, namespace: system}
spec: {provider: pebbles, endpoint: "ENDPOINT", scope: {prefix: pebble-}, resyncSeconds: 1}
---
apiVersion: pebbles/v1
kind: Pebble
metadata: {name: pebble-one}
spec: {providerConfigRef: {name: pebbles}, shade: red}
"""


def test_why_explains_a_field_of_a_kind_defined_at_run_time(live: Cli) -> None:
    endpoint = live.ok("get", "ProviderConfig", "default", "-o", "json").json["spec"]["endpoint"]
    manifests = PEBBLE.replace("ENDPOINT", endpoint)
    live.ok("apply", "-f", "-", "--wait", text=manifests)
    assert live.ok("plan", "-f", "-", text=manifests).out.startswith("Plan: 3 unchanged ")
    for words in (("Pebble/pebble-one",), ("Pebble", "pebble-one"), ("pebble", "pebble-one")):
        output = live.ok("why", *words, "shade").out
        assert output.startswith('default/Pebble/pebble-one: shade is "red" because ')
    assert 'size is "Circle" because' in live.ok("why", "Pebble/pebble-one", "size").out
    assert 'color is "Red" because' in live.ok("why", "Pebble/pebble-one", "color").out

    unowned = ("get", "-A", "--all", "--outcome", "Unowned")  # the underlying kind also lists it
    rows = wait_until(live, unowned, lambda rows: any(map(is_pebble, rows)))
    [row] = filter(is_pebble, rows)
    assert row["status"]["reason"] == "OwnedByAnother"
    assert "names default/Pebble/pebble-one;" in row["status"]["message"]

    body = {"name": "pebble-two", "type": "Circle", "color": "Red"}
    httpx.post(f"{endpoint}/shapes", json=body).raise_for_status()
    undeclared = ("get", "Pebble", "pebble-two")  # its kind is not installed here
    live.ok("wait", "Pebble/pebble-one", "--for", "Converged")
    rows = wait_until(live, unowned, lambda rows: any(row["kind"] == "Pebble" for row in rows))
    assert live.ok(*undeclared, "-o", "json").json["status"]["outcome"] == "Unowned", rows
    live.ok("finalizer", "add", "Pebble", "pebble-one", "billing/invoice")
    live.ok("finalizer", "remove", "Pebble", "pebble-one", "billing/invoice")
    result = live.run("finalizer", "add", "pebble-one", "pebbles", "billing/invoice")
    assert result.status == 2
    assert "finalizer: use NAME FINALIZER, KIND NAME FINALIZER" in result.err


def is_pebble(row: dict[str, Any]) -> bool:
    return row["metadata"]["name"] == "pebble-one"


def test_why_explains_a_field_of_a_composed_kind(live: Cli) -> None:
    live.ok("apply", "-f", "-", text=COMPOSED)
    live.ok("wait", "Deployment/why-field", "--for", "Converged", "--timeout", "30s")
    result = live.ok("why", "Deployment/why-field", "replicas")
    assert "replicas is 2 because " in result.out


COMPOSED = """
apiVersion: composition/v1
kind: Deployment
metadata: {name: why-field}
spec:
  providerConfigRef: {name: composition}
  replicas: 2
  template:
    spec: {providerConfigRef: {name: nowhere}, image: "web:1"}
"""
