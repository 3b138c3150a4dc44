"""A sound history has no findings, and each rule finds its breach in another history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from msgspec.structs import replace

from events.external import ExternalObject
from events.intake import (
    ActionError,
    Declared,
    LossCount,
    NewerObject,
    Observed,
    Reply,
    Reported,
    UndeclaredObjects,
    Withdrawn,
)
from events.kind_definition import DefinitionRef
from events.log import (
    Action,
    ActionAbandoned,
    ActionDecided,
    ActionFailed,
    ActionHeld,
    ActionRetried,
    ActionSucceeded,
    DefinitionObserved,
    DriftDetected,
    ExternalObserved,
    FinalizerAdded,
    FinalizerRemoved,
    HoldApproved,
    LogEvent,
    MovedObject,
    Operation,
    OutcomeRecorded,
    OwnershipClaimed,
    OwnershipReleased,
    ReferenceAdded,
    ReferenceRemoved,
    ReleaseForced,
    ResourceEvent,
    RetryScheduled,
    SpecDeclared,
    SpecResolved,
    SpecWithdrawn,
    TwinDetected,
    UndeclaredCounted,
    UsersCounted,
    event_id,
    event_type,
)
from events.manifest import Fields, InvalidManifestError, Manifest, Metadata, Policy
from events.names import SYSTEM_NAMESPACE, ResourceKey
from events.provider_config import (
    PROVIDER_CONFIG_KIND,
    DeletionGuard,
    LossGuard,
    ProviderConfigSpec,
    Scope,
)
from events.reference import Reference
from tests.judge.history import (
    AcknowledgedMessage,
    Call,
    Effect,
    History,
    Message,
    Promises,
    RecordedEvent,
)
from tests.judge.judging import INVARIANTS, findings, skipped_rules
from tests.judge.ledger import OWNER_LABEL
from tests.judge.log import undecided_for_long
from tests.judge.rule import RULES

FOO = ResourceKey("default", "Shape", "foo")
GONE = ResourceKey("default", "Shape", "gone")
BAR = ResourceKey("default", "Shape", "bar")
CONFIG = ResourceKey(SYSTEM_NAMESPACE, PROVIDER_CONFIG_KIND, "default")
RED: Fields = {"type": "Square", "color": "Red"}
NOW = datetime(2030, 1, 1, tzinfo=UTC)
UNKNOWN = ActionError("Unknown", "no response")
SPEC = SpecDeclared(1, "shapes/v1", "default", "foo", RED)
BAR_ABSENT = ExternalObserved("default", "bar", None, "CompleteListing", 99)


def action(key: ResourceKey, version: int, operation: Operation, **more: Any) -> Action:
    name = key.name
    plain = Action(
        event_id(key, version), f"key-{name}-{version}", operation, 1, "default", name, ()
    )
    return replace(plain, **more)


def make_object(name: str, fields: Fields = RED, **more: Any) -> ExternalObject:
    return replace(ExternalObject(name, fields, f"uid-{name}"), **more)


@dataclass
class FixedTruth:
    """The truth about a world, as a test sets it."""

    absent: bool = True
    starting: bool = False
    seconds_left: float | None = None
    recent: bool = False
    shows: bool = False
    explained: bool = False
    has_copies: bool = False

    def checked(self, kind: str, fields: Fields) -> Fields:
        return fields

    def is_rightly_refused(self, message: Message) -> bool:
        return False

    def was_absent_within(self, name: str, uid: str | None, begin: float, end: float) -> bool:
        return self.absent

    def was_hidden_since(self, name: str, begin: float) -> bool:
        return False

    def seconds_to_expiry(self, existing: ExternalObject) -> float | None:
        return self.seconds_left

    def is_starting(self, uid: str | None) -> bool:
        return self.starting

    def is_too_recent(self, at: float) -> bool:
        return self.recent

    def shows_result(self, key: ResourceKey, existing: ExternalObject | None) -> bool:
        return self.shows

    def expected_fields(self, spec: SpecDeclared) -> Fields:
        return spec.fields

    def explains(self, spec: SpecDeclared, outcome: str) -> bool:
        return self.explained


@dataclass
class Story:
    """A history under construction; the clock advances once for each record."""

    history: History = field(default_factory=lambda: History(objects=[]))
    clock: float = 0.0

    def message(self, key: ResourceKey | None, data: Any, position: int = 0) -> int:
        messages = self.history.messages
        assert messages is not None
        number = position or len(messages) + 1
        self.history.add(Message(number, key, f"m{number}", "team-a", data, self.clock))
        return number

    def record(
        self,
        key: ResourceKey,
        *events: ResourceEvent,
        cause: int = 99,
        message_id: str = "",
        actor: str = "team-a",
        **envelope: Any,
    ) -> None:
        for data in events:
            version = 1 + sum(each.event.key == key for each in self.history.log)
            self.clock += 1
            event = LogEvent(
                id=event_id(key, version),
                source="reconciler",
                type=event_type(data),
                subject=str(key),
                time=NOW + timedelta(seconds=self.clock),
                resourceversion=version,
                data=data,
                causationid=message_id or f"m{cause}",
                causationposition=cause,
                actor=actor,
            )
            event = replace(event, **envelope)
            self.history.log.append(RecordedEvent(len(self.history.log) + 1, self.clock, event))

    def effect(
        self, operation: Operation, name: str, key: str | None, uid: str = "", **more: Any
    ) -> None:
        self.clock += 1
        effects = self.history.effects
        assert effects is not None
        effects.append(Effect(self.clock, operation, name, uid or f"uid-{name}", key, **more))

    def exists(self, *existing: ExternalObject) -> None:
        self.history.objects = list(existing)

    def configure(self, **settings: Any) -> None:
        spec = ProviderConfigSpec(provider="shapes", endpoint="http://localhost", **settings)
        fields = msgspec.to_builtins(spec, str_keys=True)
        name = CONFIG.name
        manifest = Manifest("v1", CONFIG.kind, Metadata(name, CONFIG.namespace), fields)
        cause = self.message(CONFIG, Declared(manifest))
        self.record(CONFIG, SpecDeclared(1, "v1", "", name, fields), cause=cause)
        self.record(CONFIG, OutcomeRecorded("Converged", 1, "AsDeclared"), cause=cause)

    def create(self, key: ResourceKey) -> None:
        """Declare a resource; it is created and converges."""
        cause = self.message(key, declared(key))
        create = action(key, 2, "Create")
        spec = SpecDeclared(1, "shapes/v1", "default", key.name, RED)
        self.record(key, spec, ActionDecided(create), cause=cause)
        self.effect("Create", key.name, create.idempotency_key, after=make_object(key.name))
        result = self.message(key, Reported(create.action_id, 1, NOW, NOW, "worker"))
        success = ActionSucceeded(create.action_id, "Create", 1, make_object(key.name))
        self.record(key, success, OutcomeRecorded("Converged", 1, "AsDeclared"), cause=result)


def declared(key: ResourceKey, fields: Fields = RED) -> Declared:
    return Declared(Manifest("shapes/v1", key.kind, Metadata(key.name, key.namespace), fields))


def sound_story() -> Story:
    """Foo exists as declared; Gone was created, withdrawn and deleted on the second attempt."""
    story = Story()
    story.create(FOO)
    story.create(GONE)
    cause = story.message(GONE, Withdrawn())
    delete = action(GONE, 6, "Delete", uid="uid-gone")
    story.record(GONE, SpecWithdrawn(2), ActionDecided(delete), cause=cause)
    story.effect("Delete", "gone", delete.idempotency_key)
    story.record(
        GONE,
        ActionFailed(delete.action_id, "Delete", 1, UNKNOWN),
        RetryScheduled(NOW, 1, "Unknown", delete.action_id),
        ActionRetried(delete, 2),
        ActionSucceeded(delete.action_id, "Delete", 2, None, True),
        OutcomeRecorded("Deleted", 2, "Withdrawn"),
        cause=cause + 1,
    )
    story.exists(make_object("foo"))
    return story


def broken_rules(story: Story) -> set[str]:
    return {each.rule for each in findings(story.history)}


def test_a_sound_history_has_no_findings() -> None:
    story = sound_story()
    story.history.acknowledged = [AcknowledgedMessage(FOO, "m1")]
    assert findings(story.history) == []


def test_a_sound_history_has_no_findings_by_the_simulation_rules() -> None:
    story = sound_story()
    story.history.truth, story.history.replies = FixedTruth(), []
    story.history.is_final = True
    assert skipped_rules(story.history) == []
    assert findings(story.history) == []


BREACHES: dict[str, tuple[str, Callable[[Story], None]]] = {}
_Break = TypeVar("_Break", bound=Callable[[Story], None])


def breaks_rule(rule: str) -> Callable[[_Break], _Break]:
    def add(change: _Break) -> _Break:
        BREACHES[change.__name__] = (rule, change)
        return change

    return add


# --- the log


@breaks_rule("versions")
def a_gap_in_the_versions(story: Story) -> None:
    del story.history.log[6]


@breaks_rule("versions")
def two_events_of_one_version(story: Story) -> None:
    story.history.log.append(story.history.log[0]._replace(stored_at=99.0))


@breaks_rule("versions")
def events_out_of_order(story: Story) -> None:
    story.record(FOO, DriftDetected(1), DriftDetected(1))
    log = story.history.log
    log[-2:] = [log[-2]._replace(event=log[-1].event), log[-1]._replace(event=log[-2].event)]


@breaks_rule("generations")
def a_message_that_creates_two_generations(story: Story) -> None:
    story.record(FOO, replace(SPEC, generation=2), cause=1)


@breaks_rule("repetitions")
def a_repeated_message_that_creates_a_generation(story: Story) -> None:
    story.history.replies = [("_INBOX.m50", Reply(True, "Unchanged", 1, 50))]
    story.record(FOO, replace(SPEC, generation=2), cause=60, message_id="m50")


# --- declarations


@breaks_rule("undecided_message")
def a_declaration_that_led_to_nothing(story: Story) -> None:
    story.message(BAR, declared(BAR), 50)


@breaks_rule("undecided_message")
def a_withdrawal_that_led_to_nothing(story: Story) -> None:
    story.message(FOO, Withdrawn(), 50)


@breaks_rule("undecided_message")
def an_unreadable_message_that_is_not_a_dead_letter(story: Story) -> None:
    story.message(None, None, 50)


@breaks_rule("lost_message")
def an_acknowledged_declaration_that_is_lost(story: Story) -> None:
    story.history.acknowledged = [AcknowledgedMessage(BAR, "m77")]


@breaks_rule("outdated_declaration")
def an_older_declaration_that_prevails(story: Story) -> None:
    story.message(FOO, declared(FOO, {"color": "Blue"}), 50)
    story.record(FOO, replace(SPEC, generation=2), cause=50)


@breaks_rule("outdated_declaration")
def a_default_that_only_a_kind_could_know(story: Story) -> None:
    story.history.truth = FixedTruth()
    story.message(FOO, declared(FOO), 50)
    story.record(FOO, replace(SPEC, fields={**RED, "size": 1}), cause=50)


@breaks_rule("outdated_declaration")
def a_withdrawal_that_is_forgotten(story: Story) -> None:
    story.message(FOO, Withdrawn(), 50)
    story.record(FOO, SpecWithdrawn(2), cause=50)
    story.record(FOO, replace(SPEC, generation=3), cause=1)


# --- actions


@breaks_rule("changed_action")
def an_attempt_with_different_parameters(story: Story) -> None:
    story.record(GONE, ActionRetried(action(GONE, 6, "Delete", uid="another"), 3))


@breaks_rule("changed_action")
def a_key_shared_by_two_actions(story: Story) -> None:
    again = action(FOO, 5, "Update", idempotency_key="key-foo-2")
    story.record(FOO, ActionDecided(again))


@breaks_rule("changed_action")
def an_action_with_another_actions_id(story: Story) -> None:
    story.record(FOO, ActionDecided(action(FOO, 7, "Update")))


@breaks_rule("parallel_action")
def two_actions_in_flight(story: Story) -> None:
    story.record(FOO, ActionDecided(action(FOO, 5, "Update")))
    story.record(FOO, ActionDecided(action(FOO, 6, "Update")))


@breaks_rule("misattributed_deletion")
def a_deletion_of_our_own_as_drift(story: Story) -> None:
    story.record(FOO, ActionDecided(action(FOO, 5, "Delete")))
    story.effect("Delete", "foo", "key-foo-5")
    story.record(FOO, DriftDetected(1, missing=True))


@breaks_rule("invented_twin")
def an_api_that_is_held_for_an_invented_copy_of_the_log(story: Story) -> None:
    story.history.truth = FixedTruth()
    newer = NewerObject("Shape", "foo", "u1", "default/Shape/foo@9", 4)
    story.record(FOO, TwinDetected((newer,), 1))


@breaks_rule("newer_object_overwritten")
def an_update_of_an_object_that_a_copy_of_the_log_wrote(story: Story) -> None:
    story.history.truth = FixedTruth()
    labels = {OWNER_LABEL: f"log1.{FOO.tokens}"}
    written_object = make_object("foo", labels=labels, written_by="key-of-a-copy")
    story.effect("Update", "foo", None, after=written_object)
    update = action(FOO, 5, "Update", uid="uid-foo")
    story.record(FOO, ActionDecided(update))
    story.effect("Update", "foo", update.idempotency_key)


@breaks_rule("write_to_a_held_api")
def an_action_that_begins_while_its_api_is_held(story: Story) -> None:
    newer = NewerObject("Shape", "foo", "u1", "default/Shape/foo@9", 4)
    story.record(CONFIG, TwinDetected((newer,), 1))
    story.clock += 60
    story.record(FOO, ActionDecided(action(FOO, 5, "Update")))


@breaks_rule("needless_hold")
def an_approval_requested_though_the_key_decides(story: Story) -> None:
    story.history.truth = FixedTruth()
    story.record(FOO, ActionDecided(action(FOO, 5, "Update")), ActionHeld("foo@5", "Unknown"))


@breaks_rule("needless_hold")
def an_approval_requested_though_a_read_decides(story: Story) -> None:
    story.history.truth = FixedTruth(shows=True)
    story.history.promises = Promises(idempotency_keys=False)
    story.record(FOO, ActionDecided(action(FOO, 5, "Update")), ActionHeld("foo@5", "Unknown"))


@breaks_rule("call_without_intent")
def a_call_before_its_decision(story: Story) -> None:
    story.history.calls = [Call(story.clock, action(FOO, 5, "Update"))]
    story.record(FOO, ActionDecided(action(FOO, 5, "Update")))


@breaks_rule("call_without_intent")
def a_call_with_different_parameters(story: Story) -> None:
    story.history.calls = [Call(story.clock, action(FOO, 2, "Create", fields=RED))]


@breaks_rule("effect_without_intent")
def an_effect_that_was_not_decided(story: Story) -> None:
    story.effect("Update", "foo", "other")


@breaks_rule("effect_without_intent")
def an_effect_without_a_key(story: Story) -> None:
    story.effect("Update", "foo", None)


@breaks_rule("effect_without_intent")
def an_effect_with_a_different_operation(story: Story) -> None:
    story.record(FOO, ActionDecided(action(FOO, 5, "Update")))
    story.effect("Delete", "foo", "key-foo-5")


@breaks_rule("effect_without_intent")
def an_effect_on_another_object(story: Story) -> None:
    story.record(FOO, ActionDecided(action(FOO, 5, "Update")))
    story.effect("Update", "bar", "key-foo-5", "uid-foo")


@breaks_rule("effect_without_intent")
def an_effect_before_its_decision(story: Story) -> None:
    story.effect("Update", "foo", "key-foo-5")
    story.record(FOO, ActionDecided(action(FOO, 5, "Update")))


@breaks_rule("duplicate_effect")
def two_effects_under_one_key(story: Story) -> None:
    story.effect("Delete", "gone", "key-gone-6")


@breaks_rule("duplicate_effect")
def a_later_call_before_the_first(story: Story) -> None:
    story.record(FOO, ActionDecided(action(FOO, 5, "Create")))
    story.effect("Update", "foo", "key-foo-5/2")


@breaks_rule("duplicate_object")
def two_objects_of_one_resource(story: Story) -> None:
    story.record(FOO, ActionDecided(action(FOO, 5, "Create")))
    story.effect("Create", "foo", "key-foo-5", "twin")
    story.exists(make_object("foo"), make_object("foo", uid="twin"))


def release_foo(story: Story) -> None:
    """Withdraw Foo, and release its object."""
    story.record(FOO, SpecWithdrawn(2), OwnershipReleased("foo", "uid-foo", "Orphaned"))


@breaks_rule("second_object")
def an_object_beside_one_that_was_released(story: Story) -> None:
    release_foo(story)
    story.record(FOO, replace(SPEC, generation=3), ActionDecided(action(FOO, 7, "Create")))


@breaks_rule("unmanaged")
def a_released_object_that_is_deleted_as_unmanaged(story: Story) -> None:
    release_foo(story)
    story.record(BAR, OwnershipClaimed("foo", "uid-foo", "ExclusiveScope"))


def release_to_bar(story: Story) -> None:
    """Withdraw Foo, and release its object, which Bar takes over."""
    moved = OwnershipReleased("foo", "uid-foo", "Moved", moved_to=str(BAR))
    story.record(FOO, SpecWithdrawn(2), moved)


def claim_by_bar() -> OwnershipClaimed:
    """Return the claim of Foo's object by Bar."""
    moved = MovedObject(str(FOO), make_object("foo"))
    return OwnershipClaimed("foo", "uid-foo", "Moved", moved=moved)


def test_a_moved_object_has_one_owner() -> None:
    story = sound_story()
    story.record(BAR, replace(SPEC, moved_from=str(FOO)))
    release_to_bar(story)
    story.record(BAR, claim_by_bar())
    assert not broken_rules(story) & {"no_owner", "no_last_owner", "second_owner", "ownership"}


@breaks_rule("no_owner")
def a_moved_object_that_is_not_claimed_in_the_same_batch(story: Story) -> None:
    release_to_bar(story)
    story.record(GONE, OutcomeRecorded("Deleted", 2, "Withdrawn"))
    story.record(BAR, claim_by_bar())


@breaks_rule("no_last_owner")
def a_moved_object_that_is_never_claimed(story: Story) -> None:
    release_to_bar(story)


@breaks_rule("second_owner")
def a_claim_of_an_object_that_another_resource_owns(story: Story) -> None:
    story.record(BAR, claim_by_bar())


@breaks_rule("deletion_of_anothers_object")
def a_deletion_of_another_resources_object(story: Story) -> None:
    story.record(BAR, OwnershipClaimed("foo", "uid-foo", "ExclusiveScope"))
    story.record(BAR, ActionDecided(action(BAR, 2, "Delete", uid="uid-foo")))


@breaks_rule("unexplained_effect")
def an_effect_that_failed_according_to_the_log(story: Story) -> None:
    story.record(FOO, ActionDecided(action(FOO, 5, "Update")))
    story.effect("Update", "foo", "key-foo-5")
    failed = ActionFailed(event_id(FOO, 5), "Update", 1, ActionError("Refused", "no"))
    story.record(FOO, failed, OutcomeRecorded("Failed", 1, "Refused"))


@breaks_rule("outdated_call")
def a_refused_call_that_is_repeated_for_an_older_generation(story: Story) -> None:
    create = action(BAR, 2, "Create")
    spec = replace(SPEC, external_name="bar")
    refused = ActionFailed(create.action_id, "Create", 1, ActionError("NotDone", "no"))
    story.record(BAR, spec, ActionDecided(create), refused)
    story.record(BAR, replace(spec, generation=2), ActionRetried(create, 2))


@breaks_rule("abandoned_in_doubt")
def an_action_that_is_abandoned_before_a_lookup(story: Story) -> None:
    story.record(FOO, ActionDecided(action(FOO, 5, "Update")))
    story.record(FOO, ActionFailed(event_id(FOO, 5), "Update", 1, UNKNOWN))
    story.record(FOO, ActionAbandoned(event_id(FOO, 5), "Update", "newer", in_doubt=True))


@breaks_rule("unexplained_effect")
def an_effect_of_an_abandoned_action(story: Story) -> None:
    story.record(FOO, ActionDecided(action(FOO, 5, "Update")))
    story.effect("Update", "foo", "key-foo-5")
    story.record(FOO, ActionAbandoned(event_id(FOO, 5), "Update", "Superseded"))


@breaks_rule("unrecorded_success")
def a_reported_success_that_the_log_lacks(story: Story) -> None:
    story.record(FOO, ActionDecided(action(FOO, 5, "Update")))
    story.message(FOO, Reported(event_id(FOO, 5), 1, NOW, NOW, "worker"))
    story.record(FOO, ActionAbandoned(event_id(FOO, 5), "Update", "Superseded"))


@breaks_rule("unrecorded_success")
def a_reported_second_object_that_the_log_lacks(story: Story) -> None:
    story.message(FOO, Reported(event_id(FOO, 2), 1, NOW, NOW, "worker", None, make_object("foo")))
    second = make_object("foo", uid="uid-second")
    story.message(FOO, Reported(event_id(FOO, 2), 1, NOW, NOW, "worker-2", None, second))


@breaks_rule("unfinished_action")
def an_action_without_an_end(story: Story) -> None:
    story.record(FOO, ActionDecided(action(FOO, 5, "Update")))


@breaks_rule("unfinished_action")
def a_failure_that_leads_to_nothing(story: Story) -> None:
    story.record(FOO, ActionDecided(action(FOO, 5, "Update")))
    story.record(FOO, ActionFailed(event_id(FOO, 5), "Update", 1, UNKNOWN))


@breaks_rule("unfinished_action")
def a_retry_that_is_still_scheduled_in_a_final_history(story: Story) -> None:
    a_failure_that_leads_to_nothing(story)
    story.record(FOO, RetryScheduled(NOW, 1, "Unknown", event_id(FOO, 5)))
    story.history.is_final = True


# --- ownership


@breaks_rule("foreign_effect")
def a_deletion_of_an_object_never_owned(story: Story) -> None:
    story.record(FOO, ActionDecided(action(FOO, 5, "Delete")))
    story.effect("Delete", "foo", "key-foo-5", "stranger")


@breaks_rule("foreign_effect")
def an_update_of_a_released_object(story: Story) -> None:
    story.record(FOO, OwnershipReleased("foo", "uid-foo", "Orphaned"))
    story.record(FOO, ActionDecided(action(FOO, 6, "Update")))
    story.effect("Update", "foo", "key-foo-6")


@breaks_rule("unfounded_claim")
def an_adoption_against_the_policy(story: Story) -> None:
    story.record(FOO, OwnershipClaimed("foo", "human-1", "Adopted"))


@breaks_rule("unfounded_claim")
def a_claim_by_an_exclusive_scope_that_is_shared(story: Story) -> None:
    story.configure()
    story.record(FOO, OwnershipClaimed("foo", "human-1", "ExclusiveScope", "default"))


@breaks_rule("unfounded_claim")
def a_claim_by_a_label_in_a_config_that_ignores_labels(story: Story) -> None:
    story.configure()
    story.record(FOO, OwnershipClaimed("foo", "human-1", "Label", "default"))


@breaks_rule("unfounded_claim")
def a_return_of_an_object_never_owned(story: Story) -> None:
    story.record(FOO, OwnershipClaimed("foo", "human-1", "Returned"))


@breaks_rule("unfounded_claim")
def a_found_object_that_we_did_not_create(story: Story) -> None:
    story.history.log_id = "log1"
    story.record(FOO, OwnershipClaimed("foo", "human-1", "Found"))


@breaks_rule("unfounded_claim")
def a_second_found_object_under_a_name_that_we_never_used(story: Story) -> None:
    story.history.log_id = "log1"
    copy = make_object("zoo", uid="human-1", labels={OWNER_LABEL: f"log1.{FOO.tokens}"})
    story.record(FOO, OwnershipClaimed("zoo", "human-1", "Found", object=copy))


@breaks_rule("foreign_success")
def a_creation_of_another_clients_object(story: Story) -> None:
    story.record(FOO, ActionDecided(action(FOO, 5, "Create")))
    success = ActionSucceeded(event_id(FOO, 5), "Create", 1, make_object("foo", uid="human-1"))
    story.record(FOO, success)


@breaks_rule("leftover_label")
def a_release_that_leaves_our_label(story: Story) -> None:
    story.history.log_id = "log1"
    labels = {OWNER_LABEL: "log1.default.Shape.foo"}
    observation = ExternalObserved(
        "default", "foo", make_object("foo", labels=labels), "CompleteListing", 90
    )
    story.record(FOO, observation, OwnershipReleased("foo", "uid-foo", "Orphaned"))


# --- absence


def observation(existing: ExternalObject | None, as_of: int = 90) -> ExternalObserved:
    return ExternalObserved("default", "foo", existing, "CompleteListing", as_of)


@breaks_rule("late_observation")
def an_observation_from_before_our_effect(story: Story) -> None:
    story.record(FOO, observation(make_object("foo"), 1))


@breaks_rule("late_observation")
def an_observation_while_an_action_is_in_flight(story: Story) -> None:
    story.record(FOO, ActionDecided(action(FOO, 5, "Update")), observation(make_object("foo")))


@breaks_rule("observation_within_grace")
def an_observation_within_the_grace(story: Story) -> None:
    story.configure(consistency_grace_seconds=3600.0)
    began = NOW + timedelta(seconds=story.clock)
    observed = Observed("default", "foo", make_object("foo"), "CompleteListing", 40, began)
    story.record(FOO, observation(make_object("foo")), cause=story.message(FOO, observed, 98))


@breaks_rule("false_absence")
def an_absence_that_never_occurred(story: Story) -> None:
    story.history.truth = FixedTruth(absent=False)
    cause = story.message(FOO, Observed("default", "foo", None, "CompleteListing", 40), 98)
    story.record(FOO, observation(None), cause=cause)


@breaks_rule("false_absence")
def an_absence_while_another_resource_owns_the_object(story: Story) -> None:
    _report_bar_missing(story, OwnershipClaimed("bar", "human-1", "ExclusiveScope"))


def test_an_object_that_another_resource_is_deleting_is_not_considered_missing() -> None:
    story, delete = sound_story(), action(GONE, 12, "Delete", external_name="bar", uid="human-1")
    claim = OwnershipClaimed("bar", "human-1", "ExclusiveScope")
    _report_bar_missing(story, claim, ActionDecided(delete))
    assert "false_absence" not in broken_rules(story)


def test_an_object_of_another_resource_is_not_missing_where_names_are_not_unique() -> None:
    story = sound_story()
    story.history.promises = Promises(unique_names=False)
    _report_bar_missing(story, OwnershipClaimed("bar", "human-1", "ExclusiveScope"))
    assert "false_absence" not in broken_rules(story)


def _report_bar_missing(story: Story, *of_another: ResourceEvent) -> None:
    """Record that a listing has no object for Bar, after events of another resource."""
    story.history.truth = FixedTruth(absent=False)
    story.record(GONE, *of_another)
    cause = story.message(BAR, Observed("default", "bar", None, "CompleteListing", 40), 98)
    story.record(BAR, replace(BAR_ABSENT, as_of=40), cause=cause)


@breaks_rule("implausible_loss")
def a_mass_loss_that_is_accepted(story: Story) -> None:
    story.configure(loss_guard=LossGuard(min_count=2))
    observed = Observed("default", "foo", None, "CompleteListing", 40, losses=LossCount(3, 4))
    story.record(FOO, observation(None), cause=story.message(FOO, observed, 98))


@breaks_rule("early_renewal")
def a_renewal_before_the_expiry(story: Story) -> None:
    story.history.truth = FixedTruth(seconds_left=60.0)
    story.record(FOO, ActionDecided(action(FOO, 5, "Update", purpose="Renew")))


@breaks_rule("early_retirement")
def a_retirement_before_the_new_object_is_ready(story: Story) -> None:
    story.history.truth = FixedTruth(starting=True)
    story.record(FOO, ActionDecided(action(FOO, 5, "Delete", purpose="Retire")))


# --- holds


@breaks_rule("finalizers")
def a_finalizer_added_for_another_service(story: Story) -> None:
    story.record(FOO, FinalizerAdded("backup", "backup"), actor="billing")


@breaks_rule("finalizers")
def a_finalizer_that_another_service_removes(story: Story) -> None:
    story.record(FOO, FinalizerAdded("backup", "backup"), actor="backup")
    story.record(FOO, FinalizerRemoved("backup"), actor="billing")


@breaks_rule("finalizers")
def a_declared_resource_that_is_forced(story: Story) -> None:
    story.record(FOO, ReleaseForced("because"))


@breaks_rule("unheeded_hold")
def a_deletion_under_a_finalizer(story: Story) -> None:
    story.record(FOO, FinalizerAdded("backup", "backup"), actor="backup")
    story.record(FOO, SpecWithdrawn(2), ActionDecided(action(FOO, 7, "Delete")))


@breaks_rule("unheeded_hold")
def a_release_of_a_referenced_object(story: Story) -> None:
    story.record(FOO, ReferenceAdded("default/ShapeRef/r", "Keep"), SpecWithdrawn(2))
    story.record(FOO, OwnershipReleased("foo", "uid-foo", "Orphaned"))


@breaks_rule("approvals")
def an_approval_by_a_service(story: Story) -> None:
    story.history.people = ["person"]
    story.record(FOO, OutcomeRecorded("Held", 1, "LossGuard"), HoldApproved("LossGuard"))


@breaks_rule("approvals")
def an_approval_of_a_hold_that_does_not_exist(story: Story) -> None:
    story.record(FOO, HoldApproved("LossGuard"))


@breaks_rule("approvals")
def an_approval_of_a_plan_without_a_request(story: Story) -> None:
    story.record(FOO, HoldApproved("Approval", plan="another"))


@breaks_rule("unapproved_action")
def an_action_that_no_person_approved(story: Story) -> None:
    story.configure(approve="Always")
    story.record(FOO, ActionDecided(action(FOO, 5, "Update")))


@breaks_rule("unapproved_action")
def a_deletion_that_the_policy_has_approved_first(story: Story) -> None:
    story.record(FOO, replace(SPEC, generation=2, policy=Policy(approve="Deletions")))
    story.record(FOO, ActionDecided(action(FOO, 6, "Delete")))


@breaks_rule("unapproved_loss")
def a_deletion_that_gives_up_data_without_approval(story: Story) -> None:
    story.record(FOO, ActionDecided(action(FOO, 5, "Delete", data_loss="2 rows")))


@breaks_rule("unmanaged")
def one_of_many_unmanaged_objects_that_is_claimed(story: Story) -> None:
    story.configure(deletion_guard=DeletionGuard(max_count=2))
    observation = ExternalObserved(
        "default", "bar", make_object("bar"), "CompleteListing", 90, 3, 9
    )
    claimed = OwnershipClaimed("bar", "uid-bar", "ExclusiveScope", "default")
    story.record(BAR, observation, claimed)


@breaks_rule("unmanaged")
def a_referenced_unmanaged_object_that_is_claimed(story: Story) -> None:
    claimed = OwnershipClaimed("bar", "uid-bar", "ExclusiveScope", "default")
    story.record(BAR, ReferenceAdded("default/ShapeRef/r", "Keep"), claimed)


@breaks_rule("unapproved_scope")
def an_undeclared_object_that_is_claimed_before_its_scope_is_approved(story: Story) -> None:
    story.configure(scope=Scope(mode="Exclusive"))
    story.record(CONFIG, UndeclaredCounted({"Shape": UndeclaredObjects(1, 3, ("bar",))}))
    story.record(BAR, OwnershipClaimed("bar", "uid-bar", "ExclusiveScope", "default"))


@breaks_rule("configuration_in_use")
def a_configuration_that_ends_while_a_resource_has_an_object(story: Story) -> None:
    story.configure()
    ended = OutcomeRecorded("Deleted", 2, "Withdrawn")
    story.record(CONFIG, SpecWithdrawn(2, until_unused=True), UsersCounted(0), ended)


@breaks_rule("redefinitions")
def a_replacement_of_many_by_a_definition(story: Story) -> None:
    story.configure(deletion_guard=DeletionGuard(max_count=2))
    story.record(FOO, DefinitionObserved(DefinitionRef(2, "d2", affected=3, total=9)))
    story.record(FOO, ActionDecided(action(FOO, 6, "Delete", purpose="Replace")))


# --- inputs


@breaks_rule("secrets")
def a_secret_in_the_log(story: Story) -> None:
    story.history.secret_values = ["hunter2-planted"]
    story.record(FOO, observation(make_object("foo", outputs={"note": "hunter2-planted"})))


@breaks_rule("secrets")
def a_secret_in_the_log_in_base64(story: Story) -> None:
    story.history.secret_values = ["hunter2-planted"]
    story.record(FOO, observation(make_object("foo", outputs={"note": "aHVudGVyMi1wbGFudGVk"})))


def reference(story: Story, value: str) -> None:
    fields = {**RED, "color": {"$ref": "Shape/gone", "field": "uid"}}
    story.record(FOO, replace(SPEC, generation=2, fields=fields))
    story.record(FOO, SpecResolved(2, {**RED, "color": value}))


@breaks_rule("reference_value")
def a_value_that_a_reference_never_had(story: Story) -> None:
    story.history.truth = FixedTruth()
    reference(story, "uid-other")


@breaks_rule("reference_value")
def a_value_of_a_target_that_is_not_ready(story: Story) -> None:
    story.history.truth = FixedTruth(recent=True)
    reference(story, "uid-gone")


# --- the end


@breaks_rule("missing_outcome")
def a_generation_without_an_outcome(story: Story) -> None:
    story.record(FOO, replace(SPEC, generation=2), cause=1)


@breaks_rule("loss")
def a_declared_resource_that_is_missing(story: Story) -> None:
    story.exists()


@breaks_rule("loss")
def a_declared_resource_that_is_different(story: Story) -> None:
    story.exists(make_object("foo", {**RED, "color": "Green"}))


@breaks_rule("loss")
def a_declared_resource_without_its_label(story: Story) -> None:
    story.record(FOO, replace(SPEC, labels={"team": "a"}), cause=1)
    story.record(FOO, OutcomeRecorded("Converged", 1, "AsDeclared"))


@breaks_rule("loss")
def a_declared_resource_that_has_not_converged(story: Story) -> None:
    story.record(FOO, OutcomeRecorded("Waiting", 1, "Reference"))


@breaks_rule("loss")
def an_outcome_that_its_spec_does_not_explain(story: Story) -> None:
    story.history.truth = FixedTruth(explained=False)
    story.record(FOO, OutcomeRecorded("Failed", 1, "Refused"))


@breaks_rule("loss")
def an_object_that_expired(story: Story) -> None:
    story.history.truth = FixedTruth(seconds_left=-1.0)


@breaks_rule("loss")
def a_name_that_belongs_to_nothing(story: Story) -> None:
    story.record(FOO, OwnershipReleased("foo", "uid-foo", "Gone", "default"))
    story.record(FOO, OutcomeRecorded("Conflict", 1, "OwnedByAnother"))
    story.exists()


@breaks_rule("loss")
def an_owned_object_that_is_missing(story: Story) -> None:
    story.record(FOO, SpecWithdrawn(2), OutcomeRecorded("Held", 2, "Finalizer"))
    story.exists()


@breaks_rule("leak")
def a_withdrawn_resource_that_exists(story: Story) -> None:
    story.exists(make_object("foo"), make_object("gone"))


@breaks_rule("leak")
def an_absent_resource_that_exists(story: Story) -> None:
    absent = replace(SPEC, policy=Policy(mode="Absent"))
    story.record(FOO, absent, OutcomeRecorded("Converged", 1, "Absent"), cause=1)


@breaks_rule("assumed_absence")
def an_absence_that_no_read_has_shown(story: Story) -> None:
    observe_only = replace(SPEC, external_name="bar", policy=Policy(mode="ObserveOnly"))
    story.record(BAR, observe_only, OutcomeRecorded("Drifted", 1, "ObserveOnly"), cause=50)


@breaks_rule("assumed_absence")
def an_absence_from_before_the_declaration(story: Story) -> None:
    absent = replace(SPEC, external_name="bar", policy=Policy(mode="Absent"))
    story.record(BAR, replace(BAR_ABSENT, as_of=49), absent, cause=50)
    story.record(BAR, OutcomeRecorded("Converged", 1, "Absent"))


@breaks_rule("missing_outcome")
def a_first_observation_that_never_came(story: Story) -> None:
    story.history.is_final = True
    story.record(FOO, OutcomeRecorded("Waiting", 1, "AwaitingListing"))


@breaks_rule("leak")
def an_object_of_another_client_where_none_is_declared(story: Story) -> None:
    absent = replace(SPEC, policy=Policy(mode="Absent"))
    story.record(BAR, replace(absent, external_name="bar"))
    story.record(BAR, BAR_ABSENT, OutcomeRecorded("Converged", 1, "Absent"))
    story.exists(make_object("foo"), make_object("bar", uid="human-1"))


@breaks_rule("leak")
def a_withdrawn_resource_that_the_log_still_owns(story: Story) -> None:
    story.message(FOO, Withdrawn(), 50)
    story.record(FOO, SpecWithdrawn(2), OutcomeRecorded("Deleted", 2, "Withdrawn"), cause=50)


@breaks_rule("leak")
def an_object_that_the_log_does_not_own(story: Story) -> None:
    story.record(FOO, OwnershipReleased("foo", "uid-foo", "Gone"))


@breaks_rule("leak")
def an_object_of_an_action_that_no_person_abandoned(story: Story) -> None:
    """The operator only removed the holds; the reconciler abandoned the action."""
    abandoned = release_during_creation(story, orphan=False)
    story.record(BAR, abandoned, OutcomeRecorded("Deleted", 2, "Gone"))


def release_during_creation(story: Story, *, orphan: bool) -> ActionAbandoned:
    """Withdraw Bar while it is being created, remove its holds, and return its action's end."""
    create = action(BAR, 2, "Create")
    cause = story.message(BAR, declared(BAR))
    story.record(BAR, replace(SPEC, external_name="bar"), ActionDecided(create), cause=cause)
    story.effect("Create", "bar", create.idempotency_key)
    cause = story.message(BAR, Withdrawn())
    story.record(BAR, SpecWithdrawn(2), ReleaseForced("broken", orphan=orphan), cause=cause)
    story.exists(make_object("foo"), make_object("bar"))
    return ActionAbandoned(create.action_id, "Create", "abandoned", in_doubt=True)


@breaks_rule("conflict")
def a_conflict_with_nothing(story: Story) -> None:
    story.history.is_final = True
    story.record(FOO, OutcomeRecorded("Conflict", 1, "NameTaken"))
    story.exists()


@breaks_rule("conflict")
def a_conflict_with_its_own_object(story: Story) -> None:
    story.history.is_final = True
    story.record(FOO, OutcomeRecorded("Conflict", 1, "NameTaken"))


def test_a_conflict_with_an_object_that_a_renamed_resource_owns_is_sound() -> None:
    story = sound_story()
    story.history.is_final = True
    release_to_bar(story)
    story.record(BAR, claim_by_bar())
    story.record(FOO, replace(SPEC, generation=3), OutcomeRecorded("Conflict", 3, "NameTaken"))
    assert "conflict" not in broken_rules(story)


@breaks_rule("references")
def a_reference_that_only_the_target_records(story: Story) -> None:
    story.history.is_final = True
    story.record(BAR, ReferenceAdded("default/ShapeRef/r", "Keep"))


@breaks_rule("references")
def a_reference_never_reported_to_its_target(story: Story) -> None:
    story.history.is_final = True
    make_reference_bar(story, FOO)


@breaks_rule("references")
def a_reference_of_a_resource_that_only_claimed_an_unmanaged_object(story: Story) -> None:
    claim_after_withdrawal(story)
    story.record(BAR, ReferenceAdded(str(GONE), "Keep"))


def make_reference_bar(story: Story, key: ResourceKey) -> None:
    """Change the declaration of a resource so that it references Bar."""
    log = story.history.log
    index = next(number for number, each in enumerate(log) if each.event.key == key)
    spec = replace(SPEC, external_name=key.name, references=(Reference(str(BAR)),))
    log[index] = log[index]._replace(event=replace(log[index].event, data=spec))


def claim_after_withdrawal(story: Story) -> None:
    """Make Gone reference Bar and claim another object before it has an outcome."""
    story.history.is_final = True
    make_reference_bar(story, GONE)
    story.history.log.pop()
    story.record(BAR, ReferenceAdded(str(GONE), "Keep"), ReferenceRemoved(str(GONE)))
    story.record(GONE, OwnershipClaimed("gone", "human-1", "ExclusiveScope", "default"))
    story.record(GONE, OutcomeRecorded("Held", 2, "Approval"))


def test_a_withdrawn_resource_that_claims_an_unmanaged_object_references_nothing() -> None:
    story = sound_story()
    claim_after_withdrawal(story)
    assert "references" not in broken_rules(story)


@pytest.mark.parametrize("breach", BREACHES)
def test_each_breach_is_detected(breach: str) -> None:
    rule, change = BREACHES[breach]
    story = sound_story()
    change(story)
    breaches = findings(story.history)
    assert rule in {each.rule for each in breaches}, list(map(str, breaches))


def test_every_rule_has_a_history_that_breaks_it() -> None:
    assert {rule for rule, _ in BREACHES.values()} == {each.name for each in RULES}


def test_every_invariant_has_a_rule_or_an_existing_test() -> None:
    assert sorted(INVARIANTS) == list(range(1, 18))
    root = Path(__file__).parents[2]
    for number, files in INVARIANTS.items():
        rules = [each for each in RULES if number in each.invariants]
        assert rules or files, f"invariant {number}: write a rule, or name the test that proves it"
        for file in files:
            assert (root / file).is_file(), f"invariant {number}: {file} does not exist"


def test_a_message_that_waits_for_other_resources_is_detected() -> None:
    story = sound_story()
    story.message(BAR, declared(BAR), 50)
    undecided = list(undecided_for_long(story.history, now=story.clock + 11.0))
    assert "message 50" in {subject for subject, _ in undecided}
    story.history.replies = [("_INBOX.m50", Reply(True, "Accepted", 1, 50))]
    messages = story.history.messages
    assert messages is not None
    messages_with_inbox = [each._replace(reply_to="_INBOX.m50") for each in messages.values()]
    story.history.messages = {each.position: each for each in messages_with_inbox}
    assert not list(undecided_for_long(story.history, now=story.clock + 11.0))


# --- histories without a breach


def test_a_rule_is_skipped_where_the_history_lacks_its_evidence() -> None:
    story = sound_story()
    story.history.effects = story.history.objects = story.history.messages = None
    skipped = skipped_rules(story.history)
    assert {"effect_without_intent", "leak", "loss", "undecided_message", "false_absence"} <= set(
        skipped
    )
    assert findings(story.history) == []


def test_a_lost_acknowledged_declaration_is_named() -> None:
    story = sound_story()
    an_acknowledged_declaration_that_is_lost(story)
    (lost_finding,) = findings(story.history)
    assert (
        str(lost_finding) == "lost_message: default/Shape/bar: 'm77' was acknowledged, but is lost"
    )


def test_a_dead_letter_and_a_rejection_are_decisions() -> None:
    story = sound_story()
    story.history.dead_letters = {story.message(None, None, 50)}
    story.history.refused = {story.message(BAR, declared(BAR), 51)}
    assert findings(story.history) == []


def test_a_repeated_declaration_needs_no_event() -> None:
    story = sound_story()
    story.message(FOO, declared(FOO), 50)
    assert findings(story.history) == []


def test_an_out_of_band_change_needs_no_key() -> None:
    story = sound_story()
    story.effect("Update", "foo", None)
    story.history.by_hand = ["foo"]
    assert findings(story.history) == []


def test_an_object_that_the_log_released_is_not_a_leak() -> None:
    story = sound_story()
    story.message(FOO, Withdrawn(), 50)
    released = OwnershipReleased("foo", "uid-foo", "Orphaned")
    outcome = OutcomeRecorded("Released", 2, "Orphaned")
    story.record(FOO, SpecWithdrawn(2), released, outcome, cause=50)
    assert findings(story.history) == []


def test_two_released_objects_belong_to_no_resource() -> None:
    story = sound_story()
    create = action(FOO, 5, "Create", external_name="foo-2", purpose="Replace")
    story.record(FOO, ActionDecided(create))
    story.effect("Create", "foo-2", create.idempotency_key)
    success = ActionSucceeded(
        create.action_id, "Create", 1, make_object("foo-2"), purpose="Replace"
    )
    story.record(FOO, success, OutcomeRecorded("Converged", 1, "AsDeclared"))
    story.message(FOO, Withdrawn(), 50)
    releases = [OwnershipReleased(name, f"uid-{name}", "Orphaned") for name in ("foo", "foo-2")]
    story.record(
        FOO, SpecWithdrawn(2), *releases, OutcomeRecorded("Released", 2, "Orphaned"), cause=50
    )
    story.exists(make_object("foo"), make_object("foo-2"))
    assert findings(story.history) == []


def test_an_object_of_an_action_that_an_operator_abandoned_is_not_a_leak() -> None:
    """A declaration before the action ends does not undo the person's decision."""
    story = sound_story()
    abandoned = release_during_creation(story, orphan=True)
    fields = {**RED, "policy": {"mode": "ObserveOnly"}}
    spec = replace(SPEC, generation=3, external_name="bar", policy=Policy(mode="ObserveOnly"))
    outcome = OutcomeRecorded("Waiting", 3, "ReferenceMissing")
    cause = story.message(BAR, declared(BAR, fields))
    story.record(BAR, spec, abandoned, outcome, cause=cause)
    assert findings(story.history) == []


def test_an_object_that_is_kept_on_purpose_is_not_a_leak() -> None:
    story = sound_story()
    story.message(FOO, Withdrawn(), 50)
    outcome = OutcomeRecorded("Held", 2, "ProviderConfigMissing")
    story.record(FOO, SpecWithdrawn(2), outcome, cause=50)
    assert findings(story.history) == []


def test_another_clients_object_that_a_late_write_found_is_not_a_leak() -> None:
    story = sound_story()
    update = action(FOO, 5, "Update", uid="uid-foo")
    other_object = make_object("foo", uid="human-1")
    failed = ActionFailed(
        update.action_id, "Update", 1, ActionError("Conflict", "taken"), other_object
    )
    late = ActionSucceeded(update.action_id, "Update", 1, other_object, late=True, outdated=True)
    released = OwnershipReleased("foo", "uid-foo", "Replaced")
    story.record(FOO, ActionDecided(update), failed, released)
    cause = story.message(FOO, declared(FOO, {**RED, "policy": {"paused": True}}))
    paused = replace(SPEC, generation=2, policy=Policy(paused=True))
    outcome = OutcomeRecorded("Paused", 2, "PausedByPolicy")
    story.record(FOO, paused, outcome, late, cause=cause)
    story.exists(other_object)
    assert findings(story.history) == []


def test_an_action_with_a_scheduled_retry_is_not_a_breach() -> None:
    story = sound_story()
    a_failure_that_leads_to_nothing(story)
    story.record(FOO, RetryScheduled(NOW, 1, "Unknown", event_id(FOO, 5)))
    assert findings(story.history) == []


def test_a_call_in_doubt_may_arrive_after_a_release() -> None:
    story = sound_story()
    update = action(FOO, 5, "Update")
    story.record(FOO, ActionDecided(update))
    story.record(FOO, ActionAbandoned(update.action_id, "Update", "Withdrawn", in_doubt=True))
    an_object_released = OwnershipReleased("foo", "uid-foo", "Orphaned")
    story.record(FOO, SpecWithdrawn(2), an_object_released, cause=story.message(FOO, Withdrawn()))
    story.record(FOO, OutcomeRecorded("Released", 2, "Orphaned"))
    story.effect("Update", "foo", update.idempotency_key)
    assert findings(story.history) == []


def replaced_story() -> Story:
    """Foo was replaced by an object with a second name, created by two calls; it is now Blue."""
    story = Story()
    story.create(FOO)
    blue = {"type": "Square", "color": {"$ref": "Shape/bar", "field": "outputs.color"}}
    cause = story.message(FOO, declared(FOO, blue))
    create = action(FOO, 7, "Create", external_name="foo-2", purpose="Replace")
    delete = action(FOO, 9, "Delete", purpose="Retire", uid="uid-foo")
    created_object = make_object("foo-2", {**blue, "color": "Blue"})
    story.record(FOO, SpecDeclared(2, "shapes/v1", "default", "foo", blue), cause=cause)
    story.record(FOO, SpecResolved(2, created_object.fields), ActionDecided(create), cause=cause)
    story.effect("Create", "foo-2", create.idempotency_key)
    story.effect("Update", "foo-2", f"{create.idempotency_key}/2")
    success = ActionSucceeded(create.action_id, "Create", 1, created_object, purpose="Replace")
    story.record(FOO, success, ActionDecided(delete), cause=cause)
    story.effect("Delete", "foo", delete.idempotency_key)
    deleted_success = ActionSucceeded(delete.action_id, "Delete", 1, purpose="Retire")
    story.record(FOO, deleted_success, OutcomeRecorded("Converged", 2, "AsDeclared"), cause=cause)
    story.exists(created_object)
    return story


def test_a_replacement_with_a_reference_and_a_later_call_is_sound() -> None:
    assert findings(replaced_story().history) == []


def test_a_leftover_replaced_object_is_detected() -> None:
    story = replaced_story()
    story.exists(*(story.history.objects or ()), make_object("foo"))
    assert broken_rules(story) == {"duplicate_object", "leak"}


def test_an_unfinished_replacement_of_a_paused_resource_is_not_a_second_object() -> None:
    story = Story()
    story.create(FOO)
    circle: Fields = {"type": "Circle"}
    cause = story.message(FOO, declared(FOO, circle))
    create = action(FOO, 6, "Create", generation=2, external_name="foo-2", purpose="Replace")
    changed = replace(SPEC, generation=2, fields=circle)
    story.record(FOO, changed, ActionDecided(create), cause=cause)
    story.effect("Create", "foo-2", create.idempotency_key)
    story.record(FOO, ActionFailed(create.action_id, "Create", 1, UNKNOWN, purpose="Replace"))
    cause = story.message(FOO, declared(FOO, {**circle, "policy": {"paused": True}}))
    paused = replace(changed, generation=3, policy=Policy(paused=True))
    story.record(FOO, paused, OutcomeRecorded("Paused", 3, "PausedByPolicy"), cause=cause)
    story.exists(make_object("foo"), make_object("foo-2"))
    story.history.is_final = True
    assert broken_rules(story) == set()


def test_a_value_that_a_later_call_omitted_is_a_loss() -> None:
    story = replaced_story()
    story.exists(make_object("foo-2", {**RED, "color": "White"}))
    assert broken_rules(story) == {"loss"}


def test_a_later_call_belongs_to_the_object_of_its_action() -> None:
    story = replaced_story()
    effects = story.history.effects
    assert effects is not None
    story.history.effects = [
        each._replace(name="foo") if each.key == "key-foo-7/2" else each for each in effects
    ]
    assert "effect_without_intent" in broken_rules(story)


def test_a_manifest_that_a_kind_refuses_declares_nothing() -> None:
    class Refusing(FixedTruth):
        def checked(self, kind: str, fields: Fields) -> Fields:
            if fields.get("color") == "Invisible":
                raise InvalidManifestError("no such color")
            return fields

    story = sound_story()
    story.history.truth = Refusing()
    story.message(FOO, declared(FOO, {"color": "Invisible"}), 50)
    assert broken_rules(story) == {"undecided_message"}
    story.history.refused = {50}
    assert findings(story.history) == []
