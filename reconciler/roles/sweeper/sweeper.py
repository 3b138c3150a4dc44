"""The sweeper: wakes resources whose wait is over, and reports the targets of references.

Timers are hints. The sweeper ensures that a lost timer only costs time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import structlog

from events.hold import Hold
from events.intake import TimerFired
from events.log import (
    ActionSucceeded,
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
from events.manifest import stricter
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec
from events.secret import SecretRef
from projections.read_models import ReadModels
from projections.status import StatusRow
from reconciler.errors import ConfigurationError, ProviderError
from reconciler.failpoints import Failpoint, reach
from reconciler.ports import IntakeMessageOut, IntakeWriter
from reconciler.provider.kind import KindRegistry
from reconciler.provider.secrets import SecretStores
from reconciler.resource.backoff import is_over
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.runtime.runtime import REAL, Runtime
from reconciler.roles.sweeper.reference_index import Concerned, NamedSecret, ReferenceIndex, rows_of
from reconciler.roles.sweeper.references import (
    definition_messages,
    reference_messages,
    secret_messages,
)

SWEEP_SECONDS = 5.0
OVERDUE_SECONDS = 3.0
"""Time after which a timer counts as lost. Timers arrive up to 0.25 s late."""

SECONDS_BETWEEN_ALL = 60.0
"""Interval of checks of all references. Otherwise only changed ones are checked."""

SECRETS_AT_ONCE = 16
"""Secrets that are read without yielding to the event loop: about a millisecond."""

_PAUSE_FACTOR = (
    9  # pause as a multiple of a sweep's duration, so that sweeps take at most 10% of the time
)

MAX_SECONDS_BETWEEN = 300.0
"""Longest interval of repeated wake-ups of a resource that did not react."""

_REFERENCE_EVENTS = (  # events on which references may depend, of both sides
    ReferenceAdded,
    ReferenceRemoved,
    SpecDeclared,
    SpecWithdrawn,
    ExternalObserved,
    ActionSucceeded,
    OwnershipClaimed,
    OwnershipReleased,
    OutcomeRecorded,
    # The next sweep corrects a report that was overtaken before it was decided.
    TargetObserved,
    SecretObserved,
)

_GUARDS = (Hold.DEFINITION_GUARD, Hold.PRUNE_GUARD)
"""Guards that listings do not judge again."""

_ENDED_BY_A_MESSAGE = ("Failed", "Waiting", "Disputed", "Held")
"""Outcomes of resources that are not woken when a renewal is due or a wait between actions ends.

Such an outcome lasts until a declaration, a report of a target, an observation, an approval or a
change of a configuration. The turn for that message starts the due action.
"""

_logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Woken:
    """A resource that was woken after a wait, and the time of the next wake-up if nothing changes.

    ``wait``: the end of the wait, the version of the configuration for which it waits, or the
    number of known kinds.
    """

    wait: datetime | int
    again_at: float  # of the monotonic clock
    pause_seconds: float


class Sweeper:
    """Searches the read models for resources that should have been woken."""

    def __init__(
        self,
        *,
        intake: IntakeWriter,
        configurations: Configurations,
        kinds: KindRegistry,
        models: ReadModels,
        bus_time: Callable[[], Awaitable[float]],
        stores: SecretStores | None = None,
        runtime: Runtime = REAL,
    ) -> None:
        self._stores = stores or SecretStores()
        self._intake = intake
        self._configurations = configurations
        self._kinds = kinds
        self._models = models
        self._bus_time = bus_time
        self._clock = runtime.clock
        self._new_id = runtime.new_id
        self._soon = asyncio.Event()
        self._index = ReferenceIndex()
        self._known_digests: dict[NamedSecret, str] = {}
        self._unreadable: set[NamedSecret] = set()
        self._full_sweep_at = self._clock()
        self._last_woken: dict[ResourceKey, _Woken] = {}
        self._redefined = {kind.name for kind in kinds.values() if kind.definition is not None}

    async def run(self) -> None:
        """Sweep until canceled, periodically and soon after changes, for a share of the time."""
        self._configurations.listen(lambda _name: self._soon.set())
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self.sweep()
            except Exception as error:  # noqa: BLE001 - the next sweep finds the same
                _logger.warning("a sweep failed; retrying", error=str(error))
            # If targets change all the time, a sweep must not follow each event.
            await asyncio.sleep(min(_PAUSE_FACTOR * (loop.time() - began), SWEEP_SECONDS))
            try:
                async with asyncio.timeout(SWEEP_SECONDS):
                    await self._soon.wait()
            except TimeoutError:
                continue
            self._soon.clear()

    async def sweep(self) -> int:
        """Wake every resource whose wait is over. Return their number."""
        # The deadlines are times of the bus, and this machine's clock may be wrong.
        overdue = datetime.fromtimestamp(await self._bus_time() - OVERDUE_SECONDS, UTC)
        damaged = self._models.damage
        every_row = self._models.status
        rows = [every_row[name] for name in self._models.swept if name not in damaged]
        held = [row for row in rows if row.hold is not None and row.hold.woken_by != "Message"]
        wake_messages = [
            self._wake(row.key, "ConfigChanged")
            for row in held
            if has_its_configuration_now(row, self._configurations.by_name, self._kinds)
        ]
        wake_messages += [self._wake(key, "Sweep") for key in self._to_wake(rows, held, overdue)]
        concerned = self._concerned()
        reports = reference_messages(concerned, self._index, self._models)
        reports += await self._secret_messages(concerned)
        reports += self._definition_messages(every_row, damaged)
        if wake_messages or reports:
            reach(Failpoint.SWEEPER_FOUND)
            try:
                await self._intake.publish([*wake_messages, *reports])
            except BaseException:
                self._full_sweep_at = self._clock()
                raise
            reach(Failpoint.SWEEPER_WOKE)
        return len(wake_messages)

    def _concerned(self) -> Concerned:
        """Return the resources to check: changed ones, and periodically all."""
        if self._clock() >= self._full_sweep_at:
            held, every_row = self._models.damage, self._models.status
            linked = (name for name in self._models.linked if name not in held)
            self._index.build((name, every_row[name]) for name in linked)
            self._known_digests.clear()
            self._unreadable.clear()
            self._full_sweep_at = self._clock() + SECONDS_BETWEEN_ALL
        return self._index.take_moved()

    async def _secret_messages(self, concerned: Concerned) -> list[IntakeMessageOut]:
        digests = await self._digests()
        rotated = [each for each in digests if digests[each] != self._known_digests.get(each)]
        names = {name for each in rotated for name in self._index.naming(each)}
        self._known_digests = digests  # an unreadable secret counts as changed once it is readable
        return secret_messages(rows_of(names | concerned.targets, self._models.status), digests)

    def _to_wake(
        self, rows: Iterable[StatusRow], held: Iterable[StatusRow], overdue: datetime
    ) -> list[ResourceKey]:
        """Return the resources whose wait is over, with increasing intervals while nothing changes.

        An action in progress has its own wait, independent of the resource's hold.
        """
        waits: dict[ResourceKey, datetime | int] = {
            row.key: row.retry_at
            for row in rows
            if row.retry_at is not None
            and is_over(row.retry_at, row.retry_seconds, overdue)
            and not row.paused
            and (row.action_id or row.outcome not in _ENDED_BY_A_MESSAGE)
        }
        waits |= {
            row.key: deadline
            for row in rows
            if (deadline := row.next_deadline) is not None
            and deadline < overdue
            and not (row.paused or row.outcome in _ENDED_BY_A_MESSAGE)
        }
        guarded = {row.key for row in held if row.hold in _GUARDS}
        holds = ((row.key, self._hold_basis(row)) for row in held)
        waits |= {key: what for key, what in holds if what is not None}
        clock, woken_before = self._clock(), self._last_woken
        self._last_woken = {}
        wake_messages: list[ResourceKey] = []
        for key, wait in waits.items():
            woken = woken_before.get(key)
            if woken is None or woken.wait != wait or woken.again_at <= clock:
                pause = SWEEP_SECONDS
                if woken is not None and woken.wait == wait:
                    # A guard is judged again for every version of its configuration, and once more
                    # in case the decider had not read it. So an idle fleet costs no messages.
                    longer = min(2 * woken.pause_seconds, MAX_SECONDS_BETWEEN)
                    pause = math.inf if key in guarded else longer
                woken = _Woken(wait, clock + pause, pause)
                wake_messages.append(key)
            self._last_woken[key] = woken
        return wake_messages

    def _hold_basis(self, row: StatusRow) -> int | None:
        """Return a number that changes when a hold may end; None while nothing can end it."""
        match row.hold:
            case Hold.NOT_PERMITTED | Hold.DEFINITION_GUARD | Hold.PRUNE_GUARD:
                # What a configuration permits, or its guard allows, depends on fields that no row
                # contains. So the resource is woken when the configuration changes, and again in
                # case its decider had not read it. Listings judge the other guards again.
                return self._configurations.version(row.provider_config)
            case Hold.UNKNOWN_KIND:
                # The decider may load the kind later than this process. A composed resource may
                # lack the kind of a part, which the row does not contain.
                return len(self._kinds) if row.kind in self._kinds else None
            case Hold.UNKNOWN_PROVIDER:
                config = self._configurations.by_name.get(row.name)
                is_known = config is not None and config.provider in self._kinds.providers
                return len(self._kinds) if is_known else None
            case Hold.TWIN:
                twin = self._configurations.twins.get(row.provider_config)
                return None if twin is None or twin.is_held else twin.version
            case _:
                return None

    def notice(self, _position: int, event: LogEvent) -> None:
        """Sweep soon after an event on which references may depend; a subscriber of the log."""
        if type(event.data) not in _REFERENCE_EVENTS:
            return
        if isinstance(event.data, SpecDeclared) and event.data.definition is not None:
            kind = self._kinds.find(event.key.kind)
            newest = None if kind is None else kind.definition
            if newest is not None and event.data.definition.generation < newest.generation:
                self.notice_kind(event.key.kind)  # its decider had not read the newest definition
        name = event.subject
        if self._index.note(name, self._models.status.get(name)):
            self._soon.set()

    def notice_kind(self, name: str) -> None:
        """Check all resources of a kind with a new definition soon."""
        self._redefined.add(name)
        self._soon.set()

    def _definition_messages(
        self, every_row: Mapping[str, StatusRow], damaged: Container[str]
    ) -> list[IntakeMessageOut]:
        """Return the messages to resources of kinds with a new definition."""
        messages: list[IntakeMessageOut] = []
        for name in sorted(self._redefined):
            kind = self._kinds.find(name)
            kind_messages = (
                []
                if kind is None or kind.definition is None
                else definition_messages(kind.definition, name, every_row, damaged)
            )
            messages += kind_messages
            if not kind_messages:
                self._redefined.discard(name)
        return messages

    async def _digests(self) -> dict[NamedSecret, str]:
        """Return the digests of all referenced secrets, empty for a missing one."""
        digests: dict[NamedSecret, str] = {}
        secrets = self._stores.for_api()
        for number, secret in enumerate(self._index.secrets, start=1):
            if number % SECRETS_AT_ONCE == 0:
                await asyncio.sleep(0)
            try:
                value = await secrets.find(SecretRef.at(secret.place), secret.reader)
            except (ConfigurationError, ProviderError) as error:
                self._note_unreadable(secret, error=str(error))
            except Exception as error:  # noqa: BLE001 - one secret must not end the sweep of all
                # The error's text may contain the secret.
                self._note_unreadable(secret, why=type(error).__name__)
            else:
                digests[secret] = "" if value is None else value.digest
        return digests

    def _note_unreadable(self, secret: NamedSecret, **why: str) -> None:
        """Log a failure once per full sweep, because many referenced secrets may fail."""
        if secret not in self._unreadable:
            self._unreadable.add(secret)
            context = {"secret": secret.place, "namespace": secret.reader}
            _logger.warning("reading a secret failed", **context, **why)

    def _wake(
        self, key: ResourceKey, purpose: Literal["ConfigChanged", "Sweep"]
    ) -> IntakeMessageOut:
        return IntakeMessageOut("timer", key, TimerFired(purpose), self._new_id())


def has_its_configuration_now(
    row: StatusRow, configs: Mapping[str, ProviderConfigSpec], kinds: KindRegistry
) -> bool:
    """Return whether the configuration for which a resource is held is now as required."""
    config = configs.get(row.provider_config)
    match row.hold:
        case Hold.PROVIDER_CONFIG_MISSING:
            return config is not None
        case Hold.WRONG_PROVIDER:
            kind = kinds.find(row.kind)
            return config is None or (kind is not None and kind.provider == config.provider)
        case Hold.APPROVAL | Hold.NOT_APPROVED:
            level = row.approve if config is None else stricter(config.approve, row.approve)
            return stricter(level, row.pending_level) != level
        case _:
            return False
