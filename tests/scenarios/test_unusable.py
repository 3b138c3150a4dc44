"""Scenario 27: what cannot be used becomes a dead letter with the reason; everyone else goes on."""

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


def declared(wrong: Manifest) -> bytes:
    return encode_intake("m-1", ACTOR, Declared(wrong), time=now())


def good() -> bytes:
    return declared(manifest("foo"))


def of_another_type() -> bytes:
    return good().replace(b"reconciler.desired.Declared", b"reconciler.desired.Wished")


def with_unknown_field() -> bytes:
    wrong = Manifest("shapes/v1", "Shape", Metadata("foo"), {"type": "Square", "colour": "Red"})
    return declared(wrong)


def of_unknown_kind() -> bytes:
    return declared(Manifest("shapes/v1", "Blob", Metadata("foo"), {}))


def of_two_mebibytes() -> bytes:
    return good() + b" " * (2 * 1024 * 1024)


def nested_deep() -> bytes:
    return good().replace(b'"Red"', b'{"a":' * 2_000 + b"1" + b"}" * 2_000)


def of_another_resource() -> bytes:
    return declared(manifest("bar"))


def with_an_invalid_finalizer() -> bytes:
    return encode_intake("m-1", ACTOR, FinalizerRequested("not a name"), time=now())


def of_a_release_without_a_reason() -> bytes:
    return encode_intake("m-1", ACTOR, ForcedRelease(" "), time=now())


CASES: dict[str, tuple[str, Callable[[], bytes], str, str]] = {
    "not JSON": (FOO, lambda: b"colour it red, please", "intake", "not a CloudEvent"),
    "not text": (FOO, lambda: b"\xff\x00\xfe", "intake", "not a CloudEvent"),
    "nothing": (FOO, lambda: b"", "intake", "not a CloudEvent"),
    "unknown type": (FOO, of_another_type, "intake", "is not allowed on a desired subject"),
    "wrong schema": (FOO, with_unknown_field, "declaration", "spec.colour: unknown field"),
    "another resource's subject": (
        FOO,
        of_another_resource,
        "declaration",
        "but its subject is for",
    ),
    "unknown kind": (
        intake("desired", ResourceKey("default", "Blob", "foo")),
        of_unknown_kind,
        "declaration",
        "'Blob' is not registered",
    ),
    "an invalid finalizer": (
        intake("finalizer", shape("foo")),
        with_an_invalid_finalizer,
        "request",
        "finalizer 'not a name' is not allowed",
    ),
    "a release without a reason": (
        intake("approval", shape("foo")),
        of_a_release_without_a_reason,
        "request",
        "a forced release requires a reason",
    ),
    "2 MiB": (FOO, of_two_mebibytes, "intake", "bytes, more than the limit"),
    "nested too deep": (FOO, nested_deep, "intake", "nested too deep"),
    "a name with a dot": ("rec.desired.default.Shape.foo.bar", good, "intake", "not of the form"),
    "a name with a wildcard": ("rec.desired.default.Shape.*", good, "intake", "not of the form"),
    "an open-ended name": ("rec.desired.default.Shape.>", good, "intake", "not of the form"),
    "a name with an umlaut": (
        "rec.desired.default.Shape.föö",
        good,
        "intake",
        "'föö' is not allowed",
    ),
    "a subject too short": ("rec.desired.foo", good, "intake", "not of the form"),
    "an unknown verb": ("rec.wished.default.Shape.foo", good, "intake", "'wished'"),
}


ON_A_SERVER = (
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
"""What the scenario names, and the subjects that the server itself interprets."""


@pytest.mark.parametrize("case", ON_A_SERVER)
async def test_27_an_unusable_message_is_a_dead_letter_and_its_publisher_gets_a_reply(
    world: World, case: str
):
    await check_dead_letter(world, case)


async def check_dead_letter(world: World, case: str) -> None:
    """Publish what cannot be used, and check its letter, its answer and a neighbor."""
    subject, payload, stage, reason = CASES[case]
    expected_payload = payload()

    answer = await world.ask_raw(subject, expected_payload)
    await world.declare("neighbour")

    await world.until_outcome("neighbour", "Converged")
    assert not answer.accepted
    assert reason in answer.message
    (letter,) = await world.dead_letters()
    assert (letter.stage, letter.size) == (stage, len(expected_payload))
    assert reason in letter.reason
    stored_payload = letter.payload.encode()
    if letter.payload_encoding == "base64":
        stored_payload = base64.b64decode(stored_payload)
    assert expected_payload.startswith(stored_payload)
    assert await world.human.effects() == ["POST"]
    assert await world.human.find("foo") is None


async def test_27_an_answer_goes_to_an_inbox_and_nowhere_else(world: World):
    """The header names where the decider writes: it must not be a way into our own subjects."""
    payload = declared(manifest("foo"))
    headers = {"Reconciler-Reply-To": "log.default.Shape.foo.fact"}
    await world.nc.request(FOO, payload, headers=headers)

    await world.until_outcome("foo", "Converged")
    assert [event.resourceversion for event in await world.history("foo")] == [1, 2, 3, 4]
