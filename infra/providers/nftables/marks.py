"""Metadata of a service, in the comments of its last rules, which no packet reaches.

It contains labels, the uid, the key of the action that last wrote the service, its front and its
balance. A comment is at most 128 bytes long, so the text is split across several. It is encoded
like a URL query, because quotation marks in comments cannot be read back from ``nft list``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

from infra.providers.nftables.spec import Balance, Front, parse_balance, parse_front
from reconciler.errors import RefusedError

MAX_COMMENT_BYTES: Final = 128
MAX_COMMENTS: Final = 64

_CHUNK_BYTES: Final = MAX_COMMENT_BYTES - len(f"reconciler {MAX_COMMENTS}/{MAX_COMMENTS} ")
_CHUNK: Final = re.compile(r"reconciler (\d{1,2})/(\d{1,2}) (.*)", re.DOTALL)
_UID: Final = re.compile(r"reconciler uid=([A-Za-z0-9-]{1,80})")
_LABEL: Final = "label."
_READABLE: Final = "/:@,"


class Mark(NamedTuple):
    """The metadata of a service."""

    uid: str
    key: str
    front: Front
    balance: Balance
    labels: dict[str, str]

    def comments(self) -> list[str]:
        """Encode it as comments. Raises ``RefusedError`` if there are too many."""
        content = {"uid": self.uid, "key": self.key, "at": str(self.front), "balance": self.balance}
        labels = {f"{_LABEL}{name}": value for name, value in sorted(self.labels.items())}
        text = urlencode({**content, **labels}, quote_via=quote, safe=_READABLE)
        chunks = [text[at : at + _CHUNK_BYTES] for at in range(0, len(text), _CHUNK_BYTES)]
        if len(chunks) > MAX_COMMENTS:
            raise RefusedError(
                f"metadata.labels: their {len(text):,} bytes exceed the limit of "
                f"{MAX_COMMENTS * _CHUNK_BYTES:,} for rule comments; declare fewer or "
                "shorter ones"
            )
        return [
            f"reconciler {number}/{len(chunks)} {chunk}"
            for number, chunk in enumerate(chunks, start=1)
        ]


def is_mark_comment(comment: str) -> bool:
    """Return whether a comment is a chunk of a mark."""
    return _CHUNK.fullmatch(comment) is not None


def decode_mark(comments: Sequence[str]) -> Mark | None:
    """Decode the mark in some comments; None if a chunk is missing or damaged."""
    matches = [_CHUNK.fullmatch(comment) for comment in comments]
    text = ""
    for number, chunk in enumerate(matches, start=1):
        if chunk is None or (int(chunk[1]), int(chunk[2])) != (number, len(matches)):
            return None
        text += chunk[3]
    try:
        content = dict(parse_qsl(text, keep_blank_values=True, strict_parsing=True))
    except ValueError:
        return None
    front, balance = parse_front(content.get("at", "")), parse_balance(content.get("balance", ""))
    uid, key = content.get("uid"), content.get("key")
    if not uid or not key or front is None or balance is None:
        return None
    labels = {
        name.removeprefix(_LABEL): value
        for name, value in content.items()
        if name.startswith(_LABEL)
    }
    return Mark(uid, key, front, balance, labels)


def build_element_comment(uid: str) -> str:
    """Return the comment of a service's element. It remains if the rules are deleted."""
    return f"reconciler uid={uid}"


def decode_uid(comment: str) -> str | None:
    """Return the uid in an element's comment; None if it has none."""
    match = _UID.fullmatch(comment)
    return None if match is None else match[1]
