"""A dead API: its resources are shown with unknown readiness, at two events for each outage."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from events.log import (
    ActionDecided,
    ApiFellSilent,
    ApiSilenceEnded,
    LogEvent,
    OutcomeRecorded,
    TargetObserved,
)
from events.manifest import Manifest, Metadata
from events.names import ResourceKey
from events.provider_config import Breaker
from infra.providers.file import FILE
from projections.read_models import rebuild
from projections.status import StatusRow
from reconciler.errors import WaitTimeoutError
from reconciler.ports import StoredEvent
from reconciler.provider.kind import KindRegistry
from reconciler.resource import api_silence
from reconciler.roles.gate import api_gate
from shapes_api.kinds.shapes import SHAPE
from tests.faulty_api import FaultyApi
from tests.scenarios.harness import World, api_config, every, only, shape

FOO = shape("foo")
BAR = ResourceKey("default", "File", "bar")
BREAKER = Breaker(failures=3, initial_seconds=0.3, max_seconds=0.6)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[FaultyApi]:
    """An API of this test, which may be stopped."""
    process = FaultyApi()
    await process.start(tmp_path / "own-api")
    yield process
    await process.stop()


@pytest.fixture(autouse=True)
def _short_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_silence, "MIN_SILENT_SECONDS", 0.5)
    monkeypatch.setattr(api_gate, "MIN_SILENT_SECONDS", 0.5)


async def until_ready_is(world: World, status: str, key: ResourceKey = FOO) -> StatusRow:
    async def is_shown() -> StatusRow | None:
        row = await world.client.status(key)
        shown = [] if row is None else [each for each in row.conditions if each.type == "Ready"]
        return row if [each.status for each in shown] == [status] else None

    return await world.until(is_shown, f"{key} is shown with Ready {status}")


async def whole_log(world: World) -> list[StoredEvent]:
    return [each async for batch in world.client.replay() for each in batch]


def transitions(events: list[StoredEvent]) -> list[LogEvent]:
    silence = (ApiFellSilent, ApiSilenceEnded)
    return [each.event for each in events if isinstance(each.event.data, silence)]


async def test_a_dead_api_adds_two_events_and_its_resources_are_shown_as_unknown(
    bare_world: World, api: FaultyApi, tmp_path: Path
) -> None:
    world, port = bare_world, api.port
    await world.start_reconciler()
    await world.configure(api_config(api.url, breaker=BREAKER))
    for name in ("foo", "bar"):
        await world.declare(name)
    for name in ("foo", "bar"):
        await world.until_outcome(name, "Converged")
    assert await world.client.silent_since("default") is None
    histories = {name: await world.history(name) for name in ("foo", "bar")}

    await api.stop()
    row = await until_ready_is(world, "Unknown")
    since = await world.client.silent_since("default")
    assert since is not None
    assert row.not_ready is not None
    assert f"last seen {since:%Y-%m-%dT%H:%M:%SZ}" in row.not_ready.message
    assert (row.outcome, row.not_ready.reason) == ("Converged", "ApiSilent")
    rows = {each.name: each for each in await world.client.statuses("default")}
    assert all(each.not_ready is not None for each in rows.values())
    with pytest.raises(WaitTimeoutError, match="ApiSilent: last seen"):
        await world.client.wait_for(shape("foo"), generation=1, timeout_seconds=0.5)
    outcome = await world.client.wait_for(shape("foo"), generation=1, ready=False)
    assert outcome.outcome == "Converged"

    await world.restart_reconciler()
    await world.declare("new")
    await world.until_outcome("new", "Degraded")
    assert len(transitions(await whole_log(world))) == 1

    await api.start(tmp_path / "own-api", port=port)
    await until_ready_is(world, "True")
    await world.client.wait_for(shape("foo"), generation=1)
    await world.until_outcome("new", "Converged")
    await world.until_settled()
    log = await whole_log(world)
    kinds = [type(each.data) for each in transitions(log)]
    assert kinds == [ApiFellSilent, ApiSilenceEnded]
    for name, history in histories.items():
        assert await world.history(name) == history, "the outage is not in its history"

    async def are_restored() -> bool:
        return dict(rebuild(log).rows()) == await world.rows()

    await world.until(are_restored, "replay restores the rows")


async def test_a_resource_waits_for_a_target_whose_readiness_is_unknown(
    bare_world: World, api: FaultyApi, tmp_path: Path
) -> None:
    """Only the target's API is dead; the referrer is at another one."""
    world, port = bare_world, api.port
    world.kinds = KindRegistry([SHAPE, FILE])
    await world.start_reconciler()
    await world.configure(api_config(api.url, breaker=BREAKER))
    root = tmp_path / "root"
    root.mkdir()
    (root / ".reconciler-root").touch()
    await world.configure(api_config(root.as_uri(), provider="file"), name="alive")
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")
    await api.stop()
    await until_ready_is(world, "Unknown")

    content = {"$ref": "Shape/foo", "field": "name"}
    fields = {"content": content, "providerConfigRef": {"name": "alive"}}
    await world.declare_all([Manifest("files/v1", "File", Metadata("bar"), fields)])

    async def is_reported() -> list[TargetObserved]:
        return every(TargetObserved, await world.facts(BAR))

    await world.until(is_reported, "the target was reported")
    outcome = await world.until_outcome(BAR, "Waiting", reason="NotReady")
    assert "its API does not respond" in outcome.message
    assert every(ActionDecided, await world.facts(BAR)) == []
    fell_silent = only(TargetObserved, await world.facts(BAR)).state.api_event

    await api.start(tmp_path / "own-api", port=port)
    await until_ready_is(world, "True")
    await world.until_outcome(BAR, "Converged")
    reported = [each.state.api_event for each in every(TargetObserved, await world.facts(BAR))]
    assert [each.id for each in transitions(await whole_log(world))] == reported
    assert reported[0] == fell_silent
    assert every(OutcomeRecorded, await world.facts("foo"))[-1].outcome == "Converged"


async def test_the_silence_of_an_api_without_listings_ends_with_its_last_user(
    bare_world: World, api: FaultyApi
) -> None:
    world, capabilities = bare_world, SHAPE.capabilities
    assert capabilities is not None
    world.kinds = KindRegistry(
        [
            dataclasses.replace(
                SHAPE, capabilities=msgspec.structs.replace(capabilities, listing=False)
            )
        ]
    )
    await world.start_reconciler()
    await world.configure(api_config(api.url, breaker=BREAKER))
    await world.declare("foo", policy={"mode": "ObserveOnly"})
    await world.until_outcome("foo", "Drifted")
    await api.stop()

    async def is_silent() -> bool:
        return await world.client.silent_since("default") is not None

    async def is_over() -> bool:
        return not await is_silent()

    await world.until(is_silent, "the silence is recorded")
    await world.withdraw("foo")
    await world.until(is_over, "nothing is read, so the silence ends")
    kinds = [type(each.data) for each in transitions(await whole_log(world))]
    assert kinds == [ApiFellSilent, ApiSilenceEnded]
