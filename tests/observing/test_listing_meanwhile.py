"""Events during a listing: the log continues, configurations change, waits end."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest
from msgspec.structs import replace

from events.external import ExternalObject
from events.hold import Hold
from events.intake import LossCount, Observed, UnmanagedCount
from events.log import (
    Action,
    ActionDecided,
    ActionSucceeded,
    ExternalObserved,
    HoldApproved,
    LogEvent,
    OutcomeRecorded,
    SpecDeclared,
)
from events.manifest import Fields, Policy
from events.names import ResourceKey
from events.provider_config import DeletionGuard, ProviderConfigSpec, Scope
from projections.read_models import ReadModels
from reconciler.errors import NotDoneError, UnreadableObjectsError
from reconciler.ports import IntakeMessageOut
from reconciler.provider import Capabilities, Effect, Provider
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.kind import Kind, KindRegistry
from reconciler.provider.secrets import Secrets
from reconciler.resource.observation import is_new_count
from reconciler.roles.gate.api_gates import ApiGates
from reconciler.roles.observer.listing import ListingRefusedError
from reconciler.roles.observer.observer import Observer
from reconciler.roles.observer.publication import MAX_UNPROCESSED
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.runtime.pauses import SLICE_SIZE
from reconciler.roles.runtime.provider_pool import ProviderPool
from tests.bus.histories import event
from tests.bus.test_worker import NoRates

EXCLUSIVE = ProviderConfigSpec("test", "http://test", scope=Scope(mode="Exclusive"))


class Api:
    """Lists its objects; calls ``meanwhile`` between the beginning and the end of a listing."""

    def __init__(self, *expected: str) -> None:
        self.listed_names = expected
        self.fields: Fields = {}
        self.uid: str | None = None
        self.listings = 0
        self.meanwhile: Callable[[], object] = lambda: None
        self.by_id: dict[str, ExternalObject] = {}
        self.reads: list[str | None] = []

    def __call__(
        self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit
    ) -> Provider:
        assert (config.provider, secrets.credential) == ("test", None)
        return self

    async def create(self, action: object) -> Effect:
        raise AssertionError(action)

    update = delete = create

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        self.reads.append(uid)
        return self.by_id.get(uid or external_name)

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        assert page_size
        self.listings += 1
        self.meanwhile()
        prefix = scope.prefix or ""
        yield [
            ExternalObject(name, self.fields, self.uid)
            for name in self.listed_names
            if name.startswith(prefix)
        ]

    async def close(self) -> None: ...


class Intake:
    """Keeps the observations."""

    def __init__(self) -> None:
        self.observed: dict[ResourceKey, Observed] = {}
        self.has_arrived = asyncio.Event()
        self.position_requested = asyncio.Event()
        self.position = 1

    async def publish(self, messages: Sequence[IntakeMessageOut]) -> None:
        for each in messages:
            assert isinstance(each.data, Observed)
            self.observed[each.key] = each.data
            self.has_arrived.set()

    async def last_position(self) -> int:
        self.position_requested.set()
        return self.position


class Stage:
    """An observer of one API, with its read models and configurations."""

    def __init__(
        self,
        api: Api,
        catch_up: Callable[[float], Awaitable[None]],
        capabilities: Capabilities | None = None,
    ) -> None:
        self.api = api
        self.configurations = Configurations()
        self.configurations.by_name["default"] = EXCLUSIVE
        self.intake, self.models = Intake(), ReadModels()
        kind = Kind("Shape", "test/v1", ProviderConfigSpec, provider="test", connect=api)
        kinds = KindRegistry([dataclasses.replace(kind, capabilities=capabilities)])
        self.gates = ApiGates(
            name="test",
            configurations=self.configurations,
            intake=self.intake,
            rates=NoRates(),
        )
        self.observer = Observer(
            intake=self.intake,
            configurations=self.configurations,
            providers=ProviderPool(kinds, self.configurations),
            kinds=kinds,
            models=self.models,
            log_id="log",
            gates=self.gates,
            catch_up=catch_up,
        )


async def _nothing_new(_seconds: float) -> None: ...


def _declared(name: str, namespace: str = "team", version: int = 1) -> LogEvent:
    data = SpecDeclared(1, "test/v1", "default", "x", {}, policy=Policy())
    return event(ResourceKey(namespace, "Shape", name), version, data)


def _owned(name: str) -> list[LogEvent]:
    key = ResourceKey("team", "Shape", name)
    action = Action("a1", "k", "Create", 1, "default", name, ())
    steps = [
        SpecDeclared(1, "test/v1", "default", name, {}, policy=Policy()),
        ActionDecided(action),
        ActionSucceeded("a1", "Create", 1, ExternalObject(name, {}, "u", "v1")),
    ]
    return [event(key, version, each) for version, each in enumerate(steps, 1)]


async def test_the_log_is_read_to_its_end_before_an_object_counts_as_unmanaged() -> None:
    """The object may belong to a resource that the rows do not contain yet."""

    async def catch_up(_seconds: float) -> None:
        stage.models.apply(1, _declared("theirs"))

    stage = Stage(Api("x"), catch_up)
    await stage.observer.list_once("default", "Shape")
    assert list(stage.intake.observed) == [ResourceKey("team", "Shape", "theirs")]


def _observed_event(name: str, version: int = 1, *, belongs_to: str = "") -> LogEvent:
    observed_object = ExternalObject("x", {})
    data = ExternalObserved("default", "x", observed_object, "CompleteListing", 1, 1, 1, belongs_to)
    return event(ResourceKey("default", "Shape", name), version, data)


async def test_an_undeclared_resource_receives_the_owner_of_its_object_once() -> None:
    """The owner may be paused or only observe."""
    stage = Stage(Api("x"), _nothing_new)
    stage.models.apply(1, _observed_event("x"))
    await stage.observer.list_once("default", "Shape")
    assert not stage.intake.observed, "the object is known, and no other resource owns it"
    stage.models.apply(2, _declared("y"))
    await stage.observer.list_once("default", "Shape")
    observation = stage.intake.observed.pop(ResourceKey("default", "Shape", "x"))
    assert observation.belongs_to == "team/Shape/y"
    assert observation.exclusive == UnmanagedCount(0, 1)
    assert stage.intake.observed.pop(ResourceKey("team", "Shape", "y")).belongs_to == ""
    stage.models.apply(3, _observed_event("x", 2, belongs_to="team/Shape/y"))
    await stage.observer.list_once("default", "Shape")
    assert set(stage.intake.observed) == {ResourceKey("team", "Shape", "y")}


async def test_changes_by_other_clients_to_their_own_objects_are_not_reported() -> None:
    """Otherwise their changes would make our log grow."""
    stage = Stage(Api("x"), _nothing_new)
    stage.models.apply(1, _observed_event("x"))
    stage.api.fields = {"color": "Red"}
    await stage.observer.list_once("default", "Shape")
    assert not stage.intake.observed
    stage.api.uid = "another"
    await stage.observer.list_once("default", "Shape")
    assert set(stage.intake.observed) == {ResourceKey("default", "Shape", "x")}


async def test_a_declared_object_is_reported_in_its_current_state() -> None:
    stage = Stage(Api("x"), _nothing_new)
    stage.models.apply(1, _observed_event("x"))
    stage.api.fields = {"color": "Red"}
    stage.models.apply(2, _declared("x", "default", 2))
    await stage.observer.list_once("default", "Shape")
    observation = stage.intake.observed[ResourceKey("default", "Shape", "x")]
    assert observation.object is not None
    assert observation.object.fields == {"color": "Red"}


async def test_an_object_whose_hold_was_approved_is_shown_by_the_next_listing() -> None:
    stage = Stage(Api("x"), _nothing_new)
    stage.models.apply(1, _observed_event("x"))
    key = ResourceKey("default", "Shape", "x")
    stage.models.apply(2, event(key, 2, HoldApproved("DeletionGuard")))
    await stage.observer.list_once("default", "Shape")
    assert set(stage.intake.observed) == {key}


async def test_no_listing_is_reported_for_an_approved_deletion_of_an_object_declared_later() -> (
    None
):
    stage = Stage(Api("x"), _nothing_new)
    stage.models.apply(1, _observed_event("x"))
    key = ResourceKey("default", "Shape", "x")
    stage.models.apply(2, event(key, 2, OutcomeRecorded("Held", 0, "DeletionGuard")))
    stage.models.apply(3, event(key, 3, HoldApproved("DeletionGuard")))
    stage.models.apply(4, _declared("x", "default", 4))
    stage.models.apply(5, event(key, 5, OutcomeRecorded("Conflict", 1, "AlreadyExists")))
    await stage.observer.list_once("default", "Shape")
    assert not stage.intake.observed


async def test_approved_content_does_not_wait_for_a_listing() -> None:
    stage = Stage(Api("x"), _nothing_new)
    stage.models.apply(1, _observed_event("x"))
    key = ResourceKey("default", "Shape", "x")
    stage.models.apply(2, event(key, 2, HoldApproved("PruneGuard")))
    await stage.observer.list_once("default", "Shape")
    assert not stage.intake.observed


async def test_nothing_is_concluded_if_the_end_of_the_log_is_unknown() -> None:
    async def time_out(_seconds: float) -> None:
        raise TimeoutError

    stage = Stage(Api("x"), time_out)
    with pytest.raises(ListingRefusedError, match="not yet read the log to the end"):
        await stage.observer.list_once("default", "Shape")
    assert not stage.intake.observed


async def test_observations_have_the_position_at_the_start_of_the_listing() -> None:
    """The pages may lack messages that are stored during the listing, so they count as newer."""
    api = Api("x")
    stage = Stage(api, _nothing_new)

    def store_messages() -> None:
        stage.intake.position += 100

    api.meanwhile = store_messages
    for position_before in (1, 101):
        await stage.observer.list_once("default", "Shape")
        assert [each.as_of for each in stage.intake.observed.values()] == [position_before]


@pytest.mark.parametrize("changed", [{"prefix": "a-"}, {"mode": "Shared"}])
async def test_nothing_is_concluded_from_a_listing_of_another_configuration(
    changed: dict[str, str],
) -> None:
    """The whole API was listed, but the new scope contains only part of it."""
    api = Api("x")
    stage = Stage(api, _nothing_new)
    scope = replace(EXCLUSIVE.scope, **changed)
    new = {"default": replace(EXCLUSIVE, scope=scope)}
    api.meanwhile = lambda: stage.configurations.by_name.update(new)
    with pytest.raises(ListingRefusedError, match="changed during the listing"):
        await stage.observer.list_once("default", "Shape")
    assert not stage.intake.observed


async def test_nothing_is_concluded_for_a_configuration_that_was_withdrawn_meanwhile() -> None:
    async def withdraw(_seconds: float) -> None:
        stage.configurations.by_name.clear()

    stage = Stage(Api("x"), withdraw)
    with pytest.raises(ListingRefusedError, match="withdrawn during the listing"):
        await stage.observer.list_once("default", "Shape")
    assert not stage.intake.observed


@pytest.mark.parametrize(
    "error",
    [
        UnreadableObjectsError("cannot read 'unreadable'", [("unreadable", "u")]),
        UnreadableObjectsError("cannot read some", (), [lambda name: name.startswith("un")]),
        UnreadableObjectsError("cannot read others", (), [lambda name: name.startswith("no")]),
        None,
    ],
)
async def test_an_unreadable_object_is_not_absent_and_does_not_hide_other_objects(
    error: UnreadableObjectsError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_unreadable = error is not None and error.may_have("unreadable")
    stage = Stage(Api("shown"), _nothing_new)
    for position, each in enumerate(_owned("unreadable"), 1):
        stage.models.apply(position, each)
    original_pages = Api.pages

    async def pages(
        api: Api, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        async for page in original_pages(api, scope, page_size=page_size):
            yield page
        if error is not None:
            raise error

    monkeypatch.setattr(Api, "pages", pages)
    await stage.observer.list_once("default", "Shape")
    observed_keys = {key.name: each for key, each in stage.intake.observed.items()}
    assert observed_keys["shown"].object is not None
    if is_unreadable:
        assert observed_keys.keys() == {"shown"}
    else:
        absent_keys = observed_keys["unreadable"]
        assert (absent_keys.object, absent_keys.losses) == (None, LossCount(1, 1))


class ChangingApi(Api):
    """An API whose listing one tenant changes all the time. It hides one of two objects."""

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        self.reads.append(uid)
        return None if external_name == "lost" else ExternalObject(external_name, {}, uid, "v1")

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        async for page in super().pages(scope, page_size=page_size):
            yield page
        raise UnreadableObjectsError("the listing changed", [(None, None)])


async def test_a_listing_that_changed_reports_a_lost_object_only_after_reading_it() -> None:
    api = ChangingApi("shown")
    stage, position = Stage(api, _nothing_new), 0
    for name in ("hidden", "lost"):
        for each in _owned(name):
            position += 1
            stage.models.apply(position, each)
    await stage.observer.list_once("default", "Shape")
    observed = {key.name: each for key, each in stage.intake.observed.items()}
    assert observed.keys() == {"shown", "lost"}
    assert (observed["lost"].object, observed["lost"].evidence) == (None, "Read")
    assert len(api.reads) == 2


class ProbedApi(Api):
    """An API whose listings time out, because a tenant has too many objects."""

    def __init__(self, *, is_down: bool) -> None:
        super().__init__()
        self.is_down = is_down

    async def probe(self) -> bool:
        if self.is_down:
            raise NotDoneError("no response")
        return True

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        del scope, page_size
        raise NotDoneError("no response")
        yield []


@pytest.mark.parametrize("is_down", [False, True])
async def test_a_listing_without_a_response_proves_a_failure_only_if_the_probe_fails_too(
    is_down: bool,
) -> None:
    stage = Stage(ProbedApi(is_down=is_down), _nothing_new)
    with pytest.raises(NotDoneError) as raised:
        await stage.observer.list_once("default", "Shape")
    assert raised.value.proves_failure is is_down
    assert stage.gates.of("default").responds is not is_down


async def test_an_api_is_still_listed_after_its_provider_cancels_itself() -> None:
    api = Api("x")
    stage = Stage(api, _nothing_new)
    stage.configurations.by_name["default"] = replace(EXCLUSIVE, resync_seconds=0.01)

    def fail_once() -> None:
        if api.listings == 1:
            raise asyncio.CancelledError

    api.meanwhile = fail_once
    observer_task = asyncio.create_task(stage.observer.run())
    try:
        await asyncio.wait_for(stage.intake.has_arrived.wait(), 60)
    finally:
        observer_task.cancel()
    assert api.listings > 1


async def test_other_tasks_continue_while_a_long_listing_is_compared() -> None:
    stage = Stage(Api(*(f"x-{number}" for number in range(10 * SLICE_SIZE))), _nothing_new)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with asyncio.TaskGroup() as tasks:
        other_task = tasks.create_task(count_turns())
        await stage.observer.list_once("default", "Shape")
        other_task.cancel()
    assert turns >= 10, "at least once for each slice"


async def test_a_scope_that_is_narrowed_during_a_comparison_applies_immediately() -> None:
    stage = Stage(Api(*(f"x-{number}" for number in range(10 * SLICE_SIZE))), _nothing_new)

    async def narrow() -> None:
        await stage.intake.position_requested.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        narrower = replace(EXCLUSIVE, scope=Scope(mode="Exclusive", prefix="y-"))
        stage.configurations.by_name["default"] = narrower

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(narrow())
        with pytest.raises(ListingRefusedError, match="changed during the listing"):
            await stage.observer.list_once("default", "Shape")
    assert not stage.intake.observed


async def test_an_api_with_many_new_objects_does_not_fill_the_intake() -> None:
    api = Api(*(f"n{number}" for number in range(MAX_UNPROCESSED + 1)))
    stage = Stage(api, _nothing_new)
    listing = asyncio.create_task(stage.observer.list_once("default", "Shape"))
    await until_full(stage)
    process(stage, ResourceKey("default", "Shape", "n0"))
    assert await listing == len(stage.intake.observed) == MAX_UNPROCESSED + 1


async def test_a_changed_configuration_ends_a_publication() -> None:
    api = Api(*(f"n{number}" for number in range(MAX_UNPROCESSED + 1)))
    stage = Stage(api, _nothing_new)
    listing = asyncio.create_task(stage.observer.list_once("default", "Shape"))
    await until_full(stage)
    stage.configurations.by_name["default"] = ProviderConfigSpec("test", "http://other")
    process(stage, ResourceKey("default", "Shape", "n0"))
    with pytest.raises(ListingRefusedError, match="changed during publication"):
        await listing
    assert len(stage.intake.observed) == MAX_UNPROCESSED


async def until_full(stage: Stage) -> None:
    """Wait until the listing waits."""
    await stage.intake.has_arrived.wait()
    await asyncio.sleep(0.3)
    assert len(stage.intake.observed) == MAX_UNPROCESSED


def process(stage: Stage, key: ResourceKey) -> None:
    """Let the log show that an observation was processed."""
    stage.observer.handle_event(1, _observed_event(key.name))


async def test_an_absence_that_the_loss_guard_holds_is_reported_once() -> None:
    stage = Stage(Api(), _nothing_new)
    keys = [ResourceKey("team", "Shape", f"n{number}") for number in range(20)]
    for position, key in enumerate(keys):
        for version, each in enumerate(_owned(key.name), 1):
            stage.models.apply(10 * position + version, each)
    await stage.observer.list_once("default", "Shape")
    assert len(stage.intake.observed) == len(keys)
    for position, key in enumerate(keys):
        data = OutcomeRecorded("Held", 1, "LossGuard", "many are missing")
        stage.models.apply(1_000 + position, event(key, 4, data))
    stage.intake.observed.clear()
    await stage.observer.list_once("default", "Shape")
    assert not stage.intake.observed
    approved = HoldApproved(Hold.LOSS_GUARD)
    stage.models.apply(2_000, event(keys[0], 5, approved))
    await stage.observer.list_once("default", "Shape")
    assert list(stage.intake.observed) == keys[:1]


def test_counts_of_a_held_resource_are_news_if_a_guard_decides_otherwise_or_they_double() -> None:
    guard = DeletionGuard(max_count=10, max_percent=100)
    assert is_new_count(guard, (None, None), (12, 400))
    assert not is_new_count(guard, (12, 400), (13, 401))
    assert not is_new_count(guard, (12, 400), (24, 800))
    assert is_new_count(guard, (12, 400), (25, 400))
    assert is_new_count(guard, (24, 400), (11, 400))
    assert is_new_count(guard, (11, 400), (10, 400)), "now allowed"
    assert is_new_count(guard, (10, 400), (11, 400)), "no longer allowed"
