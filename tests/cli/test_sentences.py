"""The sentence that describes each event class of the log, with its actor."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import get_args, get_type_hints

import pytest
from msgspec.structs import replace

from events.external import ExternalObject
from events.intake import (
    ActionError,
    ListingFailure,
    NewerObject,
    TargetState,
    UndeclaredObjects,
)
from events.kind_definition import DefinitionRef
from events.log import (
    AbsenceDoubted,
    Action,
    ActionAbandoned,
    ActionDecided,
    ActionDoubted,
    ActionFailed,
    ActionHeld,
    ActionNotDone,
    ActionRetried,
    ActionSucceeded,
    ApiFellSilent,
    ApiSilenceEnded,
    ApiThrottled,
    ApprovalRefused,
    ApprovalRequested,
    AvailabilityNoted,
    BreakerClosed,
    BreakerOpened,
    BreakerProbed,
    DeclarationSuperseded,
    DefinitionObserved,
    DriftDetected,
    ExternalObserved,
    FieldDifference,
    FinalizerAdded,
    FinalizerRemoved,
    FoundBy,
    GenerationSuperseded,
    HoldApproved,
    ListingsFailed,
    ListingsResumed,
    LogEvent,
    LookupDecided,
    MoveEnded,
    MoveExpected,
    OutcomeRecorded,
    OwnershipClaimed,
    OwnershipReleased,
    PartAvailability,
    ProgressNoted,
    ReconcileAccepted,
    ReferenceAdded,
    ReferenceRemoved,
    ReleaseForced,
    RenewalScheduled,
    ResourceEvent,
    RetryScheduled,
    SecretObserved,
    SpecDeclared,
    SpecResolved,
    SpecWithdrawn,
    TargetObserved,
    TwinDetected,
    UndeclaredCounted,
    UsersCounted,
)
from events.manifest import Policy
from reconciler.cli.past.summaries import describe_history, format_actor, summarize
from reconciler.ports import StoredEvent
from reconciler.resource.owner_label import OWNER_LABEL

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RED = {"type": "Square", "color": "Red"}
ACTION = Action("a@2", "key", "Create", 1, "default", "foo", ("m1",), fields=RED)
DECLARED = SpecDeclared(1, "shapes/v1", "default", "foo", RED)


SENTENCES: list[tuple[ResourceEvent, str]] = [
    (DECLARED, "alice declared generation 1 with type: Square, color: Red"),
    (SpecWithdrawn(2), "alice withdrew the declaration, as generation 2"),
    (GenerationSuperseded(1, by=2), "Generation 2 superseded generation 1 before it was settled"),
    (
        DeclarationSuperseded(by=2),
        "The decider ignored a declaration or withdrawal by alice, because generation 2 is newer",
    ),
    (
        ExternalObserved("default", "foo", None, "CompleteListing", 7),
        "The observer listed the objects of the API: foo does not exist",
    ),
    (
        ExternalObserved("default", "foo", ExternalObject("foo", {"color": "Red"}), "Read", 7),
        "The observer read foo with color: Red",
    ),
    (
        AbsenceDoubted("default", "foo", 12, 14),
        "12 of the 14 owned objects, including foo, are missing from the observer's "
        "listing, so the decider ignored the absence",
    ),
    (FinalizerAdded("billing/invoice", "billing"), "billing added the finalizer billing/invoice"),
    (FinalizerRemoved("billing/invoice"), "alice removed the finalizer billing/invoice"),
    (
        FinalizerRemoved("billing/invoice", True, "gone"),
        "alice removed the finalizer billing/invoice by force (reason: gone)",
    ),
    (
        ReleaseForced("shut\ndown", True, ("billing/invoice",), ("shop/ShapeRef/a",)),
        "alice forced a release despite billing/invoice, shop/ShapeRef/a; an existing object "
        "stays in the API (reason: shut down)",
    ),
    (SpecWithdrawn(3, "moved"), "alice withdrew the declaration, as generation 3 (reason: moved)"),
    (HoldApproved("LossGuard", reason="really"), "alice approved LossGuard (reason: really)"),
    (
        HoldApproved("Approval", reason="agreed", plan="41162a45fb694374"),
        "alice approved plan 41162a45fb69 (reason: agreed)",
    ),
    (
        ApprovalRequested(
            "41162a45fb694374",
            "Update",
            3,
            "default",
            "foo",
            changes=(FieldDifference("color", "Blue", "Red"),),
        ),
        "The decider requested approval of plan 41162a45fb69 (Update 'foo', color: \"Red\" → "
        '"Blue")',
    ),
    (
        ReconcileAccepted(True, "the API is back"),
        "alice requested a reconciliation (reason: the API is back)",
    ),
    (
        ApprovalRefused("41162a45fb694374", "not now"),
        "alice rejected plan 41162a45fb69 (reason: not now)",
    ),
    (
        ReferenceAdded("shop/ShapeRef/a", "Keep"),
        "shop/ShapeRef/a references this resource (onWithdrawal: Keep)",
    ),
    (ReferenceRemoved("shop/ShapeRef/a"), "shop/ShapeRef/a no longer references this resource"),
    (
        TargetObserved("default/Shape/foo", TargetState(False)),
        "The referenced resource default/Shape/foo is not declared",
    ),
    (
        TargetObserved("default/Shape/foo", TargetState(True, True, {"outputs.port": 5432})),
        "The referenced resource default/Shape/foo is declared with outputs.port: 5432",
    ),
    (SecretObserved("files/db", "abc"), "Secret db (files store) has digest abc"),
    (SecretObserved("env/shop/db", ""), "Secret shop/db (env store) does not exist"),
    (
        DefinitionObserved(DefinitionRef(2, "abc", 3, 10)),
        "The kind's definition changed to generation 2, which affects 3 of 10 resources",
    ),
    (
        SpecResolved(2, {"port": 5432}),
        "The decider resolved the spec of generation 2 with port: 5432",
    ),
    (
        LookupDecided(ACTION, 3),
        "The decider requested a lookup of foo (attempt 3), because the result of the "
        "creation is unknown",
    ),
    (ActionHeld("a@2", "nobody can tell"), "The decider holds the action: nobody can tell"),
    (
        # it may have been created, and deleted by another client
        ActionNotDone("a@2", "Create", 3),
        "The worker's lookup shows no effect of the creation, so the decider repeats the creation",
    ),
    (
        ActionNotDone("a@2", "Delete", 3),
        "The worker's lookup shows no effect of the deletion, so the decider repeats the deletion",
    ),
    (
        ActionDoubted("a@2", "Delete", 3, "no response\nin time"),
        "A duplicate call for attempt 3 to delete the object has an unknown result: "
        "no response in time",
    ),
    (
        ActionSucceeded("a@2", "Create", 3, found_by="Label", late=True),
        "The worker found the object already created, as shown by its owner label (attempt 3); the "
        "result arrived late",
    ),
    (
        ActionSucceeded("a@2", "Delete", 1, found_by="Absence"),
        "The worker found the object already deleted",
    ),
    (DriftDetected(1, missing=True), "The object was deleted outside of Reconciler"),
    (
        DriftDetected(1, missing=True, renamed_to="old"),
        "The object was renamed to old outside of Reconciler, and still exists",
    ),
    (
        DriftDetected(
            1,
            differences=(
                FieldDifference("color", "Purple", "Green"),
                FieldDifference("labels.team", "a", None),
            ),
        ),
        "The object was changed outside of Reconciler: color is Green (declared: Purple), "
        "labels.team is not set (declared: a)",
    ),
    (
        OwnershipClaimed("foo", None, "Adopted"),
        "Reconciler took ownership of foo: spec.policy.adoption is Adopt",
    ),
    (
        OwnershipReleased("foo", None, "Orphaned"),
        "Reconciler released foo: the object stays in the API",
    ),
    (ActionDecided(ACTION), "Reconciler decided to create foo with type: Square, color: Red"),
    (
        ActionRetried(ACTION, 3),
        "The decider started attempt 3 to create foo, with the same parameters",
    ),
    (
        ActionSucceeded("a@2", "Create", 2, replayed=True),
        "An earlier call created the object (attempt 2)",
    ),
    (
        ActionFailed("a@2", "Create", 1, ActionError("Throttled", "slow\ndown", 429)),
        "The worker's attempt 1 to create the object failed: Throttled 429: slow down",
    ),
    (
        ActionAbandoned("a@2", "Create", "Withdrawn"),
        "The decider abandoned the creation: Withdrawn",
    ),
    (
        RenewalScheduled(AT, AT, 3.0),
        "The object is due for renewal at 2026-01-02T03:04:05Z; the decider scheduled it for "
        "2026-01-02T03:04:05Z",
    ),
    (
        ProgressNoted("a1", AT, AT, 3.0),
        "The object made progress, and more is expected by 2026-01-02T03:04:05Z",
    ),
    (
        ProgressNoted("a1", AT),
        "The object has made no progress since 2026-01-02T03:04:05Z, which is longer than allowed",
    ),
    (
        AvailabilityNoted(
            {
                "default/Container/a": PartAvailability("", AT, 0, True),
                "default/Container/b": PartAvailability("", AT),
                "default/Container/c": PartAvailability("", None, 1),
                "default/Container/d": None,
            },
            AT,
            5.0,
        ),
        "The parts changed (a: available; b: ready; c: not ready), and the next one is available "
        "at 2026-01-02T03:04:05Z if it stays ready",
    ),
    (
        AvailabilityNoted({"default/Container/a": PartAvailability("", AT, 0, True)}),
        "The parts changed (a: available)",
    ),
    (ProgressNoted("", AT), "The decider stopped waiting for the object to make progress"),
    (
        RetryScheduled(AT, 2.5, "NotDone"),
        "The decider will wait 2.5 s, until 2026-01-02T03:04:05Z: NotDone",
    ),
    (
        ApiThrottled(AT, 7.0, "slow\ndown"),
        "The API does not accept calls before 2026-01-02T03:04:05Z: slow down",
    ),
    (
        BreakerOpened(AT, 2.0, 5, "refused"),
        "The circuit breaker blocks calls until 2026-01-02T03:04:05Z, after 5 consecutive "
        "failures: refused",
    ),
    (BreakerProbed(AT, 20.0, "w1"), "w1 probes the API with one call"),
    (
        BreakerProbed(AT, 0.0, ""),
        "The process that probed the API stopped, so another one may probe it",
    ),
    (BreakerClosed(), "The API responded again, and the circuit breaker closed"),
    (
        TwinDetected((NewerObject("Shape", "foo", "u1", "default/Shape/foo@9", 4),), 2),
        "The API has 2 objects that are newer than this log; "
        "Reconciler writes nothing to it until an operator approves",
    ),
    (
        ListingsFailed("Shape", ListingFailure(AT, "GET /shapes: 500")),
        "No listing of Shape has completed since 2026-01-02T03:04:05Z: GET /shapes: 500",
    ),
    (ListingsResumed("Service", "5d1f"), "Listings of Service complete, at the system 5d1f"),
    (
        ListingsResumed("Shape"),
        "Listings of Shape complete again, or no resource uses the kind",
    ),
    (ApiFellSilent(AT), "The API has not responded since 2026-01-02T03:04:05Z"),
    (
        MoveExpected("default/Shape/bar"),
        "default/Shape/bar takes over the object once this resource is withdrawn",
    ),
    (
        MoveEnded("default/Shape/bar", "it was declared again"),
        "The move between this resource and default/Shape/bar will not happen: it was declared "
        "again",
    ),
    (
        UndeclaredCounted({"Shape": UndeclaredObjects(2, 3, ("a", "b"))}),
        "Listings of the new scope show undeclared objects: 2 of 3 Shape objects",
    ),
    (
        UsersCounted(3, ("default/Shape/foo",)),
        "3 resources use the withdrawn ProviderConfig: default/Shape/foo and 2 more",
    ),
    (
        UsersCounted(1, ("default/Shape/foo",)),
        "1 resource uses the withdrawn ProviderConfig: default/Shape/foo",
    ),
    (UsersCounted(0), "No resource uses the withdrawn ProviderConfig"),
    (ApiSilenceEnded(), "The API responds again, or the ProviderConfig was withdrawn"),
    (
        OutcomeRecorded("Converged", 2, "AsDeclared"),
        "The outcome of generation 2 is Converged (AsDeclared)",
    ),
    (OutcomeRecorded("Failed", 2, "Failed", "no"), "The outcome of generation 2 is Failed: no"),
    (
        ExternalObserved(
            "default",
            "foo",
            ExternalObject("foo", {}),
            "CompleteListing",
            7,
            belongs_to="a/Shape/x",
        ),
        "The observer listed foo (it belongs to a/Shape/x)",
    ),
    (
        ExternalObserved("default", "foo", None, "Read", 7, belongs_to="a/Shape/x"),
        "The observer read the API: foo does not exist (it belonged to a/Shape/x)",
    ),
    (
        OwnershipClaimed("foo", None, "Found"),
        "Reconciler took ownership of foo: it has the owner label of this resource, and a creation "
        "had an unknown result",
    ),
    (
        OwnershipClaimed("foo", None, "Returned"),
        "Reconciler took ownership of foo: it has the uid of an owned object that an earlier "
        "listing did not contain",
    ),
    (
        OwnershipClaimed("foo", "u1", "Returned", grace_seconds=10.0),
        "Reconciler took ownership of foo: it has the uid of an owned object that an earlier "
        "listing did not contain; observations within 10 s of a write no longer "
        "count",
    ),
    (
        OwnershipReleased("foo", None, "Gone"),
        "Reconciler no longer owns foo: the object no longer exists",
    ),
    (
        OwnershipReleased("foo", None, "Gone", lost_data="all data of database foo"),
        "Reconciler no longer owns foo: the object no longer exists; missing: all data of "
        "database foo",
    ),
    (
        OwnershipReleased("foo", None, "Replaced"),
        "Reconciler no longer owns foo: another object has its name",
    ),
    (
        OwnershipReleased("foo", "u1", "Replaced", unconfirmed=True),
        "Reconciler no longer owns foo: another object has its name; its creation may still "
        "have created another object",
    ),
    (
        ActionSucceeded("a@2", "Delete", 1, found_by="Absence", unconfirmed=True),
        "The worker found the object already deleted; its creation may still have created "
        "another object",
    ),
    (ReleaseForced("no need"), "alice forced a release that nothing blocked (reason: no need)"),
    (
        HoldApproved("UnknownResult", "Abandon", "it was done"),
        "alice approved UnknownResult, and abandoned the action (reason: it was done)",
    ),
    (
        TargetObserved("a/Shape/x", TargetState(True, cycle=("b", "a", "b"))),
        "The reference to a/Shape/x is circular: b → a → b",
    ),
    (
        DriftDetected(1, missing=True, suspected_action="a/Shape/x@5"),
        "The object is missing; Reconciler's action a/Shape/x@5, whose result was unknown, "
        "may have deleted it",
    ),
    (
        DriftDetected(
            1, differences=(FieldDifference("size", None, 3),), suspected_action="a/Shape/x@5"
        ),
        "The object differs: size is 3 (declared: not set); Reconciler's action a/Shape/x@5, "
        "whose result was unknown, may have written it",
    ),
    (
        ActionDecided(replace(ACTION, purpose="Replace", external_name="foo-1")),
        "Reconciler decided to create the replacement foo-1 with type: Square, color: Red",
    ),
    (
        ActionDecided(replace(ACTION, operation="Delete", purpose="Replace", fields={})),
        "Reconciler decided to delete foo to replace it",
    ),
    (
        ActionDecided(replace(ACTION, operation="Delete", purpose="Retire", fields={})),
        "Reconciler decided to delete the replaced object foo",
    ),
    (ActionSucceeded("a@2", "Create", 1), "The worker created the object"),
    (ActionSucceeded("a@2", "Update", 1, purpose="Renew"), "The worker renewed the object"),
    (
        ActionSucceeded("a@2", "Delete", 1, purpose="Retire", redelivered=True),
        "The worker deleted the replaced object; another worker, which stopped responding, "
        "may have made the same call",
    ),
    (
        ActionSucceeded(
            "a@2", "Create", 2, purpose="Replace", external_name="foo-1", late=True, outdated=True
        ),
        "The worker created the replacement foo-1 (attempt 2); the result arrived late and "
        "is outdated",
    ),
    (
        ActionSucceeded("a@2", "Create", 1, refused=ActionError("Refused", "no")),
        "The worker created the object, but the API refused the remaining calls: no",
    ),
    (
        ActionFailed("a@2", "Delete", 4, ActionError("Unknown", "no\nresponse"), redelivered=True),
        "The result of the worker's attempt 4 to delete the object is unknown: no response; "
        "another worker, which stopped responding, may have made the same call",
    ),
    (
        ActionFailed("a@2", "Update", 4, ActionError("NotDone", "closed", attempted=False)),
        "The worker made no call in attempt 4 to update the object: closed",
    ),
    (
        ActionAbandoned("a@2", "Update", "generation 3 is newer", in_doubt=True),
        "The decider abandoned the update: generation 3 is newer; a call may still take effect",
    ),
    (
        RetryScheduled(AT, 2.5, "NotDone", "a@2"),
        "The decider will retry in 2.5 s, at 2026-01-02T03:04:05Z: NotDone",
    ),
    (
        BreakerOpened(AT, 2.0, 5),
        "The circuit breaker blocks calls until 2026-01-02T03:04:05Z, after 5 consecutive failures",
    ),
    (
        OutcomeRecorded("Unowned", 0, "NotDeclared", "no manifest"),
        "The outcome is Unowned (NotDeclared): no manifest",
    ),
]


@pytest.mark.parametrize(("event", "sentence"), SENTENCES)
def test_every_event_is_described_by_a_sentence(event: ResourceEvent, sentence: str) -> None:
    assert summarize(event, "cli:alice") == sentence


def test_every_event_class_has_a_sentence() -> None:
    assert {type(event) for event, _sentence in SENTENCES} == set(get_args(ResourceEvent))


def test_a_declaration_is_described_by_its_changes() -> None:
    purple = replace(
        DECLARED,
        generation=2,
        fields={**RED, "color": "Purple"},
        labels={"team": "a"},
        annotations={"ticket": "7"},
        policy=Policy(mode="ObserveOnly"),
        reason="the new\ncolor",
    )
    assert summarize(purple, "billing", DECLARED) == (
        "billing declared generation 2, which changes color: Red → Purple, labels.team: a, "
        "annotations.ticket: 7, policy.mode: ObserveOnly (reason: the new color)"
    )


def test_a_declaration_after_a_withdrawal_is_described_in_full() -> None:
    data: list[ResourceEvent] = [DECLARED, SpecWithdrawn(2), DECLARED]
    lines = describe_history([StoredEvent(n, _event(n, event)) for n, event in enumerate(data, 1)])
    assert lines[2].what == lines[0].what
    assert lines[0].time == "2026-01-02T03:04:05.000Z"


def test_the_update_that_releases_an_orphan_states_that_it_removes_our_label() -> None:
    action = Action("a@3", "key", "Update", 2, "default", "foo", ("m2",), fields=RED, uid="u1")
    labeled = replace(action, labels={OWNER_LABEL: "log1/default/Shape/foo"})
    data: list[ResourceEvent] = [
        DECLARED,
        ActionDecided(action),  # for an API without labels
        SpecWithdrawn(2),
        ActionDecided(action),
        ActionDecided(labeled),
    ]
    lines = describe_history([StoredEvent(n, _event(n, event)) for n, event in enumerate(data, 1)])
    sentence = "Reconciler decided to update foo with type: Square, color: Red"
    assert lines[1].what == lines[4].what == sentence
    assert lines[3].what == (
        "Reconciler decided to remove the owner label from foo and to change nothing else: "
        "the object stays in the API"
    )


def _event(version: int, data: ResourceEvent) -> LogEvent:
    return LogEvent(f"e{version}", "r", "t", "default/Shape/foo", AT, version, data)


@pytest.mark.parametrize(
    ("actor", "name"),
    [
        ("cli:alice", "alice"),
        ("billing", "billing"),
        ("shop=cli:alice", "shop (cli:alice)"),  # the server vouches for shop
        ("anonymous=shop=x", "anonymous (shop=x)"),
        ("reconciler@host:4711", "Reconciler"),
        ("", "An unknown client"),
    ],
)
def test_a_sentence_names_the_sender_of_the_message(actor: str, name: str) -> None:
    assert format_actor(actor) == name


@pytest.mark.parametrize("event", [OwnershipClaimed, OwnershipReleased])
def test_every_reason_for_an_ownership_change_has_its_own_sentence(
    event: type[OwnershipClaimed | OwnershipReleased],
) -> None:
    reasons = get_args(get_type_hints(event)["reason"])
    sentences = {summarize(event("foo", None, reason)) for reason in reasons}
    assert len(sentences) == len(reasons) > 1


def test_every_way_to_find_an_effect_has_its_own_sentence() -> None:
    ways = get_args(FoundBy)
    sentences = {summarize(ActionSucceeded("a@2", "Delete", 1, found_by=way)) for way in ways}
    assert len(sentences) == len(ways) > 1
