"""Harmful messages are refused: too deeply nested ones, and excessive ids."""

from __future__ import annotations

import json
from typing import Any

import pytest

from events.envelope import (
    MAX_ID_CHARACTERS,
    MAX_NESTING,
    InvalidMessageError,
    decode_intake,
    decode_listing_part,
)


def nested_brackets(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


def decode_observation(fields: bytes) -> Any:
    payload = (
        b'{"specversion":"1.0","id":"1","source":"team","type":"reconciler.observed.Observed",'
        b'"data":{"providerConfig":"default","externalName":"foo",'
        b'"object":{"name":"foo","fields":{"color":' + fields + b"}}}}"
    )
    return decode_intake(payload, expected="observed", fallback_id="")


def test_the_maximum_nesting_is_accepted():
    outer_levels = 4  # the event, its data, the object, its fields
    assert (
        decode_observation(nested_brackets(MAX_NESTING - outer_levels)).data.object.fields["color"]
        is not None
    )
    with pytest.raises(InvalidMessageError, match="nested too deep"):
        decode_observation(nested_brackets(MAX_NESTING - outer_levels + 1))


@pytest.mark.parametrize("levels", [1_000, 100_000])
def test_any_deeper_nesting_is_refused(levels: int):
    with pytest.raises(InvalidMessageError, match="nested too deep"):
        decode_observation(nested_brackets(levels))
    with pytest.raises(InvalidMessageError, match="nested too deep"):
        decode_listing_part(b'{"specversion":"1.0","data":' + nested_brackets(levels) + b"}")


@pytest.mark.parametrize(
    "fields",
    [b"[" + b"[]," * 500 + b"[]]", b'"' + b"[" * 500 + b'"', b'"\\"' + b"{" * 500 + b'"'],
    ids=["many side by side", "in a string", "after an escaped quote"],
)
def test_brackets_without_nesting_do_not_count(fields: bytes):
    assert decode_observation(fields).data.object.fields["color"]


@pytest.mark.parametrize("attribute", ["id", "source"])
def test_an_id_that_would_fill_the_log_is_refused(attribute: str):
    attributes = {"id": "1", "source": "team", attribute: "x" * (MAX_ID_CHARACTERS + 1)}
    payload = (
        b'{"specversion":"1.0","id":"%s","source":"%s","type":"reconciler.desired.Withdrawn",'
        b'"data":{}}' % (attributes["id"].encode(), attributes["source"].encode())
    )
    with pytest.raises(InvalidMessageError, match="at most 256 characters"):
        decode_intake(payload, expected="desired", fallback_id="")


@pytest.mark.parametrize("attribute", ["id", "source"])
@pytest.mark.parametrize("character", ["\n", "\x1b", "\x85", "\u2028", "\u202e", "\u2066", "\t"])
def test_an_id_or_source_that_could_forge_a_line_is_refused(attribute: str, character: str):
    attributes = {"id": "1", "source": "team", attribute: f"x{character}y"}
    payload = json.dumps(
        {"specversion": "1.0", "type": "reconciler.desired.Withdrawn", "data": {}, **attributes}
    ).encode()
    with pytest.raises(InvalidMessageError, match=rf"^{attribute} of .* not printable"):
        decode_intake(payload, expected="desired", fallback_id="")
    with pytest.raises(InvalidMessageError, match=r"^message id .* not printable"):
        decode_intake(payload, expected="desired", fallback_id=attributes[attribute])
