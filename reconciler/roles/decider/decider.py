"""Process the intake in micro-batches: decide for many resources, and append once.

For each batch, the decider reads, folds, decides, appends everything with one compare-and-set,
publishes the results and acknowledges. If another decider appended to a resource first, only that
resource is folded and decided again (ADR 0006). A message is acknowledged only when its events are
in the log. A crash before that causes a redelivery, which the resource detects.

Folding and deciding take about 40 µs per resource and run on the event loop. Threads would only
contend for the interpreter lock and add context switches.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from typing import cast

import msgspec
import structlog
from msgspec.structs import replace

from events.intake import Declared, DefinitionReported, Reply, Reported, Withdrawn
from events.integrity import LogDamage
from events.log import ActionDecided, ActionRetried, LookupDecided, SpecResolved
from events.manifest import MOVED_FROM_ANNOTATION, Fields, config_named_in
from events.names import (
    KIND_DEFINITION_KIND,
    PROVIDER_CONFIG_KIND,
    SYSTEM_NAMESPACE,
    ResourceKey,
    system_rank,
)
from events.subjects import namespace_of
from reconciler.failpoints import Failpoint, reach
from reconciler.ports import (
    AppendRefusedError,
    DeadLetter,
    DecisionSink,
    EventLog,
    IntakeDelivery,
    IntakeReader,
    Rejection,
    TimerRequest,
)
from reconciler.provider.kind import KindRegistry
from reconciler.resource.decide import continue_turn, decide
from reconciler.resource.move import Move, moves_of, next_move_step
from reconciler.resource.state import NEW, ResourceState
from reconciler.resource.turn import Command, Context, Turn
from reconciler.roles.decider.actions_in_flight import (
    MAX_ACTIONS,
    START_EVENTS,
    ActionsInFlight,
    Capacity,
)
from reconciler.roles.decider.decision_time import DecisionTime
from reconciler.roles.decider.fair_queue import (
    MAX_MESSAGES_PER_TURN,
    Destination,
    FairQueue,
    ParkedCounts,
    Quota,
    parking_place,
)
from reconciler.roles.decider.move_circles import find_move_circle
from reconciler.roles.decider.postponed import MAX_POSTPONED, PostponedMessages
from reconciler.roles.decider.reference_graph import Graph, graph_from, targets_of
from reconciler.roles.decider.refusals import (
    build_decision_letter,
    build_intake_letter,
    build_quota_letter,
    decode_command,
    publish_rejections,
    reply_to_rejected,
)
from reconciler.roles.decider.repeated_declarations import with_first_positions
from reconciler.roles.decider.repository import (
    MAX_BATCH_EVENTS,
    Commit,
    FoldedResource,
    ResourceRepository,
)
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.runtime.definitions import Definitions
from reconciler.roles.runtime.runtime import REAL, Runtime

_MAX_COMMANDS_PER_TURN = 200
_FEW_RESOURCES = 4
_MAX_BATCH_BYTES = 4 * 1024 * 1024
_SECONDS_PER_TURN = 0.03
"""CPU time for deciding a batch. Once it is used up, the other messages wait for the next turn.

A decision takes 40 µs, or up to 0.2 s for a composition.
"""

_RETRY_SECONDS = 1.0
_MAX_ATTEMPTS = 20
"""Maximum attempts at a batch before its redelivery: a later batch must not overtake it."""

_FIRST_DELAY_SECONDS = 2.0
"""Delay before the first redelivery of a message that could not be processed.

It doubles with each delivery, at most `_MAX_DOUBLINGS` times.
"""

_MAX_DOUBLINGS = 4

_MAX_FRESH_AGE = timedelta(seconds=2)
"""Maximum age of a message that no later message can have overtaken.

The bus waits longer before it assigns the partition to another decider.
"""

_MAX_FETCHED_BATCHES = 64
_MAX_DELIVERIES = 5
_RETURN_SECONDS = 2.0
"""Time limit at shutdown for returning unprocessed messages to the bus."""

_EXTEND_SECONDS = 3.0
"""Interval between lease extensions: less than a third of a lease, to prevent redeliveries."""

_MAX_MOVE_STEPS = 20
"""Maximum attempts at the steps of a move. Most of them are conflicts with another decider."""

_DECLARATIONS = (Declared, Withdrawn)
_EVENTS_WITH_FIELDS = (SpecResolved, ActionDecided, ActionRetried, LookupDecided)
_LAST_RANK = system_rank("")
_UNUSABLE_REASONS = ("Invalid", "UnknownKind")

_NO_RESOURCE = ResourceKey("", "", "")
_encoder = msgspec.json.Encoder()
_logger = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Work:
    """One resource's messages in a batch. The last commands may have no delivery."""

    deliveries: list[IntakeDelivery]
    commands: list[Command]
    is_one_by_one: bool = False  # to isolate a message that cannot be stored

    @property
    def declarations(self) -> list[IntakeDelivery]:
        """The messages that declare or withdraw the resource."""
        return [
            delivery
            for delivery, command in zip(self.deliveries, self.commands, strict=False)
            if isinstance(command.data, _DECLARATIONS)
        ]

    @property
    def names_former(self) -> bool:
        """Whether a declaration takes over the object of another resource."""
        return any(
            type(each.data) is Declared
            and MOVED_FROM_ANNOTATION in each.data.manifest.metadata.annotations
            for each in self.commands
        )

    @property
    def size(self) -> int:
        """Total bytes of the payloads. The resulting events have about the same size."""
        size = 0
        for delivery in self.deliveries:
            size += len(delivery.payload)
        return size

    def split(self, count: int = 1) -> tuple[_Work, _Work]:
        """Return the first `count` messages, and the remaining ones."""
        return (
            _Work(self.deliveries[:count], self.commands[:count], self.is_one_by_one),
            _Work(self.deliveries[count:], self.commands[count:], self.is_one_by_one),
        )


@dataclass(slots=True)
class _Decision:
    """A turn, and its inputs."""

    key: ResourceKey
    work: _Work
    base: FoldedResource
    turn: Turn
    destination: Destination | None = None  # set if no action could start yet

    @property
    def known_declarations(self) -> set[int]:
        """Positions of this turn's declarations and of the current generation's declaration."""
        declared = {
            each.position for each in self.work.commands if isinstance(each.data, _DECLARATIONS)
        }
        return declared | {self.base.state.desired.position}

    @property
    def size(self) -> int:
        """Approximate size of its events in bytes, including resolved references."""
        resolved = self.turn.state.desired.resolved
        if resolved is None:
            return self.work.size
        copies = sum(isinstance(each.data, _EVENTS_WITH_FIELDS) for each in self.turn.events)
        return self.work.size + (copies * len(_encoder.encode(resolved)) if copies else 0)

    @property
    def commit(self) -> Commit:
        """The turn in the format that the repository stores."""
        return Commit(self.key, self.base, self.turn.state, self.turn.events, self.work.size)


class Decider:
    """Turns intake messages into log events."""

    def __init__(
        self,
        *,
        reader: IntakeReader,
        log: EventLog,
        sink: DecisionSink,
        kinds: KindRegistry,
        configurations: Configurations,
        definitions: Definitions | None = None,
        losses: Sequence[LogDamage] = (),
        runtime: Runtime = REAL,
        max_actions: int = MAX_ACTIONS,
    ) -> None:
        self._reader = reader
        self._log = log
        self._sink = sink
        self._kinds = kinds
        self._definitions = definitions or Definitions(kinds)
        self._configurations = configurations
        self._repository = ResourceRepository(log)
        for damage in losses:
            self._repository.hold(damage)
        self._now = runtime.now
        self._jitter = runtime.jitter
        self._graph: Graph = {}
        self._referenced: frozenset[str] = frozenset()
        self._decision_errors: dict[ResourceKey, str] = {}
        self._postponed = PostponedMessages(max(1, min(reader.slots // 4, MAX_POSTPONED)))
        self._batch: Sequence[IntakeDelivery] = ()
        self._queue = FairQueue(Quota.for_slots(reader.slots))
        self._actions = ActionsInFlight(runtime.clock, max_actions)
        self._fresh_positions: set[int] = set()
        self._leases_extended_at = 0.0
        self._clock = runtime.clock
        self._time = DecisionTime(runtime.cpu_time)
        self._undecided: set[int] = set()
        self._newest_position = 0
        self._bus_time: datetime | None = None
        self._fails_to_reject = False

    async def run(self) -> None:
        """Process the intake until canceled, then return the remaining messages to the bus."""
        try:
            while True:
                self._resume()
                await self._fetch()
                await self._extend_leases()
                await self._check_old_actions()
                self._batch = self._queue.take()
                if self._batch:
                    undecided = await self._handle_until_done(self._batch)
                    waiting = {each.position for each in undecided}
                    self._fresh_positions.difference_update(
                        {each.position for each in self._batch} - waiting
                    )
                    self._queue.put_back(undecided, self._batch)
                    self._batch = ()
        finally:
            await self._return_unprocessed()

    async def _return_unprocessed(self) -> None:
        """Return unacknowledged messages, so that other deciders need not await lease expiry."""
        with contextlib.suppress(Exception):  # if the bus is unreachable, the leases expire
            async with asyncio.timeout(_RETURN_SECONDS):
                await self._reader.retry_later([*self._batch, *self._queue], 0.0)

    async def _handle_until_done(self, batch: Sequence[IntakeDelivery]) -> Sequence[IntakeDelivery]:
        postponed: list[IntakeDelivery] = []
        for _ in range(_MAX_ATTEMPTS):
            try:
                return [*await self.handle(batch, _SECONDS_PER_TURN), *postponed]
            except Exception as error:  # noqa: BLE001 - such as an unreachable bus
                _logger.warning(
                    "failed to process a batch; retrying", reason=str(error), size=len(batch)
                )
                await asyncio.sleep(_RETRY_SECONDS)
            # The histories of some resources may be too long to read together in time.
            half = max(1, len(batch) // 2)
            batch, postponed = batch[:half], [*batch[half:], *postponed]
        await self._reader.retry_later([*batch, *postponed], _RETRY_SECONDS)
        return ()

    async def _extend_leases(self) -> None:
        """Extend the leases of waiting messages, so that they are not redelivered."""
        if self._clock() < self._leases_extended_at + _EXTEND_SECONDS:
            return
        self._leases_extended_at = self._clock()
        waiting = [*self._queue]
        if not waiting:
            return
        try:
            await self._reader.extend(waiting)
        except Exception as error:  # noqa: BLE001 - redeliveries are deduplicated
            _logger.info("failed to extend the leases of waiting messages", reason=str(error))

    async def _check_old_actions(self) -> None:
        """Stop counting old actions that have ended at another decider."""
        old = self._actions.find_old()
        if not old:
            return
        try:
            resources = await self._repository.get_newest([*dict.fromkeys(old.values())])
        except Exception as error:  # noqa: BLE001 - such as an unreachable bus
            _logger.info("failed to read the states of old actions", reason=str(error))
            return
        for action_id, key in old.items():
            flight = resources[key].state.actions.in_flight if key in resources else None
            if flight is None or flight.action.action_id != action_id or not flight.may_be_running:
                self._actions.end(action_id)
            else:
                self._actions.renew(action_id)

    def _resume(self) -> None:
        """Resume parked declarations of destinations that may start actions again."""
        parked = self._queue.parked
        for destination in parked:
            limit = min(
                self._actions.remaining(destination), max(1, MAX_MESSAGES_PER_TURN // len(parked))
            )
            if limit:
                resumed = self._queue.resume(destination, limit)
                self._fresh_positions.update(each.position for each in resumed)

    def _max_wait(self) -> float:
        """Return the time to wait for messages. The leases of parked ones must not expire."""
        if self._queue:
            return 0.0
        return _EXTEND_SECONDS if self._queue.parked else math.inf

    async def _fetch(self) -> None:
        """Fetch all available messages, and reject those that exceed their namespace's quota."""
        for _ in range(_MAX_FETCHED_BATCHES):
            batch = await self._reader.next_batch(self._max_wait())
            now = self._now()
            # A message that was fetched immediately stays fresh while it waits in the queue.
            self._fresh_positions.update([each.position for each in batch if _is_fresh(each, now)])
            self._queue.add(batch)
            if len(batch) < MAX_MESSAGES_PER_TURN:
                break
        excess = self._queue.take_excess()
        if excess:
            self._fresh_positions.difference_update(each.position for each in excess)
            await self._refuse_excess(excess)

    async def _refuse_excess(self, excess: Sequence[IntakeDelivery]) -> None:
        """Reject messages over a quota: reply to their senders, and count them.

        If they cannot be counted, they are redelivered.
        """
        letters = [build_quota_letter(each) for each in excess]
        _logger.warning("rejecting messages over their namespace's quota", count=len(excess))
        try:
            await self._sink.discard(letters)
            await reply_to_rejected(self._sink, letters)
        except Exception as error:  # noqa: BLE001 - such as an unreachable bus
            _logger.warning("failed to reject messages; retrying later", reason=str(error))
            await self._reader.retry_later(excess, _RETRY_SECONDS)
        else:
            await self._reader.ack(excess)

    async def handle(
        self, batch: Sequence[IntakeDelivery], seconds: float = math.inf
    ) -> Sequence[IntakeDelivery]:
        """Process a batch. Return the messages left undecided when its CPU time was used up."""
        reach(Failpoint.DECIDER_TOOK)
        self._time.begin(seconds, {namespace_of(each.subject) for each in batch})
        self._undecided = set()
        self._postponed.free_redelivered(batch)
        self._read_bus_clock(batch)
        work, letters = self._group_by_resource(batch)
        if letters:
            await self._refuse(letters)
        await self._add_overtaking(work)
        # Definitions and configurations come first, because other resources in the batch may
        # require them.
        by_rank: defaultdict[int, list[ResourceKey]] = defaultdict(list)
        for key in work:
            is_system = key.namespace == SYSTEM_NAMESPACE
            by_rank[system_rank(key.kind) if is_system else _LAST_RANK].append(key)
        for rank, keys in sorted(by_rank.items()):
            ranked = {key: work[key] for key in self._time.order(keys)}
            if rank == system_rank(KIND_DEFINITION_KIND):
                for key, each in ranked.items():  # each may depend on the previous ones
                    await self._decide_and_commit({key: each})
                continue
            # First, because the former resource may be withdrawn in the same batch.
            moved = {key: each for key, each in ranked.items() if each.names_former}
            if moved:
                await self._decide_and_commit(moved)
                ranked = {key: each for key, each in ranked.items() if key not in moved}
            await self._decide_and_commit(ranked)
        return [each for each in batch if each.position in self._undecided]

    def _read_bus_clock(self, batch: Sequence[IntakeDelivery]) -> None:
        """Read the bus's clock from the message with the highest position.

        A redelivered message must not set the clock back, because that would delay due work.
        """
        for each in batch:
            if each.position >= self._newest_position:
                self._newest_position, self._bus_time = each.position, each.stored_at

    # --- grouping a batch

    def _group_by_resource(
        self, batch: Sequence[IntakeDelivery]
    ) -> tuple[dict[ResourceKey, _Work], list[DeadLetter]]:
        work: dict[ResourceKey, _Work] = {}
        letters: list[DeadLetter] = []
        for delivery in batch:
            try:
                key, command = decode_command(delivery)
            except ValueError as error:
                letters.append(build_intake_letter(delivery, str(error)))
                continue
            except Exception as error:  # one message must never block the others
                _logger.exception("failed to read a message", position=delivery.position)
                reason = f"failed to read the message: {type(error).__name__}"
                letters.append(build_intake_letter(delivery, reason))
                continue
            item = work.get(key)
            if item is None:
                work[key] = _Work([delivery], [command])
            else:
                item.deliveries.append(delivery)
                item.commands.append(command)
        return work, letters

    async def _add_overtaking(self, work: Mapping[ResourceKey, _Work]) -> None:
        """Add the declarations that overtook a late one, so that they are processed again.

        Messages held by a dead or paused decider arrive late, possibly after newer declarations of
        the resource have been processed. If a newer one led to events, it is in the history. If it
        changed nothing, such as a withdrawal before the first declaration, it left no trace but
        must take precedence. It may also lie between two declarations of this batch.
        """
        now = self._now()
        late: dict[ResourceKey, IntakeDelivery] = {}
        for key, item in work.items():
            for delivery, command in zip(item.deliveries, item.commands, strict=True):
                if (
                    delivery.position not in self._fresh_positions
                    and isinstance(command.data, _DECLARATIONS)
                    and not _is_fresh(delivery, now)
                    and (key not in late or delivery.position < late[key].position)
                ):
                    late[key] = delivery
        for key, newer in (await self._newer_declarations(late)).items():
            work[key].commands += newer

    async def _newer_declarations(
        self, declarations: Mapping[ResourceKey, IntakeDelivery]
    ) -> dict[ResourceKey, list[Command]]:
        """Read newer declarations of the resources."""
        newer: dict[ResourceKey, list[Command]] = {}
        if not declarations:
            return newer
        deliveries = await self._reader.newer_declarations(list(declarations.values()))
        for key, messages in zip(declarations, deliveries, strict=True):
            for message in messages:
                # An invalid one becomes a dead letter when it is delivered.
                with contextlib.suppress(ValueError):
                    newer.setdefault(key, []).append(decode_command(message)[1])
        return newer

    # --- deciding and committing

    async def _decide_and_commit(self, work: Mapping[ResourceKey, _Work]) -> None:
        remaining = dict(work)
        speculative = self._decide_as_new(work)
        while remaining:
            decisions = speculative + await self._decide(remaining, excluding=speculative)
            speculative = []
            self._set_aside_undecided(remaining, decisions)
            await self._postpone_unprocessed(remaining, decisions)
            done: list[_Decision] = []
            reach(Failpoint.DECIDER_DECIDED)
            for group in _split_into_groups(decisions):
                done += await self._commit(group, remaining)
            await self._decide_overtaking(done)
            # Before the acknowledgment: after a crash, the redelivered message continues the move.
            moved = [each for turn in done for each in await self._continue_moves(turn)]
            await self._finish(done + moved)
            remaining = _remaining_work(remaining, done)

    async def _continue_moves(self, cause: _Decision) -> list[_Decision]:
        """Take the next steps of the moves that a resource takes part in, and of their moves.

        A resource that is renamed twice takes part in two moves, and each may wait for the other.
        """
        key, done = cause.key, list[_Decision]()
        checked: set[Move] = set()
        circular: set[Move] = set()
        # The previous state names a move that the declaration has ended.
        moves = [*moves_of(key, cause.turn.state), *moves_of(key, cause.base.state)]
        last_move = cause.turn.state.last_move
        if last_move and any(each.delivered > 1 for each in cause.work.deliveries):
            # Before a crash, it may have ended without the moves of the other resource.
            other = ResourceKey.parse(last_move)
            known = await self._repository.get_newest([other])
            moves += moves_of(other, known[other].state) if other in known else ()
        if moves:
            reach(Failpoint.DECIDER_MOVES)
        while moves:
            move = moves.pop(0)
            if move in checked:
                continue
            turns, connected = await self._continue_move(move, cause, circular)
            done += turns
            checked = {move} if turns else checked | {move}
            moves += connected
        return done

    async def _read_newest(self, key: ResourceKey) -> ResourceState | None:
        newest = await self._repository.get_newest([key])
        return newest[key].state if key in newest else None

    async def _continue_move(
        self, move: Move, cause: _Decision, circular: set[Move]
    ) -> tuple[list[_Decision], list[Move]]:
        """Take the next steps of a move. Return them, and the moves of both resources.

        Each step may append to both resources, in one batch that is not split. ``circular``: the
        moves of known circles, to which it may add those of another one.
        """
        done: list[_Decision] = []
        command = cause.work.commands[-1]
        for _ in range(_MAX_MOVE_STEPS):
            resources = await self._repository.get_newest([move.former, move.new])
            if move.former not in resources or move.new not in resources:
                return done, []  # a damaged history holds both resources
            former, new = resources[move.former], resources[move.new]
            competing = new
            if former.state.holds.moving_to not in ("", str(move.new)):
                competitor = ResourceKey.parse(former.state.holds.moving_to)
                competing = (await self._repository.get([competitor])).get(competitor, new)
            circular |= await find_move_circle(move, former.state, self._read_newest)
            step = next_move_step(
                move,
                former.state,
                new.state,
                competing.state,
                self._log.log_id,
                is_circular=move in circular,
            )
            shared, turns = self._build_shared_context(), list[_Decision]()
            for key, base, event in (
                (move.former, former, step.former),
                (move.new, new, step.new),
            ):
                if event is not None:
                    context = self._build_context(shared, key, can_start=True)
                    turn = continue_turn(base.state, [event], command, context)
                    turns.append(_Decision(key, _Work([], []), base, turn))
            if not turns:
                return done, [
                    *moves_of(move.former, former.state),
                    *moves_of(move.new, new.state),
                ]
            try:
                is_stored = await self._repository.commit_together([each.commit for each in turns])
            except AppendRefusedError as error:
                _logger.error("failed to store a move", resource=str(move.new), reason=str(error))
                return done, []
            done += turns if is_stored else ()
        raise RuntimeError(f"{move.new}: the move from {move.former} conflicts; retrying later")

    def _set_aside_undecided(
        self, remaining: dict[ResourceKey, _Work], decisions: Sequence[_Decision]
    ) -> None:
        """Remove the resources that wait for the next turn of their namespace."""
        if not self._time.undecided:
            return
        for key in self._time.undecided.difference(each.key for each in decisions):
            if key in remaining:
                self._undecided.update(each.position for each in remaining.pop(key).deliveries)

    async def _decide_overtaking(self, done: Sequence[_Decision]) -> None:
        """After a commit, process newer messages that another decider may also have processed.

        This precedes the acknowledgment, so that after a crash, redelivered messages count as late.
        """
        declared = {
            each.key: declarations[-1]
            for each in done
            if each.turn.events and (declarations := each.work.declarations)
        }
        # The bus may move the partition at any time, for example when the consumer's leader
        # changes.
        if not declared or await self._reader.was_sole_reader(list(declared.values())):
            return
        newer = await self._newer_declarations(declared)
        if newer:
            await self._decide_and_commit(
                {key: _Work([], commands) for key, commands in newer.items()}
            )

    async def _commit(
        self, group: Sequence[_Decision], remaining: dict[ResourceKey, _Work]
    ) -> list[_Decision]:
        """Append turns, and return the stored ones. A refused turn does not block the others."""
        commits = [each.commit for each in group]
        try:
            lost = {commit.key for commit in await self._repository.commit(commits)}
        except AppendRefusedError as error:
            if len(group) > 1:
                return [each for turn in group for each in await self._commit([turn], remaining)]
            await self._reject_unstorable(group[0], remaining, str(error))
            return []
        return [each for each in group if each.key not in lost]

    async def _reject_unstorable(
        self, refused: _Decision, remaining: dict[ResourceKey, _Work], reason: str
    ) -> None:
        """Reject the message that cannot be stored, or first isolate it from the others."""
        key = refused.key
        if len(refused.turn.replies) > 1:
            remaining[key].is_one_by_one = True
            return
        first, remaining[key] = remaining[key].split()
        if not remaining[key].deliveries:
            del remaining[key]
        await self._refuse([build_decision_letter(each, reason) for each in first.deliveries])

    def _decide_as_new(self, work: Mapping[ResourceKey, _Work]) -> list[_Decision]:
        """Decide a few uncached, declared resources as if they were new, without a read.

        This saves a round trip for new resources. The append expects an empty history, so a wrong
        guess writes nothing, and the resource is read and decided again. Rejections depend on the
        state, so a guess never leads to one.
        """
        if len(work) > _FEW_RESOURCES:
            return []
        unknown = {
            key: item
            for key, item in work.items()
            if not self._repository.is_cached(key)
            and all(isinstance(command.data, Declared) for command in item.commands)
            and not targets_of(item.commands, self._kinds, key)
        }
        speculative = self._take_turns(unknown, {key: FoldedResource(NEW, 0) for key in unknown})
        return [
            each
            for each in speculative
            if all(map(_is_accepted, each.turn.replies)) and not each.turn.repeats
        ]

    async def _decide(
        self, work: Mapping[ResourceKey, _Work], *, excluding: Sequence[_Decision]
    ) -> list[_Decision]:
        excluded_keys = {each.key for each in excluding}
        remaining = {key: item for key, item in work.items() if key not in excluded_keys}
        if not remaining:
            return []
        targets = {
            each
            for key, item in remaining.items()
            for each in targets_of(item.commands, self._kinds, key)
        }
        self._graph = await graph_from(targets, self._repository) if targets else {}
        self._referenced = frozenset(chain.from_iterable(self._graph.values()))
        resources = await self._repository.get(list(remaining))
        configurations = [
            item for key, item in remaining.items() if key.kind == PROVIDER_CONFIG_KIND
        ]
        if any(map(self._has_unknown_kinds_in, configurations)):
            await self._definitions.load(self._log)
        await self._definitions.catch_up(self._log, self._newest_definitions(remaining, resources))
        return await self._decide_repeats(self._take_turns(remaining, resources))

    def _has_unknown_kinds_in(self, item: _Work) -> bool:
        """Return whether a configuration names unknown kinds, which may since have been defined."""
        specs = [each.data.manifest.spec for each in item.commands if type(each.data) is Declared]
        return any(map(self._has_unknown_kinds, specs))

    def _has_unknown_kinds(self, spec: Fields) -> bool:
        known = self._kinds.providers.get(str(spec.get("provider")), ())
        kinds = spec.get("kinds")
        named = cast("list[object]", kinds) if isinstance(kinds, list) else ()
        return not known or any(each not in known for each in named)

    def _newest_definitions(
        self, work: Mapping[ResourceKey, _Work], resources: Mapping[ResourceKey, FoldedResource]
    ) -> dict[str, int]:
        """Return the newest known definition generation of each kind in this batch.

        The definitions that this process has read may be older, and no later message would trigger
        a read.
        """
        generations: dict[str, int] = {}
        unknown_kinds = {kind for kind in {key.kind for key in work} if kind not in self._kinds}
        for key, item in work.items():
            base = resources.get(key)
            known = None if base is None else base.state.desired.definition
            generation = 0 if known is None else known.generation
            for command in item.commands:
                if type(command.data) is DefinitionReported:
                    generation = max(generation, command.data.generation)
            if generation or key.kind in unknown_kinds:
                generations[key.kind] = max(generation, generations.get(key.kind, 1))
        return generations

    async def _decide_repeats(self, decisions: Sequence[_Decision]) -> list[_Decision]:
        """Decide again if a generation may come from an old declaration that was sent again.

        Such a declaration keeps its first position. If the intake no longer contains that position,
        the declaration counts as new.
        """
        possible_repeats = {each.key: each for each in decisions if each.turn.repeats}
        if not possible_repeats:
            return list(decisions)
        declared = await self._reader.declarations_of(
            {key: each.known_declarations for key, each in possible_repeats.items()}
        )
        for key, each in possible_repeats.items():
            each.work.commands[:] = with_first_positions(each.work.commands, declared.get(key, ()))
        # Most were not repeated, so their decisions stand.
        repeated = {
            key: each
            for key, each in possible_repeats.items()
            if any(map(_is_repeated, each.work.commands))
        }
        new_decisions = self._take_turns(
            {key: each.work for key, each in repeated.items()},
            {key: each.base for key, each in repeated.items()},
        )
        return [each for each in decisions if each.key not in repeated] + new_decisions

    def _take_turns(
        self, work: Mapping[ResourceKey, _Work], resources: Mapping[ResourceKey, FoldedResource]
    ) -> list[_Decision]:
        shared, capacity = self._build_shared_context(), Capacity(self._actions)
        parked = ParkedCounts()
        decisions: list[_Decision] = []
        for key, item in work.items():
            base = resources.get(key)
            if base is None:
                _logger.error(
                    "a history is damaged; its resource is held",
                    error=str(self._repository.errors[key]),
                )
                continue
            if decisions and self._time.is_used_up(key.namespace) and _can_wait(key, item):
                self._time.undecided.add(key)
                continue
            self._time.undecided.discard(key)
            destination = self._full_destination(key, item, capacity, parked)
            context = self._build_context(shared, key, can_start=destination is None)
            started_at = self._time.clock()
            turn = self._take_turn(key, item, base, context)
            started = [] if turn is None else _destinations(key, turn)
            if started and destination is None:
                destination = self._exceeded_destination(item, started, capacity, parked)
                if destination is not None:
                    context = self._build_context(shared, key, can_start=False)
                    turn = self._take_turn(key, item, base, context)
                    started = [] if turn is None else _destinations(key, turn)
            self._time.add(key.namespace, started_at)
            if turn is not None:
                for each in started:
                    capacity[each] -= 1
                if destination is not None:
                    parked[parking_place(item.deliveries[-1])] += 1
                decisions.append(_Decision(key, item, base, turn, destination))
        return decisions

    def _full_destination(
        self, key: ResourceKey, item: _Work, capacity: Capacity, parked: ParkedCounts
    ) -> Destination | None:
        """Return the destination of a declared resource if no further action can start there."""
        spec: Fields = {}
        for command in item.commands:
            if type(command.data) is not Declared:
                return None
            spec = command.data.manifest.spec
        destination = Destination(key.namespace, config_named_in(spec))
        return destination if self._is_full(destination, item, capacity, parked) else None

    def _exceeded_destination(
        self,
        item: _Work,
        destinations: Sequence[Destination],
        capacity: Capacity,
        parked: ParkedCounts,
    ) -> Destination | None:
        """Return the destination of the action that a turn would start without room for it.

        A result ends an action, so it may start another one.
        """
        if any(isinstance(each.data, Reported) for each in item.commands):
            return None
        return next(
            (each for each in destinations if self._is_full(each, item, capacity, parked)), None
        )

    def _is_full(
        self, destination: Destination, item: _Work, capacity: Capacity, parked: ParkedCounts
    ) -> bool:
        """Return whether the work must wait until actions at a destination end."""
        return (
            bool(item.deliveries)
            and capacity[destination] <= 0
            and self._queue.can_park(item.deliveries[-1], parked)
        )

    def _take_turn(
        self, key: ResourceKey, work: _Work, base: FoldedResource, context: Context
    ) -> Turn | None:
        """Decide; after an error, decide only the commands before the failing one."""
        limit = 1 if work.is_one_by_one else _MAX_COMMANDS_PER_TURN
        commands = work.commands[:limit]
        while commands:
            try:
                return decide(base.state, commands, context)
            except Exception as error:  # a defect in a kind must not block others
                if len(commands) == 1:
                    _logger.exception("failed to process a resource", resource=str(key))
                self._decision_errors[key] = (
                    f"failed to process the resource: {type(error).__name__}: {error}"
                )
                commands = commands[: len(commands) // 2]
        return None

    def _build_context(self, shared: Context, key: ResourceKey, *, can_start: bool) -> Context:
        """Return the context of one resource. ``shared``: the part that the batch shares."""
        # no cycle leads to a resource that nothing references
        is_referenced = bool(self._referenced) and str(key) in self._referenced
        return replace(
            shared,
            key=key,
            takes_steps=can_start,
            jitter=self._jitter(),
            kind=self._kinds.find(key.kind),
            reference_graph=self._graph if is_referenced else {},
        )

    def _build_shared_context(self) -> Context:
        """Return the inputs that all decisions of a batch have in common."""
        return Context(
            key=_NO_RESOURCE,
            now=self._now(),
            bus_time=self._bus_time,
            jitter=0.0,
            log_id=self._log.log_id,
            epoch=self._log.epoch,
            restored_as_of=self._log.restored_as_of,
            twins=self._configurations.twins,
            silences=self._configurations.silences,
            new_scopes=self._configurations.new_scopes,
            kind=None,
            configs=self._configurations.by_name,
            withdrawn_configs=self._configurations.withdrawn,
            providers=self._kinds.providers,
            check_definition=self._definitions.check,
            check_part=self._kinds.check,
            check_part_name=self._kinds.check_name,
            may_lose_readiness=self._kinds.may_lose_readiness,
            missing_hint=self._kinds.missing_hint,
        )

    async def _postpone_unprocessed(
        self, remaining: dict[ResourceKey, _Work], decisions: Sequence[_Decision]
    ) -> None:
        """Postpone messages that cannot be processed now, without blocking the others.

        After `_MAX_DELIVERIES`, a message becomes a dead letter for operators.
        """
        retried: list[IntakeDelivery] = []
        exhausted: list[DeadLetter] = []
        for key in remaining.keys() - {each.key for each in decisions}:
            held, rest = remaining.pop(key), _Work([], [])
            is_held = key in self._repository.errors
            if not is_held:
                held, rest = held.split()  # only the first message fails; the others are tried
            if rest.deliveries:
                remaining[key] = rest
            failed = self._decision_errors.pop(key, "failed to process the resource")
            reason = self._hold_reason(key) if is_held else failed
            for each in held.deliveries:
                if each.delivered < _MAX_DELIVERIES:
                    retried.append(each)
                else:  # a damaged history does not make the message invalid
                    exhausted.append(build_decision_letter(each, reason, usable=is_held))
        # A retried message may be usable, so it is redelivered immediately if no slot is free.
        for each in await self._postpone(retried):
            await self._reader.retry_later([each], 0.0)
        if exhausted:
            await self._refuse(exhausted)

    async def _refuse(self, letters: Sequence[DeadLetter]) -> None:
        """Reject unusable messages, and acknowledge those whose rejection is complete."""
        waiting = await self._store_dead_letters(letters)
        done = [each for each in letters if each.delivery.position not in waiting]
        try:
            await publish_rejections(self._sink, done, self._now())
        except Exception as error:  # noqa: BLE001 - such as an unreachable bus
            self._log_rejection_state(error)
            # Without a slot, only the rejection is lost: the dead letter or count is stored.
            finished = await self._postpone([each.delivery for each in done])
        else:
            finished = [each.delivery for each in done]
            reach(Failpoint.DECIDER_DEAD_LETTERED)
        await self._reader.ack(finished)

    async def _store_dead_letters(self, letters: Sequence[DeadLetter]) -> set[int]:
        """Store dead letters, and return the positions of the messages that must wait for space.

        Each namespace has a share of a partition's slots for waiting messages. Messages beyond it
        are counted, then dropped. After a crash, a message may be counted twice, but is never
        skipped (ADR 0017).
        """
        reason = "the DEADLETTERS stream is full"
        try:
            waiting = await self._sink.store_dead_letters(letters)
        except Exception as error:  # noqa: BLE001 - such as an unreachable bus
            waiting, reason = letters, str(error)
        if not waiting:
            return set()
        usable = {each.delivery.position for each in waiting if each.usable}
        without_slot = await self._postpone([each.delivery for each in waiting], always=usable)
        dropped = {each.position for each in without_slot}
        try:
            await self._sink.discard(
                [each for each in waiting if each.delivery.position in dropped]
            )
        except Exception as error:  # noqa: BLE001 - no message is dropped before it is counted
            reason = str(error)
            await self._postpone(without_slot, always=dropped)
            dropped = set[int]()
        held = {each.delivery.position for each in waiting} - dropped
        _logger.error(
            "failed to store dead letters; retrying later",
            reason=reason,
            count=len(held),
            given_up=len(dropped),
        )
        return held

    async def _postpone(
        self, deliveries: Sequence[IntakeDelivery], *, always: Container[int] = ()
    ) -> list[IntakeDelivery]:
        """Schedule redeliveries. Return the messages for which no slot was free.

        ``always``: positions of messages that get a slot even beyond the limit.
        """
        now, without_slot = self._clock(), list[IntakeDelivery]()
        self._postponed.expire(now)
        for each in deliveries:
            wait = _FIRST_DELAY_SECONDS * 2 ** min(each.delivered - 1, _MAX_DOUBLINGS)
            if self._postponed.occupy(each, now, wait, always=each.position in always):
                await self._reader.retry_later([each], wait)
            else:
                without_slot.append(each)
        return without_slot

    def _hold_reason(self, key: ResourceKey) -> str:
        damage = self._repository.errors.get(key)
        if damage is None:
            return "failed to process the resource; see the decider's logs"
        return (
            f"the resource is held because its log is damaged: {damage}; restore the log, then "
            "send the message again"
        )

    # --- publishing and acknowledging

    async def _finish(self, done: Sequence[_Decision]) -> None:
        """Publish the results, then acknowledge. A crash can only publish them twice."""
        results, now = _Results(), self._now()
        for each in done:
            results.add(each, now)
            for event in each.turn.events:
                self._actions.apply(each.key, event.data)
            if each.key.namespace == SYSTEM_NAMESPACE:
                for event in each.turn.events:
                    self._definitions.apply(event)
                    self._configurations.apply(event)
        reach(Failpoint.DECIDER_APPENDED)
        if results.timers:  # first, because losing a timer causes the longest delay
            await self._sink.set_timers(results.timers)
        unpublished = await self._reject(results)
        letters = [each for each in results.letters if each.delivery.position not in unpublished]
        waiting = await self._store_dead_letters(letters) if letters else set[int]()
        replies = [each for each in results.replies if each[1].position not in unpublished]
        if replies:
            await self._sink.send_replies(replies)
        for destination, parked in results.parked.items():
            self._queue.park(destination, parked)
        reach(Failpoint.DECIDER_TOLD)
        unfinished = unpublished | waiting
        await self._reader.ack(
            [each for each in results.finished if each.position not in unfinished]
        )
        reach(Failpoint.DECIDER_ACKED)

    async def _reject(self, results: _Results) -> set[int]:
        """Publish rejections. Return the positions of messages that could not be rejected.

        Those are redelivered and processed again, so no reply is sent yet. A message without a free
        slot becomes a dead letter.
        """
        if not results.rejections:
            return set()
        try:
            await self._sink.reject([rejection for rejection, _ in results.rejections])
        except Exception as error:  # noqa: BLE001 - such as a deleted stream
            self._log_rejection_state(error)
        else:
            self._log_rejection_state(None)
            return set()
        finished = {each.position for each in results.finished}
        letters = {each.delivery.position: each for _, each in results.rejections}
        unrejected = [
            each.delivery for each in letters.values() if each.delivery.position in finished
        ]
        without_slot = [each.position for each in await self._postpone(unrejected)]
        known = {each.delivery.position for each in results.letters}
        results.letters += [letters[each] for each in without_slot if each not in known]
        return {each.position for each in unrejected}.difference(without_slot)

    def _log_rejection_state(self, error: Exception | None) -> None:
        """Log once that rejections cannot be stored, and once that they can be stored again."""
        if error is not None and not self._fails_to_reject:
            _logger.warning("failed to store rejections; retrying later", reason=str(error))
        if error is None and self._fails_to_reject:
            _logger.info("rejections can be stored again")
        self._fails_to_reject = error is not None


@dataclass(slots=True)
class _Results:
    """The results to publish after a commit."""

    timers: list[TimerRequest] = field(default_factory=list[TimerRequest])
    replies: list[tuple[str, Reply]] = field(default_factory=list[tuple[str, Reply]])
    # Each rejection has a dead letter that replaces it if it cannot be stored.
    rejections: list[tuple[Rejection, DeadLetter]] = field(
        default_factory=list[tuple[Rejection, DeadLetter]]
    )
    letters: list[DeadLetter] = field(default_factory=list[DeadLetter])
    finished: list[IntakeDelivery] = field(default_factory=list[IntakeDelivery])
    parked: dict[Destination, list[IntakeDelivery]] = field(
        default_factory=dict[Destination, list[IntakeDelivery]]
    )

    def add(self, each: _Decision, now: datetime) -> None:
        """Add the results of one resource's turn."""
        if each.turn.timers:
            self.timers += [TimerRequest(each.key, *timer) for timer in each.turn.timers]
        handled = [*zip(each.work.deliveries, each.work.commands, each.turn.replies, strict=False)]
        for delivery, command, reply in handled:
            if reply is not None:
                self._add_reply(each, delivery, command, reply, now)
        finished, destination = [delivery for delivery, _, _ in handled], each.destination
        accepted = [delivery for delivery, _, reply in handled if reply is None or reply.accepted]
        if destination is not None and accepted:
            # A second delivery is a duplicate that triggers the delayed action. Until then, the
            # message stays unacknowledged, so that another decider continues after a crash. A
            # refused message must not be decided again, because it could undo a newer one.
            known = replace(accepted[-1], reply_to=None)
            finished.remove(accepted[-1])
            self.parked.setdefault(destination, []).append(known)
        self.finished += finished

    def _add_reply(
        self,
        each: _Decision,
        delivery: IntakeDelivery,
        command: Command,
        reply: Reply,
        now: datetime,
    ) -> None:
        if delivery.reply_to is not None:
            addressed = replace(reply, resource=str(each.key), id=delivery.message_id)
            self.replies.append((delivery.reply_to, addressed))
        if not reply.accepted:
            stage = "declaration" if isinstance(command.data, _DECLARATIONS) else "request"
            letter = DeadLetter(stage, reply.message, delivery)
            rejection = Rejection(each.key, reply, command.actor, now)
            self.rejections.append((rejection, letter))
            self.letters += [letter] if reply.reason in _UNUSABLE_REASONS else []


def _destinations(key: ResourceKey, turn: Turn) -> list[Destination]:
    """Return the destination of each action that a turn starts."""
    return [
        Destination(key.namespace, event.data.action.provider_config)
        for event in turn.events
        if isinstance(event.data, START_EVENTS)
    ]


def _can_wait(key: ResourceKey, item: _Work) -> bool:
    """Return whether a resource may wait for the next turn of its namespace.

    Other messages in the batch may depend on configurations. Work that has no delivery, or is being
    isolated, would be lost.
    """
    is_needed = key.namespace == SYSTEM_NAMESPACE or item.is_one_by_one
    return bool(item.deliveries) and not is_needed


def _is_accepted(reply: Reply | None) -> bool:
    return reply is not None and reply.accepted


def _is_repeated(command: Command) -> bool:
    return command.first_position not in (None, command.position)


def _split_into_groups(decisions: Sequence[_Decision]) -> list[list[_Decision]]:
    """Split turns into groups that each fit into an atomic batch, without splitting a turn."""
    groups: list[list[_Decision]] = []
    events, size = 0, 0
    for each in decisions:
        turn_events, turn_size = len(each.turn.events), each.size
        events += turn_events
        size += turn_size
        if not groups or events > MAX_BATCH_EVENTS or size > _MAX_BATCH_BYTES:
            groups.append([])
            events, size = turn_events, turn_size
        groups[-1].append(each)
    return groups


def _is_fresh(delivery: IntakeDelivery, now: datetime) -> bool:
    """Return whether nothing can have overtaken a message that is processed immediately.

    Another decider gets the partition only when this one has not pulled for some time. If the local
    clock disagrees with the bus's, no message is fresh.
    """
    if delivery.delivered > 1:
        return False
    if delivery.stored_at is None:
        return True
    return abs(now - delivery.stored_at) < _MAX_FRESH_AGE


def _remaining_work(
    work: Mapping[ResourceKey, _Work], done: Sequence[_Decision]
) -> dict[ResourceKey, _Work]:
    """Return the remaining work: resources with a conflict, and commands beyond one turn."""
    remaining = dict(work)
    for each in done:
        handled = len(each.turn.replies)
        if handled == len(each.work.commands):
            del remaining[each.key]
        else:
            remaining[each.key] = each.work.split(handled)[1]
    return remaining
