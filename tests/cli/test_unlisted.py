"""Output about resources whose API does not complete a listing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

from events.intake import ApiReported, ListingFailure
from events.provider_config import config_key
from infra.bus.intake import JetStreamIntakeWriter
from reconciler.ports import IntakeMessageOut
from reconciler.wiring import open_connection
from tests.cli.runner import Cli, Up, shape, wait_until

SINCE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
FAILURE = ListingFailure(SINCE, "GET /shapes?page=2: 500")


def config(api_url: str) -> str:
    """Return a configuration whose API is listed only once during the test."""
    return (
        "apiVersion: reconciler/v1\nkind: ProviderConfig\nmetadata: {name: half}\n"
        f"spec: {{provider: shapes, endpoint: '{api_url}', resyncSeconds: 3600}}\n"
    )


async def publish_reports(url: str, reports: Sequence[ApiReported]) -> None:
    """Publish reports as an observer does."""
    async with open_connection(url) as nc:
        for number, report in enumerate(reports):
            key, message_id = config_key("half"), f"unlisted-{number}-{report.state}"
            await JetStreamIntakeWriter(nc, "observer").publish(
                [IntakeMessageOut("result", key, report, message_id)]
            )


def test_the_failed_listings_of_a_kind_are_shown_everywhere(
    live: Cli, running_up: tuple[Cli, Up]
) -> None:
    ready = running_up[1].ready
    half = shape("half").replace("spec: {", "spec: {providerConfigRef: {name: half}, ")
    live.ok("apply", "-f", "-", "--wait", text=f"{config(ready['apiUrl'])}---\n{half}")
    assert "are not detected" not in live.ok("get", "Shape", "half").out
    failed = ApiReported("ListingsFailed", "o1", SINCE, 1, kind="Shape", failure=FAILURE)
    asyncio.run(publish_reports(ready["natsUrl"], [failed]))
    wait_until(
        live,
        ("get", "ProviderConfig/half", "-n", "system"),
        lambda row: row["status"]["outcome"] == "Degraded",
    )

    output = live.ok("get", "ProviderConfig", "-n", "system").out
    assert "ListingsFailed" in output
    assert "no listing of Shape has completed since 2026-01-02T03:04:05Z" in output
    for command in ("get", "describe"):
        text = live.ok(command, "Shape/half").out
        assert "Converged" in text
        assert (
            "drift and deletions are not detected: no listing has completed since 2026-01-02"
            in text
        )
    status = live.ok("get", "Shape/half", "-o", "json").json["status"]
    assert status["listingFailure"] == {
        "since": "2026-01-02T03:04:05Z",
        "message": "GET /shapes?page=2: 500",
    }
    description = live.ok("describe", "Shape/half", "-o", "json").json
    assert description["listingFailure"] == status["listingFailure"]
    checks = {check["check"]: check for check in live.run("doctor", "-o", "json").json}
    assert checks["API half"]["status"] == "fail"
    assert "no listing of Shape has completed since" in checks["API half"]["details"]
    assert checks["API default"]["status"] == "ok"

    resumed = ApiReported("ListingsResumed", "o1", SINCE, 1, kind="Shape")
    asyncio.run(publish_reports(ready["natsUrl"], [resumed]))
    wait_until(
        live,
        ("get", "ProviderConfig/half", "-n", "system"),
        lambda row: row["status"]["outcome"] == "Converged",
    )
    assert "are not detected" not in live.ok("describe", "Shape/half").out
    live.ok("delete", "Shape", "half", "--wait")
    live.ok("delete", "ProviderConfig", "half", "-n", "system", "--wait")
