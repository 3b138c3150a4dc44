"""Scenario 27: an unusable message becomes a dead letter with the reason; others continue."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest

from events.envelope import encode_intake
from events.intake import Declared, FinalizerRequested, ForcedRelease
from events.manifest import Manifest, Metadata
from events.names import ResourceKey
from events.subjects import intake
from tests.scenarios.harness import ACTOR, World, manifest, now, shape

FOO = intake("desired", shape("foo"))


def encode_declaration(wrong: Manifest) -> bytes:
    return encode_intake("m-1", ACTOR, Declared(wrong), time=now())


def usable_message() -> bytes:
    return encode_declaration(manifest("foo"))


def message_with_unknown_type() -> bytes:
    return usable_message().replace(b"reconciler.desired.Declared", b"reconciler.desired.Wished")


def message_with_unknown_field() -> bytes:
    wrong = Manifest("shapes/v1", "Shape", Metadata("foo"), {"type": "Square", "colour": "Red"})
    return encode_declaration(wrong)


def message_for_unknown_kind() -> bytes:
    return encode_declaration(Manifest("shapes/v1", "Blob", Metadata("foo"), {}))


def message_of_2_mebibytes() -> bytes:
    return usable_message() + b" " * (2 * 1024 * 1024)


def deeply_nested_message() -> bytes:
    return usable_message().replace(b'"Red"', b'{"a":' * 2_000 + b"1" + b"}" * 2_000)


def message_for_another_resource() -> bytes:
    return encode_declaration(manifest("bar"))


def message_with_invalid_finalizer() -> bytes:
    return encode_intake("m-1", ACTOR, FinalizerRequested("not a name"), time=now())


def release_without_reason() -> bytes:
    return encode_intake("m-1", ACTOR, ForcedRelease(" "), time=now())


CASES: dict[str, tuple[str, Callable[[], bytes], str, str]] = {
    "not JSON": (FOO, lambda: b"colour it red, please", "intake", "not a CloudEvent"),
    "not text": (FOO, lambda: b"\xff\x00\xfe", "intake", "not a CloudEvent"),
    "nothing": (FOO, lambda: b"", "intake", "not a CloudEvent"),
    "unknown type": (
        FOO,
        message_with_unknown_type,
        "intake",
        "is not allowed on a desired subject",
    ),
    "wrong schema": (FOO, message_with_unknown_field, "declaration", "spec.colour: unknown field"),
    "another resource's subject": (
        FOO,
        message_for_another_resource,
        "declaration",
        "but its subject is for",
    ),
    "unknown kind": (
        intake("desired", ResourceKey("default", "Blob", "foo")),
        message_for_unknown_kind,
        "declaration",
        "'Blob' is not registered",
    ),
    "an invalid finalizer": (
        intake("finalizer", shape("foo")),
        message_with_invalid_finalizer,
        "request",
        "finalizer 'not a name' is not allowed",
    ),
    "a release without a reason": (
        intake("approval", shape("foo")),
        release_without_reason,
        "request",
        "a forced release requires a reason",
    ),
    "2 MiB": (FOO, message_of_2_mebibytes, "intake", "bytes, more than the limit"),
    "nested too deep": (FOO, deeply_nested_message, "intake", "nested too deep"),
    "a name with a dot": (
        "rec.desired.default.Shape.foo.bar",
        usable_message,
        "intake",
        "not of the form",
    ),
    "a name with a wildcard": (
        "rec.desired.default.Shape.*",
        usable_message,
        "intake",
        "not of the form",
    ),
    "an open-ended name": (
        "rec.desired.default.Shape.>",
        usable_message,
        "intake",
        "not of the form",
    ),
    "a name with an umlaut": (
        "rec.desired.default.Shape.föö",
        usable_message,
        "intake",
        "'föö' is not allowed",
    ),
    "a subject too short": ("rec.desired.foo", usable_message, "intake", "not of the form"),
    "an unknown verb": ("rec.wished.default.Shape.foo", usable_message, "intake", "'wished'"),
}


CASES_ON_SERVER = (
    "not JSON",
    "wrong schema",
    "unknown kind",
    "2 MiB",
    "a name with a dot",
    "a name with a wildcard",
    "an open-ended name",
    "a name with an umlaut",
    "a subject too short",
)
"""The cases that the scenario names, and the subjects that the server itself interprets."""


@pytest.mark.parametrize("case", CASES_ON_SERVER)
async def test_27_an_unusable_message_becomes_a_dead_letter_and_its_publisher_gets_a_reply(
    world: World, case: str
):
    await check_dead_letter(world, case)


async def check_dead_letter(world: World, case: str) -> None:
    """Publish an unusable message; check its dead letter, its reply, and a neighbor."""
    subject, payload, stage, reason = CASES[case]
    expected_payload = payload()

    reply = await world.ask_raw(subject, expected_payload)
    await world.declare("neighbor")

    await world.until_outcome("neighbor", "Converged")
    assert not reply.accepted
    assert reason in reply.message
    (dead_letter,) = await world.dead_letters()
    assert (dead_letter.stage, dead_letter.size) == (stage, len(expected_payload))
    assert reason in dead_letter.reason
    stored_payload = dead_letter.payload.encode()
    if dead_letter.payload_encoding == "base64":
        stored_payload = base64.b64decode(stored_payload)
    assert expected_payload.startswith(stored_payload)
    assert await world.human.effects() == ["POST"]
    assert await world.human.find("foo") is None


async def test_27_a_reply_goes_to_an_inbox_and_nowhere_else(world: World):
    """The header names the subject of the reply; it must not allow writes to our subjects."""
    payload = encode_declaration(manifest("foo"))
    headers = {"Reconciler-Reply-To": "log.default.Shape.foo.fact"}
    await world.nc.request(FOO, payload, headers=headers)

    await world.until_outcome("foo", "Converged")
    assert [event.resourceversion for event in await world.history("foo")] == [1, 2, 3, 4]
