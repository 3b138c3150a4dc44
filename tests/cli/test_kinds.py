"""`kinds` and `explain`, and errors about unknown kinds and providers."""

from __future__ import annotations

from pathlib import Path

import pytest

from events.stored_content import COMPOSED_KINDS
from reconciler.cli.explain import explain_kind
from reconciler.provider.kind import Kind, installed_kinds
from tests.cli.runner import Cli

CONFIG = (
    "apiVersion: reconciler/v1\nkind: ProviderConfig\nmetadata: {name: mistyped}\n"
    "spec: {provider: resource, endpoint: 'http://127.0.0.1:1'}\n"
)
COLUMNS = 80
PURPOSE_COLUMNS = 47
"""Width that the KIND and EXTRA columns of `kinds` leave on a terminal."""

BADGE = "<!-- applied by tests/scenarios/test_definitions.py -->\n```yaml\n"


def test_a_configuration_for_an_unknown_provider_is_refused(live: Cli) -> None:
    result = live.run("apply", "-f", "-", "--wait", "-o", "json", text=CONFIG)
    assert result.status == 1
    (problem,) = result.json
    assert (problem["accepted"], problem["reason"]) == (False, "Invalid")
    _, found, rest = problem["message"].partition(
        "provider 'resource' has no registered kind (known providers: "
    )
    assert found, problem["message"]
    provider_names = rest.partition("); install")[0].split(", ")
    assert provider_names == sorted(provider_names)
    assert set(provider_names) >= set(installed_kinds().providers), (
        "more may be defined at run time"
    )


def test_explain_shows_types_defaults_and_fields_that_cause_a_replacement(
    local_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.cli.connection.CONNECT_TIMEOUT_SECONDS", 0.2)
    explanation = local_cli.ok("explain", "containers", "-o", "json").json
    fields = {field["field"]: field for field in explanation["spec"]}
    assert fields["image"]["required"]
    assert fields["image"]["replaces"]
    assert fields["mounts.type"]["type"] == "bind | tmpfs | volume"
    assert fields["restart"] | {"about": ""} == {
        "field": "restart",
        "type": "always | no | on-failure | unless-stopped",
        "default": "always",
        "about": "",
    }
    assert explanation["outputs"]
    assert "Changing the labels also replaces" in local_cli.ok("explain", "Container").out
    refused = local_cli.run("explain", "Nothing")
    assert refused.status == 1
    assert refused.err.startswith("error: kind 'Nothing' is not installed here, and no NATS server")


@pytest.mark.parametrize("kind", installed_kinds().values(), ids=lambda kind: kind.name)
def test_each_kind_has_a_short_purpose_and_a_description_of_every_field(kind: Kind) -> None:
    explanation = explain_kind(kind)
    assert explanation.spec
    purpose = explanation.about.partition("\n\n")[0]
    assert 0 < len(purpose) <= PURPOSE_COLUMNS
    fields = (*explanation.spec, *explanation.outputs)
    assert [field.field for field in fields if not field.about.endswith(".")] == []


def test_internal_kinds_are_listed_only_with_all(
    local_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.cli.connection.CONNECT_TIMEOUT_SECONDS", 0.2)

    def list_kinds(*options: str) -> set[str]:
        return {kind["kind"] for kind in local_cli.ok("kinds", "-o", "json", *options).json}

    assert list_kinds("--all") - list_kinds() == COMPOSED_KINDS
    table = local_cli.ok("kinds").out
    assert max(map(len, table.splitlines())) <= COLUMNS
    assert ["Database", "postgres", "A", "PostgreSQL", "database."] in map(
        str.split, table.splitlines()
    )
    assert "ComposedSet" not in table


def test_an_explanation_fits_a_terminal(local_cli: Cli) -> None:
    for name in installed_kinds():
        lines = local_cli.ok("explain", name).out.splitlines()
        assert [line for line in lines if len(line) > COLUMNS] == []


def test_explain_includes_kinds_that_are_defined_at_run_time(live: Cli) -> None:
    page = (Path(__file__).parents[2] / "docs/kinds/kind-definition.md").read_text()
    definition = page.split(BADGE)[1].split("---")[0].replace("Badge", "Medal")
    live.ok("apply", "-f", "-", text=definition.replace("badge", "medal"))
    explanation = live.ok("explain", "medal", "-o", "json").json
    assert (explanation["apiVersion"], [field["field"] for field in explanation["spec"]]) == (
        "medals/v1",
        ["shade"],
    )
    assert explanation["spec"][0]["about"] == (
        "Written to color. Allowed values: Red, Blue. Converted to title case."
    )
    refused = live.run("explain", "Nothing")
    assert refused.err == "error: kind 'Nothing' is unknown; `reconciler kinds` lists the kinds\n"
    near = live.run("explain", "Fil")
    assert near.err == "error: kind 'Fil' is unknown; did you mean File?\n"


def test_explain_includes_kinds_for_http_apis(live: Cli) -> None:
    page = Path(__file__).parents[2] / "examples/kinds/address.yaml"
    live.ok("apply", "-f", "-", text=page.read_text())
    explanation = live.ok("explain", "address.ttl", "-o", "json").json
    assert explanation["apiVersion"] == "addresses/v1"
    assert explanation["spec"] == [
        {
            "field": "ttl",
            "type": "integer 1..604800",
            "default": 300,
            "about": "Time to live, in seconds.",
        }
    ]
    refused = live.run("explain", "address.tll")
    assert "Address has no field 'tll': did you mean ttl?" in refused.err
    invalid_text = page.read_text().replace("= spec.ttl", "= spec.ttl +")
    refused = live.run("apply", "-f", "-", text=invalid_text)
    assert refused.status == 1
    assert "spec.rest.document.ttl: 'spec.ttl +' is not a CEL expression: at 1:11" in refused.err
