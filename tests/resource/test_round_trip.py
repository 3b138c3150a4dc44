"""Log events and cached states are equal after encoding and decoding."""

from __future__ import annotations

import string
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from events.envelope import InvalidMessageError, decode_log, encode_log
from events.external import ExternalObject
from events.intake import (
    ActionError,
    ApprovalDecision,
    ErrorClass,
    ListingFailure,
    LossCount,
    NewerObject,
    OnWithdrawal,
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
    Base,
    BreakerClosed,
    BreakerOpened,
    BreakerProbed,
    Condition,
    ConditionType,
    Consequence,
    DeclarationSuperseded,
    DefinitionObserved,
    DriftDetected,
    Effect,
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
    Operation,
    OutcomeName,
    OutcomeRecorded,
    OwnershipClaimed,
    OwnershipReleased,
    PartAvailability,
    PathDrift,
    ProgressNoted,
    Purpose,
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
    event_id,
    event_type,
)
from events.manifest import Adoption, ApprovalLevel, Deletion, Mode, Policy
from reconciler.resource.evolve import HistoryGapError, fold
from reconciler.resource.state import (
    NEW,
    Actions,
    ApiHealth,
    Applied,
    Desired,
    Ended,
    Finalizer,
    Holds,
    InFlight,
    Observation,
    Owned,
    ResourceState,
    Spec,
    Twin,
    Waits,
)
from tests.resource.building import FOO, converged_story, repaint

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

strings = st.text(max_size=8)
numbers = st.integers(min_value=0, max_value=2**53)
scalars = st.none() | st.booleans() | numbers | st.floats(-1e300, 1e300) | strings
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strings, inner, max_size=3),
    max_leaves=3,
)
fields = st.dictionaries(strings, values, max_size=3)
labels = st.dictionaries(strings, strings, max_size=3)
moments = numbers.map(lambda number: EPOCH + timedelta(microseconds=number))
seconds = st.floats(min_value=0, max_value=1e6)


def literal(alias: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(get_args(alias))


objects = st.builds(
    ExternalObject,
    strings,
    fields,
    st.none() | strings,
    st.none() | strings,
    labels=labels,
    written_by=st.none() | strings,
)
policies = st.builds(
    Policy,
    literal(Deletion),
    literal(Mode),
    literal(Adoption),
    st.lists(strings, max_size=2).map(tuple),
    st.booleans(),
    st.sampled_from(["Restore", "Report"]),
)
errors = st.builds(
    ActionError, literal(ErrorClass), strings, st.none() | numbers, st.none() | seconds
)
actions = st.builds(
    Action,
    strings,
    strings,
    literal(Operation),
    numbers,
    strings,
    strings,
    st.lists(strings, max_size=2).map(tuple),
    fields,
    labels,
    st.none() | strings,
    st.none() | strings,
)
definitions = st.builds(DefinitionRef, numbers, strings, numbers, numbers)
differences = st.lists(st.builds(FieldDifference, strings, values, values), max_size=2).map(tuple)
conditions = st.lists(
    st.builds(
        Condition,
        literal(ConditionType),
        st.sampled_from(["True", "False", "Unknown"]),
        strings,
        strings,
        numbers,
    ),
    max_size=2,
).map(tuple)
evidence = st.sampled_from(["CompleteListing", "Read"])
maybe_objects = st.none() | objects
maybe_numbers = st.none() | numbers
maybe_strings = st.none() | strings
names = st.lists(strings, max_size=2).map(tuple)
flights = st.builds(
    InFlight,
    actions,
    numbers,
    st.none() | errors,
    st.none() | moments,
    st.none() | moments,
    seconds,
    st.none(),
    st.sampled_from(Effect),
    numbers,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    strings,
    st.booleans(),
)

undeclared_objects = st.dictionaries(
    strings,
    st.builds(UndeclaredObjects, numbers, numbers, st.lists(strings, max_size=2).map(tuple)),
    max_size=2,
)
newer_objects = st.lists(
    st.builds(NewerObject, strings, strings, maybe_strings, strings, numbers), max_size=2
).map(tuple)

BUILDERS: dict[type[ResourceEvent], st.SearchStrategy[Any]] = {
    SpecDeclared: st.builds(
        SpecDeclared, numbers, strings, strings, strings, fields, labels, labels, policies
    ),
    SpecWithdrawn: st.builds(SpecWithdrawn, numbers, strings, st.booleans()),
    GenerationSuperseded: st.builds(GenerationSuperseded, numbers, numbers),
    DeclarationSuperseded: st.builds(DeclarationSuperseded, numbers),
    ExternalObserved: st.builds(
        ExternalObserved,
        strings,
        strings,
        maybe_objects,
        evidence,
        numbers,
        maybe_numbers,
        maybe_numbers,
    ),
    AbsenceDoubted: st.builds(AbsenceDoubted, strings, strings, numbers, numbers),
    DriftDetected: st.builds(
        DriftDetected,
        numbers,
        st.booleans(),
        differences,
        strings,
        st.lists(st.builds(PathDrift, strings, numbers, moments, moments), max_size=2).map(tuple),
    ),
    OwnershipClaimed: st.builds(
        OwnershipClaimed,
        strings,
        maybe_strings,
        st.sampled_from(["Adopted", "Label", "Prefix", "ExclusiveScope", "Found"]),
        strings,
        maybe_objects,
    ),
    OwnershipReleased: st.builds(
        OwnershipReleased,
        strings,
        maybe_strings,
        st.sampled_from(["Orphaned", "Forgotten", "Gone", "Replaced", "Moved"]),
        strings,
    ),
    MoveExpected: st.builds(MoveExpected, strings),
    MoveEnded: st.builds(MoveEnded, strings, strings),
    FinalizerAdded: st.builds(FinalizerAdded, strings, strings),
    FinalizerRemoved: st.builds(FinalizerRemoved, strings, st.booleans(), strings),
    ReleaseForced: st.builds(ReleaseForced, strings, st.booleans(), names, names),
    HoldApproved: st.builds(HoldApproved, strings, literal(ApprovalDecision), strings, strings),
    ReconcileAccepted: st.builds(ReconcileAccepted, st.booleans(), strings),
    ApprovalRequested: st.builds(
        ApprovalRequested,
        strings,
        literal(Operation),
        numbers,
        strings,
        strings,
        literal(Purpose),
        differences,
        literal(ApprovalLevel),
    ),
    ApprovalRefused: st.builds(ApprovalRefused, strings, strings),
    ReferenceAdded: st.builds(ReferenceAdded, strings, literal(OnWithdrawal)),
    ReferenceRemoved: st.builds(ReferenceRemoved, strings),
    TargetObserved: st.builds(
        TargetObserved,
        strings,
        st.builds(TargetState, st.booleans(), st.booleans(), fields, st.tuples(strings)),
    ),
    SecretObserved: st.builds(SecretObserved, strings, strings),
    DefinitionObserved: st.builds(DefinitionObserved, definitions),
    SpecResolved: st.builds(SpecResolved, numbers, fields, strings, st.booleans()),
    ActionDecided: st.builds(
        ActionDecided, actions, st.none() | st.builds(Base, st.none() | fields, st.none() | labels)
    ),
    ActionRetried: st.builds(ActionRetried, actions, numbers),
    LookupDecided: st.builds(LookupDecided, actions, numbers, names),
    ActionHeld: st.builds(ActionHeld, strings, strings),
    ActionNotDone: st.builds(ActionNotDone, strings, literal(Operation), numbers),
    ActionDoubted: st.builds(ActionDoubted, strings, literal(Operation), numbers, strings),
    ActionSucceeded: st.builds(
        ActionSucceeded,
        strings,
        literal(Operation),
        numbers,
        maybe_objects,
        st.booleans(),
        st.none() | literal(FoundBy),
        st.booleans(),
    ),
    ActionFailed: st.builds(
        ActionFailed,
        strings,
        literal(Operation),
        numbers,
        errors,
        maybe_objects,
        effect=st.sampled_from(Effect),
        consequence=literal(Consequence),
    ),
    ActionAbandoned: st.builds(ActionAbandoned, strings, literal(Operation), strings),
    RetryScheduled: st.builds(RetryScheduled, moments, seconds, strings, maybe_strings),
    RenewalScheduled: st.builds(RenewalScheduled, moments, moments, seconds),
    ProgressNoted: st.builds(ProgressNoted, strings, moments, st.none() | moments, seconds),
    AvailabilityNoted: st.builds(
        AvailabilityNoted,
        st.dictionaries(
            strings,
            st.none()
            | st.builds(
                PartAvailability,
                strings,
                st.none() | moments,
                st.integers(0, 9),
                st.booleans(),
                strings,
            ),
            max_size=3,
        ),
        st.none() | moments,
        seconds,
    ),
    ApiThrottled: st.builds(ApiThrottled, moments, seconds, strings),
    BreakerOpened: st.builds(BreakerOpened, moments, seconds, numbers, strings),
    BreakerProbed: st.builds(BreakerProbed, moments, seconds, strings),
    BreakerClosed: st.just(BreakerClosed()),
    TwinDetected: st.builds(TwinDetected, newer_objects, numbers),
    ListingsFailed: st.builds(ListingsFailed, strings, st.builds(ListingFailure, moments, strings)),
    ListingsResumed: st.builds(ListingsResumed, strings, strings),
    UndeclaredCounted: st.builds(UndeclaredCounted, undeclared_objects),
    UsersCounted: st.builds(UsersCounted, numbers, st.tuples(strings)),
    ApiFellSilent: st.builds(ApiFellSilent, moments, numbers),
    ApiSilenceEnded: st.just(ApiSilenceEnded()),
    OutcomeRecorded: st.builds(
        OutcomeRecorded,
        literal(OutcomeName),
        numbers,
        strings,
        strings,
        conditions,
        maybe_strings,
        st.booleans(),
    ),
}

applied = st.builds(Applied, fields, labels, maybe_objects)
states = st.builds(
    ResourceState,
    version=numbers,
    desired=st.builds(
        Desired,
        numbers,
        st.booleans(),
        st.none() | st.builds(Spec, strings, strings, strings, fields, labels, labels, policies),
        numbers,
        st.lists(strings, max_size=3).map(tuple),
        resolved=st.none() | fields,
        secrets=labels,
    ),
    owned=st.none() | st.builds(Owned, strings, strings, maybe_strings, st.none() | applied),
    observed=st.builds(
        Observation,
        maybe_objects,
        strings,
        unmanaged=maybe_numbers,
        lost_uid=maybe_strings,
        doubted=st.none() | st.builds(LossCount, numbers, numbers),
    ),
    actions=st.builds(
        Actions,
        st.none() | flights,
        st.lists(
            st.builds(Ended, actions, st.none() | applied, st.booleans(), numbers, strings),
            max_size=3,
        ).map(tuple),
        disowned=st.dictionaries(strings, numbers, max_size=2),
        effect_at=st.none() | moments,
    ),
    waits=st.builds(Waits, numbers, numbers, st.none() | errors, st.none() | moments),
    holds=st.builds(
        Holds,
        st.lists(st.builds(Finalizer, strings, strings), max_size=2).map(tuple),
        st.dictionaries(strings, literal(OnWithdrawal), max_size=2),
    ),
    outcome=st.none() | BUILDERS[OutcomeRecorded],
    cause=strings,
    api=st.builds(
        ApiHealth,
        numbers,
        *[st.none() | moments, seconds] * 3,
        numbers,
        numbers,
        strings,
        twin=st.builds(Twin, numbers, newer_objects, numbers),
    ),
)


def test_every_log_event_has_a_builder():
    assert set(BUILDERS) == set(get_args(ResourceEvent))


@pytest.mark.parametrize("kind", list(BUILDERS), ids=lambda kind: kind.__name__)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), numbers, moments)
def test_every_event_is_equal_after_a_round_trip(
    kind: type[ResourceEvent], data: st.DataObject, version: int, time: datetime
):
    event: ResourceEvent = data.draw(BUILDERS[kind])
    cause = data.draw(strings)
    envelope = LogEvent(
        event_id(FOO, version),
        "reconciler",
        event_type(event),
        str(FOO),
        time,
        version,
        event,
        causationid=cause,
        causationposition=version,
        actor=cause,
    )
    stored = encode_log(envelope)
    assert decode_log(stored) == envelope
    assert encode_log(decode_log(stored)) == stored
    assert decode_log(stored).key == FOO


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(states)
def test_a_state_is_equal_after_a_round_trip(state: ResourceState):
    packed = msgspec.msgpack.encode(state)
    assert msgspec.msgpack.decode(packed, type=ResourceState) == state
    text = msgspec.json.encode(state)
    assert msgspec.json.decode(text, type=ResourceState) == state


@pytest.mark.parametrize(
    "stored", [b"", b"{", b"null", b"\xff", b'{"data":{"event":"Unheard"}}', b"[1]"]
)
def test_bytes_that_are_not_an_event_are_reported(stored: bytes):
    with pytest.raises(InvalidMessageError):
        decode_log(stored)


@given(st.text(alphabet=string.printable, max_size=30))
def test_no_string_crashes_the_decoder(text: str):
    with pytest.raises(InvalidMessageError):
        decode_log(text.encode())


def test_a_stored_history_folded_in_two_parts_leads_to_the_same_state():
    story = converged_story(labels={"team": "a"})
    story.observe(repaint(story.existing, color="Green"))
    stored = [encode_log(event) for event in story.log]
    decoded = [decode_log(each) for each in stored]
    for cut in range(len(decoded) + 1):
        assert fold(decoded[cut:], fold(decoded[:cut])) == story.state


def test_a_gap_a_duplicate_and_a_swap_in_a_history_are_detected():
    log = converged_story().log
    for broken in (log[1:], log[:1] + log[2:], log[:2] + log[1:], [log[1], log[0], *log[2:]]):
        with pytest.raises(HistoryGapError):
            fold(broken, NEW)
