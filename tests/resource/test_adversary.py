"""What an adversary has found in replacement, due moments, references, secrets and approvals."""

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
    every,
    manifest,
    owned_labels,
    repainted,
    thing,
)
from tests.resource.test_due import LIFE, Passes
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


def listed(story: Story, *objects: ExternalObject) -> list[tuple[str, Observed]]:
    """What an observer would publish of a complete listing."""
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


def idle_listing(story: Story, *objects: ExternalObject) -> None:
    """An idle resource costs no message: what a listing tells is an event, or is not told again."""
    for _ in range(2):
        for key, observation in listed(story, *objects):
            if key == str(FOO):
                story.turn(observation)
    assert [each for key, each in listed(story, *objects) if key == str(FOO)] == []


# --- approvals


def test_a1_an_approval_is_not_for_what_is_declared_in_the_same_batch():
    story = created_story(PROTECTED)
    story.declare(SMALLER)
    assert (story.outcome, story.reason) == ("Held", "DataLoss")
    story.turn(Approved("DataLoss"), Withdrawn())
    assert story.idle, f"{story.action.operation} was approved for an Update"


def test_a2_an_approval_that_nothing_needs_does_not_wait_for_the_next_loss():
    story = created_story(PROTECTED)
    story.declare(SMALLER)
    story.turn(Approved("DataLoss"), Declared(manifest(SQUARE)))
    assert (story.outcome, story.idle) == ("Converged", True)
    story.withdraw()
    assert (story.outcome, story.reason) == ("Held", "DataLoss")


def test_a3_an_approval_comes_after_a_new_generation():
    story = created_story(PROTECTED)
    story.declare(SMALLER)
    story.turn(Declared(manifest(SQUARE)), Approved("DataLoss"))
    story.withdraw()
    assert (story.outcome, story.reason) == ("Held", "DataLoss")


# --- replacement


def test_r1_an_adopted_object_that_comes_back_is_not_forgotten():
    """By id: the new object was deleted, the old one adopted, and another creation forgets it."""
    story = Story(kind=BY_ID)
    story.see(thing(SQUARE))
    story.declare(SQUARE, policy={"adoption": "Adopt"})
    while not story.idle:
        story.succeed()
    old = owned(story)
    story.declare(CIRCLE, policy={"adoption": "Adopt"})
    succeed_starting(story)
    assert story.state.retiring is not None
    story.declare(TRIANGLE, policy={"adoption": "Adopt"})
    while not story.idle:
        story.succeed()
        ours = {e.uid for e in (story.state.owned, story.state.retiring) if e is not None}
        removed = {
            a.action.uid
            for a in every(ActionDecided, [e.data for e in story.log])
            if a.action.operation == "Delete"
        }
        assert old.uid in ours | removed, "leaked"


def test_r1b_labels_missing_adopted_object_with_no_write():
    """As above, where nothing was written to it since its adoption (labels are immutable)."""
    kind = replace(BY_ID, immutable=frozenset({"type", "labels"}))
    story = Story(kind=kind)
    story.see(thing(SQUARE))
    story.declare(SQUARE, policy={"adoption": "Adopt"})
    assert story.idle
    old = owned(story)
    story.declare(CIRCLE, policy={"adoption": "Adopt"})
    succeed_starting(story)
    assert retiring(story).uid == old.uid
    story.see(None)
    assert owned(story).uid == old.uid
    assert story.action.purpose == "Replace", story.action
    story.succeed()
    ours = {e.uid for e in (story.state.owned, story.state.retiring) if e is not None}
    assert old.uid in ours, "leaked"


def test_r2_a_late_second_name_is_in_the_read_models():
    story = created_story()
    story.declare(CIRCLE)
    action = story.action
    story.fail("Refused", redelivered=True)
    story.report(shown=story.written(action), action_id=action.action_id)
    assert owned(story).external_name == action.external_name
    check_rows(story)


def test_r3_a_second_name_that_is_gone_leaves_no_listing_that_is_ignored():
    story = created_story()
    story.declare(CIRCLE)
    story.succeed()
    story.succeed()
    young = story.existing
    assert young.name != "Foo"
    story.see(None, name=young.name)
    assert story.action.external_name == "Foo"
    stranger = thing(CIRCLE)
    story.fail("Conflict", shown=stranger)
    assert story.outcome == "Conflict"
    idle_listing(story, stranger)


def test_r3b_and_it_is_made_when_the_stranger_goes():
    story = created_story()
    story.declare(CIRCLE)
    story.succeed()
    story.succeed()
    story.see(None, name=story.existing.name)
    story.fail("Conflict", shown=thing(CIRCLE))
    for _key, observation in listed(story):
        story.turn(observation)
    assert not story.idle, "stuck: the name is free, and nobody tells"


def test_r4_a_refused_retirement_does_not_refuse_the_generation():
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
    story.see(repainted(story.existing, color="Blue"), name=story.existing.name)
    assert not story.idle, (story.outcome, story.reason)


def test_r5_only_observed_nothing_is_retired():
    story = created_story()
    story.declare(CIRCLE)
    succeed_starting(story)
    story.declare(CIRCLE, policy={"mode": "ObserveOnly"})
    story.see(msgspec.structs.replace(story.existing, outputs={}), name=story.existing.name)
    assert story.idle, story.action


def test_r6_released_as_an_orphan_by_force_nothing_is_deleted():
    story = created_story()
    story.declare(CIRCLE)
    story.succeed()
    story.fail("Refused")
    story.withdraw()
    if not story.idle:
        story.fail("Refused")
    story.turn(ForcedRelease("a person says so", orphan=True))
    story.wake(86400)
    assert story.idle, story.action
    assert story.outcome == "Released"


def test_r7_finalizers_hold_what_serves_when_it_is_withdrawn():
    story = created_story()
    story.declare(CIRCLE)
    succeed_starting(story)
    story.turn(FinalizerRequested("a/b"))
    story.withdraw()
    assert story.idle, f"{story.action.purpose}: the only one that serves goes, held or not"


def test_r8_a_conflict_shows_the_old_one_itself():
    story = created_story()
    old = story.existing
    story.declare(CIRCLE)
    story.succeed()
    story.fail("Conflict", shown=msgspec.structs.replace(old, version="77"))
    ours = {e.uid for e in (story.state.owned, story.state.retiring) if e is not None}
    assert old.uid in ours


def test_r8b_a_conflict_without_obstacle():
    story = created_story()
    old = story.existing
    story.declare(CIRCLE)
    story.succeed()
    story.fail("Conflict", message="409: it is in use")
    ours = {e.uid for e in (story.state.owned, story.state.retiring) if e is not None}
    assert old.uid in ours


def test_r9_a_lookup_of_a_replacement_does_not_find_the_old_one():
    story = created_story(BY_ID)
    old = story.existing
    story.declare(CIRCLE)
    for _ in range(20):
        if story.flight.is_lookup:
            break
        story.fail("Unknown")
        story.wake(3600)
    story.look(old)
    assert story.state.owned != story.state.retiring
    pair = [e.uid for e in (story.state.owned, story.state.retiring) if e is not None]
    assert len(pair) == len(set(pair)), "one object is both"


def test_r10_both_of_one_name_are_listed():
    story = created_story(BY_ID)
    old = story.existing
    story.declare(CIRCLE)
    succeed_starting(story)
    young = story.existing
    assert young.name == old.name
    for _key, observation in listed(story, old, msgspec.structs.replace(young, outputs={})):
        story.turn(observation)
    assert story.action.purpose == "Retire"


def test_r11_ready_is_asked_with_values_not_references():
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
    story.see(msgspec.structs.replace(story.existing, outputs={}), name=story.existing.name)
    assert story.idle, story.action


# --- references


def _refers(value: str) -> TargetReported:
    return TargetReported("default/Block/Bar", TargetState(True, True, {"outputs.c": value}))


def test_v1_a_new_value_after_a_refusal_is_tried():
    story = Story()
    story.declare({"type": "Square", "color": {"$ref": "Block/Bar", "field": "outputs.c"}})
    story.turn(_refers("Red"))
    story.succeed()
    story.turn(_refers("Bad"))
    story.fail("Refused", message="no such color")
    assert story.outcome == "Failed"
    story.turn(_refers("Green"))
    assert not story.idle, (story.outcome, story.reason)


def test_s1_a_store_is_a_name():
    with pytest.raises(InvalidManifestError):
        secrets_in({"content": {"$secret": "n", "store": "a/b"}})


# --- due


def test_d1_a_renewal_that_is_refused_is_no_hot_loop():
    passes = Passes()
    passes.fires(timedelta(hours=17))
    for _ in range(5):
        if passes.story.idle:
            break
        passes.story.fail("Refused")
    assert passes.story.idle, "refused, and called again at once, five times"


def test_d1b_a_renewal_in_conflict_is_no_hot_loop():
    passes = Passes()
    passes.fires(timedelta(hours=17))
    for _ in range(10):
        if passes.story.idle:
            break
        passes.story.fail("Conflict")
    assert passes.story.idle, "in conflict, and called again at once, ten times"


def test_d2_an_issuer_whose_clock_is_wrong_is_no_hot_loop():
    passes = Passes()
    passes.fires(timedelta(hours=17))
    for number in range(10):
        if passes.story.idle:
            break
        passes.issued(START + timedelta(seconds=number))
    assert passes.story.idle, "renewed ten times in no time"


def test_d3_the_row_keeps_what_is_due_after_another_write():
    passes = Passes()
    story = passes.story
    ends = START + LIFE
    assert rows(story)[0].renewal_at is not None
    story.declare({"type": "Square", "color": "Blue"})
    passes.issued(ends)
    assert (story.outcome, story.idle) == ("Converged", True)
    assert story.state.renewal is not None
    assert rows(story)[0].renewal_at == renewal(story).at


def test_d3b_withdrawn_and_declared_again():
    passes = Passes()
    story = passes.story
    story.declare(policy={"paused": True})
    story.turn(Withdrawn(), Declared(manifest()))
    assert (story.outcome, story.idle) == ("Converged", True)
    assert rows(story)[0].renewal_at == renewal(story).at


def test_d4_a_refused_renewal_does_not_refuse_drift():
    passes = Passes()
    story = passes.story
    passes.fires(timedelta(hours=17))
    story.fail("Refused")
    for _ in range(3):
        if not story.idle:
            passes.issued()
    story.see(repainted(story.existing, color="Blue"))
    story.wake(600)
    assert not story.idle, (story.outcome, story.reason)


# --- found by random histories


def test_r14_when_the_old_one_is_ours_again_its_absence_is_noticed():
    story = created_story()
    old = story.existing
    story.declare(CIRCLE)
    succeed_starting(story)
    story.declare(SQUARE)
    story.succeed()
    assert (story.outcome, story.idle, story.existing) == ("Converged", True, old)
    for _key, observation in listed(story):  # another client removed the old one
        story.turn(observation)
    assert not story.idle, "Converged for ever, and nothing is there"


def test_r15_when_the_old_one_is_ours_again_a_listing_proves_nothing():
    story = created_story()
    old = story.existing
    story.declare(CIRCLE)
    succeed_starting(story)
    story.declare(SQUARE)
    story.succeed()
    idle_listing(story, old)


def test_r16_a_refused_retirement_stays_in_the_read_models():
    story = created_story()
    story.declare(CIRCLE)
    story.succeed()
    story.fail("Refused", message="not now")
    assert story.state.retiring is not None
    check_rows(story)


def test_r17_what_is_claimed_under_the_plain_name_is_in_the_rows_under_it():
    story = Story(kind=BESIDE)
    story.declare(SQUARE, policy={"adoption": "Adopt"})
    story.succeed()
    story.declare(CIRCLE, policy={"adoption": "Adopt"})
    story.succeed()
    story.succeed()
    story.see(None, name=story.existing.name)
    story.fail("Conflict", shown=thing(CIRCLE))
    assert story.state.owned is not None
    check_rows(story)


HUNTED = EnvironmentSecrets(frozenset({SecretKey("default", "HUNTED")}))


def _row_with(secret: str) -> StatusRow:
    row = StatusRow("default", "File", "Foo")
    row.declared, row.secrets = True, {secret: ""}
    return row


def _digests(row: StatusRow, stores: SecretStores) -> dict[NamedSecret, str]:
    sweeper = Sweeper.__new__(Sweeper)
    sweeper._stores = stores  # pyright: ignore[reportPrivateUsage]
    sweeper._unreadable = set()  # pyright: ignore[reportPrivateUsage]
    sweeper._index = ReferenceIndex()  # pyright: ignore[reportPrivateUsage]
    sweeper._index.build([(str(row.key), row)])  # pyright: ignore[reportPrivateUsage]
    return asyncio.run(sweeper._digests())  # pyright: ignore[reportPrivateUsage]


def test_s2_a_store_with_a_slash_does_not_end_every_sweep():
    assert _digests(_row_with("a/b/n"), SecretStores()) == {}


def test_s3_a_variable_that_is_no_text_does_not_end_every_sweep(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(os.environb, b"HUNTED", b"\xff\xfesecret")
    assert _digests(_row_with("env/HUNTED"), SecretStores({"env": HUNTED})) == {}


def test_s4_digests_are_keyed_without_a_folder_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HUNTED", "hunter2")
    digests = _digests(_row_with("env/HUNTED"), SecretStores({"env": HUNTED}))
    plain = hashlib.blake2b(b"hunter2", digest_size=12).hexdigest()
    assert digests.get(NamedSecret("default", "env/HUNTED")) != plain, (
        "anybody who reads the log can try passwords"
    )


def test_d5_what_is_due_and_only_observed_is_not_woken_for_ever():
    passes = Passes()
    passes.story.declare(policy={"mode": "ObserveOnly"})
    passes.fires(timedelta(hours=17))
    assert passes.story.idle
    assert rows(passes.story)[0].renewal_at is None, "each sweep wakes it, every 300 s for ever"


def test_f1_what_is_claimed_by_its_label_is_looked_at_before_it_is_written():
    """Of a foreign object only the identity is recorded: its content may be of last year."""

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
    existing = thing({**SQUARE, "size": {"w": 1}}, labels=owned_labels())
    story.see(existing, unmanaged=(5, 20))
    assert (story.outcome, story.reason) == ("Held", "DeletionGuard")
    now = repainted(existing, size={"w": 2})  # another client writes its own fields
    row, _ = rows(story)
    assembler = ListingAssembler(
        ListingBegan(CONFIG, "Block", story.position),
        None,
        unique_names=story.context.capabilities.deterministic_names,
    )
    assembler.add([now])
    findings = asyncio.run(
        compare_listing(assembler, assembler.complete(1), {str(FOO): row}, config, LOG_ID)
    )
    for _key, observation in findings.observed:
        if observation.exclusive == UnmanagedCount(5, 20):
            story.turn(observation)
    story.declare({"type": "Square", "color": "Blue"})
    assert story.idle or story.action.fields.get("size") == {"w": 2}, story.action.fields


def test_r18_what_a_lookup_found_is_not_forgotten_when_it_is_ours_again():
    """Found by its label it has no result: back from `retiring` it is taken for absent."""
    story = created_story()
    story.declare(CIRCLE)
    existing = story.written(story.action)
    while not story.flight.is_lookup:
        story.fail("Unknown")
        story.wake(3600)
    story.look(existing)
    story.succeed()  # the first one is retired
    assert (owned(story).uid, story.idle) == (existing.uid, True)
    story.declare(TRIANGLE)
    succeed_starting(story)
    assert retiring(story).uid == existing.uid
    story.declare(SQUARE)  # before it is ready: it goes, the found one is ours again
    story.succeed()
    assert owned(story).uid == existing.uid
    story.succeed()
    ours = {e.uid for e in (story.state.owned, story.state.retiring) if e is not None}
    assert existing.uid in ours, "leaked: another was created under the plain name"
