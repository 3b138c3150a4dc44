"""Defects that adversarial reviews found in replacements, renewals, references and approvals."""

from __future__ import annotations

import asyncio
import hashlib
import os
from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest

from events.external import ExternalObject
from events.intake import (
    Approved,
    Declared,
    FinalizerRequested,
    ForcedRelease,
    ListingBegan,
    Observed,
    TargetReported,
    TargetState,
    UnmanagedCount,
    Withdrawn,
)
from events.log import ActionDecided
from events.manifest import Fields, InvalidManifestError
from events.provider_config import DeletionGuard, ProviderConfigSpec
from events.reference import secrets_in
from infra.secrets.environment import EnvironmentSecrets
from projections.status import StatusRow
from reconciler.provider import Capabilities
from reconciler.provider.kind import READY, Readiness
from reconciler.provider.secrets import SecretKey, SecretStores
from reconciler.resource.state import Owned, Renewal
from reconciler.roles.observer.listing import ListingAssembler, compare_listing
from reconciler.roles.sweeper.reference_index import NamedSecret, ReferenceIndex
from reconciler.roles.sweeper.sweeper import Sweeper
from tests.resource.building import (
    BLOCK,
    CONFIG,
    FOO,
    LOG_ID,
    SHARED,
    START,
    Story,
    api_object,
    every,
    manifest,
    owned_labels,
    repaint,
)
from tests.resource.test_due import LIFETIME, PassStory
from tests.resource.test_replacement import (
    BESIDE,
    BY_ID,
    CIRCLE,
    PROTECTED,
    SQUARE,
    check_rows,
    created_story,
    rows,
    succeed_starting,
)

TRIANGLE = {"type": "Triangle", "color": "Red"}
SMALLER = {**SQUARE, "size": {"w": 1}}


def owned(story: Story) -> Owned:
    assert story.state.owned is not None
    return story.state.owned


def retiring(story: Story) -> Owned:
    assert story.state.retiring is not None
    return story.state.retiring


def renewal(story: Story) -> Renewal:
    assert story.state.renewal is not None
    return story.state.renewal


def complete_listing(story: Story, *objects: ExternalObject) -> list[tuple[str, Observed]]:
    """Return the observations that an observer publishes for a complete listing."""
    row, _ = rows(story)
    assembler = ListingAssembler(
        ListingBegan(CONFIG, "Block", story.position),
        None,
        unique_names=story.context.capabilities.deterministic_names,
    )
    assembler.add(objects)
    observed_objects = assembler.complete(len(objects))
    findings = asyncio.run(
        compare_listing(assembler, observed_objects, {str(FOO): row}, SHARED, LOG_ID)
    )
    return [(str(key), each) for key, each in findings.observed]


def check_listing_is_idle(story: Story, *objects: ExternalObject) -> None:
    """Check that a listing of an idle resource leads to no further message."""
    for _ in range(2):
        for key, observation in complete_listing(story, *objects):
            if key == str(FOO):
                story.turn(observation)
    assert [each for key, each in complete_listing(story, *objects) if key == str(FOO)] == []


# --- approvals


def test_a1_an_approval_does_not_cover_a_declaration_in_the_same_batch():
    story = created_story(PROTECTED)
    story.declare(SMALLER)
    assert (story.outcome, story.reason) == ("Held", "DataLoss")
    story.turn(Approved("DataLoss"), Withdrawn())
    assert story.idle, f"{story.action.operation} was approved for an Update"


def test_a2_an_unneeded_approval_does_not_cover_the_next_loss():
    story = created_story(PROTECTED)
    story.declare(SMALLER)
    story.turn(Approved("DataLoss"), Declared(manifest(SQUARE)))
    assert (story.outcome, story.idle) == ("Converged", True)
    story.withdraw()
    assert (story.outcome, story.reason) == ("Held", "DataLoss")


def test_a3_an_approval_of_an_earlier_generation_has_no_effect():
    story = created_story(PROTECTED)
    story.declare(SMALLER)
    story.turn(Declared(manifest(SQUARE)), Approved("DataLoss"))
    story.withdraw()
    assert (story.outcome, story.reason) == ("Held", "DataLoss")


# --- replacement


def test_r1_an_adopted_object_that_is_owned_again_is_not_leaked():
    """By id: the new object was deleted, the old one adopted, and another creation forgot it."""
    story = Story(kind=BY_ID)
    story.observe(api_object(SQUARE))
    story.declare(SQUARE, policy={"adoption": "Adopt"})
    while not story.idle:
        story.succeed()
    old_object = owned(story)
    story.declare(CIRCLE, policy={"adoption": "Adopt"})
    succeed_starting(story)
    assert story.state.retiring is not None
    story.declare(TRIANGLE, policy={"adoption": "Adopt"})
    while not story.idle:
        story.succeed()
        owned_uids = {e.uid for e in (story.state.owned, story.state.retiring) if e is not None}
        removed = {
            a.action.uid
            for a in every(ActionDecided, [e.data for e in story.log])
            if a.action.operation == "Delete"
        }
        assert old_object.uid in owned_uids | removed, "leaked"


def test_r1b_an_adopted_object_without_a_write_is_not_leaked():
    """As above, where nothing was written to it since its adoption (labels are immutable)."""
    kind = replace(BY_ID, immutable=frozenset({"type", "labels"}))
    story = Story(kind=kind)
    story.observe(api_object(SQUARE))
    story.declare(SQUARE, policy={"adoption": "Adopt"})
    assert story.idle
    old_object = owned(story)
    story.declare(CIRCLE, policy={"adoption": "Adopt"})
    succeed_starting(story)
    assert retiring(story).uid == old_object.uid
    story.observe(None)
    assert owned(story).uid == old_object.uid
    assert story.action.purpose == "Replace", story.action
    story.succeed()
    owned_uids = {e.uid for e in (story.state.owned, story.state.retiring) if e is not None}
    assert old_object.uid in owned_uids, "leaked"


def test_r2_a_second_name_that_is_reported_late_is_in_the_read_models():
    story = created_story()
    story.declare(CIRCLE)
    action = story.action
    story.fail("Refused", redelivered=True)
    story.report(existing=story.object_after(action), action_id=action.action_id)
    assert owned(story).external_name == action.external_name
    check_rows(story)


def test_r3_a_foreign_object_after_a_missing_second_name_is_recorded():
    story = created_story()
    story.declare(CIRCLE)
    story.succeed()
    story.succeed()
    new_object = story.existing
    assert new_object.name != "Foo"
    story.observe(None, name=new_object.name)
    assert story.action.external_name == "Foo"
    foreign_object = api_object(CIRCLE)
    story.fail("Conflict", existing=foreign_object)
    assert story.outcome == "Conflict"
    check_listing_is_idle(story, foreign_object)


def test_r3b_the_object_is_created_once_the_foreign_object_is_deleted():
    story = created_story()
    story.declare(CIRCLE)
    story.succeed()
    story.succeed()
    story.observe(None, name=story.existing.name)
    story.fail("Conflict", existing=api_object(CIRCLE))
    for _key, observation in complete_listing(story):
        story.turn(observation)
    assert not story.idle, "stuck: the name is free, but no message reports it"


def test_r4_a_refused_retirement_does_not_fail_the_generation():
    story = created_story()
    story.declare(CIRCLE)
    story.succeed()
    assert story.action.purpose == "Retire"
    story.fail("Refused", message="not now")
    story.wake(0)
    story.now += timedelta(days=1)
    story.wake()
    assert story.action.purpose == "Retire"
    story.succeed()
    assert story.outcome == "Converged"
    story.observe(repaint(story.existing, color="Blue"), name=story.existing.name)
    assert not story.idle, (story.outcome, story.reason)


def test_r5_an_observed_resource_retires_nothing():
    story = created_story()
    story.declare(CIRCLE)
    succeed_starting(story)
    story.declare(CIRCLE, policy={"mode": "ObserveOnly"})
    story.observe(msgspec.structs.replace(story.existing, outputs={}), name=story.existing.name)
    assert story.idle, story.action


def test_r6_a_forced_release_as_an_orphan_deletes_nothing():
    story = created_story()
    story.declare(CIRCLE)
    story.succeed()
    story.fail("Refused")
    story.withdraw()
    if not story.idle:
        story.fail("Refused")
    story.turn(ForcedRelease("requested by an operator", orphan=True))
    story.wake(86400)
    assert story.idle, story.action
    assert story.outcome == "Released"


def test_r7_finalizers_hold_the_ready_object_of_a_withdrawn_resource():
    story = created_story()
    story.declare(CIRCLE)
    succeed_starting(story)
    story.turn(FinalizerRequested("a/b"))
    story.withdraw()
    assert story.idle, f"{story.action.purpose}: the only ready object would be deleted"


def test_r8_a_conflict_with_the_old_object_does_not_leak_it():
    story = created_story()
    old_object = story.existing
    story.declare(CIRCLE)
    story.succeed()
    story.fail("Conflict", existing=msgspec.structs.replace(old_object, version="77"))
    owned_uids = {e.uid for e in (story.state.owned, story.state.retiring) if e is not None}
    assert old_object.uid in owned_uids


def test_r8b_a_conflict_without_an_obstacle_does_not_leak_the_old_object():
    story = created_story()
    old_object = story.existing
    story.declare(CIRCLE)
    story.succeed()
    story.fail("Conflict", message="409: it is in use")
    owned_uids = {e.uid for e in (story.state.owned, story.state.retiring) if e is not None}
    assert old_object.uid in owned_uids


def test_r9_a_lookup_of_a_replacement_does_not_find_the_old_object():
    story = created_story(BY_ID)
    old_object = story.existing
    story.declare(CIRCLE)
    for _ in range(20):
        if story.flight.is_lookup:
            break
        story.fail("Unknown")
        story.wake(3600)
    story.report_lookup(old_object)
    assert story.state.owned != story.state.retiring
    pair = [e.uid for e in (story.state.owned, story.state.retiring) if e is not None]
    assert len(pair) == len(set(pair)), "one object has both roles"


def test_r10_both_objects_with_one_name_are_listed():
    story = created_story(BY_ID)
    old_object = story.existing
    story.declare(CIRCLE)
    succeed_starting(story)
    new_object = story.existing
    assert new_object.name == old_object.name
    for _key, observation in complete_listing(
        story, old_object, msgspec.structs.replace(new_object, outputs={})
    ):
        story.turn(observation)
    story.await_availability()
    assert story.action.purpose == "Retire"


def test_r11_readiness_is_computed_from_values_and_not_from_references():
    requests: list[Fields] = []

    def ready(fields: Fields, observed_object: ExternalObject) -> Readiness:
        requests.append(fields)
        return READY

    story = created_story(replace(BESIDE, ready=ready))
    story.declare(CIRCLE)
    story.succeed()
    story.fail("Refused")
    requests.clear()
    story.declare({"type": "Circle", "color": {"$ref": "Block/Bar", "field": "outputs.c"}})
    assert not any(isinstance(each.get("color"), dict) for each in requests), requests


def test_r12_a_waiting_resource_never_writes():
    story = created_story()
    story.declare(CIRCLE)
    succeed_starting(story)
    story.declare({"type": "Circle", "color": {"$ref": "Block/Bar", "field": "outputs.c"}})
    assert story.outcome == "Waiting"
    story.observe(msgspec.structs.replace(story.existing, outputs={}), name=story.existing.name)
    assert story.idle, story.action


# --- references


def _report_value(value: str) -> TargetReported:
    return TargetReported("default/Block/Bar", TargetState(True, True, {"outputs.c": value}))


def test_v1_a_new_value_after_a_refusal_is_applied():
    story = Story()
    story.declare({"type": "Square", "color": {"$ref": "Block/Bar", "field": "outputs.c"}})
    story.turn(_report_value("Red"))
    story.succeed()
    story.turn(_report_value("Bad"))
    story.fail("Refused", message="no such color")
    assert story.outcome == "Failed"
    story.turn(_report_value("Green"))
    assert not story.idle, (story.outcome, story.reason)


def test_s1_a_store_name_with_a_slash_is_invalid():
    with pytest.raises(InvalidManifestError):
        secrets_in({"content": {"$secret": "n", "store": "a/b"}})


# --- due


def test_d1_a_refused_renewal_does_not_cause_a_hot_loop():
    pass_story = PassStory()
    pass_story.fire_timer(timedelta(hours=17))
    for _ in range(5):
        if pass_story.story.idle:
            break
        pass_story.story.fail("Refused")
    assert pass_story.story.idle, "refused, and repeated immediately five times"


def test_d1b_a_renewal_in_conflict_does_not_cause_a_hot_loop():
    pass_story = PassStory()
    pass_story.fire_timer(timedelta(hours=17))
    for _ in range(10):
        if pass_story.story.idle:
            break
        pass_story.story.fail("Conflict")
    assert pass_story.story.idle, "in conflict, and repeated immediately ten times"


def test_d2_an_issuer_with_an_inaccurate_clock_does_not_cause_a_hot_loop():
    pass_story = PassStory()
    pass_story.fire_timer(timedelta(hours=17))
    for number in range(10):
        if pass_story.story.idle:
            break
        pass_story.issue(START + timedelta(seconds=number))
    assert pass_story.story.idle, "renewed ten times immediately"


def test_d3_the_row_keeps_the_renewal_time_after_another_write():
    pass_story = PassStory()
    story = pass_story.story
    expires_at = START + LIFETIME
    assert rows(story)[0].renewal_at is not None
    story.declare({"type": "Square", "color": "Blue"})
    pass_story.issue(expires_at)
    assert (story.outcome, story.idle) == ("Converged", True)
    assert story.state.renewal is not None
    assert rows(story)[0].renewal_at == renewal(story).at


def test_d3b_the_row_keeps_the_renewal_time_after_a_withdrawal_and_a_declaration():
    pass_story = PassStory()
    story = pass_story.story
    story.declare(policy={"paused": True})
    story.turn(Withdrawn(), Declared(manifest()))
    assert (story.outcome, story.idle) == ("Converged", True)
    assert rows(story)[0].renewal_at == renewal(story).at


def test_d4_a_refused_renewal_does_not_block_the_correction_of_drift():
    pass_story = PassStory()
    story = pass_story.story
    pass_story.fire_timer(timedelta(hours=17))
    story.fail("Refused")
    for _ in range(3):
        if not story.idle:
            pass_story.issue()
    story.observe(repaint(story.existing, color="Blue"))
    story.wake(600)
    assert not story.idle, (story.outcome, story.reason)


# --- defects that random histories found


def test_r14_the_absence_of_an_old_object_that_is_owned_again_is_detected():
    story = created_story()
    old_object = story.existing
    story.declare(CIRCLE)
    succeed_starting(story)
    story.declare(SQUARE)
    story.succeed()
    assert (story.outcome, story.idle, story.existing) == ("Converged", True, old_object)
    for _key, observation in complete_listing(story):  # another client removed the old one
        story.turn(observation)
    assert not story.idle, "Converged permanently without an object"


def test_r15_a_listing_of_an_old_object_that_is_owned_again_does_not_cause_a_message():
    story = created_story()
    old_object = story.existing
    story.declare(CIRCLE)
    succeed_starting(story)
    story.declare(SQUARE)
    story.succeed()
    check_listing_is_idle(story, old_object)


def test_r16_a_refused_retirement_is_in_the_read_models():
    story = created_story()
    story.declare(CIRCLE)
    story.succeed()
    story.fail("Refused", message="not now")
    assert story.state.retiring is not None
    check_rows(story)


def test_r17_the_rows_contain_the_plain_name_of_an_object_claimed_under_it():
    story = Story(kind=BESIDE)
    story.declare(SQUARE, policy={"adoption": "Adopt"})
    story.succeed()
    story.declare(CIRCLE, policy={"adoption": "Adopt"})
    story.succeed()
    story.succeed()
    story.observe(None, name=story.existing.name)
    story.fail("Conflict", existing=api_object(CIRCLE))
    assert story.state.owned is not None
    check_rows(story)


SECRETS = EnvironmentSecrets(frozenset({SecretKey("default", "TOKEN")}))


def _row_with(secret: str) -> StatusRow:
    row = StatusRow("default", "File", "Foo")
    row.declared, row.secrets = True, {secret: ""}
    return row


def _digests(row: StatusRow, stores: SecretStores) -> dict[NamedSecret, str]:
    sweeper = Sweeper.__new__(Sweeper)
    sweeper._stores = stores  # pyright: ignore[reportPrivateUsage]
    sweeper._unreadable = set()  # pyright: ignore[reportPrivateUsage]
    sweeper._index = ReferenceIndex()  # pyright: ignore[reportPrivateUsage]
    sweeper._index.add(str(row.key), row)  # pyright: ignore[reportPrivateUsage]
    return asyncio.run(sweeper._digests())  # pyright: ignore[reportPrivateUsage]


def test_s2_a_store_name_with_a_slash_does_not_fail_every_sweep():
    assert _digests(_row_with("a/b/n"), SecretStores()) == {}


def test_s3_a_variable_that_is_not_text_does_not_fail_every_sweep(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(os.environb, b"TOKEN", b"\xff\xfesecret")
    assert _digests(_row_with("env/TOKEN"), SecretStores({"env": SECRETS})) == {}


def test_s4_digests_are_keyed_even_without_a_directory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TOKEN", "hunter2")
    digests = _digests(_row_with("env/TOKEN"), SecretStores({"env": SECRETS}))
    plain = hashlib.blake2b(b"hunter2", digest_size=12).hexdigest()
    assert digests.get(NamedSecret("default", "env/TOKEN")) != plain, (
        "any reader of the log could guess passwords"
    )


def test_d5_an_observed_resource_is_not_woken_repeatedly_when_it_is_due():
    pass_story = PassStory()
    pass_story.story.declare(policy={"mode": "ObserveOnly"})
    pass_story.fire_timer(timedelta(hours=17))
    assert pass_story.story.idle
    assert rows(pass_story.story)[0].renewal_at is None, "each sweep would wake it every 300 s"


def test_f1_an_object_claimed_by_its_label_is_read_before_it_is_written():
    """Only the identity of a foreign object is recorded, so its content may be outdated."""

    kind = replace(
        BLOCK,
        capabilities=Capabilities(
            idempotency_keys=True, deterministic_names=True, labels=True, conditional_writes=False
        ),
    )
    config = ProviderConfigSpec(
        provider="tests",
        endpoint="http://localhost",
        ownership="Label",
        deletion_guard=DeletionGuard(max_count=0, max_percent=0),
    )
    story = Story(kind=kind, configs={CONFIG: config})
    existing = api_object({**SQUARE, "size": {"w": 1}}, labels=owned_labels())
    story.observe(existing, unmanaged=(5, 20))
    assert (story.outcome, story.reason) == ("Held", "DeletionGuard")
    changed_object = repaint(existing, size={"w": 2})  # another client writes its own fields
    row, _ = rows(story)
    assembler = ListingAssembler(
        ListingBegan(CONFIG, "Block", story.position),
        None,
        unique_names=story.context.capabilities.deterministic_names,
    )
    assembler.add([changed_object])
    findings = asyncio.run(
        compare_listing(assembler, assembler.complete(1), {str(FOO): row}, config, LOG_ID)
    )
    for _key, observation in findings.observed:
        if observation.exclusive == UnmanagedCount(5, 20):
            story.turn(observation)
    story.declare({"type": "Square", "color": "Blue"})
    assert story.idle or story.action.fields.get("size") == {"w": 2}, story.action.fields


def test_r18_an_object_that_a_lookup_found_is_not_leaked_when_it_is_owned_again():
    """An object found by its label has no result, so it was treated as absent once owned again."""
    story = created_story()
    story.declare(CIRCLE)
    existing = story.object_after(story.action)
    while not story.flight.is_lookup:
        story.fail("Unknown")
        story.wake(3600)
    story.report_lookup(existing)
    story.await_availability()
    story.succeed()  # the first one is retired
    assert (owned(story).uid, story.idle) == (existing.uid, True)
    story.declare(TRIANGLE)
    succeed_starting(story)
    assert retiring(story).uid == existing.uid
    story.declare(SQUARE)  # before it is ready: it is deleted, and the found object is ours again
    story.succeed()
    assert owned(story).uid == existing.uid
    story.succeed()
    owned_uids = {e.uid for e in (story.state.owned, story.state.retiring) if e is not None}
    assert existing.uid in owned_uids, "leaked: another was created under the plain name"
