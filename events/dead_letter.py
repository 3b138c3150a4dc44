"""Dead letters: what could not be used, and why."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Literal

import msgspec

KEPT_BYTES = 64 * 1024
"""So much of a payload is kept; the reason and the size are always there."""


class DeadLetterRecord(msgspec.Struct, frozen=True, rename="camel"):
    """A message that could not be used.

    ``stage`` is where (``intake``: it could not be read; ``declaration``: it was refused).
    ``position`` is its place in the intake. A payload that is not text is in base64.
    """

    stage: str
    reason: str
    subject: str
    position: int
    message_id: str
    at: datetime
    size: int
    payload: str
    payload_encoding: Literal["text", "base64"]
    payload_truncated: bool


def payload_text(payload: bytes) -> tuple[str, Literal["text", "base64"], bool]:
    """Give what is kept of a payload, how it is written, and whether it was cut."""
    kept = payload[:KEPT_BYTES]
    truncated = len(payload) > KEPT_BYTES
    try:
        return kept.decode(), "text", truncated
    except UnicodeDecodeError:
        return base64.b64encode(kept).decode(), "base64", truncated
