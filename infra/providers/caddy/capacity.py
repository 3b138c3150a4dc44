"""The size of Caddy's configuration, which each listing and each write reads whole.

A larger configuration than a client can read would block all clients. A route is therefore refused
while there is still room to read, change and delete the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from infra.providers.connections import MAX_BODY_BYTES
from reconciler.response_budget import MAX_RESPONSE_BYTES, decoded_bytes

MAX_CONFIG_BYTES: Final = MAX_BODY_BYTES // 2
"""Limit on the size of the configuration, together with the size of the namespace's own entries.

They count twice, so a namespace can use half of what the others leave, and none can use all.
"""

BLOCK_BYTES: Final = 256

_MEMORY_RATIO: Final = MAX_RESPONSE_BYTES // MAX_BODY_BYTES
_ESCAPED: Final = bytes(set(range(256)) - set(b"<>&"))
_ESCAPE_BYTES: Final = 5  # Caddy writes < as \\u003c

_encoder = msgspec.json.Encoder()


def measure(content: bytes) -> int:
    """Return the size of JSON: its length, or its share of the memory limit if that is larger."""
    return max(len(content), decoded_bytes(content) // _MEMORY_RATIO)


def measure_entries(entries: Iterable[Any]) -> int:
    """Return the size of entries as Caddy writes them."""
    contents = map(_encoder.encode, entries)
    return sum(
        measure(each) + _ESCAPE_BYTES * len(each.translate(None, _ESCAPED)) for each in contents
    )


def find_growth(old: Sequence[Any], new: Sequence[Any]) -> int:
    """Return by how much new entries exceed the blocks of the old ones; 0 if they fit.

    A changed address or a renewed certificate may need a few bytes more, even if there is no room.
    """
    block_count = -(-measure_entries(old) // BLOCK_BYTES)
    return max(0, measure_entries(new) - block_count * BLOCK_BYTES)


def has_room(total: int, own: int) -> bool:
    """Return whether a configuration of this size may contain that much of one namespace."""
    return total + own <= MAX_CONFIG_BYTES
