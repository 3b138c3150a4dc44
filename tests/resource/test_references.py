"""A spec with values from other resources (scenario 36), and the digests of secrets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from events.external import ExternalObject
from events.intake import Referenced, SecretReported, TargetReported, TargetState
from events.log import (
    ActionDecided,
    OwnershipClaimed,
    SpecDeclared,
    SpecResolved,
    TargetObserved,
)
from events.manifest import Fields
from events.reference import MAX_SECRETS, secrets_in
from events.secret import SecretRef
from projections.read_models import ReadModels, rebuild
from projections.status import StatusRow
from reconciler.provider.kind import Readiness
from tests.projections.logs import interleave
from tests.resource.building import (
    BLOCK,
    CONFIG,
    EXCLUSIVE,
    Story,
    api_object,
    every,
    names,
    only,
)

DATABASE = "default/Block/Orders"
HOST = {"$ref": "Block/Orders", "field": "outputs.host"}


class ServerFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Fields of a server, some of which may be secrets."""

    type: str
    port: int = 0
    password: str | SecretRef = ""
    tags: list[dict[str, str]] = []


def _unchanged(fields: Fields) -> Fields:
    return fields


SERVER = replace(BLOCK, schema=ServerFields, normalize=_unchanged)


def declared_server(**fields: Any) -> Story:
    story = Story(kind=SERVER)
    story.declare({"type": HOST, **fields})
    return story


def row_of(story: Story) -> StatusRow:
    return rebuild(interleave(story)).status[str(story.key)]


def report_target(story: Story, **state: Any) -> list[Any]:
    return list(story.turn(TargetReported(DATABASE, TargetState(**state))))


def ready_target(host: str = "db-1", **state: Any) -> dict[str, Any]:
    return {"declared": True, "ready": True, "values": {"outputs.host": host}, **state}


def test_36_a_resource_waits_for_a_value_and_uses_it_once_it_is_known():
    story = declared_server()
    assert (story.outcome, story.reason, story.idle) == ("Waiting", "ReferenceUnknown", True)
    report_target(story, declared=False)
    assert story.reason == "ReferenceMissing"
    report_target(story, declared=True, ready=True)
    assert story.reason == "ValueMissing"
    report_target(story, **ready_target(ready=False))
    assert story.reason == "NotReady"
    assert story.state.outcome is not None
    assert story.state.outcome.message == f"waiting for {DATABASE}: it is not ready"
    events = report_target(story, **ready_target())
    assert names(events)[:3] == ["TargetObserved", "SpecResolved", "ActionDecided"]
    assert story.action.fields == {"type": "db-1"}
    story.succeed()
    assert story.outcome == "Converged"


@pytest.mark.parametrize("is_observed", [False, True], ids=["row-forgotten", "row-kept"])
def test_a_withdrawn_resource_that_claims_an_unmanaged_object_references_nothing(is_observed: bool):
    """Otherwise a target would be kept for an object that was created without it."""
    story = Story(kind=SERVER, configs={CONFIG: EXCLUSIVE})
    story.declare({"type": HOST}, policy={"referencedFrom": ["shop"]})
    existing = api_object({"type": "Square"})
    if is_observed:
        story.observe(existing, unmanaged=(5, 5))
    assert row_of(story).refers
    assert row_of(story).referenced_from
    story.withdraw()
    assert (str(story.key) in rebuild(interleave(story)).status) is is_observed
    events = story.observe_twice(existing, unmanaged=(1, 5))
    assert only(OwnershipClaimed, events).reason == "ExclusiveScope"
    assert row_of(story).owned
    assert not row_of(story).refers
    assert not row_of(story).referenced_from, "another namespace could keep the unmanaged object"


def test_a_withdrawn_resource_references_its_targets_until_its_object_is_deleted():
    story = declared_server()
    report_target(story, **ready_target())
    story.succeed()
    story.withdraw()
    assert story.action.operation == "Delete"
    assert row_of(story).refers
    story.succeed()
    assert str(story.key) not in rebuild(interleave(story)).status


def test_a_wait_for_a_value_does_not_hide_why_the_object_is_not_ready():
    def ready(fields: Fields, existing: ExternalObject) -> Readiness:
        assert fields["type"] == "db-1", "readiness is computed from values"
        return Readiness("alarm" not in existing.outputs, "Lost", "copy the data")

    story = Story(kind=replace(SERVER, ready=ready))
    story.declare({"type": HOST})
    report_target(story, **ready_target())
    story.succeed()
    report_target(story, declared=True)
    waiting = story.state.outcome
    assert waiting is not None
    assert waiting.message == f"waiting for {DATABASE}: it has no outputs.host yet"
    story.declare({"type": HOST, "color": "Red"})  # not resolved yet
    story.observe(msgspec.structs.replace(story.existing, outputs={"alarm": "Lost"}, version="v9"))
    waiting = story.state.outcome
    assert waiting is not None
    assert (waiting.outcome, waiting.reason) == ("Waiting", "ValueMissing")
    assert waiting.message.endswith("; the object is not ready, Lost: copy the data")
    conditions = {each.type: each.reason for each in waiting.conditions}
    assert conditions == {"Converged": "ValueMissing", "Ready": "Lost"}


def test_a_changed_output_is_a_changed_input():
    story = declared_server()
    report_target(story, **ready_target())
    story.succeed()
    events = report_target(story, **ready_target("db-2"))
    assert only(SpecResolved, events).fields == {"type": "db-2"}
    assert (story.action.operation, story.action.fields) == ("Update", {"type": "db-2"})
    cause_ids = story.action.causes
    cause = next(each for each in story.log if each.id in cause_ids)
    assert isinstance(cause.data, TargetObserved)


def test_an_unchanged_target_is_not_recorded_again():
    story = declared_server()
    report_target(story, **ready_target())
    story.succeed()
    assert report_target(story, **ready_target()) == []


def test_a_target_that_is_no_longer_ready_changes_nothing():
    story = declared_server()
    report_target(story, **ready_target())
    story.succeed()
    report_target(story, **ready_target(ready=False))
    assert story.outcome == "Converged"


def test_a_resource_waits_for_a_lost_value_and_reverts_nothing():
    story = declared_server()
    report_target(story, **ready_target())
    story.succeed()
    report_target(story, declared=False)
    assert (story.outcome, story.reason, story.idle) == ("Waiting", "ReferenceMissing", True)
    report_target(story, **ready_target())
    assert story.outcome == "Converged"


def test_a_withdrawn_resource_is_deleted_even_if_it_is_waiting_for_a_value():
    story = declared_server()
    report_target(story, **ready_target())
    story.succeed()
    report_target(story, declared=False)
    story.withdraw()
    assert story.action.operation == "Delete"


def test_a_value_that_the_kind_does_not_accept_is_reported_with_the_reason():
    story = declared_server(port={"$ref": "Block/Orders", "field": "outputs.port"})
    report_target(story, **ready_target(values={"outputs.host": "db-1", "outputs.port": "five"}))
    assert (story.outcome, story.reason, story.idle) == ("Failed", "InvalidInput", True)
    report_target(story, **ready_target(values={"outputs.host": "db-1", "outputs.port": 5}))
    assert story.action.fields["port"] == 5


def test_references_are_allowed_anywhere_in_a_spec():
    story = declared_server(tags=[{"host": HOST}, {"plain": "x"}])
    report_target(story, **ready_target())
    assert story.action.fields["tags"] == [{"host": "db-1"}, {"plain": "x"}]


def test_the_known_fields_of_a_declaration_with_references_are_checked():
    for fields, problem in (
        ({"type": HOST, "nothing": 1}, "spec.nothing: unknown field"),
        ({"port": {"$ref": "Block/Orders", "field": "outputs.port"}}, "spec.type: required"),
        ({"type": HOST, "port": "five"}, "spec.port: must be an integer, not a string"),
        ({"type": {"$ref": "Orders", "field": "outputs.host"}}, "spec.type: "),
        ({"type": {"$ref": "Block/Orders", "field": "spec.host"}}, '"field" must be'),
        ({"type": {"$ref": "Block/Orders"}}, "spec.type.field: required"),
        ({"type": {"$ref": "Block/Foo", "field": "name"}}, "references the resource itself"),
        ({"type": {**HOST, "else": 1}}, "spec.type.else: unknown field"),
    ):
        story = Story(kind=SERVER)
        assert story.declare(fields) == [], fields
        assert problem in story.reply.message


def test_a_known_cycle_is_refused():
    story = Story(kind=SERVER)
    story.turn(Referenced(DATABASE, "Keep"))
    story.declare({"type": HOST})
    assert (story.reply.accepted, story.reply.reason) == (False, "DependencyCycle")


def test_a_cycle_of_simultaneous_declarations_is_reported():
    story = declared_server()
    report_target(story, declared=True, cycle=("default/Block/Foo", DATABASE, "default/Block/Foo"))
    assert (story.outcome, story.reason) == ("Waiting", "DependencyCycle")
    assert story.state.outcome is not None
    assert "default/Block/Foo → default/Block/Orders → default/Block/Foo" in (
        story.state.outcome.message
    )


def test_a_declaration_with_different_references_drops_the_old_values():
    story = declared_server()
    report_target(story, **ready_target())
    story.succeed()
    declared = only(SpecDeclared, story.declare({"type": "plain"}))
    assert declared.references == ()
    assert story.state.desired.targets == {}
    assert story.action.fields == {"type": "plain"}
    assert report_target(story, **ready_target("db-3")) == [], (
        "it does not belong to this declaration"
    )


def test_a_recreated_resource_has_no_values_from_its_earlier_references():
    """A row is deleted with its resource; values kept only in the state would be reported again."""
    story = declared_server(password={"$secret": "db-password"})
    story.turn(SecretReported("files/db-password", "d1"))
    report_target(story, **ready_target())
    story.succeed()
    story.withdraw()
    story.succeed()
    story.declare({"type": HOST, "password": {"$secret": "db-password"}})
    models = ReadModels()
    for position, event in enumerate(story.log, 1):
        models.apply(position, event)
    row, desired = models.status[str(story.key)], story.state.desired
    assert (row.targets, row.secrets) == ({}, {"files/db-password": ""})
    assert (desired.targets, desired.secrets) == ({}, {})
    assert story.reason == "ReferenceUnknown"


def test_an_overtaken_report_reverts_nothing():
    """One of two observers had not read the events that the other one's report led to."""
    story = declared_server()
    version_before = story.state.version
    story.turn(TargetReported(DATABASE, TargetState(**ready_target("db-2")), version_before))
    assert (
        story.turn(TargetReported(DATABASE, TargetState(**ready_target("db-1")), version_before))
        == []
    )
    newer = TargetReported(DATABASE, TargetState(**ready_target("db-3")), story.state.version)
    assert only(TargetObserved, story.turn(newer)).state.values["outputs.host"] == "db-3"


def test_an_overtaken_digest_reverts_nothing():
    story = Story(kind=SERVER)
    story.declare(PASSWORD)
    version_before = story.state.version
    story.turn(SecretReported("files/db-password", "new", version_before))
    assert story.turn(SecretReported("files/db-password", "old", version_before)) == []
    assert story.state.desired.secrets == {"files/db-password": "new"}


# --- secrets

PASSWORD: Fields = {"type": "db", "password": {"$secret": "db-password"}}


def report_digest(story: Story, value: str) -> list[Any]:
    return list(story.turn(SecretReported("files/db-password", value)))


def test_a_secret_is_represented_by_its_digest_and_a_rotation_is_a_write():
    story = Story(kind=SERVER)
    story.declare(PASSWORD)
    assert (story.outcome, story.reason) == ("Waiting", "SecretMissing")
    assert "waiting for secret default/db-password (files store): " in story.outcome_message
    report_digest(story, "d1")
    assert story.action.fields["password"] == {"$secret": "db-password", "digest": "d1"}
    story.succeed()
    assert report_digest(story, "d1") == []
    report_digest(story, "d2")
    assert (story.action.operation, story.action.fields["password"]["digest"]) == ("Update", "d2")
    story.succeed()
    report_digest(story, "")
    assert (story.outcome, story.reason, story.idle) == ("Waiting", "SecretMissing", True)
    assert len(every(ActionDecided, [each.data for each in story.log])) == 2


def test_a_secret_value_used_as_a_name_is_refused_and_not_quoted():
    story = Story(kind=SERVER)
    assert story.declare({"type": "db", "password": {"$secret": "hunter2 is my password"}}) == []
    assert "hunter2" not in story.reply.message
    assert "never the secret itself" in story.reply.message


def test_the_number_of_secrets_in_a_spec_is_limited():
    story = Story(kind=SERVER)
    tags: list[Any] = [{"$secret": f"s{number}"} for number in range(MAX_SECRETS + 1)]
    story.declare({"type": "db", "tags": tags})
    assert "spec: names more than 64 secrets" in story.reply.message
    assert len(secrets_in({"tags": tags[1:] * 2})) == MAX_SECRETS


def test_the_total_length_of_referenced_fields_is_limited():
    """The row of the resource and the outcome that it waits for name all of them."""
    story = Story(kind=SERVER)
    fields = [f"outputs.{number}{'x' * 500}" for number in range(40)]
    tags: list[Any] = [{"a": {"$ref": "Block/Orders", "field": each}} for each in fields]
    story.declare({"type": "db", "tags": tags})
    assert not story.reply.accepted
    assert "the fields of all references have" in story.reply.message
    story.declare({"type": "db", "tags": tags[:30]})
    assert story.reply.accepted


def test_a_spec_with_one_value_in_many_places_is_limited():
    """A message of 20 KB would lead to events of a megabyte, and hundreds would fill the memory."""
    tags: list[Any] = [{"a": HOST}] * 500
    story = declared_server(tags=tags)
    report_target(story, **ready_target("x" * 1_000))
    assert (story.outcome, story.reason) == ("Failed", "InvalidInput")
    assert "more than the limit of 65536" in story.outcome_message
    assert not every(SpecResolved, report_target(story, **ready_target("x" * 2_000)))
    assert every(SpecResolved, report_target(story, **ready_target("x" * 100)))


def test_the_lists_of_a_policy_have_limited_lengths():
    for name, entry in (("ignoreFields", "color"), ("referencedFrom", "shop")):
        story = Story(kind=SERVER)
        story.declare({"type": "db", "policy": {name: [entry] * 257}})
        assert f"spec.policy.{name}: has 257 entries" in story.reply.message
        story.declare({"type": "db", "policy": {name: [entry] * 256}})
        assert story.reply.accepted


def test_a_declared_digest_is_refused():
    story = Story(kind=SERVER)
    story.declare({"type": "db", "password": {"$secret": "db-password", "digest": "mine"}})
    assert "must not be declared" in story.reply.message


# --- targets that may be ready for a moment only


def test_a_target_that_has_not_stayed_ready_does_not_release_a_creation():
    story = declared_server()
    state = {**ready_target(), "ready": False, "momentary": True}
    events = report_target(story, **state)
    assert names(events) == ["TargetObserved", "OutcomeRecorded"]
    assert (story.outcome, story.reason) == ("Waiting", "NotReady")
    assert story.outcome_message == f"waiting for {DATABASE} to stay ready"
    report_target(story, **ready_target())
    assert story.action.operation == "Create"
