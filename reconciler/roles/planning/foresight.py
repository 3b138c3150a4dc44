"""Predict the effects of declarations by running the roles' functions in memory.

Resources are loaded from the log. Predicted events only change a copy of the read models. Each
action is given a successful result, references are updated as the sweeper would, and known objects
of a changed configuration are listed again (ADR 0038). An action of a composed resource declares
and withdraws its parts, as its provider would.
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
from events.provider_config import ProviderConfigSpec, config_key, is_config
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
from reconciler.resource.decide import continue_turn, decide
from reconciler.resource.difference import Comparison
from reconciler.resource.exchange import Exchange, find_exchange
from reconciler.resource.expectation import (
    PartChange,
    expected_report,
    has_next_step,
    part_changes,
    turn_digest,
    with_unknown_values,
)
from reconciler.resource.move import Move, moves_of, next_move_step
from reconciler.resource.observation import AWAITING_LISTING, AWAITING_READ
from reconciler.resource.state import ResourceState
from reconciler.resource.turn import Command, Context, Turn
from reconciler.roles.decider.move_circles import find_move_circle
from reconciler.roles.decider.reference_graph import Graph, graph_from, targets_of
from reconciler.roles.decider.repository import FoldedResource, ResourceRepository
from reconciler.roles.observer.listing import ListingAssembler, compare_listing
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.runtime.definitions import Definitions
from reconciler.roles.sweeper.reference_index import ReferenceIndex, select_rows
from reconciler.roles.sweeper.references import definition_messages, reference_messages
from reconciler.roles.sweeper.sweeper import is_configuration_ready
from reconciler.roles.sweeper.user_reports import count_users

FIRST_PREDICTED_POSITION: Final = 2**53
"""First predicted position, which no stream reaches."""

MAX_ROUNDS: Final = 1_000
_ACTOR: Final = "foresight"
_UNKNOWN_DIGEST: Final = "unknown"


class UnsettledPredictionError(RuntimeError):
    """The prediction does not settle, because of a defect that would otherwise loop endlessly."""


class ListingTarget(NamedTuple):
    """A ProviderConfig, and a kind that it lists."""

    config: str
    kind: str


@dataclass(slots=True)
class ForeseenAction:
    """An action that would be decided, and its changes.

    ``parts``: its changes to the parts of a composed object. ``has_next_step``: another step
    follows once they are ready.
    """

    action: Action
    changes: list[tuple[FieldDifference, object]]  # each with the last applied value
    was_under_way: bool = False
    needs_approval: bool = False
    parts: list[PartChange] = field(default_factory=list[PartChange])
    has_next_step: bool = False


@dataclass(slots=True)
class ForeseenResource:
    """The state of a resource, and its predicted changes."""

    key: ResourceKey
    base: FoldedResource
    state: ResourceState
    turn: Turn | None = None  # for its declaration
    is_withdrawn: bool = False  # by the plan, or by its composed resource
    part_of: ResourceKey | None = None  # the composed resource that declares or withdraws it
    refused: Reply | None = None  # the rejection of its declaration
    observed_at: datetime | None = None  # time of the last observation in the log
    is_approved: bool = False  # in the prediction, because its next action requires approval
    claims: list[OwnershipClaimed] = field(default_factory=list[OwnershipClaimed])
    releases: list[OwnershipReleased] = field(default_factory=list[OwnershipReleased])
    actions: list[ForeseenAction] = field(default_factory=list[ForeseenAction])

    @property
    def digest(self) -> str:
        """Digest of the events that the declaration would append."""
        return "" if self.turn is None else turn_digest(self.turn.events)

    @property
    def outcome_changes(self) -> bool:
        """Whether the outcome would differ from the one in the log."""
        current, predicted = self.base.state.outcome, self.state.outcome
        if current is None or predicted is None:
            return current is not predicted
        return (current.outcome, current.reason) != (predicted.outcome, predicted.reason)


class Foresight:
    """Predicts the resources of a log. Use an instance once, and read ``resources``."""

    def __init__(
        self, log: EventLog, models: ReadModels, kinds: KindRegistry, now: datetime
    ) -> None:
        self.resources: dict[ResourceKey, ForeseenResource] = {}
        self.unreadable: dict[ResourceKey, str] = {}
        # Number of objects per configuration that moves to another API.
        self.moved_objects: dict[str, int] = {}
        self.configurations = Configurations()
        self.kinds = kinds
        self._log = log
        self._models = models
        self._definitions = Definitions(kinds)
        self._now = now
        self._repository = ResourceRepository(log)
        self._index = ReferenceIndex()
        self._positions = count(FIRST_PREDICTED_POSITION)
        self._redefined: set[str] = set()
        self._reconfigured: set[str] = set()
        self._observed_again: set[ResourceKey] = set()
        self._reference_graph: Graph = {}
        self._current_configs: dict[str, ProviderConfigSpec] = {}  # according to the log
        self._contents: dict[str, Fields] = {}  # contents of manifest sets, by digest
        self._listed: set[ListingTarget] = set()  # listed afresh for this plan
        self._scope_approved: set[ResourceKey] = set()
        self._blocked: set[str] = set()  # actions whose parts belong to another resource

    async def load(self) -> None:
        """Read the inputs of every decision."""
        await self._definitions.load(self._log)
        await self.configurations.load(self._log)
        for name, row in self._models.status.items():
            self._index.add(name, row)
        self._index.take_changed()  # changes in progress are not part of this plan
        self._definitions.listen(self._redefined.add)
        self.configurations.listen(self._reconfigured.add)
        self._current_configs = dict(self.configurations.by_name)

    async def declare(self, manifests: Iterable[Manifest]) -> None:
        """Declare manifests, and predict all consequences."""
        by_rank: dict[int, list[Manifest]] = {}
        for each in manifests:
            by_rank.setdefault(system_rank(each.kind), []).append(each)
        for rank in sorted(by_rank):
            work = {each.key: [Declared(each)] for each in by_rank[rank]}
            await self._decide(work, declaring=True)
        await self._settle()

    async def withdraw(self, keys: Iterable[ResourceKey]) -> None:
        """Withdraw declarations, and predict all consequences."""
        work = {key: [Withdrawn()] for key in keys}
        await self._decide(work, declaring=True)
        for key in work.keys() & self.resources.keys():
            self.resources[key].is_withdrawn = True
        await self._settle()

    def listing_targets(self, keys: Iterable[ResourceKey]) -> set[ListingTarget]:
        """Return the listing targets of resources, their parts, and the system resources."""
        used: dict[ResourceKey, set[str]] = {}
        parts: dict[ResourceKey | None, list[ResourceKey]] = {}
        for row in self._models.status.values():
            used[row.key] = {row.provider_config}
            parts.setdefault(parent_in(row.labels), []).append(row.key)
        for key, resource in self.resources.items():
            spec = resource.state.desired.spec
            configs = {resource.base.state.provider_config, resource.state.provider_config}
            configs |= set() if spec is None else {spec.provider_config}
            used[key] = used.get(key, set()) | configs
            parts.setdefault(resource.part_of, []).append(key)
        selected, pending = set[ResourceKey](), list(keys)
        while pending:
            key = pending.pop()
            if key not in selected:
                selected.add(key)
                pending += parts.get(key, ())
        defined = {key.name for key in selected if key.kind == KIND_DEFINITION_KIND}
        targets = {
            ListingTarget(config, key.kind)
            for key, configs in used.items()
            if key in selected or key.kind in defined
            for config in configs
            if config in self.configurations.by_name
        }
        return targets | {
            ListingTarget(name, kind.name)
            for name, config in self.configurations.by_name.items()
            if config_key(name) in selected
            for kind in self.kinds.of_provider(config.provider)
            if not config.kinds or kind.name in config.kinds  # the observer lists no others
        }

    async def observe(self, config: str, kind: str, objects: Mapping[str, ExternalObject]) -> None:
        """Process a complete listing, and predict all consequences."""
        self._listed.add(ListingTarget(config, kind))
        await self._decide(await self._find_observations(config, kind, objects))
        await self._settle()

    def observed_at(self, resource: ForeseenResource) -> datetime | None:
        """Return the time of an object's last read, for this plan or according to the log."""
        state = resource.state
        target = ListingTarget(state.provider_config, resource.key.kind)
        existing = resource.base.state.observed.object or state.observed.object
        if existing is None or target not in self._listed:
            return resource.observed_at
        scope = self.configurations.by_name[state.provider_config].scope
        return self._now if scope.has(existing.name, existing.labels) else resource.observed_at

    def may_delete_unknown_objects(self, name: str) -> bool:
        """Return whether a changed configuration may delete objects that the log does not contain.

        That is the case if it deletes undeclared objects of a scope whose objects are neither
        recorded nor listed.
        """
        config, current = self.configurations.by_name.get(name), self._current_configs.get(name)
        if config is None or not config.deletes_undeclared:
            return False
        if current is not None and _listed_part(current) == _listed_part(config):
            return False
        kinds = [
            each.name
            for each in self.kinds.of_provider(config.provider)
            if each.lists and (not config.kinds or each.name in config.kinds)
        ]
        return any(ListingTarget(name, each) not in self._listed for each in kinds)

    def find_exchange(self, key: ResourceKey) -> Exchange | None:
        """Return the resources with which a resource would exchange unique values, or None.

        The prediction assumes that each update succeeds, but the API refuses all of them.
        """
        kind, location = self.kinds.find(key.kind), self._location(key)
        if kind is None or not kind.unique:
            return None
        changes = {
            str(each): [
                difference
                for action in resource.actions
                if action.action.operation == "Update"
                for difference, _ in action.changes
            ]
            for each, resource in self.resources.items()
            if self._location(each) == location
        }
        return find_exchange(str(key), changes, kind.unique)

    def _location(self, key: ResourceKey) -> tuple[str, str, str]:
        return key.namespace, key.kind, self.resources[key].state.provider_config

    # --- turns

    async def _settle(self) -> None:
        for _ in range(MAX_ROUNDS):
            work = await self._action_results()
            for key, data in await self._follow_up_messages():
                work.setdefault(key, []).append(data)
            if not work:
                return
            await self._decide(work)
        raise UnsettledPredictionError(f"the plan did not settle after {MAX_ROUNDS} rounds")

    async def _decide(
        self, work: Mapping[ResourceKey, Sequence[IntakeData]], *, declaring: bool = False
    ) -> None:
        await self._load_resources(work)
        for key, messages in work.items():
            if key not in self.resources:
                continue
            resource = self.resources[key]
            commands = [self._command(data) for data in messages]
            turn = decide(resource.state, commands, self._context(key))
            if declaring:
                resource.turn = turn
            elif resource.part_of is not None:
                refused = (each for each in turn.replies if each is not None and not each.accepted)
                resource.refused = next(refused, resource.refused)
            self._apply_turn(resource, turn)
        for key, messages in work.items():
            if key in self.resources and messages:
                await self._continue_moves(key, self._command(messages[-1]))

    async def _continue_moves(self, key: ResourceKey, command: Command) -> None:
        """Predict the steps of the moves that a resource takes part in, and of their moves."""
        moves = [*moves_of(key, self.resources[key].state)]
        checked: set[Move] = set()
        circular: set[Move] = set()
        while moves:
            move = moves.pop(0)
            if move in checked:
                continue
            has_steps = await self._continue_move(move, command, circular)
            checked = {move} if has_steps else checked | {move}
            known = [each for each in move if each in self.resources]
            moves += [step for each in known for step in moves_of(each, self.resources[each].state)]

    async def _load_state(self, key: ResourceKey) -> ResourceState | None:
        await self._load_resources({key: ()})
        return self.resources[key].state if key in self.resources else None

    async def _continue_move(self, move: Move, command: Command, circular: set[Move]) -> bool:
        """Predict the steps of a move. Return whether it has any.

        ``circular``: the moves of known circles, to which it may add those of another one.
        """
        has_steps = False
        for _ in range(MAX_ROUNDS):
            await self._load_resources(dict.fromkeys(move, ()))
            former, new = self.resources.get(move.former), self.resources.get(move.new)
            if former is None or new is None:
                return has_steps
            competing = new.state
            if former.state.holds.moving_to not in ("", str(move.new)):
                competitor = ResourceKey.parse(former.state.holds.moving_to)
                await self._load_resources({competitor: ()})
                competing = self.resources[competitor].state
            circular |= await find_move_circle(move, former.state, self._load_state)
            step = next_move_step(
                move,
                former.state,
                new.state,
                competing,
                self._log.log_id,
                is_circular=move in circular,
            )
            for resource, event in ((former, step.former), (new, step.new)):
                if event is not None:
                    context = self._context(resource.key)
                    turn = continue_turn(resource.state, [event], command, context)
                    self._apply_turn(resource, turn)
            if step.former is None and step.new is None:
                return has_steps
            has_steps = True
        return has_steps

    async def _load_resources(self, work: Mapping[ResourceKey, Sequence[IntakeData]]) -> None:
        """Load resources on first use, and the targets of new declarations."""
        new = [key for key in work if key not in self.resources]
        loaded = await self._repository.get(new)
        for key in new:
            if key in loaded:
                row = self._models.status.get(str(key))
                observed_at = None if row is None else row.observed_at
                self.resources[key] = ForeseenResource(
                    key, loaded[key], loaded[key].state, observed_at=observed_at
                )
            else:
                self.unreadable[key] = str(
                    self._repository.errors.get(key, "its history is unreadable")
                )
        await self._read_contents([self.resources[key] for key in new if key in loaded])
        targets = {
            each
            for key, messages in work.items()
            for each in targets_of([self._command(data) for data in messages], self.kinds, key)
        }
        if targets:
            self._reference_graph = await graph_from(targets, self._repository)
            # The predicted state is newer than the log.
            for key, resource in self.resources.items():
                if (spec := resource.state.desired.spec) is not None:
                    self._reference_graph[str(key)] = tuple(each.target for each in spec.references)

    async def _read_contents(self, resources: Iterable[ForeseenResource]) -> None:
        """Read the stored contents that resources have or would have."""
        indexes = {
            ResourceKey(resource.key.namespace, COMPOSED_CONTENT_KIND, digest)
            for resource in resources
            for digest in contents_in(resource.state.observed.object, resource.state.desired.fields)
        }
        for index, stored in (await self._load_contents(indexes)).items():
            chunks = [msgspec.structs.replace(index, name=each) for each in stored.chunks]
            self._contents[index.name] = merge_chunks((await self._load_contents(chunks)).values())

    async def _load_contents(
        self, keys: Iterable[ResourceKey]
    ) -> dict[ResourceKey, ComposedContentSpec]:
        loaded = await self._repository.get(list(keys))
        return {
            key: msgspec.convert(each.state.desired.fields, ComposedContentSpec)
            for key, each in loaded.items()
            if each.state.desired.is_declared
        }

    def _apply_turn(self, resource: ForeseenResource, turn: Turn) -> None:
        resource.state = turn.state
        for event in turn.events:
            row = self._models.apply(next(self._positions), event)
            self._index.update(event.subject, self._models.status.get(event.subject, row))
            if event.key.namespace == SYSTEM_NAMESPACE:
                self._definitions.apply(event)
                self.configurations.apply(event)
            match event.data:
                case ActionDecided(action):
                    resource.actions.append(self._build_action(resource, action))
                case OwnershipClaimed():
                    resource.claims.append(event.data)
                case OwnershipReleased():
                    resource.releases.append(event.data)
                case _:
                    pass

    def _build_action(self, resource: ForeseenResource, action: Action) -> ForeseenAction:
        approved, resource.is_approved = resource.is_approved, False
        changes = Comparison.of(resource.state, self._context(resource.key)).changes(action)
        parts, has_next = self._part_changes(resource, action)
        return ForeseenAction(
            action, changes, needs_approval=approved, parts=parts, has_next_step=has_next
        )

    def _part_changes(
        self, resource: ForeseenResource, action: Action
    ) -> tuple[list[PartChange], bool]:
        kind, spec = self.kinds.find(resource.key.kind), resource.state.desired.spec
        if kind is None or kind.composition is None or spec is None:
            return [], False
        existing = resource.state.observed.object
        if existing is not None:
            existing = msgspec.structs.replace(
                existing, fields=self._with_contents(existing.fields)
            )
        action = msgspec.structs.replace(action, fields=self._with_contents(action.fields))
        parts = part_changes(resource.key, action, existing)
        return parts, has_next_step(kind, resource.key, spec.fields, action)

    def _with_contents(self, fields: Fields) -> Fields:
        """Return an object's fields with the content that is stored separately."""
        return {**fields, **self._contents.get(fields.get(CONTENT, ""), {})}

    # --- messages

    async def _action_results(self) -> dict[ResourceKey, list[IntakeData]]:
        """Return a successful result for each action, and an approval for each pending plan."""
        results: dict[ResourceKey, list[IntakeData]] = {}
        for key, resource in list(self.resources.items()):
            flight, outcome = resource.state.actions.in_flight, resource.state.outcome
            approval = resource.state.holds.approval
            waits = flight is None and outcome is not None and outcome.reason == Hold.APPROVAL
            if waits and approval is not None:
                resource.is_approved = True
                results[key] = [Approved(Hold.APPROVAL, plan=approval.plan)]
                continue
            is_held_by_scope = outcome is not None and outcome.reason == Hold.EXCLUSIVE_SCOPE
            if is_held_by_scope and not is_config(key) and key not in self._scope_approved:
                self._scope_approved.add(key)
                resource.is_approved = True
                results[key] = [TimerFired("ConfigChanged")]
                continue
            if flight is None or flight.is_held or flight.action.action_id in self._blocked:
                continue
            if not any(
                each.action.action_id == flight.action.action_id for each in resource.actions
            ):
                parts, has_next = self._part_changes(resource, flight.action)
                under_way = ForeseenAction(
                    flight.action, [], True, parts=parts, has_next_step=has_next
                )
                resource.actions.append(under_way)
            part_messages = await self._part_messages(resource, resource.actions[-1].parts)
            report = self._report(key, resource)
            if isinstance(part_messages, str):
                self._blocked.add(flight.action.action_id)
                error = ActionError("NotDone", part_messages)
                report = msgspec.structs.replace(report, error=error, object=None)
            else:
                for part, message in part_messages.items():
                    results.setdefault(part, []).append(message)
            results.setdefault(key, []).append(report)
        return results

    async def _part_messages(
        self, resource: ForeseenResource, parts: Sequence[PartChange]
    ) -> dict[ResourceKey, IntakeData] | str:
        """Declare and withdraw parts as the provider would, or describe a conflict over a part."""
        await self._load_resources({each.key: () for each in parts})
        messages: dict[ResourceKey, IntakeData] = {}
        for change in parts:
            part = self.resources.get(change.key)
            if part is None:
                continue
            desired = part.state.desired
            labels = {} if desired.spec is None else desired.spec.labels
            other_owner = (
                describe_part_conflict(str(change.key), labels, resource.key.tokens)
                if desired.is_declared
                else ""
            )
            if other_owner and change.step == "Declare":
                return other_owner
            if change.wanted is not None:
                messages[change.key] = Declared(change.wanted)
            elif not other_owner:  # keep another resource's part
                messages[change.key] = Withdrawn()
        for key, message in messages.items():
            self.resources[key].part_of = resource.key
            self.resources[key].is_withdrawn = isinstance(message, Withdrawn)
        return messages

    def _report(self, key: ResourceKey, resource: ForeseenResource) -> Reported:
        flight = resource.state.actions.in_flight
        assert flight is not None
        outputs = [
            name
            for referrer in self._index.referrers(str(key))
            for reference in self._models.status[referrer].refers
            if reference.target == str(key)
            for name in reference.fields
            if name.startswith("outputs.")
        ]
        return expected_report(flight.action, flight.attempt, resource.state, outputs, self._now)

    async def _follow_up_messages(self) -> list[tuple[ResourceKey, IntakeData]]:
        """Return the messages that the sweeper and the observer would publish now."""
        rows, damaged = self._models.status, self._models.damage
        affected = self._index.take_changed()
        messages = reference_messages(affected, self._index, self._models)
        for name in sorted(self._redefined):
            kind = self.kinds.find(name)
            if kind is not None and kind.definition is not None:
                messages += definition_messages(kind.definition, name, rows, damaged)
        self._redefined.clear()
        follow_ups: list[tuple[ResourceKey, IntakeData]] = [
            (each.key, each.data) for each in messages
        ]
        follow_ups += [
            (row.key, SecretReported(secret, _UNKNOWN_DIGEST))
            for row in select_rows(affected.targets, rows)
            for secret, known in row.secrets.items()
            if not known and row.declared and row.key in self.resources
        ]
        follow_ups += self._user_reports()
        follow_ups += self._repeated_observations()
        changed, self._reconfigured = sorted(self._reconfigured), set()
        for name in changed:
            follow_ups += await self._configuration_messages(name)
        return follow_ups

    def _user_reports(self) -> Iterator[tuple[ResourceKey, IntakeData]]:
        """Yield the reports to withdrawn configurations whose users this plan changes."""
        for name, known in self.configurations.withdrawn.items():
            key, report = config_key(name), count_users(name, known.generation, self._models)
            is_affected = key in self.resources or not report.count
            if is_affected and (known.users is None or known.users.count != report.count):
                yield key, report

    def _repeated_observations(self) -> Iterator[tuple[ResourceKey, IntakeData]]:
        """Yield known objects for resources that wait for the next read, once per resource."""
        for key, resource in self.resources.items():
            state = resource.state
            observed, last, spec = state.observed, state.outcome, state.desired.spec
            if spec is not None and last is not None and last.reason == AWAITING_LISTING:
                if key not in self._observed_again:
                    self._observed_again.add(key)
                    as_of, evidence = next(self._positions), "CompleteListing"
                    target = (spec.provider_config, spec.external_name)
                    yield key, Observed(*target, None, evidence, as_of, self._now)
                continue
            if last is None or last.reason != AWAITING_READ:
                continue
            if observed.object is None or key in self._observed_again:
                continue
            self._observed_again.add(key)
            observation = Observed(
                observed.provider_config,
                observed.object.name,
                observed.object,
                "CompleteListing",
                next(self._positions),
                self._now,
                UnmanagedCount(observed.unmanaged or 0, observed.total or 0),
                belongs_to="",
                known_version=resource.state.version,
            )
            yield key, observation

    async def _configuration_messages(self, name: str) -> list[tuple[ResourceKey, IntakeData]]:
        """Wake resources that wait for a changed configuration, and list its known objects."""
        configs = self.configurations.by_name
        rows = [row for row in self._models.status.values() if row.provider_config == name]
        messages: list[tuple[ResourceKey, IntakeData]] = [
            (row.key, TimerFired("ConfigChanged"))
            for row in rows
            if is_configuration_ready(row, self.configurations, self.kinds)
        ]
        config = configs.get(name)
        if config is None:
            return messages
        if self._current_configs.get(name, config).endpoint != config.endpoint:
            self.moved_objects[name] = sum(row.owned for row in rows)
            return messages  # only a listing can show the objects of another API
        await self._load_resources({row.key: () for row in rows})
        for kind in self.kinds.of_provider(config.provider):
            objects = self._known_objects(name, kind.name, config)
            if objects:
                observations = await self._find_observations(name, kind.name, objects)
                messages += [(key, each) for key, data in observations.items() for each in data]
        return messages

    def _known_objects(
        self, name: str, kind: str, config: ProviderConfigSpec
    ) -> dict[str, ExternalObject]:
        """Return the known objects of a kind in a configuration's scope."""
        known: dict[str, ExternalObject] = {}
        for resource in self.resources.values():
            existing = resource.state.observed.object
            is_listed = resource.state.provider_config == name and resource.key.kind == kind
            if (
                is_listed
                and existing is not None
                and config.scope.has(existing.name, existing.labels)
            ):
                known[f"{existing.name}\n{existing.uid}"] = existing
        return known

    async def _find_observations(
        self, name: str, kind: str, objects: Mapping[str, ExternalObject]
    ) -> dict[ResourceKey, list[IntakeData]]:
        config, known = self.configurations.by_name[name], self.kinds.find(kind)
        capabilities = None if known is None else known.capabilities
        unique = capabilities is None or capabilities.deterministic_names
        scope = config.scope
        began = ListingBegan(name, kind, next(self._positions), scope.prefix, scope.labels)
        paths = capabilities is not None and capabilities.path_names
        listing = ListingAssembler(began, self._now, unique_names=unique, path_names=paths)
        listing.add(objects.values())
        complete = listing.complete(len(objects))
        rows, damage = self._models.status, self._models.damage.values()
        findings = await compare_listing(
            listing, complete, rows, config, self._log.log_id, damage, names=self._models.names
        )
        work: dict[ResourceKey, list[IntakeData]] = {}
        for key, observation in findings.observed:
            work.setdefault(key, []).append(observation)
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
            silences=self.configurations.silences,
            # The prediction approves a new scope for each resource that it holds.
            new_scopes={} if key in self._scope_approved else self.configurations.new_scopes,
            kind=None if kind is None else with_unknown_values(kind),
            configs=self.configurations.by_name,
            withdrawn_configs=self.configurations.withdrawn,
            providers=self.kinds.providers,
            reference_graph=self._reference_graph,
            check_definition=self._definitions.check,
            check_part=self.kinds.check,
            check_part_name=self.kinds.check_name,
            missing_hint=self.kinds.missing_hint,
        )


def _listed_part(config: ProviderConfigSpec) -> tuple[object, ...]:
    """Return the settings that determine which objects the listings of a configuration contain."""
    return config.provider, config.endpoint, config.scope.prefix, config.scope.labels, config.kinds
