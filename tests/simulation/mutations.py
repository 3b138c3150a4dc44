"""Defects deliberately introduced into the product, each of which the simulation must detect.

Each is a function that changes the product through a ``pytest.MonkeyPatch``, which is undone after
the run. A defect that no seed detects shows that the simulation is too lenient.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from events.envelope import encode_log
from events.external import ExternalObject
from events.intake import ActionError, ListingBegan, Observed, Reported
from events.log import (
    Action,
    ActionAbandoned,
    ActionDecided,
    ActionRetried,
    LogEvent,
    OwnershipClaimed,
    OwnershipReleased,
)
from events.names import ResourceKey
from infra.bus import streams
from infra.jetstream.errors import BusError
from projections.read_models import RowChanges
from projections.status import StatusRow
from reconciler.errors import ProviderError
from reconciler.ports import (
    AppendLostError,
    DeadLetter,
    IntakeDelivery,
    LoadedResource,
    NotStoredError,
    ResourceAppend,
    StoredEvent,
)
from reconciler.resource import (
    attempt,
    decide,
    declaration,
    next_step,
    observation,
    result,
)
from reconciler.resource.attempt import new_action
from reconciler.resource.evolve import fold
from reconciler.resource.state import InFlight
from reconciler.resource.turn import CommandResult
from reconciler.roles.decider import repository
from reconciler.roles.decider.decider import Decider
from reconciler.roles.decider.refusals import publish_rejections
from reconciler.roles.decider.repository import (
    Commit,
    FoldedResource,
    ResourceRepository,
    decode_state,
    encode_state,
)
from reconciler.roles.observer import listing as listing_module
from reconciler.roles.observer.listing import ListingAssembler
from reconciler.roles.observer.observer import Observer
from reconciler.roles.projector.projector import Projector
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.sweeper.sweeper import Sweeper
from reconciler.roles.worker import worker as worker_module
from reconciler.roles.worker.worker import Worker
from tests.memory_bus.actions import ActionQueue
from tests.memory_bus.intake import MemoryIntakeWriter
from tests.memory_bus.log import LogStream
from tests.simulation.mutation import Mutation, Patch
from tests.simulation.mutations_holds import HOLD_MUTATIONS
from tests.simulation.mutations_inputs import INPUT_MUTATIONS
from tests.simulation.mutations_real_apis import REAL_API_MUTATIONS
from tests.simulation.mutations_replacement import REPLACEMENT_MUTATIONS

# --- writing


def _no_compare_and_set(patch: Patch) -> None:
    original = LogStream.append

    def append(self: LogStream, appends: Sequence[ResourceAppend]) -> list[int]:
        self.checks_expectations = False
        return original(self, appends)

    patch.setattr(LogStream, "append", append)


def _a_lost_append_counts_as_done(patch: Patch) -> None:
    async def commit(self: Any, commits: Sequence[Commit]) -> list[Commit]:
        try:
            await self._append(commits)
        except AppendLostError:
            self.evict([each.key for each in commits])
        return []

    patch.setattr(ResourceRepository, "_commit", commit)


def _a_turn_without_events_is_not_checked(patch: Patch) -> None:
    async def find_stale(_self: Any, _commits: Sequence[Commit]) -> list[Commit]:
        return []

    patch.setattr(ResourceRepository, "_find_stale", find_stale)


def _intake_acknowledged_before_the_append(patch: Patch) -> None:
    original = Decider.handle

    async def handle(
        self: Any, batch: Sequence[IntakeDelivery], seconds: float = math.inf
    ) -> Sequence[IntakeDelivery]:
        await self._reader.ack(batch)
        return await original(self, batch, seconds)

    patch.setattr(Decider, "handle", handle)


def _delivered_at_most_three_times(patch: Patch) -> None:
    """The bus silently drops a message after three deliveries: ``max_deliver`` of a consumer."""
    original: Any = streams._decider_consumer  # pyright: ignore[reportPrivateUsage]

    def consumer(*args: Any) -> dict[str, Any]:
        return {**original(*args), "max_deliver": 3}

    patch.setattr(streams, "_decider_consumer", consumer)


def _acknowledged_before_the_dead_letters(patch: Patch) -> None:
    async def refuse(self: Any, dead_letters: Sequence[DeadLetter]) -> None:
        await self._reader.ack([letter.delivery for letter in dead_letters])
        with contextlib.suppress(BusError):
            await publish_rejections(self._sink, dead_letters, self._now())

    patch.setattr(Decider, "_refuse", refuse)


def _partly_stored_counts_as_stored(patch: Patch) -> None:
    """A full intake accepts some of several messages, and the writer does not report it."""
    original: Any = MemoryIntakeWriter._store  # pyright: ignore[reportPrivateUsage]

    def store(self: Any, messages: Sequence[Any]) -> None:
        position_before = self._stream.last_position
        try:
            original(self, messages)
        except NotStoredError:
            if self._stream.last_position == position_before:
                raise

    patch.setattr(MemoryIntakeWriter, "_store", store)


def _cached_before_the_append(patch: Patch) -> None:
    """A state is cached although its events may never be stored."""
    original: Any = ResourceRepository._append  # pyright: ignore[reportPrivateUsage]

    async def append(self: Any, commits: Sequence[Commit]) -> None:
        for each in commits:
            position = each.base.position + len(each.events)
            await self._log.save_states({each.key: (position, encode_state(each.after))})
        await original(self, commits)

    patch.setattr(ResourceRepository, "_append", append)


def _cached_state_without_its_later_events(patch: Patch) -> None:
    def keep(self: Any, loaded: Mapping[ResourceKey, LoadedResource]) -> list[ResourceKey]:
        for key, shape in loaded.items():
            known_state = None if shape.cached is None else decode_state(shape.cached)
            state = fold(shape.events) if known_state is None else known_state
            self._resources[key] = FoldedResource(state, shape.last_position, state.version)
        return []

    patch.setattr(ResourceRepository, "_fold_loaded", keep)
    patch.setattr(repository, "EVENTS_BETWEEN_SAVES", 3)


def _actions_handed_out_before_they_are_stored(patch: Patch) -> None:
    """A worker receives an action although its append is refused."""
    original = LogStream.append

    def append(self: LogStream, appends: Sequence[ResourceAppend]) -> list[int]:
        try:
            return original(self, appends)
        except AppendLostError:
            for each in appends:
                for event in each.events:
                    if isinstance(event.data, ActionDecided):
                        stored = StoredEvent(len(self.events) + 1, event)
                        for hook in self.after_store[:1]:
                            self.events.append(stored)
                            self.payloads.append(encode_log(event))
                            hook(each, [stored])
            raise

    patch.setattr(LogStream, "append", append)


# --- calling


def _a_key_for_each_attempt(patch: Patch) -> None:
    original: Any = Worker._execute  # pyright: ignore[reportPrivateUsage]
    count = 0

    async def execute(self: Any, provider: Any, action: Action, kind: str) -> Any:
        nonlocal count
        count += 1
        keyed = replace(action, idempotency_key=f"attempt-{count}")
        return await original(self, provider, keyed, kind)

    patch.setattr(Worker, "_execute", execute)


def _different_parameters_on_a_retry(patch: Patch) -> None:
    def advance_action(flight: Any, state: Any, *rest: Any) -> Any:
        step = attempt.advance_action(flight, state, *rest)
        if isinstance(step, ActionRetried) and state.desired.spec is not None:
            return replace(step, action=replace(step.action, fields=state.desired.spec.fields))
        return step

    patch.setattr(next_step, "advance_action", advance_action)


def _action_acknowledged_before_its_result_is_stored(patch: Patch) -> None:
    original: Any = Worker._work  # pyright: ignore[reportPrivateUsage]

    async def work(self: Any, delivery: Any) -> None:
        await self._reader.ack([delivery])
        await original(self, delivery)

    patch.setattr(Worker, "_work", work)


def _results_stored_at_most_once(patch: Patch) -> None:
    async def report(self: Any) -> None:
        while True:
            await self._has_results.wait()
            self._has_results.clear()
            results: list[tuple[Any, Any]] = self._results
            self._results = list[tuple[Any, Any]]()
            with contextlib.suppress(Exception):
                await self._intake.publish([message for _, message in results])
            await self._let_go([delivery for delivery, _ in results])

    patch.setattr(Worker, "_report_results", report)


def _unknown_results_count_as_refusals(patch: Patch) -> None:
    original: Any = worker_module._as_action_error  # pyright: ignore[reportPrivateUsage]

    def as_action_error(error: Any, now: datetime) -> ActionError:
        action_error = original(error, now)
        return (
            replace(action_error, error_class="Conflict")
            if action_error.error_class == "Unknown"
            else action_error
        )

    patch.setattr(worker_module, "_as_action_error", as_action_error)


def _a_retry_forgets_the_action_in_flight(patch: Patch) -> None:
    def advance_action(flight: Any, state: Any, *rest: Any) -> Any:
        step = attempt.advance_action(flight, state, *rest)
        if not isinstance(step, ActionRetried):
            return step
        action = flight.action
        return new_action(state, rest[0], action.operation, action.fields, action.labels)

    patch.setattr(next_step, "advance_action", advance_action)


def _redeliveries_are_not_reported(patch: Patch) -> None:
    """A worker does not report that another worker had the action before."""

    def reported(*args: Any, **rest: Any) -> Reported:
        return Reported(*args, **{**rest, "redelivered": False})

    patch.setattr(worker_module, "Reported", reported)


def _a_refused_redelivery_counts_as_not_done(patch: Patch) -> None:
    def may_earlier_call_arrive(*_: Any) -> bool:
        return False

    patch.setattr(result, "_may_earlier_call_arrive", may_earlier_call_arrive)


def _late_successes_ignored(patch: Patch) -> None:
    def ignore(*_: Any) -> tuple[()]:
        return ()

    patch.setattr(result, "_late_successes", ignore)


def _a_conflict_without_its_cause_is_repeated(patch: Patch) -> None:
    """It is repeated with the same key, under which the API has stored the conflict."""
    original: Any = result._after_failure  # pyright: ignore[reportPrivateUsage]

    def after_failure(report: Reported, error: ActionError, *rest: Any) -> Any:
        if error.error_class == "Conflict" and report.object is None:
            error = replace(error, error_class="NotDone")
        return original(report, error, *rest)

    patch.setattr(result, "_after_failure", after_failure)


def _a_create_in_flight_is_abandoned(patch: Patch) -> None:
    def advance_action(flight: Any, state: Any, *rest: Any) -> Any:
        action, generation = flight.action, state.desired.generation
        is_create = action.operation == "Create"
        if is_create and flight.failed is not None and action.generation != generation:
            return ActionAbandoned(action.action_id, action.operation, "the declaration is newer")
        return attempt.advance_action(flight, state, *rest)

    patch.setattr(next_step, "advance_action", advance_action)


def _refused_creations_are_repeated(patch: Patch) -> None:
    """Even for a generation that is no longer declared."""

    def is_in_doubt(flight: InFlight) -> bool:
        return flight.action.operation == "Create" or flight.unknown_results > 0

    patch.setattr(InFlight, "is_in_doubt", property(is_in_doubt))


def _a_refusal_settles_the_attempts_before_it(patch: Patch) -> None:
    def is_in_doubt(flight: InFlight) -> bool:
        is_refused = flight.failed is not None and flight.failed.error_class == "NotDone"
        return flight.unknown_results > 0 and not is_refused

    patch.setattr(InFlight, "is_in_doubt", property(is_in_doubt))


def _a_refused_second_call_counts_as_not_done(patch: Patch) -> None:
    def reports_nothing_done(*_: Any) -> bool:
        return False

    patch.setattr(worker_module, "_reports_nothing_done", reports_nothing_done)


def _no_lease(patch: Patch) -> None:
    """Every action is handed out once and never again."""
    original = ActionQueue.serve

    def serve(self: Any) -> None:
        original(self)
        for consumer in self.consumers.values():
            consumer._outstanding.clear()

    patch.setattr(ActionQueue, "serve", serve)


# --- observing


def _absence_from_a_partial_listing(patch: Patch) -> None:
    async def list_once(self: Any, config_name: str, kind: str) -> int:
        config = self._configurations.by_name[config_name]
        provider = self._providers.get(config_name, kind)
        as_of = await self._intake.last_position()
        listing = ListingAssembler(ListingBegan(config_name, kind, as_of), self._now())
        objects: dict[str, ExternalObject] = {}
        try:
            async for page in provider.pages(config.scope, page_size=config.limits.page_size):
                objects |= {each.name: each for each in page}
        except ProviderError:
            pass
        return await self.publish_changes(listing, objects, provider)

    patch.setattr(Observer, "list_once", list_once)


def _stale_observations_are_trusted(patch: Patch) -> None:
    def is_stale(*_: Any) -> bool:
        return False

    patch.setattr(observation, "_is_stale", is_stale)


def _grace_ignored(patch: Patch) -> None:
    original: Any = observation._is_stale  # pyright: ignore[reportPrivateUsage]

    def is_stale(reported_observation: Observed, command: Any, state: Any, context: Any) -> bool:
        forgetful = replace(state, actions=replace(state.actions, effect_at=None))
        return original(reported_observation, command, forgetful, context)

    patch.setattr(observation, "_is_stale", is_stale)


def _absence_assumed(patch: Patch) -> None:
    def never(_state: Any, _context: Any) -> bool:
        return False

    patch.setattr(next_step, "awaits_first_listing", never)


def _every_observation_is_reported(patch: Patch) -> None:
    """An observer does not compare objects with the log."""

    def find_affected(
        _listing: Any, _recorded: Any, *, rows: Sequence[StatusRow], **_: Any
    ) -> list[tuple[StatusRow, str]]:
        return [(row, "") for row in rows]

    patch.setattr(listing_module, "_find_affected", find_affected)


# --- declaring


def _late_declarations_win(patch: Patch) -> None:
    original: Any = declaration._reject_outdated  # pyright: ignore[reportPrivateUsage]

    def reject_outdated(*args: Any) -> CommandResult | None:
        result: CommandResult | None = original(*args)
        is_late = result is not None and result.reply and result.reply.reason == "Superseded"
        return None if is_late else result

    patch.setattr(declaration, "_reject_outdated", reject_outdated)


def _repeated_declarations_count_as_new(patch: Patch) -> None:
    def is_handled(*_: Any) -> bool:
        return False

    def reject_outdated(expected: Any, command: Any, state: Any) -> CommandResult | None:
        original: Any = _original_reject_outdated
        return original(expected, replace(command, first_position=None), state)

    patch.setattr(decide, "is_handled", is_handled)
    patch.setattr(declaration, "_reject_outdated", reject_outdated)


_original_reject_outdated: Any = declaration._reject_outdated  # pyright: ignore[reportPrivateUsage]


def _earlier_messages_are_not_read(patch: Patch) -> None:
    async def decide_repeats(_self: Any, decided: Sequence[Any]) -> list[Any]:
        return list(decided)

    patch.setattr(Decider, "_decide_repeats", decide_repeats)


def _late_declarations_forgotten(patch: Patch) -> None:
    def reject_outdated(*args: Any) -> CommandResult | None:
        result: CommandResult | None = _original_reject_outdated(*args)
        return None if result is None else result._replace(events=())

    patch.setattr(declaration, "_reject_outdated", reject_outdated)


def _configurations_read_once(patch: Patch) -> None:
    """A process does not follow the configurations."""
    original = Configurations.apply

    async def load(self: Configurations, log: Any) -> None:
        for stored in await log.read_kind("system", "ProviderConfig"):
            original(self, stored.event)

    def apply(_self: Configurations, _event: LogEvent) -> None:
        return

    patch.setattr(Configurations, "load", load)
    patch.setattr(Configurations, "apply", apply)


def _lost_timers_never_swept(patch: Patch) -> None:
    async def sweep(_self: Any) -> int:
        return 0

    patch.setattr(Sweeper, "sweep", sweep)


# --- projecting


def _a_checkpoint_before_its_rows(patch: Patch) -> None:
    """Changes are saved in two batches of rows, with the checkpoint in the first."""

    async def save(self: Any, portion: RowChanges) -> None:
        rows = list(portion.rows.items())
        half = len(rows) // 2
        for batch in (rows[:half], rows[half:]):
            await self._save_batch(batch, portion.checkpoint)
        self._forget_first()

    patch.setattr(Projector, "_save", save)


def _a_lagging_projector_writes(patch: Patch) -> None:
    """A projector reads the checkpoint only for its revision."""

    async def save(self: Any, portion: RowChanges) -> None:
        await self._look()
        await _original_save(self, portion)

    def is_not_stored(_self: Any, _stored: Any) -> bool:
        return False

    patch.setattr(Projector, "_save", save)
    patch.setattr(Projector, "_drop_if_stored", is_not_stored)


_original_save: Any = Projector._save  # pyright: ignore[reportPrivateUsage]


# --- owning


def _a_delete_ignores_the_uid(patch: Patch) -> None:
    def without_uid(*args: Any, **rest: Any) -> ActionDecided:
        decided = new_action(*args, **rest)
        return ActionDecided(replace(decided.action, uid=None))

    patch.setattr(next_step, "new_action", without_uid)


def _unowned_objects_are_removed(patch: Patch) -> None:
    def conclude_unowned(situation: Any) -> Any:
        existing, config = situation.comparison.existing, situation.state.observed.provider_config
        if existing is None:
            return _original_conclude_unowned(situation)
        return OwnershipClaimed(existing.name, existing.uid, "ExclusiveScope", config)

    patch.setattr(next_step, "_conclude_unowned", conclude_unowned)


_original_conclude_unowned: Any = next_step._conclude_unowned  # pyright: ignore[reportPrivateUsage]


def _everything_is_adopted(patch: Patch) -> None:
    def adopt(_policy: Any, existing: ExternalObject, situation: Any) -> Any:
        config = situation.state.observed.provider_config
        return OwnershipClaimed(existing.name, existing.uid, "Adopted", config)

    patch.setattr(next_step, "_adopt", adopt)


def _withdrawn_objects_are_forgotten(patch: Patch) -> None:
    def forget(situation: Any) -> Any:
        owned = situation.state.owned
        return OwnershipReleased(owned.external_name, owned.uid, "Gone", owned.provider_config)

    patch.setattr(next_step, "_delete", forget)


def _a_failed_update_is_abandoned_whatever_it_did(patch: Patch) -> None:
    def advance_action(flight: Any, state: Any, *rest: Any) -> Any:
        step = attempt.advance_action(flight, state, *rest)
        if isinstance(step, ActionRetried):
            return ActionAbandoned(flight.action.action_id, flight.action.operation, "failed")
        return step

    patch.setattr(next_step, "advance_action", advance_action)


MUTATIONS: tuple[Mutation, ...] = (
    Mutation("skip the compare-and-set", _no_compare_and_set),
    Mutation("a lost append counts as done", _a_lost_append_counts_as_done),
    Mutation("a turn without events is not checked", _a_turn_without_events_is_not_checked),
    Mutation("intake acknowledged before the append", _intake_acknowledged_before_the_append),
    Mutation("at most three deliveries", _delivered_at_most_three_times),
    Mutation("acknowledged before the dead letter", _acknowledged_before_the_dead_letters),
    Mutation("a partial store counts as complete", _partly_stored_counts_as_stored),
    Mutation("cached state before the append", _cached_before_the_append),
    Mutation("cached state used without its later events", _cached_state_without_its_later_events),
    Mutation("no intent before effect", _actions_handed_out_before_they_are_stored),
    Mutation("a key for each attempt", _a_key_for_each_attempt),
    Mutation("different parameters on a retry", _different_parameters_on_a_retry),
    Mutation(
        "action acknowledged before its result", _action_acknowledged_before_its_result_is_stored
    ),
    Mutation("results stored at most once", _results_stored_at_most_once),
    Mutation("unknown results count as refusals", _unknown_results_count_as_refusals),
    Mutation("retry forgets the action in flight", _a_retry_forgets_the_action_in_flight),
    Mutation("redeliveries are not reported", _redeliveries_are_not_reported),
    Mutation("a refused redelivery counts as not done", _a_refused_redelivery_counts_as_not_done),
    Mutation("late successes ignored", _late_successes_ignored),
    Mutation("a conflict without its cause is repeated", _a_conflict_without_its_cause_is_repeated),
    Mutation("create in flight abandoned", _a_create_in_flight_is_abandoned),
    Mutation("refused creations repeated", _refused_creations_are_repeated),
    Mutation("a refusal settles earlier attempts", _a_refusal_settles_the_attempts_before_it),
    Mutation("a refused second call counts as not done", _a_refused_second_call_counts_as_not_done),
    Mutation("failed actions abandoned", _a_failed_update_is_abandoned_whatever_it_did),
    Mutation("actions are never redelivered", _no_lease),
    Mutation("absence from a partial listing", _absence_from_a_partial_listing),
    Mutation("stale observations are trusted", _stale_observations_are_trusted),
    Mutation("consistency grace ignored", _grace_ignored),
    Mutation("absence assumed", _absence_assumed),
    Mutation("every observation is reported", _every_observation_is_reported),
    Mutation("a late declaration wins", _late_declarations_win),
    Mutation("a repeated declaration is new", _repeated_declarations_count_as_new),
    Mutation("earlier messages are not read", _earlier_messages_are_not_read),
    Mutation("late declarations forgotten", _late_declarations_forgotten),
    Mutation("configurations not followed", _configurations_read_once),
    Mutation("lost timers never swept", _lost_timers_never_swept),
    Mutation("a checkpoint before its rows", _a_checkpoint_before_its_rows),
    Mutation("a lagging projector writes", _a_lagging_projector_writes),
    Mutation("delete ignores the uid", _a_delete_ignores_the_uid),
    Mutation("unowned objects are deleted", _unowned_objects_are_removed),
    Mutation("everything is adopted", _everything_is_adopted),
    Mutation("withdrawn resources are forgotten", _withdrawn_objects_are_forgotten),
    *HOLD_MUTATIONS,
    *REPLACEMENT_MUTATIONS,
    *REAL_API_MUTATIONS,
    *INPUT_MUTATIONS,
)
