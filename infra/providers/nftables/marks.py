"""Metadata of a service, in comments of its last rules, which no packet reaches.

Labels, uid, the key of the action that wrote it last, its front, and its balance. A comment has 128
bytes, so the text is divided into as many as it needs. It is written like the query of a URL,
because quotation marks in comments cannot be read back from the output of ``nft list``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

from infra.providers.nftables.spec import Balance, Front, balance_of, front_of
from reconciler.errors import RefusedError

MAX_COMMENT_BYTES: Final = 128
MAX_COMMENTS: Final = 64

_PIECE_BYTES: Final = MAX_COMMENT_BYTES - len(f"reconciler {MAX_COMMENTS}/{MAX_COMMENTS} ")
_PIECE: Final = re.compile(r"reconciler (\d{1,2})/(\d{1,2}) (.*)", re.DOTALL)
_UID: Final = re.compile(r"reconciler uid=([A-Za-z0-9-]{1,80})")
_LABEL: Final = "label."
_READABLE: Final = "/:@,"


class Mark(NamedTuple):
    """The metadata of a service in the comments of its rules."""

    uid: str
    key: str
    front: Front
    balance: Balance
    labels: dict[str, str]

    def comments(self) -> list[str]:
        """Return its comments. Raises ``RefusedError`` if they are too many."""
        content = {"uid": self.uid, "key": self.key, "at": str(self.front), "balance": self.balance}
        labels = {f"{_LABEL}{name}": value for name, value in sorted(self.labels.items())}
        text = urlencode({**content, **labels}, quote_via=quote, safe=_READABLE)
        pieces = [text[at : at + _PIECE_BYTES] for at in range(0, len(text), _PIECE_BYTES)]
        if len(pieces) > MAX_COMMENTS:
            raise RefusedError(
                f"metadata.labels: their {len(text):,} bytes exceed the limit of "
                f"{MAX_COMMENTS * _PIECE_BYTES:,} for comments of rules; declare fewer or "
                "shorter ones"
            )
        return [
            f"reconciler {number}/{len(pieces)} {piece}"
            for number, piece in enumerate(pieces, start=1)
        ]


def is_of_mark(comment: str) -> bool:
    """Return whether a comment is a piece of a mark."""
    return _PIECE.fullmatch(comment) is not None


def mark_in(comments: Sequence[str]) -> Mark | None:
    """Return the mark in some comments; None if a piece is missing or damaged."""
    matches = [_PIECE.fullmatch(comment) for comment in comments]
    text = ""
    for number, piece in enumerate(matches, start=1):
        if piece is None or (int(piece[1]), int(piece[2])) != (number, len(matches)):
            return None
        text += piece[3]
    try:
        content = dict(parse_qsl(text, keep_blank_values=True, strict_parsing=True))
    except ValueError:
        return None
    front, balance = front_of(content.get("at", "")), balance_of(content.get("balance", ""))
    uid, key = content.get("uid"), content.get("key")
    if not uid or not key or front is None or balance is None:
        return None
    labels = {
        name.removeprefix(_LABEL): value
        for name, value in content.items()
        if name.startswith(_LABEL)
    }
    return Mark(uid, key, front, balance, labels)


def comment_of_element(uid: str) -> str:
    """Return the comment of the element that leads to a service. It survives the rules."""
    return f"reconciler uid={uid}"


def uid_in(comment: str) -> str | None:
    """Return the uid in an element's comment."""
    match = _UID.fullmatch(comment)
    return None if match is None else match[1]
