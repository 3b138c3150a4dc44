"""The first read after a declaration that creates nothing is reported, even if it is empty."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from events.log import ExternalObserved, LogEvent, OutcomeRecorded, SpecDeclared
from events.manifest import Policy
from events.names import ResourceKey
from events.provider_config import Scope
from reconciler.provider import Capabilities
from tests.bus.histories import event
from tests.observing.test_listing_meanwhile import EXCLUSIVE, Api, Stage

KEY = ResourceKey("team", "Shape", "wanted")
CAPABILITIES = Capabilities(
    idempotency_keys=True, deterministic_names=True, labels=True, conditional_writes=True
)
BLIND = replace(CAPABILITIES, listing=False)
BY_ID = replace(CAPABILITIES, deterministic_names=False)


async def nothing_new(_seconds: float) -> None: ...


def waiting_stage(capabilities: Capabilities = CAPABILITIES, **scope: Any) -> Stage:
    """Return a stage with a resource awaiting the first listing of an API with another object."""
    stage = Stage(Api("other"), nothing_new, capabilities)
    stage.configurations.by_name["default"] = replace(EXCLUSIVE, scope=Scope(**scope))
    policy = Policy(mode="Absent")
    apply(stage, 1, SpecDeclared(1, "test/v1", "default", "wanted", {}, policy=policy))
    apply(stage, 2, OutcomeRecorded("Waiting", 1, "AwaitingListing"))
    return stage


def apply(stage: Stage, version: int, data: Any) -> None:
    existing_event: LogEvent = event(KEY, version, data)
    stage.models.apply(version, existing_event)


async def list_once(stage: Stage) -> list[tuple[object, str]]:
    stage.intake.observed.clear()
    await stage.observer.list_once("default", "Shape")
    observation = stage.intake.observed.get(KEY)
    return [] if observation is None else [(observation.object, observation.evidence)]


@pytest.mark.parametrize("capabilities", [CAPABILITIES, BY_ID])
async def test_the_first_listing_reports_that_the_object_is_missing(
    capabilities: Capabilities,
) -> None:
    stage = waiting_stage(capabilities)
    assert await list_once(stage) == [(None, "CompleteListing")]
    apply(stage, 3, ExternalObserved("default", "wanted", None, "CompleteListing", 1))
    apply(stage, 4, OutcomeRecorded("Converged", 1, "Absent"))
    assert await list_once(stage) == [], "an idle fleet causes no messages"


@pytest.mark.parametrize("scope", [{"prefix": "other"}, {"labels": {"team": "a"}}])
async def test_an_object_outside_of_the_scope_is_read(scope: dict[str, Any]) -> None:
    stage = waiting_stage(**scope)
    stage.api.shown = ()
    assert await list_once(stage) == [(None, "Read")]
    assert stage.api.reads == [None]


async def test_an_object_in_an_api_without_listings_is_read() -> None:
    stage = waiting_stage(BLIND)
    assert await list_once(stage) == [(None, "Read")]
    apply(stage, 3, ExternalObserved("default", "wanted", None, "Read", 1))
    apply(stage, 4, OutcomeRecorded("Converged", 1, "Absent"))
    assert await list_once(stage) == []
