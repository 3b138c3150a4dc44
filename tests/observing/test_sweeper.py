"""The sweeper wakes overdue resources, at growing intervals if that has no effect."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import msgspec
import pytest

from events.external import ExternalObject
from events.intake import (
    DefinitionReported,
    ReconcileRequested,
    SecretReported,
    TargetReported,
    TargetState,
    TimerFired,
)
from events.kind_definition import DefinitionRef
from events.log import LogEvent, PartAvailability, SecretObserved, SpecDeclared, TargetObserved
from events.manifest import Fields
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec, config_key
from events.reference import Reference
from projections.read_models import EMPTY_CHECKPOINT, ReadModels
from projections.status import StatusRow
from reconciler.errors import NotDoneError
from reconciler.ports import IntakeMessageOut
from reconciler.provider.kind import READY, DefinedKind, Kind, KindRegistry, Readiness
from reconciler.provider.secrets import SecretKey, SecretStores
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.runtime.runtime import Runtime
from reconciler.roles.sweeper import sweeper as sweeper_module
from reconciler.roles.sweeper.reference_index import AffectedResources
from reconciler.roles.sweeper.report_queue import (
    MAX_REPEAT_SECONDS,
    MAX_UNPROCESSED_REPORTS,
    REPEAT_SECONDS,
    TURN_COST,
    ReportQueue,
)
from reconciler.roles.sweeper.sweeper import (
    FULL_SWEEP_SECONDS,
    MAX_WAKE_UP_SECONDS,
    READ_MARGIN_SECONDS,
    ROWS_PER_SLICE,
    SECRETS_PER_SLICE,
    SWEEP_SECONDS,
    Sweeper,
)
from shapes_api.kinds.shapes import SHAPE
from tests.bus.histories import event

FOO = ResourceKey("default", "Shape", "foo")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
WRONG_TIME = BEGIN - timedelta(hours=1)
"""The time on the sweeper's machine, which does not matter."""


class Intake:
    """Keeps the published messages."""

    def __init__(self) -> None:
        self.published: list[IntakeMessageOut] = []

    async def publish(self, messages: Sequence[IntakeMessageOut]) -> None:
        self.published += messages

    async def last_position(self) -> int:
        return 0


def _ready(_fields: Fields, _observed: ExternalObject) -> Readiness:
    return READY


class Scene:
    """A sweeper, one waiting resource, and a clock."""

    def __init__(
        self,
        stores: SecretStores = SecretStores(),  # noqa: B008 - it is frozen
        kinds: KindRegistry | None = None,
    ) -> None:
        self.now, self.seconds = BEGIN, 0.0
        self.intake = Intake()
        self.configurations = Configurations()
        self.kinds = KindRegistry([SHAPE]) if kinds is None else kinds
        self.row = StatusRow(FOO.namespace, FOO.kind, FOO.name)
        models = self.models = ReadModels()
        self.row.outcome = "Held"  # held and waiting resources are checked
        models.status[str(FOO)] = self.row
        models.set_checkpoint(EMPTY_CHECKPOINT)
        self.sweeper = Sweeper(
            intake=self.intake,
            configurations=self.configurations,
            kinds=self.kinds,
            models=models,
            bus_time=self.bus_time,
            stores=stores,
            runtime=Runtime(now=lambda: WRONG_TIME, clock=lambda: self.seconds),
        )

    async def bus_time(self) -> float:
        return self.now.timestamp()

    def wait(self, until: datetime) -> None:
        self.row.outcome = "Degraded"
        self.row.retry_at, self.row.retry_seconds = until, 1.0

    def apply_event(self, position: int, log_event: LogEvent) -> None:
        self.models.apply(position, log_event)
        self.sweeper.handle_event(position, log_event)

    async def sweep_for(self, seconds: float) -> list[float]:
        """Sweep at intervals; return the seconds at which the resource was woken."""
        woken_at: list[float] = []
        for number in range(int(seconds / SWEEP_SECONDS)):
            count_before = len(self.intake.published)
            await self.sweeper.sweep()
            if len(self.intake.published) > count_before:
                woken_at.append(number * SWEEP_SECONDS)
            self.now += timedelta(seconds=SWEEP_SECONDS)
            self.seconds += SWEEP_SECONDS
        return woken_at


async def test_a_resource_woken_without_effect_is_woken_again_at_growing_intervals() -> None:
    scene = Scene()
    scene.wait(BEGIN - timedelta(minutes=1))
    woken_at = await scene.sweep_for(3600)
    assert woken_at[:4] == [0, 5, 15, 35]
    pauses = [later - earlier for earlier, later in itertools.pairwise(woken_at)]
    assert max(pauses[6:]) == min(pauses[6:]) == MAX_WAKE_UP_SECONDS
    assert {type(each.data) for each in scene.intake.published} == {TimerFired}


async def test_a_lost_timer_of_parts_wakes_a_waiting_resource() -> None:
    scene = Scene()
    scene.row.outcome = "Waiting"
    scene.row.available_at = BEGIN - timedelta(minutes=1)
    assert (await scene.sweep_for(5)) == [0]


async def test_a_resource_is_woken_immediately_when_a_new_wait_ends() -> None:
    scene = Scene()
    scene.wait(BEGIN - timedelta(minutes=1))
    await scene.sweep_for(600)
    scene.wait(scene.now - timedelta(minutes=1))
    assert (await scene.sweep_for(10))[:2] == [0, 5]


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_clock_change_does_not_change_the_interval_between_two_wake_ups(hours: int) -> None:
    scene = Scene()
    scene.wait(BEGIN - timedelta(hours=2))
    assert await scene.sweep_for(10) == [0, 5]
    scene.now += timedelta(hours=hours)
    assert (await scene.sweep_for(60))[:2] == [5, 25]


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_clock_change_does_not_shift_the_check_of_all_references(hours: int) -> None:
    scene = Scene(SecretStores({"files": Store()}, b"a key"))

    async def check_lost_event(seconds: float) -> list[float]:
        # the sweeper does not detect it, because its event was lost
        scene.row.secrets, scene.row.declared = {"files/db": ""}, True
        scene.models.set_checkpoint(EMPTY_CHECKPOINT)
        swept_at = await scene.sweep_for(seconds)
        [report] = scene.intake.published
        assert isinstance(report.data, SecretReported)
        observed = SecretObserved(report.data.secret, report.data.digest)
        scene.apply_event(scene.row.position + 1, event(FOO, scene.row.version + 1, observed))
        await scene.sweeper.sweep()
        scene.intake.published.clear()
        return swept_at

    first_delay = await check_lost_event(SWEEP_SECONDS)
    scene.now += timedelta(hours=hours)
    intervals = [await check_lost_event(FULL_SWEEP_SECONDS) for _ in range(2)]
    assert (first_delay, intervals) == ([0], [[FULL_SWEEP_SECONDS - SWEEP_SECONDS]] * 2)


async def test_a_resource_that_no_longer_waits_is_forgotten() -> None:
    scene = Scene()
    scene.wait(BEGIN - timedelta(minutes=1))
    await scene.sweep_for(600)
    scene.row.retry_at = None
    assert await scene.sweep_for(10) == []
    scene.wait(BEGIN - timedelta(minutes=1))
    assert (await scene.sweep_for(10))[:2] == [0, 5]


@pytest.mark.parametrize(
    ("outcome", "is_woken"),
    [("Converged", True), ("Degraded", True)]
    + [(outcome, False) for outcome in ("Failed", "Waiting", "Disputed", "Held")],
)
async def test_a_due_resource_is_woken_unless_its_outcome_waits_for_a_message(
    outcome: str, is_woken: bool
) -> None:
    scene = Scene()
    scene.row.outcome, scene.row.renewal_at = outcome, BEGIN - timedelta(minutes=1)
    assert bool(await scene.sweep_for(60)) is is_woken


@pytest.mark.parametrize(
    ("outcome", "action_id", "is_woken"),
    [("Degraded", "", True), ("Held", "", False), ("Held", f"{FOO}@7", True)],
)
async def test_a_held_resource_is_not_woken_when_a_wait_ends_unless_an_action_is_in_progress(
    outcome: str, action_id: str, is_woken: bool
) -> None:
    scene = Scene()
    scene.wait(BEGIN - timedelta(minutes=1))
    scene.row.outcome, scene.row.action_id = outcome, action_id
    assert bool(await scene.sweep_for(60)) is is_woken


@pytest.mark.parametrize(
    ("reason", "provider", "is_woken"),
    [
        ("ProviderConfigMissing", None, False),
        ("ProviderConfigMissing", "records", True),  # the reason has changed
        ("WrongProvider", "records", False),
        ("WrongProvider", "shapes", True),
        ("WrongProvider", None, True),
        ("Referenced", "shapes", False),
    ],
)
async def test_a_resource_held_for_its_configuration_is_woken_when_it_is_valid(
    reason: str, provider: str | None, is_woken: bool
) -> None:
    scene = Scene()
    row = scene.row
    row.outcome, row.reason, row.provider_config = "Held", reason, "billing"
    if provider is not None:
        config = ProviderConfigSpec(provider=provider, endpoint="http://localhost")
        scene.configurations.by_name["billing"] = config
    assert await scene.sweeper.sweep() == is_woken
    assert [each.data for each in scene.intake.published] == [
        TimerFired("ConfigChanged")
    ] * is_woken


@pytest.mark.parametrize(
    ("reason", "woken_at"),
    [("NotPermitted", [0, 5, 15, 35]), ("DefinitionGuard", [0, 5]), ("PruneGuard", [0, 5])],
)
async def test_a_resource_that_its_configuration_forbids_is_woken_when_that_changes(
    reason: str, woken_at: list[int]
) -> None:
    scene = Scene()
    scene.row.outcome, scene.row.reason = "Held", reason
    scene.row.provider_config = "billing"
    config = {"provider": "shapes", "endpoint": "http://localhost"}
    declared = SpecDeclared(1, "reconciler/v1", "", "billing", config)
    key = config_key("billing")
    scene.configurations.apply(event(key, 1, declared))
    assert await scene.sweep_for(60) == woken_at  # its decider may read it later
    await scene.sweep_for(600)
    changed = msgspec.structs.replace(declared, generation=2)
    scene.configurations.apply(event(key, 2, changed))
    assert (await scene.sweep_for(10))[:2] == [0, 5]


@pytest.mark.parametrize("outcome_of", ["declared", "withdrawn"])
async def test_a_resource_held_for_its_kind_is_woken_when_the_kind_is_installed(
    outcome_of: str,
) -> None:
    scene = Scene()
    row = scene.row = StatusRow("default", "Widget", "foo")
    row.outcome, row.reason, row.declared = "Held", "UnknownKind", outcome_of == "declared"
    scene.models.status[str(row.key)] = row
    scene.models.set_checkpoint(EMPTY_CHECKPOINT)
    assert await scene.sweep_for(60) == [], "the kind is not installed"
    scene.kinds.define(replace(SHAPE, name="Widget"))
    assert (await scene.sweep_for(60))[:3] == [0, 5, 15]  # its decider may be started later
    assert {each.key for each in scene.intake.published} == {row.key}


async def test_a_resource_held_for_the_kind_of_a_part_is_woken_when_a_kind_is_defined() -> None:
    scene = Scene()
    scene.row.reason = "UnknownKind"  # its own kind is known, as for a composition
    await scene.sweep_for(600)
    scene.kinds.define(replace(SHAPE, name="Widget"))
    assert (await scene.sweep_for(10))[:2] == [0, 5]


@pytest.mark.parametrize(("provider", "is_woken"), [("shapes", True), ("widgets", False)])
async def test_a_configuration_is_woken_when_its_provider_is_installed(
    provider: str, is_woken: bool
) -> None:
    scene = Scene()
    row = scene.row = StatusRow("system", "ProviderConfig", "billing")
    row.outcome, row.reason, row.declared = "Held", "UnknownProvider", True
    scene.models.status[str(row.key)] = row
    scene.models.set_checkpoint(EMPTY_CHECKPOINT)
    config = ProviderConfigSpec(provider=provider, endpoint="http://localhost")
    scene.configurations.by_name["billing"] = config
    assert bool(await scene.sweep_for(10)) is is_woken


class UnscannableRows(dict[str, StatusRow]):
    """Rows that refuse a full scan, because the cost of a sweep must not grow with the fleet."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("a sweep read all rows")

    items = values = keys = __iter__  # pyright: ignore[reportAssignmentType]


async def test_no_sweep_reads_all_rows() -> None:
    scene = Scene()
    scene.models.status = UnscannableRows(scene.models.status)
    scene.wait(BEGIN - timedelta(minutes=1))
    assert await scene.sweep_for(2 * FULL_SWEEP_SECONDS)


def _defined(kind: Kind, source: DefinitionRef) -> DefinedKind:
    return DefinedKind(
        name=kind.name,
        api_version=kind.api_version,
        schema=kind.schema,
        underlying=kind,
        source=source,
        map_fields=dict,
    )


async def test_a_resource_with_an_older_definition_receives_the_newest() -> None:
    scene = Scene()
    scene.kinds.define(_defined(SHAPE, DefinitionRef(2, "newer")))
    scene.sweeper.handle_kind_change(FOO.kind)
    assert await scene.sweep_for(10) == [], "nothing is declared"
    # declared by a decider that had not read the newest definition yet
    declared = SpecDeclared(1, "", "default", "foo", {}, definition=DefinitionRef(1, "older"))
    scene.row.declared, scene.row.definition = True, 1
    scene.sweeper.handle_event(1, event(FOO, 1, declared))
    await scene.sweeper.sweep()
    assert [each.data for each in scene.intake.published] == [DefinitionReported(2, "newer", 1, 1)]


SECRET_REFERENCE = SpecDeclared(1, "", "default", "any", {}, secrets=("files/db",))


class Store:
    """A secret store that can be unavailable."""

    is_unavailable = False

    async def read(self, key: SecretKey, reader: str) -> str | None:
        if self.is_unavailable:
            raise NotDoneError("no response")
        return f"value of {key}" if reader == key.namespace else None

    async def write(self, key: SecretKey, value: str) -> None:
        raise NotImplementedError

    async def remove(self, key: SecretKey) -> None:
        raise NotImplementedError


async def test_the_first_reference_to_a_secret_is_resolved_when_its_store_is_back() -> None:
    store = Store()
    scene = Scene(SecretStores({"files": store}, b"a key"))
    early, late = (ResourceKey("default", "Shape", name) for name in ("early", "late"))

    scene.apply_event(1, event(early, 1, SECRET_REFERENCE))
    await scene.sweeper.sweep()
    [message] = scene.intake.published
    assert isinstance(message.data, SecretReported)
    scene.apply_event(2, event(early, 2, SecretObserved(message.data.secret, message.data.digest)))
    store.is_unavailable = True
    scene.apply_event(3, event(late, 1, SECRET_REFERENCE))
    await scene.sweeper.sweep()
    store.is_unavailable = False
    await scene.sweeper.sweep()
    assert [each.key for each in scene.intake.published] == [early, late]


@pytest.mark.parametrize(
    ("declaration", "outdated_report", "corrected_type"),
    [
        (SECRET_REFERENCE, SecretObserved("files/db", "an older digest"), SecretReported),
        (
            SpecDeclared(1, "", "default", "any", {}, references=(Reference(str(FOO)),)),
            TargetObserved(str(FOO), TargetState(declared=True, ready=True)),
            TargetReported,
        ),
    ],
)
async def test_the_next_sweep_corrects_an_outdated_report(
    declaration: SpecDeclared,
    outdated_report: TargetObserved | SecretObserved,
    corrected_type: type,
) -> None:
    scene = Scene(SecretStores({"files": Store()}, b"a key"))
    bar = ResourceKey("default", "Shape", "bar")
    scene.apply_event(1, event(bar, 1, declaration))
    await scene.sweeper.sweep()
    scene.intake.published.clear()
    scene.apply_event(2, event(bar, 2, outdated_report))
    await scene.sweeper.sweep()
    published_types = [type(each.data) for each in scene.intake.published if each.key == bar]
    assert published_types == [corrected_type]


async def test_a_tenant_with_many_secrets_does_not_block_others_or_flood_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logged_secrets: list[str] = []

    def warning(_event: str, **fields: str) -> None:
        logged_secrets.append(fields["secret"])

    monkeypatch.setattr(sweeper_module, "_logger", SimpleNamespace(warning=warning))
    scene = Scene()  # its only store is unknown, so each secret fails
    scene.row.secrets = {f"env/S{number}": "" for number in range(1000)}
    scene.row.declared = True
    scene.models.set_checkpoint(EMPTY_CHECKPOINT)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other_task = asyncio.create_task(count_turns())
    await scene.sweeper.sweep()
    assert turns >= len(scene.row.secrets) // SECRETS_PER_SLICE
    await scene.sweep_for(4 * SWEEP_SECONDS)
    other_task.cancel()
    assert len(logged_secrets) == len(scene.row.secrets)


class Tenant:
    """A namespace whose resources each reference 64 resources that are not declared."""

    def __init__(self, scene: Scene, namespace: str, resources: int) -> None:
        self.scene, self.namespace, self.processed = scene, namespace, 0
        self.versions = {
            ResourceKey(namespace, "Shape", f"r{number}"): 0 for number in range(resources)
        }
        self.declare()

    def declare(self) -> None:
        references = tuple(Reference(f"{self.namespace}/Shape/leaf{n}") for n in range(64))
        for key in self.versions:
            self._append(key, SpecDeclared(1, "", "default", "any", {}, references=references))

    def _append(self, key: ResourceKey, data: SpecDeclared | TargetObserved) -> None:
        self.versions[key] += 1
        self.scene.apply_event(self.scene.models.position + 1, event(key, self.versions[key], data))

    @property
    def reports(self) -> list[IntakeMessageOut]:
        """The published reports to its resources about their targets."""
        return [
            each
            for each in self.scene.intake.published
            if each.key.namespace == self.namespace and isinstance(each.data, TargetReported)
        ]

    def process(self, count: int) -> None:
        """Record its next reports in the log, as a slow decider does."""
        for report in self.reports[self.processed : self.processed + count]:
            data = report.data
            if isinstance(data, TargetReported):
                self._append(report.key, TargetObserved(data.target, data.state))
            self.processed += 1


async def test_the_state_of_a_target_is_reported_once_while_others_are_recorded() -> None:
    scene = Scene()
    tenant = Tenant(scene, "default", resources=1)
    for _ in range(64):
        await scene.sweeper.sweep()
        tenant.process(1)
    await scene.sweeper.sweep()
    assert len(tenant.reports) == 64


async def test_a_report_that_the_log_does_not_show_is_repeated_less_and_less_often() -> None:
    scene = Scene()
    Tenant(scene, "default", resources=1)
    published_at = await scene.sweep_for(1200)
    pauses = [later - earlier for earlier, later in itertools.pairwise(published_at)]
    assert pauses[:3] == [REPEAT_SECONDS, 2 * REPEAT_SECONDS, 4 * REPEAT_SECONDS]
    assert set(pauses[5:]) == {MAX_REPEAT_SECONDS}


async def test_a_tenant_with_many_references_does_not_fill_the_intake_or_delay_others() -> None:
    scene = Scene()
    large, small = Tenant(scene, "large", resources=20), Tenant(scene, "small", resources=1)
    while large.processed < 20 * 64:
        await scene.sweeper.sweep()
        assert len(large.reports) - large.processed <= MAX_UNPROCESSED_REPORTS
        assert len(small.reports) == 64
        large.process(100)
    await scene.sweeper.sweep()
    assert len(large.reports) == 20 * 64


async def test_a_sweep_yields_to_other_work_while_it_adds_resources() -> None:
    scene = Scene()
    Tenant(scene, "default", resources=4 * ROWS_PER_SLICE)
    assert await count_turns(scene.sweeper.sweep()) >= 3


async def test_checks_of_targets_with_many_referrers_yield_to_other_work() -> None:
    queue = ReportQueue(lambda: 0.0)
    queue.add(AffectedResources(frozenset(), frozenset(f"shop/File/f{n}" for n in range(50))))
    turns = await count_turns(queue.take(lambda _name, _is_target: ([], 1_000), ()))
    assert turns >= 50 * 1_000 / TURN_COST - 1


async def count_turns(work: Coroutine[None, None, object]) -> int:
    """Run a coroutine; return how often it yielded to other tasks."""
    turns = 0

    async def run_concurrently() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.create_task(run_concurrently())
    await work
    task.cancel()
    return turns


async def test_a_new_declaration_receives_a_report_again() -> None:
    """The earlier report may have been processed before it, and so have had no effect on it."""
    scene = Scene()
    tenant = Tenant(scene, "default", resources=1)
    await scene.sweeper.sweep()
    tenant.declare()
    await scene.sweeper.sweep()
    assert len(tenant.reports) == 2 * 64


async def test_consecutive_declarations_receive_a_limited_number_of_reports() -> None:
    scene = Scene()
    tenant = Tenant(scene, "default", resources=1)
    for _ in range(20):
        await scene.sweeper.sweep()
        tenant.declare()
    assert len(scene.intake.published) == MAX_UNPROCESSED_REPORTS


async def test_reports_that_were_not_stored_are_published_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene()
    tenant = Tenant(scene, "default", resources=1)

    async def fail(_messages: Sequence[IntakeMessageOut]) -> None:
        raise NotDoneError("the intake is full")

    with monkeypatch.context() as patch:
        patch.setattr(scene.intake, "publish", fail)
        with pytest.raises(NotDoneError):
            await scene.sweeper.sweep()
    await scene.sweeper.sweep()
    assert len(tenant.reports) == 64


# --- targets that must stay ready


def _momentary_scene(scene: Scene) -> StatusRow:
    """Let the resource wait for a target that has been ready for three seconds."""
    target = StatusRow(FOO.namespace, FOO.kind, "target", declared=True, owned=True)
    target.outcome = "Converged"
    target.availability = PartAvailability(since=BEGIN - timedelta(seconds=3))
    scene.row.outcome, scene.row.declared = "Waiting", True
    scene.row.refers = (Reference(str(target.key)),)
    scene.models.status[str(target.key)] = target
    scene.models.set_checkpoint(EMPTY_CHECKPOINT)
    return target


def _requests(scene: Scene) -> list[ResourceKey]:
    published = scene.intake.published
    return [each.key for each in published if isinstance(each.data, ReconcileRequested)]


async def test_a_read_of_a_target_is_requested_once_it_has_been_ready_for_long_enough() -> None:
    scene = Scene(kinds=KindRegistry([replace(SHAPE, ready=_ready)]))
    target = _momentary_scene(scene)
    await scene.sweeper.sweep()
    assert _requests(scene) == []
    assert scene.sweeper.next_sweep_seconds == pytest.approx(2.0 + READ_MARGIN_SECONDS)
    scene.now += timedelta(seconds=2.0 + READ_MARGIN_SECONDS)
    await scene.sweeper.sweep()
    assert _requests(scene) == [target.key]
    await scene.sweeper.sweep()
    assert len(_requests(scene)) == 1, "the request may not be in the log yet"
    scene.seconds += SWEEP_SECONDS
    target.doubted = True
    await scene.sweeper.sweep()
    assert len(_requests(scene)) == 1, "the read has not arrived yet"
    target.doubted = False
    await scene.sweeper.sweep()
    assert len(_requests(scene)) == 2, "the request was lost"
    await scene.sweep_for(10 * SWEEP_SECONDS)
    assert len(_requests(scene)) == 4, "the pauses grow"


async def test_a_target_without_an_object_is_not_read() -> None:
    scene = Scene(kinds=KindRegistry([replace(SHAPE, ready=_ready)]))
    target = _momentary_scene(scene)
    await scene.sweeper.sweep()
    target.owned, target.availability = False, None
    await scene.sweep_for(4 * SWEEP_SECONDS)
    assert _requests(scene) == []


async def test_an_available_target_is_not_read_again() -> None:
    scene = Scene(kinds=KindRegistry([replace(SHAPE, ready=_ready)]))
    target = _momentary_scene(scene)
    target.availability = PartAvailability(since=BEGIN - timedelta(hours=1), available=True)
    await scene.sweep_for(4 * SWEEP_SECONDS)
    assert _requests(scene) == []


async def test_each_interruption_of_a_target_doubles_the_time_before_its_read() -> None:
    scene = Scene(kinds=KindRegistry([replace(SHAPE, ready=_ready)]))
    target = _momentary_scene(scene)
    target.availability = PartAvailability(since=BEGIN, interruptions=1)
    scene.now += timedelta(seconds=9)
    await scene.sweeper.sweep()
    assert _requests(scene) == []
    scene.now += timedelta(seconds=2)
    await scene.sweeper.sweep()
    assert _requests(scene) == [target.key]
