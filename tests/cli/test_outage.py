"""The commands that show and await a resource, while its API does not respond."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shapes_api import ExampleApi
from tests.cli.runner import Cli, wait_until

CONFIG = (
    "apiVersion: reconciler/v1\nkind: ProviderConfig\nmetadata: {{name: {name}}}\n"
    "spec: {{provider: shapes, endpoint: '{url}', resyncSeconds: 0.5, "
    "breaker: {{initialSeconds: 0.3, maxSeconds: 0.6}}}}\n"
)
SHAPE = (
    "apiVersion: shapes/v1\nkind: Shape\nmetadata: {{name: dead, namespace: {name}}}\n"
    "spec: {{providerConfigRef: {{name: {name}}}, type: Square, color: Red}}\n"
)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ExampleApi]:
    """An API of this test, which may be killed."""
    process = ExampleApi()
    asyncio.run(process.start(tmp_path / "api"))
    yield process
    asyncio.run(process.stop())


def test_an_outage_is_shown_as_unknown_readiness_and_ends_with_the_first_response(
    live: Cli, api: ExampleApi, unique: str, tmp_path: Path
) -> None:
    name = unique.lower()
    text = CONFIG.format(name=name, url=api.url) + "---\n" + SHAPE.format(name=name)
    live.ok("apply", "-f", "-", "--wait", text=text)
    get = ("get", "Shape/dead", "-n", name)

    def has_readiness(status: str) -> Any:
        def is_shown(row: Any) -> bool:
            conditions = {each["type"]: each for each in row["status"]["conditions"]}
            return conditions["Ready"]["status"] == status

        return is_shown

    port = api.port
    asyncio.run(api.kill())
    row = wait_until(live, get, has_readiness("Unknown"))
    (ready,) = [each for each in row["status"]["conditions"] if each["type"] == "Ready"]
    assert ready["reason"] == "ApiSilent"
    assert ready["message"].startswith("last seen 20")
    last_seen = ready["message"][: len("last seen 2026-01-01T00:00:00Z")]
    for command in ("get", "describe", "why"):
        output = " ".join(live.ok(command, "Shape/dead", "-n", name).out.split())
        assert last_seen in output, f"{command}: {output}"
    result = live.run("wait", "Shape/dead", "-n", name, "--timeout", "300ms")
    assert (result.status, last_seen in result.out + result.err) == (3, True), result
    live.ok("wait", "Shape/dead", "-n", name, "--for", "Converged")

    asyncio.run(api.start(tmp_path / "api", port=port))
    live.ok("wait", "Shape/dead", "-n", name)
    wait_until(live, get, has_readiness("True"))
    history = live.ok("history", f"ProviderConfig/{name}", "-n", "system", "-o", "json").out
    assert (history.count("ApiFellSilent"), history.count("ApiSilenceEnded")) == (1, 1), history
