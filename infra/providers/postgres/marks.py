"""Metadata of an object, in the last line of its comment.

Labels, the key of the action that wrote it last, and further values of its kind. The text that
people have written into the comment stays before it.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from infra.providers.answers import UNDECODABLE

_BEGIN: Final = "reconciler: "

_encoder = msgspec.json.Encoder(order="deterministic")


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """The common fields of every mark."""

    key: str
    labels: dict[str, str] = {}


_M = TypeVar("_M", bound=Mark)


def mark_in(comment: str | None, mark_type: type[_M]) -> _M | None:
    """Return the mark of a comment; None if it has none, or a damaged one."""
    line = (comment or "").rpartition("\n")[2]
    if not line.startswith(_BEGIN):
        return None
    try:
        return msgspec.json.decode(line.removeprefix(_BEGIN), type=mark_type)
    except UNDECODABLE:
        return None


def with_mark(comment: str | None, mark: Mark) -> str:
    """Return a comment with another mark, and the same text."""
    text, _, line = (comment or "").rpartition("\n")
    if not line.startswith(_BEGIN):
        text = comment or ""
    return f"{text}\n{_line(mark)}" if text else _line(mark)


def _line(mark: Mark) -> str:
    return _BEGIN + _encoder.encode(mark).decode()
