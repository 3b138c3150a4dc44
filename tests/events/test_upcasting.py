"""Older forms in the log are read as if they had been written today."""

import json
from typing import Any

import pytest

from events.envelope import InvalidMessageError, decode_log, encode_log
from events.log import LogEvent, SpecDeclared
from events.upcasting import JsonObject, Upcasters, form_of

OLD: JsonObject = {
    "specversion": "1.0",
    "id": "default/Shape/foo@1",
    "source": "reconciler",
    "type": "reconciler.resource.SpecAccepted",
    "subject": "default/Shape/foo",
    "time": "2020-01-02T03:04:05Z",
    "resourceversion": 1,
    "data": {"event": "SpecAccepted", "generation": 1, "colour": "Red"},
}


def upcasters() -> Upcasters:
    """A made-up past: the colour was a field of its own, then the event got its name of today."""
    made = Upcasters()

    @made.register("reconciler.resource.SpecAccepted")
    def first(event: JsonObject) -> JsonObject:
        data = dict(event["data"])
        fields = {"color": data.pop("colour")}
        schema = "urn:reconciler:resource:SpecAccepted:2"
        return {**event, "dataschema": schema, "data": {**data, "fields": fields}}

    @made.register("reconciler.resource.SpecAccepted", 2)
    def second(event: JsonObject) -> JsonObject:
        data: dict[str, Any] = {
            **event["data"],
            "event": "SpecDeclared",
            "apiVersion": "shapes/v1",
            "providerConfig": "default",
            "externalName": event["subject"].split("/")[2],
        }
        return {**event, "type": "reconciler.resource.SpecDeclared", "data": data}

    assert first(OLD) != OLD
    assert second
    return made


def test_old_form_is_brought_to_todays_in_steps() -> None:
    event = decode_log(json.dumps(OLD).encode(), upcasters=upcasters())

    assert event.type == "reconciler.resource.SpecDeclared"
    assert event.data == SpecDeclared(1, "shapes/v1", "default", "foo", {"color": "Red"})
    assert event.resourceversion == 1


def test_form_in_the_middle_takes_only_the_steps_that_are_left() -> None:
    middle: JsonObject = {
        **OLD,
        "dataschema": "urn:reconciler:resource:SpecAccepted:2",
        "data": {"event": "SpecAccepted", "generation": 4, "fields": {}},
    }
    event = decode_log(json.dumps(middle).encode(), upcasters=upcasters())
    assert isinstance(event.data, SpecDeclared)
    assert event.data.generation == 4


def test_todays_form_is_never_upcast() -> None:
    today = decode_log(json.dumps(OLD).encode(), upcasters=upcasters())
    forbidden = Upcasters()

    @forbidden.register(today.type)
    def never(_event: JsonObject) -> JsonObject:
        raise AssertionError("today's form was upcast")

    assert never
    assert decode_log(encode_log(today), upcasters=forbidden) == today


def test_without_an_upcaster_the_event_is_refused() -> None:
    with pytest.raises(InvalidMessageError, match="SpecAccepted"):
        decode_log(json.dumps(OLD).encode())


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b'"\xff"', b'{"type": 7}'])
def test_what_is_no_event_is_refused(payload: bytes) -> None:
    with pytest.raises(InvalidMessageError, match="not a valid log event"):
        decode_log(payload, upcasters=upcasters())


def test_upcaster_that_fails_is_named_by_the_type() -> None:
    broken = {**OLD, "data": {"event": "SpecAccepted"}}
    with pytest.raises(InvalidMessageError, match=r"SpecAccepted.*KeyError.*colour"):
        decode_log(json.dumps(broken).encode(), upcasters=upcasters())


def test_upcasters_that_lead_in_a_circle_end() -> None:
    made = Upcasters()
    made.register(OLD["type"])(lambda event: event)
    with pytest.raises(InvalidMessageError, match="form a loop"):
        decode_log(json.dumps(OLD).encode(), upcasters=made)


def test_one_form_has_one_upcaster() -> None:
    made = upcasters()
    with pytest.raises(ValueError, match="already"):
        made.register("reconciler.resource.SpecAccepted", 2)(lambda event: event)


@pytest.mark.parametrize(
    ("schema", "form"),
    [("urn:x:2", 2), ("urn:x", 1), ("", 1), (None, 1), ("urn:x:²", 1), ("urn:x:10", 10)],
)
def test_form_is_the_number_at_the_end_of_the_dataschema(schema: object, form: int) -> None:
    assert form_of({"dataschema": schema}) == form


def test_log_event_has_no_field_that_the_old_one_lacks_without_a_default() -> None:
    """What was stored by the first release decodes for ever: its form is written down here."""
    stored = (
        b'{"id":"default/Shape/foo@2","source":"reconciler","type":"reconciler.resource.SpecWithdrawn",'
        b'"subject":"default/Shape/foo","time":"2026-01-02T03:04:05Z","resourceversion":2,'
        b'"data":{"event":"SpecWithdrawn","generation":2},"causeid":"m","causeposition":7,'
        b'"actor":"test","specversion":"1.0"}'
    )
    event = decode_log(stored)
    assert isinstance(event, LogEvent)
    assert encode_log(event) == stored
