"""Kinds and providers that the roles do not have: refused, with what to do."""

from __future__ import annotations

from pathlib import Path

from reconciler.cli.explain import explanation_of
from reconciler.provider.kind import installed_kinds
from tests.cli.runner import Cli, Inside, up

CONFIG = (
    "apiVersion: reconciler/v1\nkind: ProviderConfig\nmetadata: {name: mistyped}\n"
    "spec: {provider: resource, endpoint: 'http://127.0.0.1:1'}\n"
)
BLOB = "apiVersion: blobs/v1\nkind: Blob\nmetadata: {name: a}\nspec: {}\n"


def test_a_configuration_of_an_unknown_provider_is_refused(live: Cli) -> None:
    ran = live.run("apply", "-f", "-", "--wait", "-o", "json", text=CONFIG)
    assert ran.status == 1
    (told,) = ran.json
    assert (told["accepted"], told["reason"]) == (False, "Invalid")
    assert (
        "no kind of provider 'resource' is registered here, only of docker, file, jetstream, "
        "nftables, postgres, records, shapes" in (told["message"])
    )


def test_a_kind_that_is_installed_while_up_runs_needs_a_restart_and_that_is_said(cli: Cli) -> None:
    inside = Inside(cli.folder)
    with up(cli, "--no-api"):
        (before,) = inside.run("apply", "-f", "-", "-o", "json", text=BLOB).json
        assert "kind 'Blob' is not registered here: install its package" in before["message"]

        info = "blobs-1.0.dist-info"  # as pip writes it, into a folder where `up` looks for modules
        cli.write(f"{info}/METADATA", "Metadata-Version: 2.1\nName: blobs\nVersion: 1.0\n")
        cli.write(f"{info}/entry_points.txt", "[reconciler.kinds]\nBlob = blobs:BLOB\n")
        message = before["message"]
        while message == before["message"]:  # the roles look again every few seconds
            (after,) = inside.run("apply", "-f", "-", "-o", "json", text=BLOB).json
            message = after["message"]
        assert "installed since this role started: Blob" in message
        assert "restart them" in message


def test_explain_shows_types_defaults_and_what_replaces(inside: Cli) -> None:
    told = inside.ok("explain", "containers", "-o", "json").json
    fields = {each["field"]: each for each in told["spec"]}
    assert fields["image"]["required"]
    assert fields["image"]["replaces"]
    assert fields["mounts.type"]["type"] == "bind | tmpfs | volume"
    assert fields["restart"] | {"about": ""} == {
        "field": "restart",
        "type": "always | no | on-failure | unless-stopped",
        "default": "always",
        "about": "",
    }
    assert told["outputs"]
    assert "A change of its labels replaces" in inside.ok("explain", "Container").out
    refused = inside.run("explain", "Nothing")
    assert refused.status == 1
    assert refused.err.startswith("error: kind 'Nothing' is not installed here, and cannot reach")


def test_every_installed_kind_can_be_explained() -> None:
    for kind in installed_kinds().values():
        explained = explanation_of(kind)
        assert explained.spec, kind.name
        assert all(each.type != "any" or each.field for each in explained.spec)


def test_a_kind_that_was_defined_at_run_time_is_explained_too(live: Cli) -> None:
    page = (Path(__file__).parents[2] / "docs/kinds/kind-definition.md").read_text()
    defined = page.split("```yaml\n")[1].split("---")[0].replace("Badge", "Medal")
    live.ok("apply", "-f", "-", text=defined.replace("badge", "medal"))
    told = live.ok("explain", "medal", "-o", "json").json
    assert (told["apiVersion"], [each["field"] for each in told["spec"]]) == (
        "medals/v1",
        ["shade"],
    )
    assert told["spec"][0]["about"] == "Becomes color. One of Red, Blue. Normalized: Title."
    refused = live.run("explain", "Nothing")
    assert "kind 'Nothing' is not known here" in refused.err
