"""For any bytes, the decoders return a message or raise a documented error."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import Any

import msgspec
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from events.check_manifest import check_manifest
from events.envelope import (
    InvalidMessageError,
    decode_intake,
    decode_listing_part,
    decode_log,
    encode_intake,
    encode_listing_part,
    encode_log,
)
from events.external import ExternalObject
from events.intake import ListingItem
from events.log import OutcomeRecorded
from events.manifest import InvalidManifestError, Manifest
from events.names import InvalidNameError, ResourceKey
from events.provider_config import ProviderConfigSpec
from events.subjects import INTAKE_KINDS, Intake, parse_intake, parse_stored_intake
from reconciler.provider.kind import KindRegistry
from reconciler.resource.decide import decide
from reconciler.resource.state import NEW
from reconciler.resource.turn import Command, Context
from shapes_api.kinds.records import RECORD
from shapes_api.kinds.shapes import SHAPE
from tests.bus.histories import event
from tests.corpus.cases import cases

NOW = datetime(2026, 1, 2, tzinfo=UTC)
KEY = ResourceKey("default", "Shape", "foo")
KINDS = KindRegistry([SHAPE, RECORD])
CONFIGS = {"default": ProviderConfigSpec("shapes", "http://127.0.0.1:1")}
SHORT = [case for case in cases().values() if len(case.payload_bytes) < 4_096]
SEEDS = [case.payload_bytes.replace(case.name.encode(), b"foo") for case in SHORT]
LOG_SEED = encode_log(event(KEY, 1, OutcomeRecorded("Converged", 1, "AsDeclared")))
PART_SEED = encode_listing_part(
    "m", "s", ListingItem(ExternalObject("foo", {"color": "Red"})), time=NOW
)
DEEP = b'{"a":' * 5_000 + b"1" + b"}" * 5_000

fuzz_settings = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(["Red", "Square", "foo", "default", "shapes/v1", "Shape"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4)
    ),
    max_leaves=20,
)


@st.composite
def mutated_bytes(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """Delete, insert, repeat or overwrite bytes of a valid message."""
    payload = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(payload)))
        to = min(len(payload), at + draw(st.integers(0, 12)))
        new = draw(st.binary(max_size=8) | st.just(bytes(payload[at:to]) * 2) | _fragments)
        payload[at:to] = new
    return bytes(payload)


@st.composite
def mutated_tree(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """Replace a random value in the tree of a valid message."""
    tree = msgspec.json.decode(draw(st.sampled_from(seeds)))
    holder, key = tree, draw(st.sampled_from(sorted(tree)))
    while isinstance(holder[key], dict) and holder[key] and draw(st.booleans()):
        holder = holder[key]
        key = draw(st.sampled_from(sorted(holder)))
    holder[key] = draw(json_values)
    return msgspec.json.encode(tree)


_fragments = st.sampled_from(
    [
        b"null",
        b"1e999",
        b"NaN",
        b"\\ud800",
        b"\xff",
        b"\0",
        b"{",
        b"[",
        b'"',
        b"9" * 30,
        b"-",
        b"{}",
    ]
)


def _manifest_with(spec: Any) -> dict[str, Any]:
    metadata = {"name": "foo"}
    return {"apiVersion": "shapes/v1", "kind": "Shape", "metadata": metadata, "spec": spec}


def _is_object(payload: bytes) -> bool:
    with contextlib.suppress(ValueError, RecursionError):
        return isinstance(msgspec.json.decode(payload), dict)
    return False


OBJECTS = [seed for seed in SEEDS if _is_object(seed) and seed != b"{}"]
messages = st.binary(max_size=200) | mutated_bytes(SEEDS) | mutated_tree(OBJECTS)


@fuzz_settings
@given(messages, st.sampled_from(INTAKE_KINDS))
@example(DEEP, "desired")
def test_intake_messages_are_refused_or_can_be_decided(payload: bytes, what: Intake) -> None:
    try:
        message = decode_intake(payload, expected=what, fallback_id="m")
    except InvalidMessageError:
        return
    again = encode_intake(message.id, message.source, message.data, time=NOW)
    assert decode_intake(again, expected=what, fallback_id="x").data == message.data
    context = Context(KEY, NOW, 0.5, "log", KINDS.find("Shape"), CONFIGS)
    turn = decide(NEW, [Command(7, message.id, message.source, message.data)], context)
    for each in turn.events:
        assert decode_log(encode_log(each)) == each


@fuzz_settings
@given(st.binary(max_size=200) | mutated_bytes([PART_SEED]) | mutated_tree([PART_SEED]))
@example(DEEP)
def test_listing_parts_are_read_or_refused(payload: bytes) -> None:
    with contextlib.suppress(InvalidMessageError):
        decode_listing_part(payload)


@fuzz_settings
@given(st.binary(max_size=200) | mutated_bytes([LOG_SEED]) | mutated_tree([LOG_SEED]))
@example(DEEP)
def test_log_events_are_read_or_refused(payload: bytes) -> None:
    with contextlib.suppress(InvalidMessageError):
        read = decode_log(payload)
        assert decode_log(encode_log(read)) == read


@fuzz_settings
@given(json_values | json_values.map(_manifest_with))
def test_manifests_are_accepted_or_refused(manifest: Any) -> None:
    with contextlib.suppress(InvalidManifestError, InvalidNameError):
        assert isinstance(check_manifest(manifest), Manifest)


@fuzz_settings
@given(st.text(max_size=60) | st.from_regex(r"in\.[0-9]\.desired\.\w+\.\w+\.\w+", fullmatch=True))
def test_subjects_are_read_or_refused(subject: str) -> None:
    for parse in (parse_stored_intake, parse_intake):
        with contextlib.suppress(ValueError):
            _what, key = parse(subject)
            assert ResourceKey.parse(str(key)) == key
