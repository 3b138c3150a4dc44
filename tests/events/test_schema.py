"""The generated schemas are valid, complete, and match the encoded messages."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, cast

import jsonschema_rs
import pytest

from events import subjects
from events.envelope import encode_intake, encode_listing_part, encode_log
from events.external import ExternalObject
from events.intake import (
    INTAKE_TYPES,
    ActionError,
    ApiReported,
    Approved,
    Declared,
    DefinitionReported,
    FinalizerReleased,
    FinalizerRequested,
    ForcedRelease,
    IntakeData,
    ListingBegan,
    ListingCompleted,
    ListingItem,
    ListingPart,
    NewerObject,
    Observed,
    ReconcileRequested,
    Referenced,
    Reply,
    Reported,
    SecretReported,
    TargetReported,
    TargetState,
    TimerFired,
    UndeclaredObjects,
    Unreferenced,
    UsersReported,
    Withdrawn,
)
from events.log import (
    ApiThrottled,
    BreakerClosed,
    BreakerOpened,
    BreakerProbed,
    DriftDetected,
    FieldDifference,
    LogEvent,
    OutcomeRecorded,
    ResourceEvent,
    SpecDeclared,
    TwinDetected,
    UndeclaredCounted,
    UsersCounted,
    event_type,
)
from events.manifest import Manifest, Metadata
from events.names import ResourceKey
from events.schema import asyncapi, json_schema
from infra.bus.permissions import PRINCIPALS, principal_permissions

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
KEY = ResourceKey("default", "Shape", "foo")
MANIFEST = Manifest("shapes/v1", "Shape", Metadata("foo"), {"type": "Square", "color": "Red"})
THING = ExternalObject("foo", {"color": "Red"}, uid="1", labels={"a": "b"})
INTAKE: list[IntakeData] = [
    Declared(MANIFEST, expected_generation=0),
    Withdrawn(),
    ReconcileRequested("the API is back"),
    FinalizerRequested("billing/invoice"),
    FinalizerReleased("billing/invoice", force=True, reason="gone"),
    ForcedRelease("the API is gone for good", orphan=True),
    Approved("DeletionGuard", reason="they are unmanaged"),
    Referenced("default/ShapeRef/mine", "Keep"),
    Unreferenced("default/ShapeRef/mine"),
    TargetReported("default/Shape/foo", TargetState(True, True, {"outputs.host": "db"})),
    SecretReported("files/db", "abc"),
    DefinitionReported(2, "abc", 3, 10),
    UsersReported(2, 1, ("default/Shape/foo",)),
    Observed("default", "foo", THING, began_at=NOW),
    Reported("a", 1, NOW, NOW, "w", ActionError("NotDone", "no")),
    ApiReported("Throttled", "w", NOW, retry_after_seconds=7.0, message="no"),
    ApiReported(
        "Twin", "w", NOW, newer=(NewerObject("Shape", "foo", None, "a/b/c@9", 4),), total=1
    ),
    TimerFired("Retry"),
]
PARTS: list[ListingPart] = [
    ListingBegan("default", "Shape", 7, prefix="a-"),
    ListingItem(THING),
    ListingCompleted(1),
]
LOGGED: list[ResourceEvent] = [
    SpecDeclared(1, "shapes/v1", "default", "foo", {"color": "Red"}),
    DriftDetected(1, differences=(FieldDifference("color", "Red", None),)),
    OutcomeRecorded("Converged", 1, "AsDeclared"),
    ApiThrottled(NOW, 7.0, "no"),
    BreakerOpened(NOW, 2.0, 5, "no"),
    BreakerProbed(NOW, 20.0, "w"),
    BreakerClosed(),
    TwinDetected((NewerObject("Shape", "foo", "u1", "default/Shape/foo@9", 4),), 1),
    UndeclaredCounted({"Shape": UndeclaredObjects(1, 3, ("foo",))}),
    UsersCounted(1, ("default/Shape/foo",)),
]


def checker(name: str) -> jsonschema_rs.Validator:
    schema = json_schema()
    return jsonschema_rs.validator_for({**schema, "$ref": f"#/$defs/{name}"})


def logged(data: ResourceEvent) -> LogEvent:
    return LogEvent(f"{KEY}@1", "reconciler", event_type(data), str(KEY), NOW, 1, data)


def refs(thing: Any) -> Iterator[str]:
    if isinstance(thing, dict):
        for key, value in cast("dict[str, Any]", thing).items():
            if key == "$ref":
                yield value
            else:
                yield from refs(value)
    elif isinstance(thing, list):
        for each in cast("list[Any]", thing):
            yield from refs(each)


def resolve(document: Any, reference: str) -> Any:
    for part in reference.removeprefix("#/").split("/"):
        document = document[part]
    return document


def test_schema_is_valid_json_schema() -> None:
    schema = json_schema()
    jsonschema_rs.validator_for({"$ref": schema["$schema"]}).validate(schema)
    assert json.loads(json.dumps(schema)) == schema


@pytest.mark.parametrize("data", INTAKE, ids=lambda data: type(data).__name__)
def test_an_encoded_intake_message_matches_only_its_own_schema(data: IntakeData) -> None:
    event = json.loads(encode_intake("id", "test", data, time=NOW))
    own_schema = f"{type(data).__name__}CloudEvent"

    checker(own_schema).validate(event)
    others = [f"{struct.__name__}CloudEvent" for struct in INTAKE_TYPES.values()]
    assert [name for name in others if checker(name).is_valid(event)] == [own_schema]


def test_every_intake_message_has_an_example() -> None:
    assert {type(data) for data in INTAKE} == set(INTAKE_TYPES.values())


@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(part).__name__)
def test_an_encoded_listing_part_matches_its_schema(part: ListingPart) -> None:
    event = json.loads(encode_listing_part("id", "test", part, time=NOW))
    checker("ListingPartCloudEvent").validate(event)


@pytest.mark.parametrize("data", LOGGED, ids=lambda data: type(data).__name__)
def test_an_encoded_log_event_matches_its_schema(data: ResourceEvent) -> None:
    event = json.loads(encode_log(logged(data)))
    check = checker("LogEvent")
    check.validate(event)
    assert not check.is_valid({**event, "data": {"event": "Nothing"}})
    assert not check.is_valid({**event, "specversion": "0.3"})


@pytest.mark.parametrize(
    "invalid_manifest",
    [{"kind": "Shape"}, {"apiVersion": "v1", "kind": "Shape", "metadata": {"name": "a"}, "x": 1}],
)
def test_an_invalid_manifest_does_not_match_its_schema(invalid_manifest: Any) -> None:
    assert not checker("Manifest").is_valid(invalid_manifest)


def test_every_reference_resolves() -> None:
    for document in (json_schema(), asyncapi()):
        references = list(refs(document))
        assert references
        for reference in references:
            assert resolve(document, reference), reference


def test_asyncapi_lists_every_subject_in_the_code() -> None:
    channels = asyncapi()["channels"]
    key = ResourceKey("{namespace}", "{kind}", "{name}")
    assert {name: channel["address"] for name, channel in channels.items()} == {
        "desired": subjects.intake("desired", key),
        "finalizer": subjects.intake("finalizer", key),
        "approval": subjects.intake("approval", key),
        "observed": subjects.intake("observed", key),
        "result": subjects.intake("result", key),
        "listing": subjects.listing("{providerConfig}", "{kind}", "{listingId}"),
        "reply": "{replyTo}",
        "outcome": subjects.log(key, "outcome.{outcome}"),
        "rejection": subjects.rejection(key),
        "log": subjects.log(key, "fact").replace("fact", "{class}"),
        "action": subjects.log(key, "action.{providerConfig}"),
        "deadletter": subjects.deadletter("{stage}", "{namespace}", "{size}"),
    }


def test_asyncapi_lists_every_stage_with_dead_letters() -> None:
    stages = {
        subject.split(".")[1]
        for each in PRINCIPALS
        if each != "service"
        for subject in principal_permissions(each, [each]).publish
        if subject.startswith("deadletter.") and subject != subjects.HANDLED
    }
    channel = asyncapi()["channels"]["deadletter"]
    assert set(channel["parameters"]["stage"]["enum"]) == stages


def test_asyncapi_declares_each_parameter_and_direction() -> None:
    document = asyncapi()
    for name, channel in document["channels"].items():
        assert channel["address"].count("{") == len(channel["parameters"])
        operation = document["operations"][name]
        assert operation["channel"] == {"$ref": f"#/channels/{name}"}
        assert len(operation["messages"]) == len(channel["messages"])
    directions = {name: each["action"] for name, each in document["operations"].items()}
    assert directions["desired"] == "receive"
    assert directions["outcome"] == "send"
    assert (
        subjects.REPLY_HEADER in document["operations"]["desired"]["reply"]["address"]["location"]
    )


def test_an_encoded_reply_matches_its_schema() -> None:
    event = {"accepted": True, "reason": "Accepted", "generation": 1, "position": 5}
    checker("Reply").validate(event)
    assert Reply.__name__ in json_schema()["$defs"]


def test_each_call_returns_a_new_document() -> None:
    asyncapi()["channels"].clear()
    json_schema()["$defs"].clear()
    assert asyncapi()["channels"]
    assert json_schema()["$defs"]
