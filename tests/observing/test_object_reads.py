"""Individual reads of objects that are not ready, or whose API cannot list."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress

import pytest
from msgspec.structs import replace

from events.external import ExternalObject, digest
from events.intake import LossCount, Observed
from events.log import (
    Action,
    ActionAbandoned,
    ActionDecided,
    ActionSucceeded,
    Condition,
    ExternalObserved,
    HoldApproved,
    LogEvent,
    OutcomeRecorded,
    OwnershipClaimed,
    OwnershipReleased,
    ResourceEvent,
    SpecDeclared,
    SpecWithdrawn,
)
from events.manifest import Policy
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec, Scope
from projections.read_models import ReadModels
from reconciler.errors import NotDoneError
from reconciler.ports import IntakeMessageOut
from reconciler.provider import Capabilities, Effect, Provider
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.kind import Kind, KindRegistry
from reconciler.provider.secrets import Secrets, SecretStores
from reconciler.resource.owner_label import OWNER_LABEL, owner
from reconciler.roles.gate.api_gates import ApiGates
from reconciler.roles.observer import object_reads
from reconciler.roles.observer.object_reads import ObjectReads
from reconciler.roles.observer.observer import Observer
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.runtime.provider_pool import ProviderPool
from tests.bus.histories import event
from tests.bus.test_worker import NoRates

FOO = ResourceKey("default", "Server", "foo")
BAR = ResourceKey("default", "Server", "bar")
BLIND = Capabilities(
    idempotency_keys=True,
    deterministic_names=True,
    labels=True,
    conditional_writes=True,
    listing=False,
)


CREATE = Action("default/Server/foo@2", "key", "Create", 1, "default", "foo", ())


class Api:
    """An API that cannot list, with one server that is starting."""

    def __init__(self) -> None:
        self.server: ExternalObject | None = ExternalObject("foo", {}, "u1")
        self.servers: dict[str, ExternalObject | None] = {}
        self.reads = 0
        self.uids: list[str | None] = []
        self.fails = False
        self.read_thrice = asyncio.Event()
        self.meanwhile: Callable[[], None] = lambda: None

    def __call__(
        self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit
    ) -> Provider:
        del config, secrets
        return self

    async def create(self, action: object) -> Effect:
        raise AssertionError(action)

    update = delete = create

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        assert external_name in self.servers or external_name == "foo"
        assert uid in (None, "u1")
        self.reads += 1
        self.uids.append(uid)
        if self.reads == 3:
            self.read_thrice.set()
        if self.fails:
            raise NotDoneError("unavailable")
        self.meanwhile()
        return self.servers.get(external_name, self.server)

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        raise AssertionError((scope, page_size))
        yield []

    async def close(self) -> None: ...


class Intake:
    """Keeps the observations."""

    def __init__(self) -> None:
        self.observed: list[Observed] = []
        self.has_arrived = asyncio.Event()

    async def publish(self, messages: Sequence[IntakeMessageOut]) -> None:
        for message in messages:
            assert isinstance(message.data, Observed)
            assert message.key in (FOO, BAR)
            self.observed.append(message.data)
            self.has_arrived.set()

    async def last_position(self) -> int:
        return 7


class Stage:
    """The individual reads of one API, and an observer."""

    def __init__(self, capabilities: Capabilities = BLIND) -> None:
        self.api, self.intake, self.models = Api(), Intake(), ReadModels()
        self.configurations = Configurations()
        self.configurations.by_name["default"] = ProviderConfigSpec("test", "http://test")
        self.version = 0
        kinds = KindRegistry(
            [
                Kind(
                    "Server",
                    "test/v1",
                    ProviderConfigSpec,
                    provider="test",
                    capabilities=capabilities,
                    connect=self.api,
                )
            ]
        )
        self.stores = SecretStores()
        providers = ProviderPool(kinds, self.configurations, self.stores)
        gates = ApiGates(
            name="test",
            configurations=self.configurations,
            intake=self.intake,
            rates=NoRates(),
        )
        self.reads = ObjectReads(
            intake=self.intake,
            configurations=self.configurations,
            providers=providers,
            models=self.models,
            log_id="log",
            gates=gates,
        )
        self.observer = Observer(
            intake=self.intake,
            configurations=self.configurations,
            providers=providers,
            kinds=kinds,
            models=self.models,
            log_id="log",
            gates=gates,
            reads=self.reads,
        )

    def record(self, *facts: ResourceEvent) -> None:
        for data in facts:
            self.version += 1
            recorded: LogEvent = event(FOO, self.version, data)
            self.models.apply(self.version, recorded)
            self.reads.handle_event(self.version, recorded)

    def record_creation(self, *, ready: bool = False) -> None:
        self.record(
            SpecDeclared(1, "test/v1", "default", "foo", {}, policy=Policy()),
            ActionSucceeded("a", "Create", 1, self.api.server),
            self.outcome(ready=ready),
        )

    def outcome(self, *, ready: bool) -> OutcomeRecorded:
        condition = Condition("Ready", "True" if ready else "False", "Starting")
        return OutcomeRecorded("Converged", 1, "AsDeclared", conditions=(condition,))


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(object_reads, "FIRST_DELAY_SECONDS", 0.01)
    return Stage()


async def _run(stage: Stage, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stage.reads.run()


async def test_an_object_is_read_until_it_is_ready(stage: Stage) -> None:
    stage.record_creation()
    reader = asyncio.create_task(stage.reads.run())
    try:
        async with asyncio.timeout(10):
            await stage.api.read_thrice.wait()
        assert not stage.intake.observed, "the object has not changed"
        stage.api.server = ExternalObject("foo", {}, "u1", outputs={"health": "up"})
        async with asyncio.timeout(10):
            await stage.intake.has_arrived.wait()
        (observation, *_) = stage.intake.observed
        assert (observation.evidence, observation.as_of, observation.object) == (
            "Read",
            7,
            stage.api.server,
        )
        stage.record(stage.outcome(ready=True))
        await asyncio.sleep(0.1)
        reads = stage.api.reads
        await asyncio.sleep(0.2)
        assert stage.api.reads == reads, "a ready object is listed, and not read"
    finally:
        reader.cancel()


async def test_a_ready_object_is_not_read(stage: Stage) -> None:
    stage.record_creation(ready=True)
    await _run(stage, 0.2)
    assert stage.api.reads == 0


async def test_an_object_that_does_not_become_ready_is_read_at_growing_intervals(
    stage: Stage,
) -> None:
    stage.record_creation()
    await _run(stage, 1.0)
    assert 3 <= stage.api.reads <= 9, "0.01 s, 0.02 s, 0.04 s, …"


async def test_a_failed_read_is_repeated(stage: Stage) -> None:
    stage.api.fails = True
    stage.record_creation()
    await _run(stage, 0.3)
    assert stage.api.reads > 1
    assert not stage.intake.observed


async def test_an_api_that_cannot_list_is_read_object_by_object(stage: Stage) -> None:
    stage.record_creation(ready=True)
    assert await stage.observer.list_once("default", "Server") == 0
    assert not stage.intake.observed
    stage.api.server = None
    assert await stage.observer.list_once("default", "Server") == 1
    (observation,) = stage.intake.observed
    assert (observation.object, observation.evidence) == (None, "Read")
    assert observation.losses == LossCount(1, 1), "the loss guard applies to missing objects"
    assert stage.api.reads == 2


async def test_a_read_without_labels_names_the_resource_that_owns_the_object() -> None:
    """Otherwise, a resource that may adopt the object would become its second owner."""
    stage = Stage(replace(BLIND, labels=False))
    stage.record_creation(ready=True)
    declared = SpecDeclared(1, "test/v1", "default", "foo", {}, policy=Policy(adoption="Adopt"))
    stage.models.apply(9, event(BAR, 1, declared))
    row, config = stage.models.status[str(BAR)], stage.configurations.by_name["default"]
    assert await stage.reads.read([row], config) == 0, "the other rows were not compared"
    assert await stage.observer.list_once("default", "Server") == 1
    assert [each.belongs_to for each in stage.intake.observed] == [str(FOO)]


@pytest.mark.parametrize("can_list", [False, True])
async def test_a_read_does_not_report_a_missing_owned_object(can_list: bool) -> None:
    """If an API lost all objects, each read would find one missing, and no guard would apply."""
    stage = Stage(replace(BLIND, listing=can_list))
    stage.record_creation()
    requests: list[tuple[str, str]] = []
    stage.reads.request_listing = lambda config, kind: requests.append((config, kind))
    stage.api.server = None
    row, config = stage.models.status[str(FOO)], stage.configurations.by_name["default"]
    assert await stage.reads.read([row], config) == 0
    assert not stage.intake.observed
    assert requests == [("default", "Server")]


async def test_a_missing_object_triggers_a_listing_immediately(stage: Stage) -> None:
    stage.record_creation(ready=True)
    was_read = asyncio.Event()
    stage.api.meanwhile = was_read.set
    observer_task = asyncio.create_task(stage.observer.run())
    try:
        await was_read.wait()
        stage.api.server = None
        row, config = stage.models.status[str(FOO)], stage.configurations.by_name["default"]
        await stage.reads.read([row], config)
        async with asyncio.timeout(10):
            await stage.intake.has_arrived.wait()
        assert stage.observer.listings == 2
        assert [each.object for each in stage.intake.observed] == [None]
    finally:
        observer_task.cancel()


async def test_an_undeclared_object_is_read_once_its_hold_is_approved(stage: Stage) -> None:
    stage.record(ExternalObserved("default", "foo", stage.api.server, "Read", 5))
    assert await stage.observer.list_once("default", "Server") == 0
    assert not stage.api.reads
    stage.record(HoldApproved("DeletionGuard", "Proceed"))
    assert await stage.observer.list_once("default", "Server") == 1
    (observation,) = stage.intake.observed
    assert (observation.object, observation.evidence, observation.as_of) == (
        stage.api.server,
        "Read",
        7,
    )


@pytest.mark.parametrize(("unique_names", "expected"), [(True, None), (False, "u1")])
async def test_a_released_object_is_read_by_its_uid_if_names_are_not_unique(
    unique_names: bool, expected: str | None
) -> None:
    stage = Stage(replace(BLIND, deterministic_names=unique_names))
    stage.record_creation(ready=True)
    stage.record(
        OwnershipReleased("foo", "u1", "Orphaned", "default"),
        SpecDeclared(2, "test/v1", "default", "foo", {}, policy=Policy()),
    )
    stage.api.server = None
    assert await stage.observer.list_once("default", "Server") == 1
    assert stage.api.uids == [expected]
    (observation,) = stage.intake.observed
    assert (observation.object, observation.absent_uid) == (None, expected)


async def test_an_object_without_a_label_that_is_not_owned_is_listed_but_not_read() -> None:
    """A read does not show its owner, so it could show an object from another namespace."""
    stage = Stage(replace(BLIND, labels=False, listing=True))
    stage.record(SpecDeclared(1, "test/v1", "default", "foo", {}, policy=Policy()))
    row, config = stage.models.status[str(FOO)], stage.configurations.by_name["default"]
    assert await stage.reads.read([row], config) == 0
    assert stage.api.reads == 0
    stage.record(ActionSucceeded("a", "Create", 1, stage.api.server))
    await stage.reads.read([row], config)
    assert stage.api.reads == 1


async def test_a_read_reports_the_name_that_it_requested(stage: Stage) -> None:
    """The object was replaced under another name during the read, which does not show this."""
    stage.record_creation(ready=True)
    row, config = stage.models.status[str(FOO)], stage.configurations.by_name["default"]
    new_row = ExternalObject("foo-2", {}, "u2")
    replaced = ActionSucceeded(
        "b", "Create", 1, new_row, purpose="Replace", external_name=new_row.name
    )
    stage.api.meanwhile = lambda: stage.record(replaced)
    assert await stage.reads.read([row], config) == 1
    assert row.external_name == new_row.name
    (observation,) = stage.intake.observed
    assert (observation.external_name, observation.object) == ("foo", stage.api.server)


async def test_an_object_that_repeats_a_secret_is_reported_once(stage: Stage) -> None:
    stage.record_creation()
    stage.stores.secrecy.add("planted&token")
    row, config = stage.models.status[str(FOO)], stage.configurations.by_name["default"]
    stage.api.server = ExternalObject("foo", {}, "u1", outputs={"seen": "planted\\u0026token"})
    unreadable_row = ExternalObject("foo", {}, "u1", outputs={"seen": "***"})
    assert await stage.reads.read([row], config) == 1
    assert [each.object for each in stage.intake.observed] == [unreadable_row]
    row.observed_digest = digest(unreadable_row)
    assert await stage.reads.read([row], config) == 0
    stage.api.server = ExternalObject("foo", {}, "planted&token")
    assert await stage.reads.read([row], config) == 0, (
        "its id cannot be reported, and it is not absent"
    )


async def test_a_name_whose_creation_may_arrive_late_is_read_after_the_withdrawal(
    stage: Stage,
) -> None:
    """No listing would find the object of a call that arrives after the withdrawal."""
    stage.record(
        SpecDeclared(1, "test/v1", "default", "foo", {}, policy=Policy()),
        ActionDecided(CREATE),
        ActionAbandoned(CREATE.action_id, "Create", "withdrawn", in_doubt=True, unconfirmed=True),
        SpecWithdrawn(2),
        OutcomeRecorded("Deleted", 2, "Gone"),
    )
    stage.api.server = None
    assert await stage.observer.list_once("default", "Server") == 0
    stage.api.server = ExternalObject("foo", {}, "u1", labels={OWNER_LABEL: owner("log", FOO)})
    assert await stage.observer.list_once("default", "Server") == 1
    (observation,) = stage.intake.observed
    assert (observation.object, observation.evidence) == (stage.api.server, "Read")
    stage.record(OwnershipClaimed("foo", "u1", "Found", "default"))
    assert not stage.models.status[str(FOO)].is_unconfirmed


async def test_an_earlier_name_whose_creation_may_arrive_late_is_read_too(stage: Stage) -> None:
    stage.record(
        SpecDeclared(1, "test/v1", "default", "foo", {}, policy=Policy()),
        ActionDecided(CREATE),
        ActionAbandoned(CREATE.action_id, "Create", "renamed", in_doubt=True, unconfirmed=True),
        SpecDeclared(2, "test/v1", "default", "bar", {}, policy=Policy()),
        OutcomeRecorded("Waiting", 2, "Dependency"),
    )
    late = ExternalObject("foo", {}, "u1", labels={OWNER_LABEL: owner("log", FOO)})
    stage.api.servers = {"foo": replace(late, labels={}), "bar": None}
    assert await stage.observer.list_once("default", "Server") == 0, (
        "the object belongs to another client"
    )
    stage.api.servers["foo"] = late
    assert await stage.observer.list_once("default", "Server") == 1
    (observation,) = stage.intake.observed
    assert (observation.external_name, observation.object) == ("foo", late)
