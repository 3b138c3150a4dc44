"""The sweeper: wakes waiting resources on time, and reports the targets of references.

Timers are hints: because of the sweeper, a lost timer only causes a delay.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Literal

import structlog

from events.hold import Hold
from events.intake import ReconcileRequested, TimerFired
from events.log import (
    ActionSucceeded,
    ApiSilenceEnded,
    ExternalObserved,
    LogEvent,
    OutcomeRecorded,
    OwnershipClaimed,
    OwnershipReleased,
    ReferenceAdded,
    ReferenceRemoved,
    SecretObserved,
    SpecDeclared,
    SpecWithdrawn,
    TargetObserved,
)
from events.manifest import stricter_level
from events.names import ResourceKey
from events.provider_config import config_key
from events.secret import SecretRef
from projections.read_models import ReadModels
from projections.status import StatusRow
from reconciler.errors import ConfigurationError, ProviderError
from reconciler.failpoints import Failpoint, reach
from reconciler.ports import IntakeMessageOut, IntakeWriter
from reconciler.provider.kind import KindRegistry
from reconciler.provider.secrets import SecretStores
from reconciler.resource.availability import available_from
from reconciler.resource.backoff import is_over
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.runtime.runtime import REAL, Runtime
from reconciler.roles.sweeper.reference_index import (
    AffectedResources,
    NamedSecret,
    ReferenceIndex,
)
from reconciler.roles.sweeper.references import (
    definition_messages,
    find_momentary_targets,
    referrer_messages,
    secret_messages,
    target_messages,
)
from reconciler.roles.sweeper.report_queue import ReportQueue
from reconciler.roles.sweeper.user_reports import UserReports

SWEEP_SECONDS = 5.0
OVERDUE_SECONDS = 3.0
"""Time after which a timer counts as lost. Timers arrive up to 0.25 s late."""

FULL_SWEEP_SECONDS = 60.0
"""Interval between checks of all references. Other sweeps check only changed ones."""

ROWS_PER_SLICE = 256
"""Number of rows to add, in a few milliseconds, before yielding to the event loop."""

SECRETS_PER_SLICE = 16
"""Number of secrets to read, in about a millisecond, before yielding to the event loop."""

READ_MARGIN_SECONDS = 0.1
"""Time added to the wait for a target's read, because the bus's time is measured imprecisely."""

_PAUSE_FACTOR = 9  # ratio of pause to sweep, so that sweeps take at most 10% of the time

MAX_WAKE_UP_SECONDS = 300.0
"""Longest interval between repeated wake-ups of a resource that does not react."""

_REFERENCE_EVENTS = (  # events of referrers and targets that may affect references
    ReferenceAdded,
    ReferenceRemoved,
    SpecDeclared,
    SpecWithdrawn,
    ExternalObserved,
    ActionSucceeded,
    OwnershipClaimed,
    OwnershipReleased,
    OutcomeRecorded,
    # After these, the next sweep corrects a report that was outdated when it was processed.
    TargetObserved,
    SecretObserved,
)

_GUARDS = (Hold.DEFINITION_GUARD, Hold.PRUNE_GUARD)
"""Guards that listings do not check again."""

_WOKEN_BY_MESSAGES = ("Failed", "Waiting", "Disputed", "Held")
"""Outcomes of resources that are not woken when a renewal is due or a wait between actions ends.

Such an outcome lasts until a declaration, a target report, an observation, an approval or a
configuration change. The turn for that message starts the due action.
"""

_logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _WakeUp:
    """The last wake-up of a resource, and the time of the next one if nothing changes.

    ``wait`` identifies the wait: its end, the version of the awaited configuration, or the number
    of known kinds.
    """

    wait: datetime | int
    next_at: float  # on the monotonic clock
    pause_seconds: float


class Sweeper:
    """Searches the read models for resources that should have been woken."""

    event_types: ClassVar = ReportQueue.event_types.union(_REFERENCE_EVENTS, {ApiSilenceEnded})

    def __init__(
        self,
        *,
        intake: IntakeWriter,
        configurations: Configurations,
        kinds: KindRegistry,
        models: ReadModels,
        bus_time: Callable[[], Awaitable[float]],
        stores: SecretStores | None = None,
        catch_up: Callable[[float], Awaitable[None]] | None = None,
        runtime: Runtime = REAL,
    ) -> None:
        self._catch_up = catch_up
        self._stores = stores or SecretStores()
        self._intake = intake
        self._configurations = configurations
        self._kinds = kinds
        self._models = models
        self._bus_time = bus_time
        self._clock = runtime.clock
        self._new_id = runtime.new_id
        self._should_sweep = asyncio.Event()
        self._index = ReferenceIndex()
        self._reports = ReportQueue(self._clock)
        self._users = UserReports(configurations, models, self._clock)
        self._known_digests: dict[NamedSecret, str] = {}
        self._unreadable: set[NamedSecret] = set()
        self._full_sweep_at = self._clock()
        self._wake_ups: dict[ResourceKey, _WakeUp] = {}
        # Targets that must stay ready, when to request a read of each again, and the next pause.
        self._awaited: dict[str, tuple[float, float]] = {}
        self.next_sweep_seconds = SWEEP_SECONDS
        self._redefined = {kind.name for kind in kinds.values() if kind.definition is not None}

    async def run(self) -> None:
        """Sweep until canceled, periodically and soon after changes, at most 10% of the time."""
        self._configurations.listen(lambda _name: self._should_sweep.set())
        loop = asyncio.get_running_loop()
        while True:
            started_at = loop.time()
            try:
                await self.sweep()
            except Exception as error:  # noqa: BLE001 - the next sweep finds the same work
                _logger.warning("a sweep failed; retrying", error=str(error))
            # Otherwise, constantly changing targets would cause a sweep for every event.
            await asyncio.sleep(min(_PAUSE_FACTOR * (loop.time() - started_at), SWEEP_SECONDS))
            try:
                async with asyncio.timeout(self.next_sweep_seconds):
                    await self._should_sweep.wait()
            except TimeoutError:
                continue
            self._should_sweep.clear()

    async def sweep(self) -> int:
        """Wake every resource whose wait is over. Return the number of resources."""
        # The deadlines are in the bus's time, because the local clock may be wrong.
        bus_now = datetime.fromtimestamp(await self._bus_time(), UTC)
        overdue = bus_now - timedelta(seconds=OVERDUE_SECONDS)
        damaged = self._models.damage
        all_rows = self._models.status
        rows = [all_rows[name] for name in self._models.swept if name not in damaged]
        held = [row for row in rows if row.hold is not None and row.hold.ended_by != "Message"]
        wake_messages = [
            self._wake(row.key, "ConfigChanged")
            for row in held
            if is_configuration_ready(row, self._configurations, self._kinds)
        ]
        wake_messages += [self._wake(key, "Sweep") for key in self._to_wake(rows, held, overdue)]
        digests = await self._find_affected()
        extra = self._definition_messages(all_rows, damaged) + await self._user_messages()
        try:
            reports = await self._reports.take(
                lambda name, is_target: self._find_reports(name, is_target, digests), extra
            )
            requests = self._request_reads(bus_now)
            if wake_messages or reports or requests:
                reach(Failpoint.SWEEPER_FOUND)
                await self._intake.publish([*wake_messages, *reports, *requests])
                self._reports.record_published(reports)
                reach(Failpoint.SWEEPER_WOKE)
        except BaseException:
            self._full_sweep_at = self._clock()
            raise
        return len(wake_messages)

    async def _find_affected(self) -> dict[NamedSecret, str]:
        """Queue the changed resources, or periodically all. Return the digests of secrets."""
        if self._clock() >= self._full_sweep_at:
            await self._add_all()
            self._known_digests.clear()
            self._unreadable.clear()
            self._full_sweep_at = self._clock() + FULL_SWEEP_SECONDS
        self._reports.add(self._index.take_changed())
        digests = await self._digests()
        rotated = [each for each in digests if digests[each] != self._known_digests.get(each)]
        names = {name for each in rotated for name in self._index.secret_referrers(each)}
        self._known_digests = digests  # a secret counts as changed when it becomes readable
        self._reports.add(AffectedResources(frozenset(), frozenset(names)))
        return digests

    async def _add_all(self) -> None:
        """Queue all linked resources, in slices."""
        models = self._models
        names = [*dict.fromkeys([*models.linked, *self._index.names])]
        for start in range(0, len(names), ROWS_PER_SLICE):
            for name in names[start : start + ROWS_PER_SLICE]:
                is_linked = name in models.linked and name not in models.damage
                self._index.add(name, models.status[name] if is_linked else None)
            self._reports.add(self._index.take_changed())
            await asyncio.sleep(0)

    def _find_reports(
        self, name: str, is_target: bool, digests: Mapping[NamedSecret, str]
    ) -> tuple[list[IntakeMessageOut], int]:
        """Return reports of differences between a resource and its dependencies, and their cost."""
        models = self._models
        if not is_target:
            for target in find_momentary_targets(name, models, self._kinds):
                self._awaited.setdefault(target, (self._clock(), SWEEP_SECONDS))
            return referrer_messages(name, models, self._kinds), 0
        row = models.status.get(name)
        secrets = () if row is None else secret_messages(row, digests)
        messages = [*target_messages(name, self._index, models), *secrets]
        return messages, len(self._index.referrers(name))

    def _request_reads(self, bus_now: datetime) -> list[IntakeMessageOut]:
        """Request a read of each awaited target that has been ready for long enough.

        Its last read may be as old as a listing, so only a new one shows that it stayed ready.
        """
        now, messages, waits = self._clock(), list[IntakeMessageOut](), [SWEEP_SECONDS]
        for name, (request_at, pause) in list(self._awaited.items()):
            row = self._models.status.get(name)
            if row is None or not (row.owned and row.is_settled_ready) or row.is_available:
                del self._awaited[name]
                continue
            known, wait = row.availability, request_at - now
            if known is not None and known.since is not None:
                end = available_from(known.since, known.interruptions)
                wait = max(wait, (end - bus_now).total_seconds() + READ_MARGIN_SECONDS)
            if wait > 0:
                waits.append(wait)
            elif not row.doubted:  # otherwise, a requested read has not been recorded yet
                data = ReconcileRequested("other resources wait for it to stay ready")
                messages.append(IntakeMessageOut("desired", row.key, data, self._new_id()))
                self._awaited[name] = (now + pause, min(2 * pause, MAX_WAKE_UP_SECONDS))
        self.next_sweep_seconds = min(waits)
        return messages

    def _to_wake(
        self, rows: Iterable[StatusRow], held: Iterable[StatusRow], overdue: datetime
    ) -> list[ResourceKey]:
        """Return the resources to wake, at increasing intervals while nothing changes.

        An action in progress has its own wait, independent of the resource's hold.
        """
        waits: dict[ResourceKey, datetime | int] = {
            row.key: row.retry_at
            for row in rows
            if row.retry_at is not None
            and is_over(row.retry_at, row.retry_seconds, overdue)
            and not row.paused
            and (row.action_id or row.outcome not in _WOKEN_BY_MESSAGES)
        }
        waits |= {
            row.key: deadline
            for row in rows
            if (deadline := row.next_deadline) is not None
            and deadline < overdue
            and not (row.paused or _is_woken_by_messages(row))
        }
        guarded = {row.key for row in held if row.hold in _GUARDS}
        holds = ((row.key, self._hold_basis(row)) for row in held)
        waits |= {key: basis for key, basis in holds if basis is not None}
        clock, previous_wake_ups = self._clock(), self._wake_ups
        self._wake_ups = {}
        wake_messages: list[ResourceKey] = []
        for key, wait in waits.items():
            wake_up = previous_wake_ups.get(key)
            if wake_up is None or wake_up.wait != wait or wake_up.next_at <= clock:
                pause = SWEEP_SECONDS
                if wake_up is not None and wake_up.wait == wait:
                    # A guard is checked once per version of its configuration, and once more in
                    # case the decider had not read it. So an idle fleet does not cause messages.
                    doubled = min(2 * wake_up.pause_seconds, MAX_WAKE_UP_SECONDS)
                    pause = math.inf if key in guarded else doubled
                wake_up = _WakeUp(wait, clock + pause, pause)
                wake_messages.append(key)
            self._wake_ups[key] = wake_up
        return wake_messages

    def _hold_basis(self, row: StatusRow) -> int | None:
        """Return a number that changes when a hold may end; None while nothing can end it."""
        match row.hold:
            case Hold.NOT_PERMITTED | Hold.DEFINITION_GUARD | Hold.PRUNE_GUARD:
                # Permissions and guards of a configuration depend on fields that no row contains.
                # So the resource is woken when the configuration changes, and again in case its
                # decider had not read the change. Listings check the other guards again.
                return self._configurations.version(row.provider_config)
            case Hold.UNKNOWN_KIND:
                # The decider may load the kind later than this process. A composed resource may
                # wait for the kind of a part, which the row does not contain.
                return len(self._kinds) if row.kind in self._kinds else None
            case Hold.UNKNOWN_PROVIDER:
                config = self._configurations.by_name.get(row.name)
                is_known = config is not None and config.provider in self._kinds.providers
                return len(self._kinds) if is_known else None
            case Hold.TWIN:
                twin = self._configurations.twins.get(row.provider_config)
                return None if twin is None or twin.is_held else twin.version
            case Hold.EXCLUSIVE_SCOPE:
                counts = self._configurations.new_scopes.get(row.provider_config)
                if counts is not None and counts.get(row.kind) != 0:
                    return None
                return self._configurations.version(row.provider_config)
            case _:
                return None

    async def _user_messages(self) -> list[IntakeMessageOut]:
        """Return the reports to withdrawn configurations about the resources that use them."""
        is_current = not self._users.is_any_unused or await self._has_read_log()
        return [
            IntakeMessageOut("reference", config_key(name), data, self._new_id())
            for name, data in self._users.find()
            if data.count or is_current
        ]

    async def _has_read_log(self) -> bool:
        """Return whether the rows include the newest declarations and actions, after a wait."""
        if self._catch_up is None:
            return True
        try:
            await self._catch_up(SWEEP_SECONDS)
        except TimeoutError:
            return False
        return True

    def handle_event(self, _position: int, event: LogEvent) -> None:
        """Schedule a sweep after an event that may affect references; a log subscriber."""
        self._reports.handle_event(event)
        if self._configurations.withdrawn and _ends_resource(event):
            self._should_sweep.set()  # it may be the last user of a configuration
        if type(event.data) is ApiSilenceEnded:
            # Wake the resources whose parts became available, and report the ready targets.
            self._wake_ups.clear()
            self._full_sweep_at = self._clock()
            self._should_sweep.set()
        if type(event.data) not in _REFERENCE_EVENTS:
            return
        if type(event.data) is SpecDeclared and event.data.definition is not None:
            kind = self._kinds.find(event.key.kind)
            newest = None if kind is None else kind.definition
            if newest is not None and event.data.definition.generation < newest.generation:
                # Its decider had not read the newest definition.
                self.handle_kind_change(event.key.kind)
        name = event.subject
        if self._index.update(name, self._models.status.get(name)):
            self._should_sweep.set()

    def handle_kind_change(self, name: str) -> None:
        """Schedule a check of all resources of a kind with a new definition."""
        self._redefined.add(name)
        self._should_sweep.set()

    def _definition_messages(
        self, all_rows: Mapping[str, StatusRow], damaged: Container[str]
    ) -> list[IntakeMessageOut]:
        """Return the messages to resources of kinds with a new definition."""
        messages: list[IntakeMessageOut] = []
        for name in sorted(self._redefined):
            kind = self._kinds.find(name)
            kind_messages = (
                []
                if kind is None or kind.definition is None
                else definition_messages(kind.definition, name, all_rows, damaged)
            )
            messages += kind_messages
            if not kind_messages:
                self._redefined.discard(name)
        return messages

    async def _digests(self) -> dict[NamedSecret, str]:
        """Return the digests of all readable referenced secrets, "" for a missing secret."""
        digests: dict[NamedSecret, str] = {}
        secrets = self._stores.for_api()
        for number, secret in enumerate(self._index.secrets, start=1):
            if number % SECRETS_PER_SLICE == 0:
                await asyncio.sleep(0)
            try:
                value = await secrets.find(SecretRef.from_path(secret.path), secret.reader)
            except (ConfigurationError, ProviderError) as error:
                self._log_unreadable(secret, error=str(error))
            except Exception as error:  # noqa: BLE001 - one secret must not end the sweep
                # The error message may contain the secret.
                self._log_unreadable(secret, reason=type(error).__name__)
            else:
                digests[secret] = "" if value is None else value.digest
        return digests

    def _log_unreadable(self, secret: NamedSecret, **details: str) -> None:
        """Log a failure once per full sweep, because many referenced secrets may fail."""
        if secret not in self._unreadable:
            self._unreadable.add(secret)
            context = {"secret": secret.path, "namespace": secret.reader}
            _logger.warning("failed to read a secret", **context, **details)

    def _wake(
        self, key: ResourceKey, purpose: Literal["ConfigChanged", "Sweep"]
    ) -> IntakeMessageOut:
        return IntakeMessageOut("timer", key, TimerFired(purpose), self._new_id())


def _is_woken_by_messages(row: StatusRow) -> bool:
    """Return whether no deadline wakes the resource, except that of its parts."""
    waits_for_parts = row.outcome == "Waiting" and row.next_deadline == row.available_at
    return row.outcome in _WOKEN_BY_MESSAGES and not waits_for_parts


def _ends_resource(event: LogEvent) -> bool:
    data = event.data
    return isinstance(data, OutcomeRecorded) and data.outcome in ("Deleted", "Released")


def is_configuration_ready(
    row: StatusRow, configurations: Configurations, kinds: KindRegistry
) -> bool:
    """Return whether the configuration that a held resource requires is now available."""
    config = configurations.by_name.get(row.provider_config)
    match row.hold:
        case Hold.PROVIDER_CONFIG_MISSING:
            return config is not None and row.provider_config not in configurations.withdrawn
        case Hold.WRONG_PROVIDER:
            kind = kinds.find(row.kind)
            return config is None or (kind is not None and kind.provider == config.provider)
        case Hold.APPROVAL | Hold.NOT_APPROVED:
            level = row.approve if config is None else stricter_level(config.approve, row.approve)
            return stricter_level(level, row.pending_level) != level
        case _:
            return False
