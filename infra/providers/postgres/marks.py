"""Metadata of an object, in the last line of its comment.

It contains labels, the key of the action that last wrote the object, and values of its kind. Other
text in the comment is kept before it.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from infra.providers.responses import UNDECODABLE

_BEGIN: Final = "reconciler: "

_encoder = msgspec.json.Encoder(order="deterministic")


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """The common fields of every mark."""

    key: str
    labels: dict[str, str] = {}


_M = TypeVar("_M", bound=Mark)


def read_mark(comment: str | None, mark_type: type[_M]) -> _M | None:
    """Return the mark in a comment; None if it is missing or damaged."""
    line = (comment or "").rpartition("\n")[2]
    if not line.startswith(_BEGIN):
        return None
    try:
        return msgspec.json.decode(line.removeprefix(_BEGIN), type=mark_type)
    except UNDECODABLE:
        return None


def replace_mark(comment: str | None, mark: Mark) -> str:
    """Return a comment with its mark replaced, and its other text unchanged."""
    text, _, line = (comment or "").rpartition("\n")
    if not line.startswith(_BEGIN):
        text = comment or ""
    return f"{text}\n{_line(mark)}" if text else _line(mark)


def _line(mark: Mark) -> str:
    return _BEGIN + _encoder.encode(mark).decode()
