"""A worker on the real log: the deliveries for which it calls the API, and its reports."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from events.envelope import encode_intake
from events.external import ExternalObject
from events.intake import ActionError, ApiReported, NewerObject, Reported
from events.log import (
    Action,
    ActionAbandoned,
    ActionDecided,
    ActionFailed,
    ActionRetried,
    ActionSucceeded,
    HoldApproved,
    LogEvent,
    LookupDecided,
    Operation,
    ResourceEvent,
    SpecDeclared,
    TwinDetected,
    event_id,
)
from events.manifest import Fields
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec, Scope, config_key
from infra.bus.event_log import JetStreamLog
from infra.jetstream.errors import BusUnavailableError, StreamFullError
from reconciler.errors import (
    ConfigurationError,
    ConflictError,
    NotCalledError,
    NotDoneError,
    ProviderError,
    RefusedError,
    ThrottledError,
    UnknownResultError,
)
from reconciler.ports import (
    ActionDelivery,
    ExternalName,
    IntakeMessageOut,
    NameSearch,
    NotStoredError,
    QueueRefusedError,
    ResourceAppend,
)
from reconciler.provider import Capabilities, Effect, Provider
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.kind import Kind, KindRegistry, no_data_loss
from reconciler.provider.secrets import Secrets, SecretStores
from reconciler.resource.attempt import idempotency_key
from reconciler.resource.owner_label import OWNER_LABEL, owner
from reconciler.roles.gate.api_gates import ApiGates
from reconciler.roles.objects.oversize import MAX_OBJECT_BYTES
from reconciler.roles.objects.twins import TwinDetector
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.runtime.provider_pool import ProviderPool
from reconciler.roles.runtime.runtime import Runtime
from reconciler.roles.runtime.search_turns import SearchTurns
from reconciler.roles.worker import worker as worker_module
from reconciler.roles.worker.name_checks import NameChecks
from reconciler.roles.worker.worker import LEASE_SECONDS, Worker
from reconciler.secrecy import Search
from tests.bus.histories import event, new_key


class Api:
    """A provider that counts its calls and returns a configured object."""

    def __init__(
        self, observed_object: ExternalObject | None = None, *, fails: BaseException | None = None
    ) -> None:
        self.calls = 0
        self.returned_object = observed_object
        self.absent = False
        self.fails = fails

    def __call__(
        self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit
    ) -> Provider:
        assert config.provider == "test"
        assert secrets.credential is None
        return self

    async def create(self, action: Action) -> Effect:
        assert action.idempotency_key
        self.calls += 1
        if self.fails is not None:
            raise self.fails
        return Effect(self.returned_object, absent=self.absent)

    update = delete = create

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        return self.returned_object if external_name else None

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        assert scope.mode == "Shared"
        assert page_size
        yield []

    async def close(self) -> None: ...


class Bus:
    """A bus that delivers actions, and records acknowledgments and reports."""

    def __init__(self, *deliveries: ActionDelivery) -> None:
        self._deliveries = list(deliveries)
        self.acknowledged = asyncio.Event()
        self.reports: list[Reported] = []
        self.api_reports: list[ApiReported] = []
        self.has_api_report = asyncio.Event()
        self.ids: list[str] = []
        self.freed_slots = 0

    async def add_queue(self, provider_config: str, limit: int) -> None: ...

    def free_slot(self, delivery: ActionDelivery) -> None:
        assert delivery
        self.freed_slots += 1

    async def next_batch(self) -> Sequence[ActionDelivery]:
        if not self._deliveries:
            await asyncio.Event().wait()
        return [self._deliveries.pop()]

    async def ack(self, deliveries: Sequence[ActionDelivery]) -> None:
        assert deliveries
        self.acknowledged.set()

    async def extend_leases(self, deliveries: Sequence[ActionDelivery]) -> None: ...

    async def close(self) -> None: ...

    async def publish(self, messages: Sequence[IntakeMessageOut]) -> None:
        for each in messages:
            assert encode_intake(each.message_id, "test", each.data, time=datetime.now(UTC))
        self.reports += [each.data for each in messages if isinstance(each.data, Reported)]
        self.api_reports += [each.data for each in messages if isinstance(each.data, ApiReported)]
        if self.api_reports:
            self.has_api_report.set()
        self.ids += [each.message_id for each in messages]

    async def last_position(self) -> int:
        return 0


class NoRates:
    """A rate store that is never read, because no limit is set."""

    async def now(self) -> float:
        raise AssertionError("no limit is set")

    async def load(self, name: str) -> tuple[float, int]:
        raise AssertionError(name)

    async def save(self, name: str, time: float, revision: int) -> int:
        raise AssertionError((name, time, revision))


class Names:
    """Observers that know one owner of every name; None: none of them answers."""

    def __init__(self, owner: str | None = "") -> None:
        self._owner = owner
        self.requests: list[Sequence[ExternalName]] = []

    async def find_owners(self, names: Sequence[ExternalName]) -> Sequence[str]:
        self.requests.append(names)
        if self._owner is None:
            raise BusUnavailableError("no response within 5 s")
        return [self._owner] * len(names)

    async def answer(self, search: NameSearch) -> None: ...


def action_event(key: ResourceKey, operation: Operation = "Update") -> LogEvent:
    action = Action(f"{key}@1", "key", operation, 1, "default", key.name, ())
    return event(key, 1, ActionDecided(action))


async def work(
    log: JetStreamLog,
    api: Api,
    history: Sequence[LogEvent],
    *,
    delivered: int = 2,
    is_count_certain: bool = True,
    capabilities: Capabilities | None = None,
    config_events: Sequence[ResourceEvent] = (),
    describe_data_loss: Callable[[Fields | None, ExternalObject], str] = no_data_loss,
    names: Names | None = None,
) -> Bus:
    """Deliver the first event of a history, by default a second time, and wait for its ack."""
    key = history[0].key
    [last] = await log.append([ResourceAppend(key, history, 0)])
    position = last - len(history) + 1
    bus = Bus(ActionDelivery(position, history[0], delivered, None, is_count_certain))
    async with running_worker(
        log,
        api,
        bus,
        capabilities=capabilities,
        config_events=config_events,
        describe_data_loss=describe_data_loss,
        names=names,
    ):
        await asyncio.wait_for(bus.acknowledged.wait(), 60)
    return bus


@asynccontextmanager
async def running_worker(
    log: JetStreamLog,
    api: Api,
    bus: Bus,
    *,
    clock: Callable[[], float] = time.monotonic,
    capabilities: Capabilities | None = None,
    stores: SecretStores | None = None,
    config_events: Sequence[ResourceEvent] = (),
    describe_data_loss: Callable[[Fields | None, ExternalObject], str] = no_data_loss,
    names: Names | None = None,
) -> AsyncGenerator[Worker]:
    """Run a worker in the block; ``config_events`` follow the declaration of its API."""
    configurations = Configurations()
    gates = ApiGates(name="test", configurations=configurations, intake=bus, rates=NoRates())
    declared = SpecDeclared(1, "", "", "default", {"provider": "test", "endpoint": "http://test"})
    for version, data in enumerate((declared, *config_events), 1):
        configurations.apply(event(config_key("default"), version, data))
        gates.apply(event(config_key("default"), version, data))
    kind = Kind(
        "Shape",
        "test/v1",
        ProviderConfigSpec,
        provider="test",
        capabilities=capabilities,
        connect=api,
        describe_data_loss=describe_data_loss,
    )
    worker = Worker(
        name="test",
        reader=bus,
        intake=bus,
        log=log,
        configurations=configurations,
        providers=ProviderPool(KindRegistry([kind]), configurations, stores),
        gates=gates,
        twins=TwinDetector(name="test", log=log, intake=bus, configurations=configurations),
        names=NameChecks(names or Names(), None),
        runtime=Runtime(clock=clock),
    )
    running = [asyncio.create_task(worker.run()), asyncio.create_task(gates.run())]
    try:
        yield worker
    finally:
        for each in running:
            each.cancel()


class FullBus(Bus):
    """A bus that rejects a new queue until ``has_room`` is set."""

    def __init__(self, *deliveries: ActionDelivery) -> None:
        super().__init__(*deliveries)
        self.was_called = asyncio.Event()
        self.has_room = False
        self.accepted = asyncio.Event()

    async def add_queue(self, provider_config: str, limit: int) -> None:
        self.was_called.set()
        if not self.has_room:
            raise QueueRefusedError("maximum consumers limit reached")
        self.accepted.set()


async def test_a_queue_that_does_not_fit_does_not_block_others_and_is_retried(
    log: JetStreamLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.roles.worker.worker._REFETCH_SECONDS", 0.01)
    key, api = new_key(), Api()
    [position] = await log.append([ResourceAppend(key, [action_event(key)], 0)])
    bus = FullBus(ActionDelivery(position, action_event(key), 1, None))
    async with running_worker(log, api, bus):
        await asyncio.wait_for(bus.was_called.wait(), 60)
        await asyncio.wait_for(bus.acknowledged.wait(), 60)
        bus.has_room = True
        await asyncio.wait_for(bus.accepted.wait(), 60)


_ENDS: list[Callable[[str], ResourceEvent]] = [
    lambda action_id: ActionSucceeded(action_id, "Update", 1),
    lambda action_id: ActionFailed(action_id, "Update", 1, ActionError("Refused", "no")),
    lambda action_id: ActionAbandoned(action_id, "Update", "a newer generation was declared"),
]


@pytest.mark.parametrize("delivered", [1, 2])
@pytest.mark.parametrize("end", _ENDS)
async def test_an_action_that_has_ended_is_not_executed_again(
    log: JetStreamLog, end: Callable[[str], ResourceEvent], delivered: int
) -> None:
    """A recreated consumer delivers the whole history for the first time.

    A second delivery may have been executed after its action had ended, by a worker that then died.
    """
    key, api = new_key(), Api()
    history = [action_event(key), event(key, 2, end(f"{key}@1"))]
    bus = await work(log, api, history, delivered=delivered)
    assert api.calls == 0
    is_in_doubt = delivered > 1 and not isinstance(end(""), ActionSucceeded)
    errors = [each.error.error_class for each in bus.reports if each.error is not None]
    assert errors == (["Unknown"] if is_in_doubt else [])


@pytest.mark.parametrize(
    ("delivered", "keys", "redelivered", "is_in_doubt"),
    [
        (3, False, False, True),
        (2, False, False, False),
        (3, True, False, False),
        (3, False, True, False),
    ],
)
async def test_a_delivery_without_a_report_may_have_created_a_second_object(
    log: JetStreamLog, delivered: int, keys: bool, redelivered: bool, is_in_doubt: bool
) -> None:
    """The first worker reported its success, and the second died after its call."""
    key, api = new_key(), Api()
    success = ActionSucceeded(f"{key}@1", "Create", 1, redelivered=redelivered)
    bus = await work(
        log,
        api,
        [action_event(key, "Create"), event(key, 2, success)],
        delivered=delivered,
        capabilities=Capabilities(
            idempotency_keys=keys, deterministic_names=True, labels=True, conditional_writes=True
        ),
    )
    assert api.calls == 0
    errors = [each.error.error_class for each in bus.reports if each.error is not None]
    assert errors == (["Unknown"] if is_in_doubt else [])


def _describe_rows(fields: Fields | None, observed_object: ExternalObject) -> str:
    rows = observed_object.outputs.get("rows", 0)
    return f"table {observed_object.name}" if rows and not fields else ""


@pytest.mark.parametrize(
    ("change", "is_called"),
    [
        ({"rows": 0}, True),
        ({"rows": 1}, False),
        ({"rows": 1, "data_loss": "table x"}, True),  # an operator gave it up
        ({"rows": 1, "data_loss": "table y"}, False),
        ({"rows": 1, "uid": "another"}, True),  # the provider reports the conflict
        ({"rows": 1, "operation": "Update", "fields": {"size": 1}}, True),
        ({"rows": 1, "operation": "Update"}, False),
        ({"rows": 1, "operation": "Update", "written_by": "key"}, True),  # it continues
    ],
)
async def test_an_object_whose_data_is_newer_than_the_decision_is_not_written(
    log: JetStreamLog, change: dict[str, Any], is_called: bool
) -> None:
    """The provider is a plain one, so the worker reads the object before the call."""
    key = new_key()
    loss = change.get("data_loss", "").replace("x", key.name)
    existing = ExternalObject(
        key.name,
        {},
        change.get("uid", "u1"),
        written_by=change.get("written_by"),
        outputs={"rows": change["rows"]},
    )
    action = Action(
        f"{key}@1",
        "key",
        change.get("operation", "Delete"),
        1,
        "default",
        key.name,
        (),
        fields=change.get("fields", {}),
        uid="u1",
        data_loss=loss,
    )
    api = Api(existing)
    bus = await work(
        log,
        api,
        [event(key, 1, ActionDecided(action))],
        delivered=1,
        describe_data_loss=_describe_rows,
    )
    [reported] = bus.reports
    assert api.calls == is_called
    if not is_called:
        assert reported.error is not None
        assert reported.error.error_class == "Conflict"
        assert f"would lose table {key.name}" in reported.error.message
        assert reported.object == existing


async def test_no_object_is_created_with_a_name_that_another_resource_owns(
    log: JetStreamLog,
) -> None:
    """The API would accept it, while the object of that resource is missing."""
    key, api, names = new_key(), Api(), Names("team/Shape/other")
    bus = await work(log, api, [action_event(key, "Create")], delivered=1, names=names)
    [error] = [each.error for each in bus.reports]
    assert error is not None
    assert (error.error_class, error.attempted) == ("Conflict", False)
    assert error.belongs_to == "team/Shape/other"
    assert "team" not in error.message
    assert api.calls == 0
    assert names.requests == [[ExternalName("default", "Shape", key.name, str(key))]]


@pytest.mark.parametrize("operation", ["Update", "Delete"])
async def test_only_a_creation_needs_its_name(log: JetStreamLog, operation: Operation) -> None:
    api, names = Api(), Names(None)
    await work(log, api, [action_event(new_key(), operation)], delivered=1, names=names)
    assert (api.calls, names.requests) == (1, [])


async def test_a_creation_is_retried_if_no_observer_answers(log: JetStreamLog) -> None:
    api = Api()
    bus = await work(log, api, [action_event(new_key(), "Create")], delivered=1, names=Names(None))
    [error] = [each.error for each in bus.reports]
    assert error is not None
    assert (error.error_class, error.attempted, api.calls) == ("NotDone", False, 0)
    assert "no observer answered" in error.message


async def test_names_that_wait_for_an_answer_are_asked_together() -> None:
    names = Names("team/Shape/other")
    checks = NameChecks(names, None)
    asked = [ExternalName("default", "Shape", f"name-{each}", "me/Shape/x") for each in range(20)]
    owners = await asyncio.gather(*(checks.find_owners([each]) for each in asked))
    assert owners == [["team/Shape/other"]] * 20
    assert [len(each) for each in names.requests] == [20]


async def test_many_or_large_questions_are_asked_in_several_requests() -> None:
    names = Names("")
    checks = NameChecks(names, None)
    asked = [ExternalName("default", "Shape", f"name-{each}", "me/Shape/x") for each in range(1200)]
    large = [
        ExternalName("default", "Shape", str(each) * 50_000, "me/Shape/x") for each in range(5)
    ]
    assert await checks.find_owners([*asked, *large]) == [""] * 1205
    assert [len(each) for each in names.requests] == [500, 500, 202, 2, 1]


async def test_each_attempt_and_each_outcome_has_a_separate_result(
    log: JetStreamLog,
) -> None:
    """The event that records a result names its id as the cause."""
    first = action_event(new_key())
    assert isinstance(first.data, ActionDecided)
    second = event(first.key, 2, ActionRetried(first.data.action, 2))
    refused = ProviderError("still running")
    ids: list[str] = []
    for decision, fails in ((first, None), (first, None), (first, refused), (second, None)):
        bus = Bus(ActionDelivery(1, decision, 2, None))
        async with running_worker(log, Api(fails=fails), bus):
            await asyncio.wait_for(bus.acknowledged.wait(), 20)
        ids += bus.ids
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


async def test_an_action_without_an_end_is_executed_again(log: JetStreamLog) -> None:
    key, api = new_key(), Api()
    bus = await work(log, api, [action_event(key)])
    assert api.calls == len(bus.reports) == 1


@pytest.mark.parametrize("delivered", [1, 2])
async def test_a_report_states_whether_another_worker_had_the_action_before(
    log: JetStreamLog, delivered: int
) -> None:
    bus = await work(log, Api(), [action_event(new_key(), "Create")], delivered=delivered)
    assert [report.redelivered for report in bus.reports] == [delivered > 1]


@pytest.mark.parametrize("absent", [False, True])
async def test_a_report_states_whether_a_deletion_found_nothing(
    log: JetStreamLog, absent: bool
) -> None:
    api = Api()
    api.absent = absent
    bus = await work(log, api, [action_event(new_key(), "Delete")], delivered=1)
    assert [report.absent for report in bus.reports] == [absent]


@pytest.mark.parametrize(
    ("delivered", "is_count_certain", "is_called"),
    [(1, True, True), (2, True, False), (1, False, False)],
)
async def test_a_creation_that_cannot_be_repeated_is_not_executed_if_redelivered(
    log: JetStreamLog, delivered: int, is_count_certain: bool, is_called: bool
) -> None:
    api = Api()
    neither_keys_nor_names = Capabilities(
        idempotency_keys=False, deterministic_names=False, labels=True, conditional_writes=True
    )
    bus = await work(
        log,
        api,
        [action_event(new_key(), "Create")],
        delivered=delivered,
        is_count_certain=is_count_certain,
        capabilities=neither_keys_nor_names,
    )
    [report] = bus.reports
    assert (api.calls, report.error is None) == ((1, True) if is_called else (0, False))
    assert report.error is None or report.error.error_class == "Unknown"


async def test_no_call_is_made_before_the_history_is_loaded(
    log: JetStreamLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, api, load = new_key(), Api(), log.load
    requests: list[int] = []

    async def fail_once(keys: Sequence[ResourceKey], **options: bool) -> Any:
        requests.append(api.calls)
        if len(requests) == 1:
            raise OSError("the bus is unavailable")
        return await load(keys, **options)

    monkeypatch.setattr(log, "load", fail_once)
    await work(log, api, [action_event(key), event(key, 2, _ENDS[0](f"{key}@1"))])
    assert requests == [0, 0]
    assert api.calls == 0


async def test_an_object_too_large_to_report_does_not_block_its_result(
    log: JetStreamLog,
) -> None:
    observed_object = ExternalObject("foo", {"color": "x" * MAX_OBJECT_BYTES})
    bus = await work(log, Api(observed_object), [action_event(new_key())])
    assert [(report.error, report.object) for report in bus.reports] == [(None, None)]


@pytest.mark.parametrize(
    "observed_object",
    [ExternalObject("foo", {"color": "\ud800"}), ExternalObject("foo", {"color": object()})],
    ids=["half-a-surrogate-pair", "not-json"],
)
async def test_an_object_that_cannot_be_encoded_does_not_block_its_result(
    log: JetStreamLog, observed_object: ExternalObject
) -> None:
    bus = await work(log, Api(observed_object), [action_event(new_key())])
    assert [(report.error, report.object) for report in bus.reports] == [(None, None)]


async def test_an_error_that_cannot_be_encoded_is_still_reported(log: JetStreamLog) -> None:
    api = Api(fails=ProviderError("bad \ud800"))
    [report] = (await work(log, api, [action_event(new_key())])).reports
    assert report.error == ActionError("Unknown", "bad ?")


async def test_a_provider_that_cancels_itself_leaves_no_lease_behind(
    log: JetStreamLog,
) -> None:
    [report] = (
        await work(log, Api(fails=asyncio.CancelledError()), [action_event(new_key())])
    ).reports
    assert report.error is not None
    assert report.error.error_class == "Unknown"


class PartlyFullBus(Bus):
    """A bus that stores only the first of several results in the first attempt."""

    def __init__(self, *deliveries: ActionDelivery) -> None:
        super().__init__(*deliveries)
        self.acknowledged_at: list[int] = []
        self.all_acknowledged = asyncio.Event()
        self.attempts = 0

    async def next_batch(self) -> Sequence[ActionDelivery]:
        batch, self._deliveries = self._deliveries, list[ActionDelivery]()
        return batch or await super().next_batch()

    async def publish(self, messages: Sequence[IntakeMessageOut]) -> None:
        self.attempts += 1
        if self.attempts == 1:
            await super().publish(messages[:1])
            raise NotStoredError(StreamFullError("the intake is full"), [1, 2])
        await super().publish(messages)

    async def ack(self, deliveries: Sequence[ActionDelivery]) -> None:
        self.acknowledged_at += [self.attempts] * len(deliveries)
        if len(self.acknowledged_at) == 3:
            self.all_acknowledged.set()


async def test_only_results_that_were_not_stored_are_published_again(
    log: JetStreamLog,
) -> None:
    histories = [[action_event(new_key())] for _ in range(3)]
    await log.append([ResourceAppend(each[0].key, each, 0) for each in histories])
    position = await log.last_position()
    bus = PartlyFullBus(*(ActionDelivery(position, each[0], 1, None) for each in histories))
    async with running_worker(log, Api(), bus):
        await asyncio.wait_for(bus.all_acknowledged.wait(), 20)
    assert bus.acknowledged_at == [1, 2, 2]
    assert sorted(report.action_id for report in bus.reports) == sorted(
        f"{each[0].key}@1" for each in histories
    )


async def append_deliveries(log: JetStreamLog, count: int) -> list[ActionDelivery]:
    histories = [[action_event(new_key())] for _ in range(count)]
    await log.append([ResourceAppend(each[0].key, each, 0) for each in histories])
    position = await log.last_position()
    return [ActionDelivery(position, each[0], 1, None) for each in histories]


class BatchBus(Bus):
    """A bus that records the size of each batch of results and the slots freed by then."""

    def __init__(self, *deliveries: ActionDelivery) -> None:
        super().__init__(*deliveries)
        self.stored: list[tuple[int, int]] = []
        self.has_arrived = asyncio.Event()

    async def publish(self, messages: Sequence[IntakeMessageOut]) -> None:
        self.stored.append((len(messages), self.freed_slots))
        self.has_arrived.set()


class BlockingApi(Api):
    """An API whose last call ends when it is released."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.release = asyncio.Event()
        self.is_waiting = asyncio.Event()
        self._count = count

    async def update(self, action: Action) -> Effect:
        effect = await self.create(action)
        if self.calls == self._count:
            self.is_waiting.set()
            await self.release.wait()
        return effect


async def test_results_are_stored_together_while_their_api_has_pending_calls(
    log: JetStreamLog,
) -> None:
    api, bus = BlockingApi(6), BatchBus(*await append_deliveries(log, 6))
    async with running_worker(log, api, bus):
        await asyncio.wait_for(bus.has_arrived.wait(), 20)
        assert bus.stored == [(5, 5)], "another action may be delivered after a call has ended"
        bus.has_arrived.clear()
        api.release.set()
        await asyncio.wait_for(bus.has_arrived.wait(), 20)
    assert bus.stored[1:] == [(1, 6)]


async def test_a_last_result_is_stored_immediately(
    log: JetStreamLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.roles.worker.worker._GATHER_SECONDS", 60.0)
    bus = BatchBus(*await append_deliveries(log, 1))
    async with running_worker(log, Api(), bus):
        await asyncio.wait_for(bus.has_arrived.wait(), 20)
    assert bus.stored == [(1, 1)]


async def test_pending_results_are_stored_on_shutdown(
    log: JetStreamLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.roles.worker.worker._GATHER_SECONDS", 60.0)
    monkeypatch.setattr("reconciler.roles.worker.worker._LAST_CALLS_SECONDS", 0.01)
    api, bus = BlockingApi(3), BatchBus(*await append_deliveries(log, 3))
    async with running_worker(log, api, bus):
        await asyncio.wait_for(api.is_waiting.wait(), 20)
        assert bus.stored == []
    await asyncio.wait_for(bus.acknowledged.wait(), 20)
    assert bus.stored == [(2, 2)]


async def test_a_shutdown_waits_for_the_call_in_progress(log: JetStreamLog) -> None:
    api, bus = BlockingApi(1), BatchBus(*await append_deliveries(log, 1))
    async with running_worker(log, api, bus):
        await asyncio.wait_for(api.is_waiting.wait(), 20)
    api.release.set()
    await asyncio.wait_for(bus.acknowledged.wait(), 20)
    assert bus.stored == [(1, 1)]


async def test_a_shutdown_waits_for_the_search_for_secrets_in_a_response(
    log: JetStreamLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the result of a completed call would be unknown."""
    searching, may_end = asyncio.Event(), asyncio.Event()

    class Turns(SearchTurns):
        async def complete(self, search: Search[Any]) -> Any:
            searching.set()
            await may_end.wait()
            return await super().complete(search)

    monkeypatch.setattr("reconciler.roles.runtime.provider_pool.SearchTurns", Turns)
    api, bus = Api(ExternalObject("foo", {})), BatchBus(*await append_deliveries(log, 1))
    async with running_worker(log, api, bus):
        await asyncio.wait_for(searching.wait(), 20)
        asyncio.get_running_loop().call_later(0.1, may_end.set)  # while the worker is stopping
    await asyncio.wait_for(bus.acknowledged.wait(), 20)
    assert bus.stored == [(1, 1)]


async def test_pending_results_stop_the_worker_from_pulling_actions(
    log: JetStreamLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.roles.worker.worker._MAX_PENDING_RESULTS", 2)
    monkeypatch.setattr("reconciler.roles.worker.worker._MAX_BATCH_RESULTS", 5)
    bus = BatchBus(*await append_deliveries(log, 5))
    async with running_worker(log, Api(), bus):
        await asyncio.wait_for(bus.has_arrived.wait(), 20)
    assert bus.stored == [(5, 2)]


class SuspendedBus(Bus):
    """The process is suspended after its delivery, and another worker executes the action."""

    def __init__(self, log: JetStreamLog, history: Sequence[LogEvent]) -> None:
        super().__init__()
        self._log, self._history = log, history
        self.now: float = 0.0

    async def next_batch(self) -> Sequence[ActionDelivery]:
        key = self._history[0].key
        if not self.now:
            [last] = await self._log.append([ResourceAppend(key, self._history, 0)])
            position = last - len(self._history) + 1
            self._deliveries.append(ActionDelivery(position, self._history[0], 1, None))
            self.now += LEASE_SECONDS + 1
        return await super().next_batch()


async def test_a_worker_suspended_beyond_its_lease_reads_the_log_before_it_calls(
    log: JetStreamLog,
) -> None:
    key, api = new_key(), Api()
    bus = SuspendedBus(log, [action_event(key), event(key, 2, _ENDS[0](f"{key}@1"))])
    async with running_worker(log, api, bus, clock=lambda: bus.now):
        await asyncio.wait_for(bus.acknowledged.wait(), 60)
    assert (api.calls, bus.reports) == (0, [])


class ResumedBus(SuspendedBus):
    """The delivery arrived while the process was suspended. It is read after the next heartbeat."""

    def __init__(self, log: JetStreamLog, history: Sequence[LogEvent]) -> None:
        super().__init__(log, history)
        self.heartbeat_sent = asyncio.Event()
        self._first: list[ActionDelivery] = [
            ActionDelivery(10**6, action_event(new_key()), 1, None)
        ]

    async def next_batch(self) -> Sequence[ActionDelivery]:
        first, self._first = self._first, list[ActionDelivery]()
        if first:
            return first
        if not self.heartbeat_sent.is_set():
            self.now += LEASE_SECONDS + 1
            await self.heartbeat_sent.wait()
            self.now -= LEASE_SECONDS + 1  # which the next line adds again
            return await super().next_batch()
        return await Bus.next_batch(self)

    async def extend_leases(self, deliveries: Sequence[ActionDelivery]) -> None:
        self.heartbeat_sent.set()


class HangingApi(Api):
    """An API whose first call never ends."""

    async def delete(self, action: Action) -> Effect:
        if self.calls:
            return await self.create(action)
        self.calls += 1
        await asyncio.Event().wait()
        raise AssertionError

    update = delete


class QueueBus(Bus):
    """A bus that delivers as many actions as the worker permits."""

    def __init__(self, *deliveries: ActionDelivery) -> None:
        super().__init__(*deliveries)
        self._limit = asyncio.Semaphore(0)
        self._has_slot = {id(each) for each in deliveries}

    async def add_queue(self, provider_config: str, limit: int) -> None:
        for _ in range(limit):
            self._limit.release()

    def free_slot(self, delivery: ActionDelivery) -> None:
        if id(delivery) in self._has_slot:
            self._has_slot.discard(id(delivery))
            self._limit.release()

    async def next_batch(self) -> Sequence[ActionDelivery]:
        await self._limit.acquire()
        return await super().next_batch()


class HangingInApi(Api):
    """An API at which the calls of one namespace hang."""

    def __init__(self, namespace: str) -> None:
        super().__init__()
        self._namespace = namespace
        self.hanging = 0

    async def update(self, action: Action) -> Effect:
        if action.namespace == self._namespace:
            self.hanging += 1
            await asyncio.Event().wait()
        return await self.create(action)


@pytest.mark.parametrize("hanging", [100, 2_500])
async def test_hanging_calls_of_one_namespace_delay_no_action_of_another(
    log: JetStreamLog, hanging: int
) -> None:
    quick = await append_deliveries(log, 3)
    keys = [ResourceKey("hanging", "Shape", f"s{number}") for number in range(hanging)]
    position = quick[0].position
    slow = [ActionDelivery(position, action_event(each), 1, None) for each in keys]
    api = HangingInApi("hanging")
    bus = QueueBus(*quick[:-1], *slow, quick[-1])  # delivered from the end
    async with running_worker(log, api, bus):
        await asyncio.wait_for(bus.acknowledged.wait(), 8)
    assert 0 < api.hanging <= 64 * 7 // 8


async def test_an_unread_delivery_to_a_suspended_process_is_treated_as_redelivered(
    log: JetStreamLog,
) -> None:
    bus = ResumedBus(log, [action_event(new_key())])
    async with running_worker(log, HangingApi(), bus, clock=lambda: bus.now):
        await asyncio.wait_for(bus.acknowledged.wait(), 60)
    assert [report.redelivered for report in bus.reports] == [True]


async def test_a_worker_suspended_before_its_report_marks_it_as_redelivered(
    log: JetStreamLog,
) -> None:
    """Its own call was refused, but the other worker's call may have succeeded."""
    bus = SuspendedBus(log, [action_event(new_key())])
    async with running_worker(log, Api(), bus, clock=lambda: bus.now):
        await asyncio.wait_for(bus.acknowledged.wait(), 10)
    assert [report.redelivered for report in bus.reports] == [True]


async def test_a_report_contains_no_secret_except_for_decided_values(log: JetStreamLog) -> None:
    """A weak secret that is also a word in the action must not look like drift."""
    stores = SecretStores()
    for secret in ("postgres", "planted&token"):
        stores.secrecy.add(secret)
    observed_object = ExternalObject(
        "foo", {"owner": "postgres", "seen": "Bearer planted\\u0026token"}
    )
    key = new_key()
    action = Action(f"{key}@1", "key", "Update", 1, "default", "foo", (), {"owner": "postgres"})
    bus = Bus(ActionDelivery(1, event(key, 1, ActionDecided(action)), 1, None))
    async with running_worker(log, Api(observed_object), bus, stores=stores):
        await asyncio.wait_for(bus.acknowledged.wait(), 60)
    [report] = bus.reports
    assert report.object is not None
    assert report.object.fields == {"owner": "postgres", "seen": "Bearer ***"}


class CopiesApi(Api):
    """An API with its own ids, whose objects have the label of one action."""

    def __init__(self, *objects: ExternalObject) -> None:
        super().__init__()
        self._objects = objects

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        assert scope
        assert page_size
        yield self._objects


async def test_ids_of_labeled_objects_are_reported_truncated_and_without_secrets(
    log: JetStreamLog,
) -> None:
    """The API chooses the ids: longer ones would make a report that the bus never stores."""
    stores = SecretStores()
    stores.secrecy.add("planted&token")
    key = new_key()
    labels = {OWNER_LABEL: "ours"}
    action = Action(f"{key}@1", "key", "Create", 1, "default", "foo", (), labels=labels)
    uids = ("u1", "id-planted%26token", "x" * 100_000)
    api = CopiesApi(*(ExternalObject("foo", {}, uid, labels=labels) for uid in uids))
    bus = Bus(ActionDelivery(1, event(key, 1, LookupDecided(action, 2)), 1, None))
    by_id = Capabilities(
        idempotency_keys=False, deterministic_names=False, labels=True, conditional_writes=False
    )
    async with running_worker(log, api, bus, stores=stores, capabilities=by_id):
        await asyncio.wait_for(bus.acknowledged.wait(), 60)
    [report] = bus.reports
    assert report.labeled_uids == ("u1", "id-***", "x" * 256)


@pytest.mark.parametrize(
    "existing",
    [
        ExternalObject("foo", {}, "id-planted%26token"),
        ExternalObject("foo", {"text": "x" * MAX_OBJECT_BYTES}, "u1"),
    ],
)
async def test_a_lookup_of_an_unreportable_object_does_not_report_it_as_absent(
    log: JetStreamLog, existing: ExternalObject
) -> None:
    """The decider would repeat the creation, and the API would create another object each time."""
    stores = SecretStores()
    stores.secrecy.add("planted&token")
    key = new_key()
    action = Action(f"{key}@1", "key", "Create", 1, "default", "foo", ())
    bus = Bus(ActionDelivery(1, event(key, 1, LookupDecided(action, 2)), 1, None))
    async with running_worker(log, Api(existing), bus, stores=stores):
        await asyncio.wait_for(bus.acknowledged.wait(), 60)
    [report] = bus.reports
    assert report.object is None
    assert report.error is not None
    assert report.error.error_class == "NotDone"
    assert "cannot be reported" in report.error.message


# --- objects that are newer than the log (ADR 0065)


def _newer(log: JetStreamLog, key: ResourceKey, version: int = 9) -> ExternalObject:
    """Return an object that an action of a copy of the log has written."""
    written_by = idempotency_key(log.log_id, event_id(key, version), log.epoch)
    labels = {OWNER_LABEL: owner(log.log_id, key)}
    return ExternalObject(key.name, {}, "u1", "v2", labels, written_by)


async def test_a_write_that_finds_a_newer_object_is_not_based_on_it(log: JetStreamLog) -> None:
    """Otherwise the next write would overwrite it before a listing shows it."""
    key = new_key()
    api = Api(fails=ConflictError("another version", obstacle=_newer(log, key)))
    bus = await work(log, api, [action_event(key)], delivered=1)
    (newer,) = [each for report in bus.api_reports for each in report.newer]
    assert (newer.action, newer.known_version) == (f"{key}@9", 1)
    (report,) = bus.reports
    assert report.error is not None
    assert (report.error.error_class, report.object) == ("Conflict", None)


async def test_a_lookup_that_finds_a_newer_object_proves_nothing(log: JetStreamLog) -> None:
    """Found by its label, it would be treated as the object that the action created."""
    key = new_key()
    first = action_event(key, "Create")
    assert isinstance(first.data, ActionDecided)
    lookup = event(key, 1, LookupDecided(first.data.action, 2))
    bus = await work(log, Api(_newer(log, key)), [lookup], delivered=1)
    (report,) = bus.reports
    assert report.error is not None
    assert (report.error.error_class, report.object) == ("NotDone", None)


async def test_the_retries_of_an_action_do_not_make_an_object_of_a_copy_ours(
    log: JetStreamLog,
) -> None:
    """They record events with higher versions than the action of the copy."""
    key = new_key()
    first = action_event(key, "Create")
    assert isinstance(first.data, ActionDecided)
    lookup = event(key, 20, LookupDecided(first.data.action, 7))
    bus = await work(log, Api(_newer(log, key, version=9)), [lookup], delivered=1)
    (report,) = bus.reports
    assert report.error is not None
    assert (report.error.error_class, report.object) == ("NotDone", None)


async def test_an_object_written_by_an_action_of_this_log_is_reported(
    log: JetStreamLog,
) -> None:
    key = new_key()
    existing = _newer(log, key, version=1)
    bus = await work(log, Api(fails=ConflictError("no", obstacle=existing)), [action_event(key)])
    assert (bus.api_reports, [each.object for each in bus.reports]) == ([], [existing])


async def test_nothing_is_written_while_an_api_is_held(log: JetStreamLog) -> None:
    held = TwinDetected((NewerObject("Shape", "foo", "u1", "default/Shape/foo@9", 1),), 1)
    api = Api()
    bus = await work(log, api, [action_event(new_key())], delivered=1, config_events=[held])
    assert api.calls == 0
    (report,) = bus.reports
    assert report.error is not None
    assert not report.error.attempted
    lookup = action_event(new_key())
    assert isinstance(lookup.data, ActionDecided)
    observed_object = ExternalObject(lookup.key.name, {})
    lookup_event = event(lookup.key, 1, LookupDecided(lookup.data.action, 2))
    bus = await work(log, Api(observed_object), [lookup_event], delivered=1, config_events=[held])
    assert [each.object for each in bus.reports] == [observed_object], "reads continue"
    approved = [held, HoldApproved("Twin")]
    await work(log, api, [action_event(new_key())], delivered=1, config_events=approved)
    assert api.calls == 1


class WritingApi(Api):
    """A provider whose first request is a write, and whose second request may fail."""

    async def create(self, action: Action) -> Effect:
        CallPermit().record_write()
        return await super().create(action)

    update = delete = create


WRITTEN = ExternalObject("foo", {})


@pytest.mark.parametrize(
    ("operation", "error", "error_class"),
    [
        ("Create", NotDoneError("no", status=409), "Unknown"),
        ("Update", NotDoneError("no", status=409), "Unknown"),
        ("Create", NotCalledError("the gate is closed"), "Unknown"),
        ("Create", ThrottledError("slower", status=429, retry_after_seconds=3), "Unknown"),
        ("Create", RefusedError("never"), "Unknown"),
        ("Create", ConfigurationError("a program is missing"), "Unknown"),
        ("Create", RefusedError("never", obstacle=WRITTEN), "Refused"),
        ("Create", ConflictError("another", obstacle=WRITTEN), "Conflict"),
        ("Delete", NotDoneError("it waits", status=409), "NotDone"),
    ],
)
async def test_a_failure_after_a_write_by_the_same_action_is_in_doubt(
    log: JetStreamLog, operation: Operation, error: BaseException, error_class: str
) -> None:
    bus = await work(
        log, WritingApi(fails=error), [action_event(new_key(), operation)], delivered=1
    )
    (report,) = bus.reports
    assert report.error is not None
    assert (report.error.error_class, report.error.attempted) == (error_class, True)
    assert report.error.retry_after_seconds == getattr(error, "retry_after_seconds", None)


async def test_a_write_by_one_action_proves_nothing_about_the_next_one(log: JetStreamLog) -> None:
    await work(log, WritingApi(), [action_event(new_key())])
    bus = await work(log, Api(fails=NotDoneError("no", status=409)), [action_event(new_key())])
    assert [each.error and each.error.error_class for each in bus.reports] == ["NotDone"]


class ApiOfTwoTenants(Api):
    """An API whose calls for one tenant's objects fail; its listings may fail, too."""

    def __init__(self, *, is_down: bool) -> None:
        super().__init__(fails=UnknownResultError("timeout"))
        self.is_down = is_down
        self.listings = 0

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        self.listings += 1
        if self.is_down:
            raise NotDoneError("timeout")
        for _ in range(2):
            yield []
            assert page_size == 1
        raise AssertionError("only one page is needed")


class ProbedApiOfTwoTenants(ApiOfTwoTenants):
    """An API whose listings depend on the tenants' objects, and which therefore has a probe."""

    async def probe(self) -> bool:
        self.listings += 1
        if self.is_down:
            raise NotDoneError("timeout")
        return True

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        raise AssertionError(f"a tenant delays this listing of {scope}, {page_size}")
        yield []


@pytest.mark.parametrize("is_down", [False, True])
@pytest.mark.parametrize("api_type", [ApiOfTwoTenants, ProbedApiOfTwoTenants])
async def test_failed_calls_open_the_breaker_only_if_a_listing_or_probe_fails_too(
    log: JetStreamLog, is_down: bool, api_type: type[ApiOfTwoTenants]
) -> None:
    """The objects of one tenant may cause any number of timeouts."""
    api = api_type(is_down=is_down)
    histories = [[action_event(new_key())] for _ in range(8)]
    deliveries: list[ActionDelivery] = []
    for history in histories:
        [last] = await log.append([ResourceAppend(history[0].key, history, 0)])
        deliveries.append(ActionDelivery(last, history[0], 1, None, True))
    bus = Bus(*deliveries)
    capabilities = Capabilities(
        idempotency_keys=True, deterministic_names=True, labels=True, conditional_writes=True
    )
    async with running_worker(log, api, bus, capabilities=capabilities):
        async with asyncio.timeout(60):
            while len(bus.reports) < len(histories):
                await bus.acknowledged.wait()
                bus.acknowledged.clear()
            if is_down:
                await bus.has_api_report.wait()
    assert api.calls >= 5
    assert api.listings == 1
    assert [each.state for each in bus.api_reports] == (["Failing"] if is_down else [])


class LargeApi(ApiOfTwoTenants):
    """An API whose calls fail for the objects of one tenant, and whose listings are too large."""

    def __init__(self, error: ProviderError | None) -> None:
        super().__init__(is_down=False)
        self.error = error

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        del scope, page_size
        self.listings += 1
        CallPermit().record_status(200)
        if self.error is None:
            await asyncio.Event().wait()
        else:
            raise self.error
        yield []


@pytest.mark.parametrize(
    "error", [NotDoneError("longer than 32 MiB", status=200), None], ids=["large", "slow"]
)
async def test_a_listing_that_is_too_large_or_slow_does_not_open_the_breaker(
    log: JetStreamLog, error: ProviderError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise one tenant could stop all others by creating objects."""
    monkeypatch.setattr(worker_module, "CHECK_SECONDS", 0.2)
    api = LargeApi(error)
    histories = [[action_event(new_key())] for _ in range(8)]
    deliveries: list[ActionDelivery] = []
    for history in histories:
        [last] = await log.append([ResourceAppend(history[0].key, history, 0)])
        deliveries.append(ActionDelivery(last, history[0], 1, None, True))
    bus = Bus(*deliveries)
    capabilities = Capabilities(
        idempotency_keys=True, deterministic_names=True, labels=True, conditional_writes=True
    )
    async with running_worker(log, api, bus, capabilities=capabilities):
        async with asyncio.timeout(60):
            while len(bus.reports) < len(histories):
                await bus.acknowledged.wait()
                bus.acknowledged.clear()
    assert api.listings == 1
    assert bus.api_reports == []


class NamespacedApi(Api):
    """An API whose client shares its connections among the namespaces of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.namespaces: list[str] = []

    async def create(self, action: Action) -> Effect:
        self.namespaces.append(CallPermit().namespace)
        return await super().create(action)

    update = delete = create


async def test_a_provider_learns_the_namespace_that_a_call_is_for(log: JetStreamLog) -> None:
    api, keys = NamespacedApi(), [ResourceKey(each, "Shape", new_key().name) for each in "ab"]
    for key in keys:
        await work(log, api, [action_event(key)])
    assert api.namespaces == ["a", "b"]
    assert CallPermit().namespace == ""
