"""The worker: executes decided actions at the external API, and reports their results.

Each action is called with its own key and frozen parameters. The aggregate decides whether and when
it is retried. An action is acknowledged only when its result is stored in the intake, so any crash
leads to a redelivery with the same key.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Sequence
from datetime import datetime, timedelta

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
)
from reconciler.errors import (
    ConfigurationError,
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
    IntakeMessageOut,
    IntakeWriter,
    NotStoredError,
    NotTakenError,
)
from reconciler.provider import Effect, Provider
from reconciler.provider.call_permit import CALL_RECORD, CallRecord
from reconciler.resource.api_health import MAX_THROTTLED_SECONDS
from reconciler.resource.attempt import is_safe_to_repeat
from reconciler.roles.gate.api_gate import ApiGate
from reconciler.roles.gate.api_gates import ApiGates
from reconciler.roles.objects.object_secrets import hide_secrets, shown_ids
from reconciler.roles.objects.oversize import is_too_large
from reconciler.roles.objects.twins import Comparison, Suspect, TwinDetector
from reconciler.roles.runtime.cancellation import is_being_cancelled
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.runtime.provider_pool import ProviderPool
from reconciler.roles.runtime.runtime import REAL, Runtime
from reconciler.roles.worker.call_failpoint import CallFailpoint
from reconciler.roles.worker.call_slots import CallSlots
from reconciler.roles.worker.lookup import LookupResult, look_up

LEASE_SECONDS = 10.0
"""Time for which an action belongs to one worker without an extension of its lease."""

MAX_ERROR_CHARACTERS = 4_000
"""Limit of a failure's text, so that the result of the action can be stored."""

_ACTIONS_PER_CALL = 2
"""Actions fetched per concurrent call of an API. The next one waits here for the end of a call, and
all others where another worker can fetch them."""

_RESULTS_AT_ONCE = 128
_GATHER_SECONDS = 0.03
"""Results are stored in batches of this size, or after this time.

A batch of two takes the bus as long as one of a hundred (ADR 0055). Results are stored immediately
if their API has no other calls in progress.
"""

_MAX_RESULTS_WAITING = 2 * _RESULTS_AT_ONCE
"""Limit of results that wait to be stored. Beyond it, no more actions are fetched."""

_EXTEND_SECONDS = LEASE_SECONDS / 3
_RETRY_SECONDS = 0.5
_RETAKE_SECONDS = 5.0
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
    """Executes actions, with a limit of concurrent calls per API."""

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
        twins: TwinDetector | None = None,
        runtime: Runtime = REAL,
    ) -> None:
        self._twins = twins
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
        self._old_until = 0
        self._leased: dict[int, ActionDelivery] = {}
        self._lapsed: set[int] = set()
        self._known_since: dict[int, float] = {}
        self._none_lapses_before = math.inf
        self._extended_at = (self._clock(), self._clock())
        self._results: list[_Result] = []
        self._result_came = asyncio.Event()
        self._calling: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Execute actions until canceled."""
        self._old_until = await self._log.last_position()
        try:
            async with asyncio.TaskGroup() as work:
                working = set[asyncio.Task[None]]()
                try:
                    await self._take_work(work, working)
                finally:
                    await self._finish_calls(working)
        finally:
            await self._report_the_rest()

    async def _take_work(self, work: asyncio.TaskGroup, working: set[asyncio.Task[None]]) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._report_results())
            tasks.create_task(self._extend_leases())
            tasks.create_task(self._fetch_from_all_apis())
            while True:
                for delivery in await self._reader.next_batch():
                    self._begin_lease(delivery)
                    task = work.create_task(self._work(delivery))
                    working.add(task)
                    task.add_done_callback(working.discard)

    async def _finish_calls(self, working: set[asyncio.Task[None]]) -> None:
        """Wait for the end of running writes, and cancel all other work."""
        calling = set(self._calling)
        for task in working - calling:
            task.cancel()
        if calling:
            await asyncio.wait(calling, timeout=_LAST_CALLS_SECONDS)

    # --- taking

    def _configuration_changed(self, name: str) -> None:
        self._configs_to_fetch.add(name)
        self._fetch_changed.set()

    async def _fetch_from_all_apis(self) -> None:
        """Fetch the actions of each API, including withdrawn ones, whose actions must also end."""
        while True:
            self._fetch_changed.clear()
            names, self._configs_to_fetch = sorted(self._configs_to_fetch), set[str]()
            for name in names:
                try:
                    await self._reader.take_from(
                        name, _ACTIONS_PER_CALL * self._calls_at_once(name)
                    )
                except NotTakenError as error:  # the other APIs continue
                    _logger.error("taking actions failed; retrying", config=name, error=str(error))
                    self._configs_to_fetch.add(name)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RETAKE_SECONDS if self._configs_to_fetch else None):
                    await self._fetch_changed.wait()

    def _calls_at_once(self, config_name: str) -> int:
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
        gate = self._gates.of(action.provider_config)
        gate.inside += 1
        started = self._now()
        try:
            effect, error = None, _rejection_of(gate, action)
            if error is None:
                async with self._slots_of(action.provider_config).taken():
                    old = self._may_have_result(delivery)
                    ending = await self._ending(delivery, action, attempt) if old else None
                    if ending is not None:
                        await self._end_settled(delivery, action, attempt, ending)
                        return
                    started = self._now()
                    reach(Failpoint.WORKER_BEFORE_CALL, action.operation)
                    error, effect = await self._call(gate, delivery, action)
                    if not isinstance(error, NotCalledError):
                        reach(Failpoint.WORKER_CALLED, action.operation)
        finally:
            gate.inside -= 1
        met_object = effect.object if effect else _obstacle(error)
        shown = await self._hide_secrets(met_object, action)
        is_omitted = effect is not None and met_object is not None and shown is None
        if is_lookup and is_omitted and not _labeled_uids(effect):
            # A lookup without an object would report that nothing exists.
            error, effect = NotDoneError(_UNREPORTABLE), None
        if is_lookup or effect is None:
            error, shown = await self._without_newer(delivery.event, action, error, shown)
        reported = Reported(
            action_id=action.action_id,
            attempt=attempt,
            started_at=started,
            finished_at=self._now(),
            worker=self._name,
            error=None if error is None else _as_action_error(error, self._now()),
            object=shown,
            replayed=_is_replayed(error if effect is None else effect),
            is_lookup=is_lookup,
            redelivered=self._may_be_another_workers(delivery),
            absent=effect is not None and effect.absent,
            labeled_uids=shown_ids(_labeled_uids(effect), self._providers.searches.secrecy),
        )
        self._report(delivery, reported)
        if not gate.inside or len(self._results) >= _RESULTS_AT_ONCE:
            self._result_came.set()
        elif len(self._results) == 1:
            asyncio.get_running_loop().call_later(_GATHER_SECONDS, self._result_came.set)

    async def _call(
        self, gate: ApiGate, delivery: ActionDelivery, action: Action
    ) -> tuple[ProviderError | ConfigurationError | None, Effect | None]:
        config, lookup = action.provider_config, delivery.event.data
        look = isinstance(lookup, LookupDecided)
        if not look and self._must_not_be_repeated(delivery, action):
            return UnknownResultError(
                "another worker may have made this call; a read will show the result"
            ), None
        record = CallRecord()
        token = CALL_RECORD.set(record)
        try:
            is_probe = False if gate.is_open else await gate.enter(config)
            calls = gate.calls(config, is_probe=is_probe)
            is_stepped = is_armed(Failpoint.WORKER_BETWEEN_CALLS)
            with CallFailpoint(calls, action.operation) if is_stepped else calls:
                kind = delivery.event.key.kind
                provider = self._providers.get(config, kind, action.definition)
                if not look:
                    gate.check_writes()
                    return None, await self._execute(provider, action)
                spec = self._configurations.by_name.get(config)
                capabilities = self._providers.capabilities(kind)
                known_uids = lookup.known_uids
                return None, await look_up(
                    provider, action, spec, capabilities, known_uids=known_uids
                )
        except (ProviderError, ConfigurationError) as error:
            is_begun = record.has_written and _reports_nothing_done(error, action)
            return _as_partly_done(error) if is_begun else error, None
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise
            # A task that ends as canceled is not reported, and its lease would be extended without
            # end.
            unclassified = NotDoneError if look else UnknownResultError
            return unclassified("the provider canceled its own call"), None
        except Exception as error:
            _logger.exception("a provider raised an unexpected error", action=action.action_id)
            unclassified = NotDoneError if look else UnknownResultError
            return unclassified(f"{type(error).__name__}: {error}"), None
        finally:
            CALL_RECORD.reset(token)

    async def _execute(self, provider: Provider, action: Action) -> Effect:
        task = asyncio.current_task()
        assert task is not None
        # Until it has reported the result: the search for secrets in the response may take turns.
        self._calling.add(task)
        task.add_done_callback(self._calling.discard)
        match action.operation:
            case "Create":
                return await provider.create(action)
            case "Update":
                return await provider.update(action)
            case "Delete":
                return await provider.delete(action)

    async def _without_newer(
        self,
        event: LogEvent,
        action: Action,
        error: ProviderError | ConfigurationError | None,
        shown: ExternalObject | None,
    ) -> tuple[ProviderError | ConfigurationError | None, ExternalObject | None]:
        """Return the result of a call, unless its object may be newer than the log.

        Otherwise the next write would be based on it, before any listing contains it. After an
        approval of such objects, only listings detect further ones.
        """
        config = action.provider_config
        if shown is None or self._twins is None or config in self._configurations.twins:
            return error, shown
        try:
            compared = await self._twins.report(
                config,
                event.key.kind,
                [Suspect(event.key, shown)],
                lambda key: event.resourceversion if key == event.key else 0,
            )
        except Exception as why:  # noqa: BLE001 - such as an unreachable bus
            _logger.warning("comparing an object with the log failed", error=str(why))
            compared = Comparison(must_wait=True)
        if compared.allows(event.key):
            return error, shown
        return error or NotDoneError("the object may be newer than this log"), None

    async def _hide_secrets(
        self, seen: ExternalObject | None, action: Action
    ) -> ExternalObject | None:
        """Return an object without secrets; None for one that cannot be reported.

        The contents of the action are already in the log.
        """
        if seen is not None:
            known = (action.fields, action.labels, action.external_name, action.uid)
            searches = self._providers.searches
            hidden = hide_secrets(seen, searches.secrecy, *known, action.idempotency_key)
            seen = await searches.complete(hidden)
        return _without_oversized(seen)

    def _must_not_be_repeated(self, delivery: ActionDelivery, action: Action) -> bool:
        """Return whether a call would do harm if a lost worker has already made it."""
        capabilities = self._providers.capabilities(delivery.event.key.kind)
        safe = capabilities is None or is_safe_to_repeat(action, capabilities)
        is_first = delivery.is_count_certain and not self._may_be_another_workers(delivery)
        return not (safe or is_first)

    def _may_have_result(self, delivery: ActionDelivery) -> bool:
        """Return whether the action may already have a result, of another worker or an earlier run.

        It was delivered before, or may have been since, while this process was paused or
        disconnected. Or it is older than this worker: a recreated consumer delivers the whole
        history again.
        """
        return self._may_be_another_workers(delivery) or delivery.position <= self._old_until

    def _may_be_another_workers(self, delivery: ActionDelivery) -> bool:
        """Return whether another worker had this attempt before, or may have it now."""
        self._record_lapsed_leases()
        return delivery.delivered > 1 or delivery.position in self._lapsed

    async def _ending(
        self, delivery: ActionDelivery, action: Action, attempt: int
    ) -> ResourceEvent | None:
        """Return the event that ended this attempt or its action, or None.

        It retries until the log responds, because the API may no longer have the key of an old
        action.
        """
        key = delivery.event.key
        while True:
            try:
                loaded = await self._log.load([key], from_leader=True, use_cache=False)
                break
            except Exception as error:  # noqa: BLE001 - such as an unreachable bus
                _logger.warning(
                    "reading the result of a redelivered action failed; retrying", error=str(error)
                )
                await asyncio.sleep(_RETRY_SECONDS)
        for event in loaded[key].events:
            is_later = event.resourceversion > delivery.event.resourceversion
            if is_later and _settles(event.data, action, attempt):
                return event.data
        return None

    def _slots_of(self, config_name: str) -> CallSlots:
        most = self._calls_at_once(config_name)
        slots = self._slots.get(config_name)
        if slots is None or slots.most != most:
            slots = self._slots[config_name] = CallSlots(most, self._clock)
        return slots

    # --- results and leases

    def _report(self, delivery: ActionDelivery, reported: Reported) -> None:
        """Store a result with the next batch, and free the room of its action."""
        message = IntakeMessageOut("result", delivery.event.key, reported, _result_id(reported))
        self._results.append((delivery, message))
        if len(self._results) <= _MAX_RESULTS_WAITING:
            self._reader.make_room(delivery)

    async def _report_results(self) -> None:
        """Store all pending results in batches, and acknowledge the actions of stored ones."""
        while True:
            await self._result_came.wait()
            self._result_came.clear()
            results, self._results = self._results, []
            try:
                unstored = await self._store_results(results)
                kept = {id(each) for each in unstored}
                stored = [each[0] for each in results if id(each) not in kept]
                if stored:
                    await self._acknowledge(stored)
            except asyncio.CancelledError:
                self._results = results + self._results
                raise
            except Exception as error:  # noqa: BLE001 - results must not be lost
                _logger.warning(
                    "storing results failed; retrying", error=str(error), results=len(results)
                )
                unstored = results
            if unstored:
                self._results = [*unstored, *self._results]
                self._result_came.set()
                await asyncio.sleep(_RETRY_SECONDS)

    async def _store_results(self, results: Sequence[_Result]) -> Sequence[_Result]:
        """Store results. Return those that were not stored, or may not have been."""
        unstored: Sequence[_Result] = ()
        try:
            await self._intake.publish([message for _delivery, message in results])
        except NotStoredError as error:
            _logger.warning(
                "storing results failed; retrying", error=str(error), results=len(error.missing)
            )
            unstored = [results[place] for place in error.missing]
        reach(Failpoint.WORKER_REPORTED)
        return unstored

    async def _report_the_rest(self) -> None:
        """Store the remaining results at shutdown, so that their actions are not called again."""
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

    async def _end_settled(
        self, delivery: ActionDelivery, action: Action, attempt: int, ending: ResourceEvent
    ) -> None:
        """End a settled action. Another worker's call may have ended without a report."""
        is_known = isinstance(ending, (ActionSucceeded, ActionHeld))
        if _may_be_created_again(delivery, action, ending):
            capabilities = self._providers.capabilities(delivery.event.key.kind)
            is_known = capabilities is None or capabilities.idempotency_keys
        is_call = not isinstance(delivery.event.data, LookupDecided)
        if is_call and not is_known and self._may_be_another_workers(delivery):
            now = self._now()
            lost = ActionError("Unknown", "another worker started this call and reported no result")
            reported = Reported(action.action_id, attempt, now, now, self._name, lost)
            self._report(delivery, reported)
            self._result_came.set()
            return
        self._forget_lease(delivery)
        try:
            await self._reader.ack([delivery])
        except Exception as error:  # noqa: BLE001 - the redelivery is also settled
            _logger.warning("acknowledging a settled action failed", error=str(error))

    def _begin_lease(self, delivery: ActionDelivery) -> None:
        """Start a lease at the extension before the last one.

        If this process was paused, the delivery may have waited since before the last extension,
        but not since before the one before that, because then it would have been processed earlier.
        """
        since = self._extended_at[0]
        self._leased[delivery.position] = delivery
        self._known_since[delivery.position] = since
        self._none_lapses_before = min(self._none_lapses_before, since + LEASE_SECONDS)

    def _forget_lease(self, delivery: ActionDelivery) -> None:
        self._leased.pop(delivery.position, None)
        self._known_since.pop(delivery.position, None)
        self._lapsed.discard(delivery.position)

    async def _extend_leases(self) -> None:
        while True:
            await asyncio.sleep(_EXTEND_SECONDS)
            self._record_lapsed_leases()
            leased, now = list(self._leased.values()), self._clock()
            self._extended_at = (self._extended_at[1], now)
            try:
                if leased:
                    await self._reader.still_working(leased)
            except Exception as error:  # noqa: BLE001 - the next extension may succeed
                _logger.warning("extending leases failed", error=str(error))
            else:
                known = self._known_since
                known.update((each.position, now) for each in leased if each.position in known)

    def _record_lapsed_leases(self) -> None:
        """Record the leases that may have expired. A later extension does not undo that."""
        now = self._clock()
        if now <= self._none_lapses_before:
            return  # the frequent case: it is called three times per action
        known = self._known_since
        self._lapsed |= {position for position, at in known.items() if at + LEASE_SECONDS < now}
        since = min(
            (at for position, at in known.items() if position not in self._lapsed), default=math.inf
        )
        self._none_lapses_before = since + LEASE_SECONDS


def _rejection_of(gate: ApiGate, action: Action) -> ProviderError | None:
    """Return an error if the action would wait too long, because it must not delay other APIs."""
    return None if gate.is_open else gate.turn_away(action.provider_config)


def _may_be_created_again(delivery: ActionDelivery, action: Action, ending: ResourceEvent) -> bool:
    """Return whether a lost worker may have executed a creation again after its success.

    The success is that of the first delivery, and this is at least the third.
    """
    is_of_first = isinstance(ending, ActionSucceeded) and not ending.redelivered
    return action.operation == "Create" and is_of_first and delivery.delivered > 2  # noqa: PLR2004


def _settles(event: ResourceEvent, action: Action, attempt: int) -> bool:
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


def _without_oversized(seen: ExternalObject | None) -> ExternalObject | None:
    """Return None for an object that cannot be reported, so that the result can be stored."""
    try:
        if not is_too_large(seen):
            return seen
        why = "it is too large"
    except Exception as error:  # noqa: BLE001 - a provider may return values that are not JSON
        why = f"{type(error).__name__}: {error}"
    assert seen is not None
    _logger.warning("omitted an object from a result", name=seen.name, why=why)
    return None


def _result_id(reported: Reported) -> str:
    """Return the id of a result, which the event that records it has as its cause."""
    ending = "Done" if reported.error is None else reported.error.error_class
    return f"{reported.action_id}:{reported.attempt}:{reported.worker}:{ending}"


def _as_action_error(error: ProviderError | ConfigurationError, now: datetime) -> ActionError:
    if isinstance(error, ConfigurationError):
        return ActionError("NotDone", _clean_text(str(error)))
    wait = error.retry_after_seconds
    until = ""
    if isinstance(error, ThrottledError) and wait and wait <= MAX_THROTTLED_SECONDS:
        until = f" (no call before {now + timedelta(seconds=math.ceil(wait)):%Y-%m-%dT%H:%M:%SZ})"
    return ActionError(
        error.error_class,
        _clean_text(error.message) + until,
        error.status,
        error.retry_after_seconds,
        attempted=not isinstance(error, NotCalledError),
    )


def _reports_nothing_done(error: ProviderError | ConfigurationError, action: Action) -> bool:
    """Return whether an error reports that nothing was done. A conflict shows an object.

    A deletion that waits has already done a part.
    """
    if action.operation == "Delete":
        return False
    if isinstance(error, RefusedError):
        return error.obstacle is None  # otherwise it shows the object that the first call created
    return isinstance(error, ConfigurationError | NotDoneError | ThrottledError)


def _as_partly_done(error: ProviderError | ConfigurationError) -> UnknownResultError:
    """Return a failure as that of an action that has already written something."""
    text = f"a part of the action was done: {error}"
    if isinstance(error, ConfigurationError):
        return UnknownResultError(text)
    wait = error.retry_after_seconds
    return UnknownResultError(text, status=error.status, retry_after_seconds=wait)


def _clean_text(text: str) -> str:
    """Cut a text, and replace invalid Unicode, such as half a surrogate pair."""
    return text[:MAX_ERROR_CHARACTERS].encode(errors="replace").decode()


def _is_replayed(answer: Effect | ProviderError | ConfigurationError | None) -> bool:
    return isinstance(answer, Effect | ProviderError) and answer.replayed


def _labeled_uids(effect: Effect | None) -> Sequence[str]:
    return effect.labeled_uids if isinstance(effect, LookupResult) else ()


def _obstacle(error: ProviderError | ConfigurationError | None) -> ExternalObject | None:
    return error.obstacle if isinstance(error, ProviderError) else None
