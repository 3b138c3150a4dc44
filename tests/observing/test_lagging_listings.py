"""A lagging listing does not lead to a second object if the API generates the ids."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from events.external import ExternalObject
from events.intake import LossCount
from events.log import Action, ActionDecided, ActionSucceeded, LogEvent, SpecDeclared
from events.manifest import Policy
from events.names import ResourceKey
from reconciler.errors import NotDoneError
from reconciler.provider import Capabilities
from tests.bus.histories import event
from tests.observing.test_listing_meanwhile import EXCLUSIVE, Api, Stage

BY_ID = Capabilities(
    idempotency_keys=True, deterministic_names=False, labels=True, conditional_writes=True
)
COUNT = 40


def key(number: int) -> ResourceKey:
    return ResourceKey("team", "Shape", f"r{number}")


def note(number: int) -> ExternalObject:
    return ExternalObject("todo", {}, f"n{number}", "v1")


async def nothing_new(_seconds: float) -> None: ...


def created(number: int) -> list[LogEvent]:
    action = Action(f"a{number}", "k", "Create", 1, "default", "todo", ())
    steps = [
        SpecDeclared(1, "test/v1", "default", "todo", {}, policy=Policy()),
        ActionDecided(action),
        ActionSucceeded(action.action_id, "Create", 1, note(number)),
    ]
    return [event(key(number), version, each) for version, each in enumerate(steps, 1)]


@pytest.fixture
def stage() -> Stage:
    """Return an API that lists none of the objects that resources have created."""
    stage = Stage(Api(), nothing_new, BY_ID)
    position = 0
    for number in range(COUNT):
        for each in created(number):
            position += 1
            stage.models.apply(position, each)
        stage.api.by_id[f"n{number}"] = note(number)
    return stage


async def test_an_unlisted_object_is_read_by_its_id_before_it_is_reported_absent(stage: Stage):
    del stage.api.by_id["n3"], stage.api.by_id["n5"]
    await stage.observer.list_once("default", "Shape")
    assert sorted(filter(None, stage.api.reads)) == sorted(f"n{each}" for each in range(COUNT))
    assert stage.intake.observed.keys() == {key(3), key(5)}
    for number in (3, 5):
        deleted_observation = stage.intake.observed[key(number)]
        assert (
            deleted_observation.object,
            deleted_observation.evidence,
            deleted_observation.absent_uid,
        ) == (None, "Read", f"n{number}")
        assert deleted_observation.losses == LossCount(COUNT, COUNT), (
            "the guard is applied to the listing"
        )


async def test_a_change_that_the_read_shows_is_reported(stage: Stage):
    stage.api.by_id["n7"] = replace(note(7), fields={"color": "Red"})
    await stage.observer.list_once("default", "Shape")
    assert stage.intake.observed.keys() == {key(7)}
    observation = stage.intake.observed[key(7)].object
    assert observation == stage.api.by_id["n7"]


async def test_a_read_reports_the_configuration_and_name_that_it_requested(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    """The resource gets an object with another name in another API during the read."""

    async def read(_self: Api, _name: str, uid: str | None = None) -> ExternalObject | None:
        if uid == "n3":
            row = stage.models.status[str(key(3))]
            row.provider_config, row.external_name, row.uid = "other", "todo-2", "n99"
        return None

    monkeypatch.setattr(Api, "read", read)
    await stage.observer.list_once("default", "Shape")
    observation = stage.intake.observed[key(3)]
    assert (observation.provider_config, observation.external_name, observation.absent_uid) == (
        "default",
        "todo",
        "n3",
    )


async def test_an_object_that_cannot_be_read_is_not_reported_absent(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    async def read(_self: Api, _name: str, _uid: str | None = None) -> ExternalObject | None:
        raise NotDoneError("try again later")

    monkeypatch.setattr(Api, "read", read)
    await stage.observer.list_once("default", "Shape")
    assert not stage.intake.observed


async def test_unlisted_objects_are_read_concurrently(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    limits = replace(EXCLUSIVE.limits, concurrency=4)
    stage.configurations.by_name["default"] = replace(EXCLUSIVE, limits=limits)
    active_reads, max_active_reads = 0, 0

    async def read(_self: Api, _name: str, _uid: str | None = None) -> ExternalObject | None:
        nonlocal active_reads, max_active_reads
        active_reads += 1
        max_active_reads = max(max_active_reads, active_reads)
        await asyncio.sleep(0)
        active_reads -= 1
        return None

    monkeypatch.setattr(Api, "read", read)
    await stage.observer.list_once("default", "Shape")
    assert max_active_reads == limits.concurrency
    assert len(stage.intake.observed) == COUNT
