"""Feeds the judge the events of the simulated world, and provides its ground truth."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any

from events.external import ExternalObject
from events.intake import Declared
from events.log import Action, Operation, SpecDeclared
from events.manifest import MOVED_FROM_ANNOTATION, Fields
from events.names import KIND_DEFINITION_KIND, ResourceKey
from reconciler.ports import ResourceAppend, StoredEvent
from reconciler.provider.kind import KindRegistry
from reconciler.resource.owner_label import OWNER_LABEL, owner
from tests.judge.from_bus import read_message
from tests.judge.history import Call, Effect, History, Message, Promises, RecordedEvent
from tests.judge.judging import Finding, Judge
from tests.judge.ledger import Ledger
from tests.judge.references import mark_of, value_of
from tests.judge.turns import Turns
from tests.memory_bus.clock import seconds_of
from tests.memory_bus.decisions import Decisions
from tests.memory_bus.intake import IntakeStream
from tests.memory_bus.log import LOG_ID, LogStream
from tests.simulation.api import REFUSED_COLOR, Api, Change
from tests.simulation.provider import ListingFaults
from tests.simulation.vault import Vault, hide_secrets

PERSON = "person"
"""The source of messages from people in the simulation."""

MIN_READY_SECONDS = 5.0
"""Time for which an object must stay ready before another one that references it is created."""

_CYCLE_TEXTS = ("each would wait for the other", "the references form a cycle")


class Witness:
    """Records the run and collects violations; ``stop`` ends the run at the first one."""

    def __init__(
        self,
        log: LogStream,
        intake: IntakeStream,
        decisions: Decisions,
        api: Api,
        listing_faults: ListingFaults,
        vault: Vault,
        *,
        kinds: KindRegistry,
        damaged: Collection[ResourceKey],
        stop: Callable[[], None],
    ) -> None:
        self._log = log
        self._intake = intake
        self._decisions = decisions
        self._api = api
        self._stop = stop
        self.violations: list[str] = []
        self.turns = Turns()
        truth, traits = SimulatedTruth(api, listing_faults, vault, kinds, decisions), api.traits
        self.history = truth.history = History(
            replies=decisions.replies,
            objects=(),
            by_hand=None,
            secret_values=vault.all_values,
            people=(PERSON,),
            misnamed=api.misnamed,
            log_id=LOG_ID,
            damaged=damaged,
            promises=Promises(
                idempotency_keys=traits.idempotency_keys,
                unique_names=traits.names,
                conditional_writes=traits.conditional_writes,
                labels=traits.labels,
            ),
            truth=truth,
            is_final=True,
        )
        self.judge = Judge(self.history)
        truth.ledger = self.ledger = self.judge.ledger
        log.after_store.append(self._on_append)
        api.before_call = self._on_call
        api.after_change = self._on_change
        api.unread_loss = self.fail

    def fail(self, what: str) -> None:
        """Add a violation, and end the run."""
        self.violations.append(what)
        self._stop()

    @property
    def effects(self) -> int:
        """The number of effects of the reconciler in the API."""
        return sum(each.key is not None for each in self.ledger.effects)

    def end(self) -> list[str]:
        """Judge the world at rest."""
        self.record()
        self.history.objects = [hide_secrets(each) for each in self._api.objects.values()]
        return [str(each) for each in self.judge.end()]

    def record(self) -> None:
        """Record what the bus has stored since the last call."""
        messages = self.history.messages
        assert messages is not None
        for message in self._intake.messages[len(messages) :]:
            self.history.add(
                read_message(
                    message.position,
                    message.subject,
                    message.payload,
                    message.message_id,
                    stored_at=message.stored_at,
                    reply_to=message.reply_to,
                )
            )
        self.history.refused = {position for _, position in self._decisions.rejections}
        dead_letters = {position for _, position in self._decisions.dead_letters}
        self.history.dead_letters = dead_letters | self._decisions.given_up

    def _report(self, findings: Sequence[Finding]) -> None:
        for each in findings:
            self.fail(str(each))

    def _on_append(self, append: ResourceAppend, stored: Sequence[StoredEvent]) -> None:
        self.record()
        for text in self.turns.check_appended(append.events, [event for _, event in stored]):
            self.fail(text)
        for position, event in stored:
            recorded = RecordedEvent(position, self._api.now, event)
            self.history.log.append(recorded)
            self._report(self.judge.event(recorded))

    def _on_call(self, action: Action) -> None:
        self._report(self.judge.call(Call(self._api.now, action)))

    def _on_change(self, change: Change) -> None:
        existing = change.before or change.after
        assert existing is not None
        assert existing.uid is not None
        operation: Operation = "Update" if change.before and change.after else "Delete"
        operation = "Create" if change.before is None else operation
        key = change.key or None
        self._report(
            self.judge.effect(
                Effect(change.at, operation, existing.name, existing.uid, key, change.after)
            )
        )


class SimulatedTruth:
    """Implements ``tests.judge.history.Truth``: the actual state of the simulated API and store."""

    history: History
    ledger: Ledger

    def __init__(
        self,
        api: Api,
        listing_faults: ListingFaults,
        vault: Vault,
        kinds: KindRegistry,
        decisions: Decisions,
    ) -> None:
        self._api = api
        self._decisions = decisions
        self._listing_faults = listing_faults
        self._vault = vault
        self._kinds = kinds

    @property
    def has_copies(self) -> bool:
        """Whether another copy of the log has written to the API."""
        return self._api.has_copies

    def checked(self, kind: str, fields: Fields) -> Fields:
        existing_kind = self._kinds.find(kind)
        return fields if existing_kind is None else existing_kind.check_declared(fields)

    def is_rightly_refused(self, message: Message) -> bool:
        """Return whether it came before its kind was defined, or may have closed a cycle."""
        key, traits, log = message.key, self._api.traits, self.history.log
        if key is None or key.kind != "Shape" or not isinstance(message.data, Declared):
            return False
        is_rename = MOVED_FROM_ANNOTATION in message.data.manifest.metadata.annotations
        if not (traits.defined or traits.addresses or is_rename):
            return False
        declarations = [each for each in log if isinstance(each.event.data, SpecDeclared)]
        if any(
            (each.event.key, each.event.causationid) == (key, message.message_id)
            for each in declarations
        ):
            return False
        if is_rename:
            return True  # the resource had an object already
        if traits.addresses:
            inbox = f"_INBOX.{message.message_id}"
            replies = [each for to, each in self.history.replies or () if to == inbox]
            rejection = self._decisions.rejections.get((key, message.position))
            if rejection is not None:  # the reply may be lost, but the rejection is not
                replies.append(rejection[0].reply)
            is_refused = any(each in reply.message for reply in replies for each in _CYCLE_TEXTS)
            return is_refused and self._may_close_a_cycle(key.name)
        defined = (each.stored_at for each in log if each.event.key.kind == KIND_DEFINITION_KIND)
        return message.stored_at <= next(defined, float("inf"))

    def _may_close_a_cycle(self, name: str) -> bool:
        """Return whether any declaration so far leads from a resource back to it."""
        targets: dict[str, set[str]] = {}
        for message in (self.history.messages or {}).values():
            if message.key is not None and isinstance(message.data, Declared):
                reference = mark_of(message.data.manifest.spec.get("note"), "$ref")
                if reference is not None:
                    target = reference["$ref"].partition("/")[2]
                    targets.setdefault(message.key.name, set()).add(target)
        visited: set[str] = set()
        to_visit = [name]
        while to_visit:
            more = targets.get(to_visit.pop(), set()) - visited
            visited |= more
            to_visit += more
        return name in visited

    # --- objects

    def was_absent_within(self, name: str, uid: str | None, begin: float, end: float) -> bool:
        return self._api.was_absent_within(name, uid, begin, end)

    def was_hidden_since(self, name: str, begin: float) -> bool:
        return any(each == name and at >= begin for at, each in self._listing_faults.left_out)

    def seconds_to_expiry(self, existing: ExternalObject) -> float | None:
        end = existing.outputs.get("expires")
        return None if not end else seconds_of(datetime.fromisoformat(end)) - self._api.now

    def is_starting(self, uid: str | None) -> bool:
        return self._api.is_starting(uid)

    def is_too_recent(self, at: float) -> bool:
        return at + self._api.traits.starting_seconds + MIN_READY_SECONDS > self._api.now

    def shows_result(self, key: ResourceKey, existing: ExternalObject | None) -> bool:
        has_names = self._api.traits.names
        if existing is None or (existing.labels.get(OWNER_LABEL) and has_names):
            return True
        mark = (key.name, owner(LOG_ID, key))
        labeled = [
            each.uid
            for each in self._api.objects.values()
            if (each.name, each.labels.get(OWNER_LABEL)) == mark
        ]
        # Of two objects with one label, one has a copy, and no read shows which.
        return not has_names and len(labeled) == 1 and labeled[0] in self.ledger.creation_keys

    # --- specs

    def expected_fields(self, spec: SpecDeclared) -> Fields:
        """Return the expected fields of an object, without those that cannot be known."""
        expected: Fields = {}
        for resource in self.ledger.resources.values():
            if resource.key.kind == KIND_DEFINITION_KIND and resource.spec is not None:
                expected |= resource.spec.fields.get("constants", {})
        for name, value in spec.fields.items():
            secret, reference = mark_of(value, "$secret"), mark_of(value, "$ref")
            if secret is not None:
                expected[name] = {**secret, "digest": self._vault.digest(secret["$secret"])}
            elif reference is not None:
                reference_value = self._value(reference)
                expected |= {} if reference_value is None else {name: reference_value}
            else:
                expected[name] = value
        return expected

    def explains(self, spec: SpecDeclared, outcome: str) -> bool:
        if outcome == "Failed":
            return spec.fields.get("color") == REFUSED_COLOR
        if outcome != "Waiting":
            return False
        return any(map(self._is_missing, spec.fields.values())) or self._is_in_a_cycle(spec)

    def _is_in_a_cycle(self, spec: SpecDeclared) -> bool:
        """Return whether the references of declared resources lead from a resource back to it."""
        visited: set[str] = set()
        to_visit = [each.target for each in spec.references]
        while to_visit:
            name = to_visit.pop()
            resource = self.ledger.resource(ResourceKey.parse(name))
            if name in visited or resource.spec is None or not resource.is_declared:
                continue
            if resource.spec is spec:
                return True
            visited.add(name)
            to_visit += [each.target for each in resource.spec.references]
        return False

    def _is_missing(self, value: Any) -> bool:
        secret, reference = mark_of(value, "$secret"), mark_of(value, "$ref")
        if secret is not None:
            return not self._vault.values.get(secret["$secret"])
        return reference is not None and self._value(reference) is None

    def _value(self, reference: Fields) -> object:
        """Return the value of a reference; None unless its target is converged and known."""
        target = ResourceKey("default", "Shape", reference["$ref"].partition("/")[2])
        resource = self.ledger.resource(target)
        is_managed = not resource.policy.paused and resource.policy.mode == "Present"
        if not resource.is_declared or resource.owned is None or not is_managed:
            return None
        existing = self._api.find_by_uid(resource.owned.uid)
        if resource.outcome_name != "Converged" or existing is None:
            return None
        return value_of(reference["field"], existing)
