"""Predict the effects of declarations: the whole loop in memory, with the functions of the roles.

Resources are loaded from the log. Events that would be appended only change a copy of the read
models. Each action gets a result as if it succeeded, references are updated as the sweeper updates
them, and the known objects of a changed configuration are listed again (ADR 0038). An action of a
composed resource declares and withdraws its parts, as its provider does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from typing import Final, NamedTuple

import msgspec

from events.composition import describe_part_conflict, parent_in
from events.external import ExternalObject
from events.hold import Hold
from events.intake import (
    ActionError,
    Approved,
    Declared,
    IntakeData,
    ListingBegan,
    Observed,
    Reply,
    Reported,
    SecretReported,
    TimerFired,
    UnmanagedCount,
    Withdrawn,
)
from events.log import (
    Action,
    ActionDecided,
    FieldDifference,
    OwnershipClaimed,
    OwnershipReleased,
)
from events.manifest import Fields, Manifest
from events.names import KIND_DEFINITION_KIND, SYSTEM_NAMESPACE, ResourceKey, system_rank
from events.provider_config import ProviderConfigSpec, config_key
from events.stored_content import (
    COMPOSED_CONTENT_KIND,
    CONTENT,
    ComposedContentSpec,
    contents_in,
    merge_chunks,
)
from projections.read_models import ReadModels
from reconciler.ports import EventLog
from reconciler.provider.kind import KindRegistry
from reconciler.resource.decide import decide
from reconciler.resource.difference import Comparison
from reconciler.resource.expectation import (
    PartChange,
    expected_report,
    has_next_step,
    part_changes,
    turn_digest,
    with_unknown_values,
)
from reconciler.resource.observation import AWAITING_LISTING, AWAITING_READ
from reconciler.resource.state import ResourceState
from reconciler.resource.turn import Command, Context, Turn
from reconciler.roles.decider.reference_graph import Graph, graph_from, targets_of
from reconciler.roles.decider.repository import KeptResource, ResourceRepository
from reconciler.roles.observer.listing import ListingAssembler, observations
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.runtime.definitions import Definitions
from reconciler.roles.sweeper.reference_index import ReferenceIndex, rows_of
from reconciler.roles.sweeper.references import definition_messages, reference_messages
from reconciler.roles.sweeper.sweeper import has_its_configuration_now

AFTER_EVERYTHING: Final = 2**53
"""Positions from this one on are predicted: no stream has that number of messages."""

MAX_ROUNDS: Final = 1_000
_ACTOR: Final = "foresight"
_UNKNOWN_DIGEST: Final = "unknown"


class EndlessForesightError(RuntimeError):
    """The prediction does not end. A defect, reported instead of a loop."""


class Place(NamedTuple):
    """The objects of one kind that one ProviderConfig reaches."""

    config: str
    kind: str


@dataclass(slots=True)
class ForeseenAction:
    """An action that would be decided, and its changes.

    ``parts``: its effects on the parts of a composed object. ``goes_on``: another step follows when
    they are ready.
    """

    action: Action
    changes: list[tuple[FieldDifference, object]]  # with the last applied value
    was_under_way: bool = False
    needs_approval: bool = False
    parts: list[PartChange] = field(default_factory=list[PartChange])
    goes_on: bool = False


@dataclass(slots=True)
class ForeseenResource:
    """The state of a resource, and its predicted changes."""

    key: ResourceKey
    base: KeptResource
    state: ResourceState
    turn: Turn | None = None  # of its declaration
    is_withdrawn: bool = False  # by the plan, or by the composed resource of which it is a part
    part_of: ResourceKey | None = None  # the composed resource that declares or withdraws it
    refused: Reply | None = None  # the rejection of its declaration
    observed_at: datetime | None = None  # the time of the last observation in the log
    is_approved: bool = False  # by the prediction: its next action requires approval
    claims: list[OwnershipClaimed] = field(default_factory=list[OwnershipClaimed])
    releases: list[OwnershipReleased] = field(default_factory=list[OwnershipReleased])
    actions: list[ForeseenAction] = field(default_factory=list[ForeseenAction])

    @property
    def digest(self) -> str:
        """Digest of the events that its declaration would append."""
        return "" if self.turn is None else turn_digest(self.turn.events)

    @property
    # Compare with the outcome in the log.
    def outcome_changes(self) -> bool:
        """Whether its outcome would change."""
        current, predicted = self.base.state.outcome, self.state.outcome
        if current is None or predicted is None:
            return current is not predicted
        return (current.outcome, current.reason) != (predicted.outcome, predicted.reason)


class Foresight:
    """The predicted resources of a log. Use it once, and read ``found``."""

    def __init__(
        self, log: EventLog, models: ReadModels, kinds: KindRegistry, now: datetime
    ) -> None:
        self.found: dict[ResourceKey, ForeseenResource] = {}
        self.unread: dict[ResourceKey, str] = {}
        # Number of objects of configurations that move to another API.
        self.elsewhere: dict[str, int] = {}
        self.configurations = Configurations()
        self.kinds = kinds
        self._log = log
        self._models = models
        self._definitions = Definitions(kinds)
        self._now = now
        self._repository = ResourceRepository(log)
        self._index = ReferenceIndex()
        self._positions = count(AFTER_EVERYTHING)
        self._redefined: set[str] = set()
        self._reconfigured: set[str] = set()
        self._observed_again: set[ResourceKey] = set()
        self._refers: Graph = {}
        self._places: dict[str, str] = {}
        self._contents: dict[str, Fields] = {}  # of sets, by digest
        self._listed: set[Place] = set()  # for this plan
        self._blocked: set[str] = set()  # actions whose parts belong to another resource

    async def load(self) -> None:
        """Read the inputs of every decision."""
        await self._definitions.load(self._log)
        await self.configurations.load(self._log)
        self._index.build(self._models.status.items())
        self._index.take_moved()  # changes in progress are not part of this plan
        self._definitions.listen(self._redefined.add)
        self.configurations.listen(self._reconfigured.add)
        configs = self.configurations.by_name.items()
        self._places = {name: config.endpoint for name, config in configs}

    async def declare(self, manifests: Iterable[Manifest]) -> None:
        """Declare manifests, and predict all consequences."""
        by_rank: dict[int, list[Manifest]] = {}
        for each in manifests:
            by_rank.setdefault(system_rank(each.kind), []).append(each)
        for rank in sorted(by_rank):
            work = {each.key: [Declared(each)] for each in by_rank[rank]}
            await self._decide(work, declaring=True)
        await self._to_the_end()

    async def withdraw(self, keys: Iterable[ResourceKey]) -> None:
        """Withdraw declarations, and predict all consequences."""
        work = {key: [Withdrawn()] for key in keys}
        await self._decide(work, declaring=True)
        for key in work.keys() & self.found.keys():
            self.found[key].is_withdrawn = True
        await self._to_the_end()

    def places(self, keys: Iterable[ResourceKey]) -> set[Place]:
        """Return the places of resources and their parts, and all places of system resources."""
        used: dict[ResourceKey, set[str]] = {}
        parts: dict[ResourceKey | None, list[ResourceKey]] = {}
        for row in self._models.status.values():
            used[row.key] = {row.provider_config}
            parts.setdefault(parent_in(row.labels), []).append(row.key)
        for key, mine in self.found.items():
            spec = mine.state.desired.spec
            configs = {mine.base.state.provider_config, mine.state.provider_config}
            configs |= set() if spec is None else {spec.provider_config}
            used[key] = used.get(key, set()) | configs
            parts.setdefault(mine.part_of, []).append(key)
        wanted, pending = set[ResourceKey](), list(keys)
        while pending:
            key = pending.pop()
            if key not in wanted:
                wanted.add(key)
                pending += parts.get(key, ())
        defined = {key.name for key in wanted if key.kind == KIND_DEFINITION_KIND}
        found = {
            Place(config, key.kind)
            for key, configs in used.items()
            if key in wanted or key.kind in defined
            for config in configs
            if config in self.configurations.by_name
        }
        return found | {
            Place(name, kind.name)
            for name, config in self.configurations.by_name.items()
            if config_key(name) in wanted
            for kind in self.kinds.of_provider(config.provider)
        }

    async def observe(self, config: str, kind: str, objects: Mapping[str, ExternalObject]) -> None:
        """Process a complete listing, and predict all consequences."""
        self._listed.add(Place(config, kind))
        await self._decide(await self._observations_of(config, kind, objects))
        await self._to_the_end()

    def observed_at(self, mine: ForeseenResource) -> datetime | None:
        """Return the time of an object's last read, by a listing for this plan or in the log."""
        state, place = mine.state, Place(mine.state.provider_config, mine.key.kind)
        seen = mine.base.state.observed.object or state.observed.object
        if seen is None or place not in self._listed:
            return mine.observed_at
        scope = self.configurations.by_name[state.provider_config].scope
        return self._now if scope.has(seen.name, seen.labels) else mine.observed_at

    # --- from one turn to the next

    async def _to_the_end(self) -> None:
        for _ in range(MAX_ROUNDS):
            work = await self._results()
            for key, data in await self._follow_up_messages():
                work.setdefault(key, []).append(data)
            if not work:
                return
            await self._decide(work)
        raise EndlessForesightError(f"the plan did not settle after {MAX_ROUNDS} rounds")

    async def _decide(
        self, work: Mapping[ResourceKey, Sequence[IntakeData]], *, declaring: bool = False
    ) -> None:
        await self._load_resources(work)
        for key, said in work.items():
            if key not in self.found:
                continue
            mine = self.found[key]
            commands = [self._command(data) for data in said]
            turn = decide(mine.state, commands, self._context(key))
            if declaring:
                mine.turn = turn
            elif mine.part_of is not None:
                refused = (each for each in turn.replies if each is not None and not each.accepted)
                mine.refused = next(refused, mine.refused)
            self._take(mine, turn)

    async def _load_resources(self, work: Mapping[ResourceKey, Sequence[IntakeData]]) -> None:
        """Load resources on first use, and the targets of new declarations."""
        new = [key for key in work if key not in self.found]
        kept = await self._repository.get(new)
        for key in new:
            if key in kept:
                row = self._models.status.get(str(key))
                observed_at = None if row is None else row.observed_at
                self.found[key] = ForeseenResource(
                    key, kept[key], kept[key].state, observed_at=observed_at
                )
            else:
                self.unread[key] = str(
                    self._repository.broken.get(key, "its history is unreadable")
                )
        await self._read_contents([self.found[key] for key in new if key in kept])
        targets = {
            each
            for key, said in work.items()
            for each in targets_of(
                [self._command(data) for data in said], self.kinds.find(key.kind), key
            )
        }
        if targets:
            self._refers = await graph_from(targets, self._repository)
            for key, mine in self.found.items():  # the predicted state is newer than the log
                if (spec := mine.state.desired.spec) is not None:
                    self._refers[str(key)] = tuple(each.target for each in spec.references)

    async def _read_contents(self, met: Iterable[ForeseenResource]) -> None:
        """Read the stored contents that these resources have, or may have next."""
        indexes = {
            ResourceKey(mine.key.namespace, COMPOSED_CONTENT_KIND, digest)
            for mine in met
            for digest in contents_in(mine.state.observed.object, mine.state.desired.fields)
        }
        for index, stored in (await self._stored(indexes)).items():
            chunks = [msgspec.structs.replace(index, name=each) for each in stored.chunks]
            self._contents[index.name] = merge_chunks((await self._stored(chunks)).values())

    async def _stored(self, keys: Iterable[ResourceKey]) -> dict[ResourceKey, ComposedContentSpec]:
        kept = await self._repository.get(list(keys))
        return {
            key: msgspec.convert(each.state.desired.fields, ComposedContentSpec)
            for key, each in kept.items()
            if each.state.desired.is_declared
        }

    def _take(self, mine: ForeseenResource, turn: Turn) -> None:
        mine.state = turn.state
        for event in turn.events:
            row = self._models.apply(next(self._positions), event)
            self._index.note(event.subject, self._models.status.get(event.subject, row))
            if event.key.namespace == SYSTEM_NAMESPACE:
                self._definitions.apply(event)
                self.configurations.apply(event)
            match event.data:
                case ActionDecided(action):
                    mine.actions.append(self._foreseen(mine, action))
                case OwnershipClaimed():
                    mine.claims.append(event.data)
                case OwnershipReleased():
                    mine.releases.append(event.data)
                case _:
                    pass

    def _foreseen(self, mine: ForeseenResource, action: Action) -> ForeseenAction:
        approved, mine.is_approved = mine.is_approved, False
        changes = Comparison.of(mine.state, self._context(mine.key)).changes(action)
        parts, is_step = self._parts(mine, action)
        return ForeseenAction(
            action, changes, needs_approval=approved, parts=parts, goes_on=is_step
        )

    def _parts(self, mine: ForeseenResource, action: Action) -> tuple[list[PartChange], bool]:
        kind, spec = self.kinds.find(mine.key.kind), mine.state.desired.spec
        if kind is None or kind.composition is None or spec is None:
            return [], False
        seen = mine.state.observed.object
        if seen is not None:
            seen = msgspec.structs.replace(seen, fields=self._whole(seen.fields))
        action = msgspec.structs.replace(action, fields=self._whole(action.fields))
        parts = part_changes(mine.key, action, seen)
        return parts, has_next_step(kind, mine.key, spec.fields, action)

    def _whole(self, fields: Fields) -> Fields:
        """Return an object's fields, with content that is stored separately."""
        return {**fields, **self._contents.get(fields.get(CONTENT, ""), {})}

    # --- what comes in

    async def _results(self) -> dict[ResourceKey, list[IntakeData]]:
        """Return results for all actions: each succeeds, and pending approvals are given."""
        results: dict[ResourceKey, list[IntakeData]] = {}
        for key, mine in list(self.found.items()):
            flight, outcome = mine.state.actions.in_flight, mine.state.outcome
            approval = mine.state.holds.approval
            waits = flight is None and outcome is not None and outcome.reason == Hold.APPROVAL
            if waits and approval is not None:
                mine.is_approved = True
                results[key] = [Approved(Hold.APPROVAL, plan=approval.plan)]
                continue
            if flight is None or flight.is_held or flight.action.action_id in self._blocked:
                continue
            if not any(each.action.action_id == flight.action.action_id for each in mine.actions):
                parts, is_step = self._parts(mine, flight.action)
                under_way = ForeseenAction(flight.action, [], True, parts=parts, goes_on=is_step)
                mine.actions.append(under_way)
            told = await self._part_messages(mine, mine.actions[-1].parts)
            report = self._report(key, mine)
            if isinstance(told, str):
                self._blocked.add(flight.action.action_id)
                error = ActionError("NotDone", told)
                report = msgspec.structs.replace(report, error=error, object=None)
            else:
                for part, said in told.items():
                    results.setdefault(part, []).append(said)
            results.setdefault(key, []).append(report)
        return results

    async def _part_messages(
        self, mine: ForeseenResource, parts: Sequence[PartChange]
    ) -> dict[ResourceKey, IntakeData] | str:
        """Declare and withdraw parts like the provider, or return why a part is not its own."""
        await self._load_resources({each.key: () for each in parts})
        told: dict[ResourceKey, IntakeData] = {}
        for each in parts:
            part = self.found.get(each.key)
            if part is None:
                continue
            desired = part.state.desired
            labels = {} if desired.spec is None else desired.spec.labels
            other_owner = (
                describe_part_conflict(str(each.key), labels, mine.key.tokens)
                if desired.is_declared
                else ""
            )
            if other_owner and each.step == "Declare":
                return other_owner
            if each.wanted is not None:
                told[each.key] = Declared(each.wanted)
            elif not other_owner:  # a part that belongs to another resource stays
                told[each.key] = Withdrawn()
        for key, said in told.items():
            self.found[key].part_of = mine.key
            self.found[key].is_withdrawn = isinstance(said, Withdrawn)
        return told

    def _report(self, key: ResourceKey, mine: ForeseenResource) -> Reported:
        flight = mine.state.actions.in_flight
        assert flight is not None
        outputs = [
            name
            for referrer in self._index.referrers(str(key))
            for reference in self._models.status[referrer].refers
            if reference.target == str(key)
            for name in reference.fields
            if name.startswith("outputs.")
        ]
        return expected_report(flight.action, flight.attempt, mine.state, outputs, self._now)

    async def _follow_up_messages(self) -> list[tuple[ResourceKey, IntakeData]]:
        """Return the messages that the sweeper and the observer would publish now."""
        rows, damaged = self._models.status, self._models.damage
        concerned = self._index.take_moved()
        messages = reference_messages(concerned, self._index, self._models)
        for name in sorted(self._redefined):
            kind = self.kinds.find(name)
            if kind is not None and kind.definition is not None:
                messages += definition_messages(kind.definition, name, rows, damaged)
        self._redefined.clear()
        told: list[tuple[ResourceKey, IntakeData]] = [(each.key, each.data) for each in messages]
        told += [
            (row.key, SecretReported(secret, _UNKNOWN_DIGEST))
            for row in rows_of(concerned.targets, rows)
            for secret, known in row.secrets.items()
            if not known and row.declared and row.key in self.found
        ]
        told += self._repeated_observations()
        changed, self._reconfigured = sorted(self._reconfigured), set()
        for name in changed:
            told += await self._configuration_messages(name)
        return told

    def _repeated_observations(self) -> Iterator[tuple[ResourceKey, IntakeData]]:
        """Yield known objects for resources that wait for the next listing, once for each."""
        for key, mine in self.found.items():
            seen, last, spec = mine.state.observed, mine.state.outcome, mine.state.desired.spec
            if spec is not None and last is not None and last.reason == AWAITING_LISTING:
                if key not in self._observed_again:
                    self._observed_again.add(key)
                    as_of, evidence = next(self._positions), "CompleteListing"
                    place = (spec.provider_config, spec.external_name)
                    yield key, Observed(*place, None, evidence, as_of, self._now)
                continue
            if mine.state.desired.is_declared or last is None or last.reason != AWAITING_READ:
                continue
            if seen.object is None or key in self._observed_again:
                continue
            self._observed_again.add(key)
            shown = Observed(
                seen.provider_config,
                seen.object.name,
                seen.object,
                "CompleteListing",
                next(self._positions),
                self._now,
                UnmanagedCount(seen.unmanaged or 0, seen.total or 0),
                belongs_to="",
                known_version=mine.state.version,
            )
            yield key, shown

    async def _configuration_messages(self, name: str) -> list[tuple[ResourceKey, IntakeData]]:
        """Wake resources that wait for a changed configuration, and list its known objects."""
        configs = self.configurations.by_name
        rows = [row for row in self._models.status.values() if row.provider_config == name]
        told: list[tuple[ResourceKey, IntakeData]] = [
            (row.key, TimerFired("ConfigChanged"))
            for row in rows
            if has_its_configuration_now(row, configs, self.kinds)
        ]
        config = configs.get(name)
        if config is None:
            return told
        if self._places.get(name, config.endpoint) != config.endpoint:
            self.elsewhere[name] = sum(row.owned for row in rows)
            return told  # only a listing shows the objects of another API
        await self._load_resources({row.key: () for row in rows})
        for kind in self.kinds.of_provider(config.provider):
            objects = self._known_objects(name, kind.name, config)
            if objects:
                seen = await self._observations_of(name, kind.name, objects)
                told += [(key, each) for key, said in seen.items() for each in said]
        return told

    def _known_objects(
        self, name: str, kind: str, config: ProviderConfigSpec
    ) -> dict[str, ExternalObject]:
        """Return the objects in the log that are in a configuration's scope."""
        known: dict[str, ExternalObject] = {}
        for mine in self.found.values():
            seen = mine.state.observed.object
            is_of_it = mine.state.provider_config == name and mine.key.kind == kind
            if is_of_it and seen is not None and config.scope.has(seen.name, seen.labels):
                known[f"{seen.name}\n{seen.uid}"] = seen
        return known

    async def _observations_of(
        self, name: str, kind: str, objects: Mapping[str, ExternalObject]
    ) -> dict[ResourceKey, list[IntakeData]]:
        config, known = self.configurations.by_name[name], self.kinds.find(kind)
        capabilities = None if known is None else known.capabilities
        unique = capabilities is None or capabilities.deterministic_names
        scope = config.scope
        began = ListingBegan(name, kind, next(self._positions), scope.prefix, scope.labels)
        listing = ListingAssembler(began, self._now, unique_names=unique)
        listing.add(objects.values())
        complete = listing.complete(len(objects))
        rows, damage = self._models.status, self._models.damage.values()
        findings = await observations(listing, complete, rows, config, self._log.log_id, damage)
        work: dict[ResourceKey, list[IntakeData]] = {}
        for key, seen in findings.observed:
            work.setdefault(key, []).append(seen)
        return work

    # --- the inputs of `decide`

    def _command(self, data: IntakeData) -> Command:
        position = next(self._positions)
        message_id = f"foreseen-{position}"
        return Command(position, message_id, _ACTOR, data, position, self._now)

    def _context(self, key: ResourceKey) -> Context:
        kind = self.kinds.find(key.kind)
        return Context(
            key=key,
            now=self._now,
            jitter=0.0,
            log_id=self._log.log_id,
            epoch=self._log.epoch,
            restored_as_of=self._log.restored_as_of,
            twins=self.configurations.twins,
            kind=None if kind is None else with_unknown_values(kind),
            configs=self.configurations.by_name,
            providers=self.kinds.providers,
            reference_graph=self._refers,
            check_definition=self._definitions.check,
            check_part=self.kinds.check,
            check_part_name=self.kinds.check_name,
            missing_hint=self.kinds.missing_hint,
        )
