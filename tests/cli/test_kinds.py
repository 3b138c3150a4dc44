"""Kinds and providers that the roles do not have: refused, with what to do."""

from __future__ import annotations

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
        "records, shapes" in (told["message"])
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
