"""The worker: executes decided actions by calling the external API, and reports their results.

Each action is executed with its own idempotency key and frozen parameters. The aggregate decides
whether and when to retry it. It is acknowledged only when its result is stored in the intake, so
any crash leads to a redelivery with the same key.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime, timedelta
from functools import partial

import structlog

from events.external import ExternalObject
from events.intake import ActionError, Reported
from events.log import (
    Action,
    ActionAbandoned,
    ActionDecided,
    ActionFailed,
    ActionHeld,
    ActionNotDone,
    ActionRetried,
    ActionSucceeded,
    LogEvent,
    LookupDecided,
    ResourceEvent,
    version_in,
)
from events.names import ResourceKey
from events.provider_config import Scope
from projections.ownership import claim_name
from reconciler.errors import (
    ConfigurationError,
    NameTakenError,
    NotCalledError,
    NotDoneError,
    ProviderError,
    RefusedError,
    ThrottledError,
    UnknownResultError,
)
from reconciler.failpoints import Failpoint, is_armed, reach
from reconciler.ports import (
    ActionDelivery,
    ActionReader,
    EventLog,
    ExternalName,
    IntakeMessageOut,
    IntakeWriter,
    NotStoredError,
    QueueRefusedError,
)
from reconciler.provider import Effect, ProbedProvider, Provider
from reconciler.provider.call_permit import CALL_NAMESPACE, CALL_RECORD, CallRecord
from reconciler.provider.data_check import DATA_CHECK
from reconciler.resource.api_health import MAX_THROTTLED_SECONDS
from reconciler.resource.attempt import is_safe_to_repeat
from reconciler.roles.gate.api_gate import (
    CHECK_SECONDS,
    PROBE_WAIT_SECONDS,
    ApiGate,
    GateClosedError,
)
from reconciler.roles.gate.api_gates import ApiGates
from reconciler.roles.objects.object_secrets import hide_secrets, mask_ids
from reconciler.roles.objects.oversize import is_too_large
from reconciler.roles.objects.twins import Comparison, Suspect, TwinDetector
from reconciler.roles.runtime.cancellation import is_being_canceled
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.runtime.provider_pool import ProviderPool
from reconciler.roles.runtime.runtime import REAL, Runtime
from reconciler.roles.worker.call_failpoint import CallFailpoint
from reconciler.roles.worker.call_slots import CallSlots
from reconciler.roles.worker.lookup import LookupResult, look_up
from reconciler.roles.worker.name_checks import NameChecks

LEASE_SECONDS = 10.0
"""Time for which an action belongs to one worker unless its lease is extended."""

MAX_ERROR_CHARACTERS = 4_000
"""Limit on an error message, so that the action's result can be stored."""

_ACTIONS_PER_CALL = 2
"""Actions fetched per concurrent call to an API: one in progress, and one that waits for it.

Other actions stay on the bus, where another worker can fetch them.
"""

_MAX_BATCH_RESULTS = 128
_GATHER_SECONDS = 0.03
"""Results are stored in batches of this size, or after this time.

The bus takes as long to store two results as a hundred (ADR 0055). Results are stored immediately
if their API has no other calls in progress.
"""

_MAX_PENDING_RESULTS = 2 * _MAX_BATCH_RESULTS
"""Limit on results that wait to be stored. Beyond it, no more actions are fetched."""

_EXTEND_SECONDS = LEASE_SECONDS / 3
_RETRY_SECONDS = 0.5
_REFETCH_SECONDS = 5.0
_LAST_RESULTS_SECONDS = 2.0
_LAST_CALLS_SECONDS = 2.0
"""Time limit at shutdown for calls in progress, because an interrupted one has an unknown
result."""

_DEFAULT_CONCURRENCY = 64

_UNREPORTABLE = (
    "a read found an object that cannot be reported: it is too large, or its name or id contains a "
    "secret"
)

_logger = structlog.get_logger(__name__)

_Result = tuple[ActionDelivery, IntakeMessageOut]


class Worker:
    """Executes actions, with a limit on concurrent calls per API."""

    def __init__(
        self,
        *,
        name: str,
        reader: ActionReader,
        intake: IntakeWriter,
        log: EventLog,
        configurations: Configurations,
        providers: ProviderPool,
        gates: ApiGates,
        names: NameChecks,
        twins: TwinDetector | None = None,
        runtime: Runtime = REAL,
    ) -> None:
        self._twins = twins
        self._names = names
        self._name = name
        self._reader = reader
        self._intake = intake
        self._log = log
        self._configurations = configurations
        self._providers = providers
        self._now = runtime.now
        self._clock = runtime.clock
        self._gates = gates
        self._configs_to_fetch = configurations.names
        self._fetch_changed = asyncio.Event()
        configurations.listen(self._configuration_changed)
        self._slots: dict[str, CallSlots] = {}
        self._last_old_position = 0
        self._leases: dict[int, ActionDelivery] = {}
        self._lapsed_positions: set[int] = set()
        self._lease_starts: dict[int, float] = {}
        self._next_lapse_at = math.inf
        self._extended_at = (self._clock(), self._clock())
        self._results: list[_Result] = []
        self._has_results = asyncio.Event()
        self._writes: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Execute actions until canceled."""
        self._last_old_position = await self._log.last_position()
        try:
            async with asyncio.TaskGroup() as work:
                running = set[asyncio.Task[None]]()
                try:
                    await self._fetch_work(work, running)
                finally:
                    await self._finish_calls(running)
        finally:
            await self._report_remaining()

    async def _fetch_work(self, work: asyncio.TaskGroup, running: set[asyncio.Task[None]]) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._report_results())
            tasks.create_task(self._extend_leases())
            tasks.create_task(self._fetch_from_all_apis())
            while True:
                for delivery in await self._reader.next_batch():
                    self._begin_lease(delivery)
                    task = work.create_task(self._work(delivery))
                    running.add(task)
                    task.add_done_callback(running.discard)

    async def _finish_calls(self, running: set[asyncio.Task[None]]) -> None:
        """Wait for running writes to end, and cancel all other work."""
        writes = set(self._writes)
        for task in running - writes:
            task.cancel()
        if writes:
            await asyncio.wait(writes, timeout=_LAST_CALLS_SECONDS)

    # --- fetching

    def _configuration_changed(self, name: str) -> None:
        self._configs_to_fetch.add(name)
        self._fetch_changed.set()

    async def _fetch_from_all_apis(self) -> None:
        """Fetch actions for every API, including withdrawn ones, whose actions must also end."""
        while True:
            self._fetch_changed.clear()
            names, self._configs_to_fetch = sorted(self._configs_to_fetch), set[str]()
            for name in names:
                try:
                    await self._reader.add_queue(
                        name, _ACTIONS_PER_CALL * self._max_concurrent_calls(name)
                    )
                except QueueRefusedError as error:  # the other APIs continue
                    _logger.error(
                        "failed to fetch actions; retrying", config=name, error=str(error)
                    )
                    self._configs_to_fetch.add(name)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_REFETCH_SECONDS if self._configs_to_fetch else None):
                    await self._fetch_changed.wait()

    def _max_concurrent_calls(self, config_name: str) -> int:
        config = self._configurations.by_name.get(config_name)
        return _DEFAULT_CONCURRENCY if config is None else config.limits.concurrency

    # --- one action

    async def _work(self, delivery: ActionDelivery) -> None:
        event = delivery.event.data
        assert isinstance(event, (ActionDecided, ActionRetried, LookupDecided))
        action = event.action
        attempt = 1 if isinstance(event, ActionDecided) else event.attempt
        is_lookup = isinstance(event, LookupDecided)
        reach(Failpoint.WORKER_CLAIMED, action.operation)
        key, config = delivery.event.key, action.provider_config
        gate = self._gates.of(config)
        gate.running_actions += 1
        started = self._now()
        try:
            # The action must not wait so long that it delays other APIs.
            effect, error = None, gate.reject_long_wait(config)
            if error is None:
                slots = self._get_slots(config)
                # The next actions on the bus may belong to namespaces that have a free slot.
                fetch_another = partial(self._reader.free_slot, delivery)
                slot_start = await slots.acquire(key.namespace, delivery.size, fetch_another)
                try:
                    end_event = None
                    if self._may_have_result(delivery):
                        end_event = await self._find_end_event(delivery, action, attempt)
                    if end_event is not None:
                        await self._finish_ended(delivery, action, attempt, end_event)
                        return
                    started = self._now()
                    reach(Failpoint.WORKER_BEFORE_CALL, action.operation)
                    # Each action has its own task, so this applies to no other action.
                    CALL_NAMESPACE.set(key.namespace)
                    error, effect = await self._call(gate, delivery, action, key.kind)
                    if error is not None and gate.begin_check(config):
                        await self._check_suspected_api(gate, action, key.kind)
                    if not isinstance(error, NotCalledError):
                        reach(Failpoint.WORKER_CALLED, action.operation)
                finally:
                    slots.release(key.namespace, slot_start)
        finally:
            gate.running_actions -= 1
        existing = effect.object if effect else _find_obstacle(error)
        reportable = None if existing is None else await self._hide_secrets(existing, action)
        labeled_uids = _labeled_uids(effect)
        is_omitted = effect is not None and existing is not None and reportable is None
        if is_lookup and is_omitted and not labeled_uids:
            # A lookup without an object would report that nothing exists.
            error, effect = NotDoneError(_UNREPORTABLE), None
        if is_lookup or effect is None:
            error, reportable = await self._withhold_newer(
                delivery.event, action, error, reportable
            )
        reported = Reported(
            action_id=action.action_id,
            attempt=attempt,
            started_at=started,
            finished_at=self._now(),
            worker=self._name,
            error=None if error is None else _as_action_error(error, self._now()),
            object=reportable,
            replayed=_is_replayed(error if effect is None else effect),
            is_lookup=is_lookup,
            redelivered=self._may_be_at_another_worker(delivery),
            absent=effect is not None and effect.absent,
            labeled_uids=mask_ids(labeled_uids, self._providers.searches.secrecy),
        )
        self._report(delivery, key, reported)
        if not gate.running_actions or len(self._results) >= _MAX_BATCH_RESULTS:
            self._has_results.set()
        elif len(self._results) == 1:
            asyncio.get_running_loop().call_later(_GATHER_SECONDS, self._has_results.set)

    async def _call(
        self, gate: ApiGate, delivery: ActionDelivery, action: Action, kind: str
    ) -> tuple[ProviderError | ConfigurationError | None, Effect | None]:
        config, lookup = action.provider_config, delivery.event.data
        is_lookup = isinstance(lookup, LookupDecided)
        if not is_lookup and self._must_not_be_repeated(delivery, action, kind):
            return UnknownResultError(
                "another worker may have made this call; a read will show the result"
            ), None
        record = CallRecord()
        token = CALL_RECORD.set(record)
        try:
            if not is_lookup:
                await self._check_names(delivery.event.key, action)
            can_check = self._can_check(config, kind)
            while (is_probe := await gate.enter(config)) and can_check:
                await self._probe_api(gate, action, kind)
            calls = gate.calls(config, is_probe=is_probe, proves_failure=not can_check)
            has_failpoint = is_armed(Failpoint.WORKER_BETWEEN_CALLS)
            with CallFailpoint(calls, action.operation) if has_failpoint else calls:
                provider = self._providers.get(config, kind, action.definition)
                if not is_lookup:
                    gate.check_writes()
                    return None, await self._execute(provider, action, kind)
                spec = self._configurations.by_name.get(config)
                capabilities = self._providers.capabilities(kind)
                known_uids = lookup.known_uids
                return None, await look_up(
                    provider, action, spec, capabilities, known_uids=known_uids
                )
        except (ProviderError, ConfigurationError) as error:
            is_partly_done = record.has_written and _reports_nothing_done(error, action)
            return _build_partial_failure(error) if is_partly_done else error, None
        except asyncio.CancelledError:
            if is_being_canceled():
                raise
            # A canceled task would report nothing, and its lease would be extended endlessly.
            error_class = NotDoneError if is_lookup else UnknownResultError
            return error_class("the provider canceled its own call"), None
        except Exception as error:
            _logger.exception("a provider raised an unexpected error", action=action.action_id)
            error_class = NotDoneError if is_lookup else UnknownResultError
            return error_class(f"{type(error).__name__}: {error}"), None
        finally:
            CALL_RECORD.reset(token)

    async def _check_names(self, key: ResourceKey, action: Action) -> None:
        """Check who owns the name of a new object, and the objects that an object uses.

        The API would refuse the creation only while the other resource's object exists. Raises
        `NameTakenError`, or ``NotDoneError`` for a use that the owner does not permit.
        """
        capabilities = self._providers.capabilities(key.kind)
        names: list[ExternalName] = []
        config, requester = action.provider_config, str(key)
        is_unique = capabilities is None or capabilities.deterministic_names
        if action.operation == "Create" and is_unique:
            is_path = capabilities is not None and capabilities.path_names
            names.append(
                ExternalName(config, key.kind, action.external_name, requester, is_path=is_path)
            )
        uses = self._providers.find_uses(action, key.kind)
        names += [
            ExternalName(config, kind, name, requester, is_use=True) for _, kind, name in uses
        ]
        names += [
            ExternalName(config, key.kind, claim_name(each), requester, is_path=True, is_use=True)
            for each in action.claims
        ]
        if not names:
            return
        owners = await self._names.find_owners(names)
        for name, owner in zip(names, owners, strict=True):
            if owner and not name.is_use:
                raise NameTakenError(owner)
        used = [f"{use.path}: the {use.kind} {use.name!r}" for use in uses]
        used += action.claims
        for what, owner in zip(used, owners[len(names) - len(used) :], strict=True):
            if owner:
                # Like a refusal of the API: the time between attempts must grow.
                raise NotDoneError(
                    f"{what} belongs to a resource in another namespace; that resource must name "
                    "this namespace in spec.policy.referencedFrom"
                )

    def _can_check(self, config_name: str, kind: str) -> bool:
        """Return whether a listing can show whether an API responds."""
        capabilities = self._providers.capabilities(kind)
        is_configured = config_name in self._configurations.by_name
        return is_configured and capabilities is not None and capabilities.listing

    async def _probe_api(self, gate: ApiGate, action: Action, kind: str) -> None:
        """Check whether an API responds again. Raises `GateClosedError` if not."""
        try:
            await self._check_api(gate, action, kind, is_probe=True)
        except ProviderError as error:
            if not error.proves_failure:
                return
            problem = f"API {action.provider_config!r} does not respond: {error.message}"
            raise GateClosedError(problem, retry_after_seconds=PROBE_WAIT_SECONDS) from None

    async def _check_suspected_api(self, gate: ApiGate, action: Action, kind: str) -> None:
        """Check an API after failed calls, which the objects of one tenant may have caused."""
        try:
            await self._check_api(gate, action, kind)
        except (ProviderError, ConfigurationError) as error:
            _logger.info("an API does not respond", config=action.provider_config, error=str(error))
        except Exception as error:  # noqa: BLE001 - a defect in a kind proves nothing
            _logger.warning("failed to check an API", error=f"{type(error).__name__}: {error}")
        finally:
            gate.end_check()

    async def _check_api(
        self, gate: ApiGate, action: Action, kind: str, *, is_probe: bool = False
    ) -> None:
        """Make a call whose result does not depend on the action's object.

        This is the provider's own probe, or else the first page of a listing. Raises
        `ProviderError` or `ConfigurationError` if that fails.
        """
        name = action.provider_config
        with gate.calls(name, is_probe=is_probe) as calls:
            provider = self._providers.get(name, kind, action.definition)
            scope = self._configurations.by_name[name].scope
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    if not (isinstance(provider, ProbedProvider) and await provider.probe()):
                        await _read_first_page(provider, scope)
            except TimeoutError:
                raise NotDoneError(
                    f"the API did not complete its response within {CHECK_SECONDS:g} s",
                    responded=calls.has_response,
                ) from None

    async def _execute(self, provider: Provider, action: Action, kind: str) -> Effect:
        # The decision may be based on a listing from before the data arrived.
        DATA_CHECK.set(self._providers.data_check(action, kind))
        task = asyncio.current_task()
        assert task is not None
        # A write ends when its result is reported, which the search for secrets may delay.
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        match action.operation:
            case "Create":
                return await provider.create(action)
            case "Update":
                return await provider.update(action)
            case "Delete":
                return await provider.delete(action)

    async def _withhold_newer(
        self,
        event: LogEvent,
        action: Action,
        error: ProviderError | ConfigurationError | None,
        reportable: ExternalObject | None,
    ) -> tuple[ProviderError | ConfigurationError | None, ExternalObject | None]:
        """Return the result of a call, or an error if its object may be newer than the log.

        Otherwise, the next write would be based on that object before any listing contains it. Once
        such objects are approved, only listings detect further ones.
        """
        config = action.provider_config
        if reportable is None or self._twins is None or config in self._configurations.twins:
            return error, reportable
        try:
            comparison = await self._twins.report(
                config,
                event.key.kind,
                [Suspect(event.key, reportable)],
                # An action in flight is the newest one, and its retries only add other events. With
                # their versions, a key of a copy would no longer be newer.
                lambda key: version_in(action.action_id) if key == event.key else 0,
            )
        except Exception as comparison_error:  # noqa: BLE001 - such as an unreachable bus
            _logger.warning("failed to compare an object with the log", error=str(comparison_error))
            comparison = Comparison(must_wait=True)
        if comparison.allows(event.key):
            return error, reportable
        return error or NotDoneError("the object may be newer than this log"), None

    async def _hide_secrets(
        self, existing: ExternalObject, action: Action
    ) -> ExternalObject | None:
        """Return an object without secrets, or None if it cannot be reported.

        The action's values are kept, because the log already contains them.
        """
        known = (action.fields, action.labels, action.external_name, action.uid)
        searches = self._providers.searches
        hidden = hide_secrets(existing, searches.secrecy, *known, action.idempotency_key)
        return _without_oversized(await searches.complete(hidden))

    def _must_not_be_repeated(self, delivery: ActionDelivery, action: Action, kind: str) -> bool:
        """Return whether the call would do harm if a lost worker has already made it."""
        capabilities = self._providers.capabilities(kind)
        if capabilities is None or is_safe_to_repeat(action, capabilities):
            return False
        return not delivery.is_count_certain or self._may_be_at_another_worker(delivery)

    def _may_have_result(self, delivery: ActionDelivery) -> bool:
        """Return whether another worker or an earlier run may have stored a result of the action.

        This is possible if it was delivered before, may have been redelivered while this process
        was paused or disconnected, or is older than this worker, because a recreated consumer
        redelivers the whole history.
        """
        return (
            self._may_be_at_another_worker(delivery) or delivery.position <= self._last_old_position
        )

    def _may_be_at_another_worker(self, delivery: ActionDelivery) -> bool:
        """Return whether another worker had this attempt earlier, or may have it now."""
        if self._clock() > self._next_lapse_at:
            self._record_lapsed_leases()
        return delivery.delivered > 1 or delivery.position in self._lapsed_positions

    async def _find_end_event(
        self, delivery: ActionDelivery, action: Action, attempt: int
    ) -> ResourceEvent | None:
        """Return the event that ended this attempt or its action, or None.

        It retries until the log responds, because the API may no longer recognize the idempotency
        key of an old action.
        """
        key = delivery.event.key
        while True:
            try:
                loaded = await self._log.load([key], from_leader=True, use_cache=False)
                break
            except Exception as error:  # noqa: BLE001 - such as an unreachable bus
                _logger.warning(
                    "failed to read the result of a redelivered action; retrying", error=str(error)
                )
                await asyncio.sleep(_RETRY_SECONDS)
        for event in loaded[key].events:
            is_later = event.resourceversion > delivery.event.resourceversion
            if is_later and _is_ending(event.data, action, attempt):
                return event.data
        return None

    def _get_slots(self, config_name: str) -> CallSlots:
        limit = self._max_concurrent_calls(config_name)
        slots = self._slots.get(config_name)
        if slots is None or slots.limit != limit:
            slots = self._slots[config_name] = CallSlots(limit, self._clock)
        return slots

    # --- results and leases

    def _report(self, delivery: ActionDelivery, key: ResourceKey, reported: Reported) -> None:
        """Store a result with the next batch, and allow another action to be fetched."""
        message = IntakeMessageOut("result", key, reported, _result_id(reported))
        self._results.append((delivery, message))
        if len(self._results) <= _MAX_PENDING_RESULTS:
            self._reader.free_slot(delivery)

    async def _report_results(self) -> None:
        """Store pending results in batches, and acknowledge their actions."""
        while True:
            await self._has_results.wait()
            self._has_results.clear()
            results, self._results = self._results, []
            try:
                unstored = await self._store_results(results)
                unstored_ids = {id(each) for each in unstored}
                stored = [each[0] for each in results if id(each) not in unstored_ids]
                if stored:
                    await self._acknowledge(stored)
            except asyncio.CancelledError:
                self._results = results + self._results
                raise
            except Exception as error:  # noqa: BLE001 - results must not be lost
                _logger.warning(
                    "failed to store results; retrying", error=str(error), results=len(results)
                )
                unstored = results
            if unstored:
                self._results = [*unstored, *self._results]
                self._has_results.set()
                await asyncio.sleep(_RETRY_SECONDS)

    async def _store_results(self, results: Sequence[_Result]) -> Sequence[_Result]:
        """Store results. Return those that were not stored, or may not have been."""
        unstored: Sequence[_Result] = ()
        try:
            await self._intake.publish([message for _delivery, message in results])
        except NotStoredError as error:
            _logger.warning(
                "failed to store results; retrying", error=str(error), results=len(error.missing)
            )
            unstored = [results[index] for index in error.missing]
        reach(Failpoint.WORKER_REPORTED)
        return unstored

    async def _report_remaining(self) -> None:
        """Store the remaining results at shutdown, so that their actions are not executed again."""
        if not self._results:
            return
        with contextlib.suppress(Exception):  # their actions are redelivered, as after a crash
            async with asyncio.timeout(_LAST_RESULTS_SECONDS):
                await self._intake.publish([message for _delivery, message in self._results])
                await self._reader.ack([delivery for delivery, _message in self._results])

    async def _acknowledge(self, deliveries: Sequence[ActionDelivery]) -> None:
        await self._reader.ack(deliveries)
        reach(Failpoint.WORKER_ACKED)
        for delivery in deliveries:
            self._forget_lease(delivery)

    async def _finish_ended(
        self, delivery: ActionDelivery, action: Action, attempt: int, end_event: ResourceEvent
    ) -> None:
        """Acknowledge an ended action, unless another worker may have made an unreported call."""
        is_known = isinstance(end_event, (ActionSucceeded, ActionHeld))
        if _may_be_created_again(delivery, action, end_event):
            capabilities = self._providers.capabilities(delivery.event.key.kind)
            is_known = capabilities is None or capabilities.idempotency_keys
        is_call = not isinstance(delivery.event.data, LookupDecided)
        if is_call and not is_known and self._may_be_at_another_worker(delivery):
            now = self._now()
            error = ActionError(
                "Unknown", "another worker started this call and reported no result"
            )
            reported = Reported(action.action_id, attempt, now, now, self._name, error)
            self._report(delivery, delivery.event.key, reported)
            self._has_results.set()
            return
        self._forget_lease(delivery)
        try:
            await self._reader.ack([delivery])
        except Exception as error:  # noqa: BLE001 - its redelivery ends the same way
            _logger.warning("failed to acknowledge an ended action", error=str(error))

    def _begin_lease(self, delivery: ActionDelivery) -> None:
        """Date a lease from the second-to-last extension.

        If this process was paused, the delivery may have arrived before the last extension. It
        cannot have arrived before the preceding one, or it would have been processed earlier.
        """
        since = self._extended_at[0]
        self._leases[delivery.position] = delivery
        self._lease_starts[delivery.position] = since
        self._next_lapse_at = min(self._next_lapse_at, since + LEASE_SECONDS)

    def _forget_lease(self, delivery: ActionDelivery) -> None:
        self._leases.pop(delivery.position, None)
        self._lease_starts.pop(delivery.position, None)
        self._lapsed_positions.discard(delivery.position)

    async def _extend_leases(self) -> None:
        while True:
            await asyncio.sleep(_EXTEND_SECONDS)
            self._record_lapsed_leases()
            leases, now = list(self._leases.values()), self._clock()
            self._extended_at = (self._extended_at[1], now)
            try:
                if leases:
                    await self._reader.extend_leases(leases)
            except Exception as error:  # noqa: BLE001 - the next extension may succeed
                _logger.warning("failed to extend leases", error=str(error))
            else:
                starts = self._lease_starts
                starts.update((each.position, now) for each in leases if each.position in starts)

    def _record_lapsed_leases(self) -> None:
        """Record the leases that may have expired. A later extension does not undo that."""
        now, starts = self._clock(), self._lease_starts
        self._lapsed_positions |= {
            position for position, start in starts.items() if start + LEASE_SECONDS < now
        }
        since = min(
            (start for position, start in starts.items() if position not in self._lapsed_positions),
            default=math.inf,
        )
        self._next_lapse_at = since + LEASE_SECONDS


async def _read_first_page(provider: Provider, scope: Scope) -> None:
    pages = aiter(provider.pages(scope, page_size=1))
    try:
        await anext(pages, None)
    finally:
        if isinstance(pages, AsyncGenerator):
            await pages.aclose()


def _may_be_created_again(
    delivery: ActionDelivery, action: Action, end_event: ResourceEvent
) -> bool:
    """Return whether a lost worker may have executed a creation again after its success.

    This is the case if the first delivery succeeded, and this is at least the third.
    """
    first_succeeded = isinstance(end_event, ActionSucceeded) and not end_event.redelivered
    is_third = delivery.delivered > 2  # noqa: PLR2004
    return action.operation == "Create" and first_succeeded and is_third


def _is_ending(event: ResourceEvent, action: Action, attempt: int) -> bool:
    """Return whether an event ends an attempt at an action, or the action itself."""
    match event:
        case (
            ActionSucceeded(action_id=ended)
            | ActionAbandoned(action_id=ended)
            | ActionHeld(action_id=ended)
        ):
            return ended == action.action_id
        case (
            ActionFailed(action_id=ended, attempt=failed)
            | ActionNotDone(action_id=ended, attempt=failed)
        ):
            return ended == action.action_id and failed >= attempt
        case _:
            return False


def _without_oversized(existing: ExternalObject | None) -> ExternalObject | None:
    """Return the object, or None if a result with it could not be stored."""
    try:
        if not is_too_large(existing):
            return existing
        reason = "it is too large"
    except Exception as error:  # noqa: BLE001 - a provider may return values that are not JSON
        reason = f"{type(error).__name__}: {error}"
    assert existing is not None
    _logger.warning("omitted an object from a result", name=existing.name, reason=reason)
    return None


def _result_id(reported: Reported) -> str:
    """Return the id of a result, which becomes the cause of the event that records it."""
    outcome = "Done" if reported.error is None else reported.error.error_class
    return f"{reported.action_id}:{reported.attempt}:{reported.worker}:{outcome}"


def _as_action_error(error: ProviderError | ConfigurationError, now: datetime) -> ActionError:
    if isinstance(error, ConfigurationError):
        return ActionError("NotDone", _clean_text(str(error)))
    wait = error.retry_after_seconds
    until = ""
    if isinstance(error, ThrottledError) and wait and wait <= MAX_THROTTLED_SECONDS:
        until = f" (no calls before {now + timedelta(seconds=math.ceil(wait)):%Y-%m-%dT%H:%M:%SZ})"
    return ActionError(
        error.error_class,
        _clean_text(error.message) + until,
        error.status,
        error.retry_after_seconds,
        attempted=not isinstance(error, NotCalledError),
        belongs_to=error.resource if isinstance(error, NameTakenError) else "",
    )


def _reports_nothing_done(error: ProviderError | ConfigurationError, action: Action) -> bool:
    """Return whether an error reports that nothing was done.

    A pending deletion is already partly done.
    """
    if action.operation == "Delete":
        return False
    if isinstance(error, RefusedError):
        return error.obstacle is None  # otherwise it has the object that the first call created
    return isinstance(error, ConfigurationError | NotDoneError | ThrottledError)


def _build_partial_failure(error: ProviderError | ConfigurationError) -> UnknownResultError:
    """Convert the failure of an action that has already written something."""
    text = f"the action was only partly done: {error}"
    if isinstance(error, ConfigurationError):
        return UnknownResultError(text)
    wait = error.retry_after_seconds
    return UnknownResultError(text, status=error.status, retry_after_seconds=wait)


def _clean_text(text: str) -> str:
    """Truncate text, and replace invalid Unicode, such as half a surrogate pair."""
    return text[:MAX_ERROR_CHARACTERS].encode(errors="replace").decode()


def _is_replayed(result: Effect | ProviderError | ConfigurationError | None) -> bool:
    return isinstance(result, (Effect, ProviderError)) and result.replayed


def _labeled_uids(effect: Effect | None) -> Sequence[str]:
    return effect.labeled_uids if isinstance(effect, LookupResult) else ()


def _find_obstacle(error: ProviderError | ConfigurationError | None) -> ExternalObject | None:
    return error.obstacle if isinstance(error, ProviderError) else None
