"""An observer does not report an object that is newer than the log until the API is held.

A client can copy everything in an object, except the key of an action that this log has not
decided yet.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from events.external import ExternalObject
from events.intake import ActionError, ApiReported, IntakeData, Observed
from events.integrity import LogDamage
from events.log import (
    ActionFailed,
    ActionHeld,
    ActionSucceeded,
    ExternalObserved,
    HoldApproved,
    LogEvent,
    ResourceEvent,
    SpecDeclared,
    TwinDetected,
    event_id,
)
from events.manifest import Policy
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec, Scope, config_key
from projections.read_models import ReadModels
from reconciler.ports import IntakeMessageOut, LoadedResource
from reconciler.provider import Effect, Provider
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.kind import Kind, KindRegistry
from reconciler.provider.secrets import Secrets
from reconciler.resource.attempt import idempotency_key
from reconciler.resource.owner_label import OWNER_LABEL, owner
from reconciler.roles.gate.api_gates import ApiGates
from reconciler.roles.objects.twins import TwinDetector
from reconciler.roles.observer.listing import ListingRefusedError
from reconciler.roles.observer.object_reads import ObjectReads
from reconciler.roles.observer.observer import Observer
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.runtime.provider_pool import ProviderPool
from tests.bus.histories import event
from tests.bus.test_worker import NoRates

FOO, ELSEWHERE = ResourceKey("default", "Shape", "foo"), ResourceKey("team", "Shape", "foo")
CONFIG = config_key("default")


def build_written_object(
    version: int | None, *, of: ResourceKey = FOO, name: str = "foo"
) -> ExternalObject:
    """Return an object as left by an action from a copy of the log."""
    key = None if version is None else idempotency_key("log", event_id(of, version))
    labels = {OWNER_LABEL: owner("log", of)}
    return ExternalObject(name, {"color": "Red"}, "u1", "v1", labels, key)


class Api:
    """Lists its objects."""

    def __init__(self, *objects: ExternalObject) -> None:
        self.objects = objects

    def __call__(
        self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit
    ) -> Provider:
        del config, secrets
        return self

    async def create(self, action: object) -> Effect:
        raise AssertionError(action)

    update = delete = create

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        del uid
        return next((each for each in self.objects if each.name == external_name), None)

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        del scope, page_size
        yield self.objects

    async def close(self) -> None: ...


class Log:
    """The log as read from the leader."""

    log_id, epoch = "log", ""

    def __init__(self) -> None:
        self.histories: dict[ResourceKey, list[LogEvent]] = {}
        self.damaged: set[ResourceKey] = set()
        self.loads = 0

    async def load(
        self, keys: Sequence[ResourceKey], *, from_leader: bool = False, use_cache: bool = True
    ) -> Mapping[ResourceKey, LoadedResource]:
        assert from_leader
        assert not use_cache, "a cached state does not contain observations"
        self.loads += 1
        return {key: self._loaded(key) for key in keys}

    def _loaded(self, key: ResourceKey) -> LoadedResource:
        damage = LogDamage("Missing", 3, 3, "", "", str(key)) if key in self.damaged else None
        return LoadedResource(0, None, self.histories.get(key, []), damage)


class Stage:
    """An observer of one API, its log, and its published messages."""

    def __init__(self, *objects: ExternalObject) -> None:
        self.api, self.log, self.models = Api(*objects), Log(), ReadModels()
        self.published: list[IntakeData] = []
        self.configurations = Configurations()
        self.configurations.by_name["default"] = ProviderConfigSpec("test", "http://test")
        kinds = KindRegistry(
            [Kind("Shape", "test/v1", ProviderConfigSpec, provider="test", connect=self.api)]
        )
        log: Any = self.log
        shared: dict[str, Any] = {
            "intake": self,
            "configurations": self.configurations,
            "providers": ProviderPool(kinds, self.configurations),
            "models": self.models,
            "log_id": "log",
            "gates": ApiGates(
                name="test",
                configurations=self.configurations,
                intake=self,
                rates=NoRates(),
            ),
            "twins": TwinDetector(
                name="test", log=log, intake=self, configurations=self.configurations
            ),
        }
        self.reads = ObjectReads(**shared)
        self.observer = Observer(**shared, kinds=kinds)

    async def publish(self, messages: Sequence[IntakeMessageOut]) -> None:
        self.published += [each.data for each in messages]

    async def last_position(self) -> int:
        return 7

    def record(self, data: ResourceEvent, key: ResourceKey = FOO, *, in_rows: bool = True) -> None:
        history = self.log.histories.setdefault(key, [])
        history.append(event(key, len(history) + 1, data))
        self.configurations.apply(history[-1])
        if in_rows:
            position = sum(map(len, self.log.histories.values()))
            self.models.apply(position, history[-1])

    def declare(self, *, versions: int = 1, in_rows: bool = True) -> None:
        for version in range(versions):
            data = SpecDeclared(version + 1, "test/v1", "default", "foo", {}, policy=Policy())
            self.record(data, in_rows=in_rows)

    async def list(self) -> list[IntakeData]:
        """List once, and return the published messages."""
        self.published = []
        await self.observer.list_once("default", "Shape")
        return self.published

    async def expect_refusal(self) -> ApiReported:
        """List once, expect a refusal, and return the report about the API."""
        self.published = []
        with pytest.raises(ListingRefusedError, match="newer than this log"):
            await self.observer.list_once("default", "Shape")
        (reported,) = self.published
        assert isinstance(reported, ApiReported)
        return reported

    def hold(self, reported: ApiReported) -> None:
        self.record(TwinDetected(reported.newer, reported.total), CONFIG, in_rows=False)


async def test_an_object_that_is_newer_than_the_log_holds_its_api_first():
    stage = Stage(build_written_object(12))
    stage.declare(versions=2)
    reported = await stage.expect_refusal()
    (newer,) = reported.newer
    assert (newer.action, newer.known_version) == ("default/Shape/foo@12", 2)
    assert (newer.kind, newer.name, newer.uid) == ("Shape", "foo", "u1")
    stage.hold(reported)
    assert {type(each) for each in await stage.list()} >= {Observed}, "now the object is reported"


async def test_an_object_of_a_resource_unknown_to_the_log_is_newer():
    reported = await Stage(build_written_object(4, of=ELSEWHERE)).expect_refusal()
    assert reported.newer[0].action == "team/Shape/foo@4"


async def test_all_newer_objects_are_in_one_report():
    many = [
        build_written_object(2, of=ResourceKey("default", "Shape", f"s{number}"), name=f"s{number}")
        for number in range(150)
    ]
    reported = await Stage(*many).expect_refusal()
    assert (reported.total, len(reported.newer)) == (150, 20)


@pytest.mark.parametrize(
    "copied",
    [
        build_written_object(1, name="bar"),
        replace(build_written_object(1), uid="another"),
        build_written_object(None, name="bar"),
        build_written_object(None, of=ResourceKey("default", "Shape", "never-declared")),
    ],
    ids=[
        "label and key on another object",
        "label and key on a new object with the name",
        "the label alone",
        "a label for a resource that the log does not contain",
    ],
)
async def test_a_copied_object_does_not_hold_the_api(copied: ExternalObject):
    """Only that object is affected: its outcome is Conflict or Disputed."""
    stage = Stage(copied)
    stage.declare(versions=3)
    assert {type(each) for each in await stage.list()} == {Observed}
    assert stage.log.loads == 0, "the log is not read"


async def test_a_late_creation_of_a_resource_whose_row_was_deleted_is_ours():
    stage = Stage(build_written_object(2))
    stage.declare(versions=3, in_rows=False)
    assert {type(each) for each in await stage.list()} == {Observed}
    assert stage.log.loads == 1


@pytest.mark.parametrize("damaged", [FOO, ELSEWHERE], ids=["reported to", "named by the label"])
async def test_an_object_is_not_reported_while_a_damaged_history_leaves_its_writer_unknown(
    damaged: ResourceKey,
):
    """A decider that has not detected the damage yet would base its next write on the object."""
    stage = Stage(
        build_written_object(12, of=ELSEWHERE), replace(build_written_object(None), name="bar")
    )
    stage.declare(versions=2)
    stage.log.damaged.add(damaged)
    config = stage.configurations.by_name["default"]
    assert await stage.reads.read([stage.models.status[str(FOO)]], config) == 0
    assert stage.published == [], "a damaged history does not prove another copy of the log either"
    listed = [each for each in await stage.list() if isinstance(each, Observed)]
    assert [each.external_name for each in listed] == ["bar"], "the other objects are reported"


async def test_an_object_observed_while_the_api_was_held_is_not_new_evidence():
    """Otherwise each listing after an approval would hold the API again."""
    stage = Stage(build_written_object(12, of=ELSEWHERE))
    stage.hold(await stage.expect_refusal())
    observation = next(each for each in await stage.list() if isinstance(each, Observed))
    stage.record(ExternalObserved("default", "foo", observation.object, "CompleteListing", 7))
    stage.record(HoldApproved("Twin"), CONFIG, in_rows=False)
    stage.api.objects = (replace(build_written_object(12, of=ELSEWHERE), fields={"color": "Blue"}),)
    stage.declare()
    assert {type(each) for each in await stage.list()} == {Observed}
    stage.api.objects = (
        replace(build_written_object(13, of=ELSEWHERE), fields={"color": "Green"}),
    )
    assert (await stage.expect_refusal()).as_of == 2, (
        "a later object is evidence, and newer than the approval"
    )


@pytest.mark.parametrize(
    "recorded",
    [
        ActionSucceeded("a", "Create", 2, build_written_object(12), found_by="Label"),
        ActionFailed("a", "Create", 2, ActionError("Conflict", "exists"), build_written_object(12)),
        ActionHeld("a", "whose is it?", build_written_object(12)),
    ],
    ids=lambda data: type(data).__name__,
)
async def test_an_object_found_by_an_action_while_the_api_was_held_is_not_new_evidence(
    recorded: ResourceEvent,
):
    """Listings would report nothing new, but the next changed output would hold the API again."""
    stage = Stage(build_written_object(12))
    stage.declare()
    stage.hold(await stage.expect_refusal())
    stage.record(recorded)
    stage.record(HoldApproved("Twin"), CONFIG, in_rows=False)
    stage.api.objects = (replace(build_written_object(12), outputs={"port": 80}),)
    assert {type(each) for each in await stage.list()} == {Observed}


async def test_a_report_names_the_hold_that_its_reporter_has_read():
    stage = Stage(build_written_object(12))
    stage.declare()
    reported = await stage.expect_refusal()
    assert reported.as_of == 0
    stage.hold(reported)
    (second_report, *_) = [each for each in await stage.list() if isinstance(each, ApiReported)]
    assert second_report.as_of == 1


async def test_an_individual_read_concludes_nothing_from_a_newer_object():
    stage = Stage(build_written_object(12))
    stage.declare()
    config = stage.configurations.by_name["default"]
    rows = [stage.models.status[str(FOO)]]
    assert await stage.reads.read(rows, config) == 0
    (reported,) = stage.published
    assert isinstance(reported, ApiReported)
    stage.hold(reported)
    assert await stage.reads.read(rows, config) == 1
