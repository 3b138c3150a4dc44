"""Subjects: which are valid, which two overlap, and which are reserved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from infra.bus.streams import SUBJECTS

MAX_SUBJECTS: Final = 32
"""Of a stream or a consumer. The server compares each new subject with all subjects of all streams,
and processes no other request meanwhile: 1,000 subjects of 220 characters beside 7,000 others take
it 14 s."""

MAX_CHARACTERS: Final = 4_096
"""Of all these subjects together."""

MAX_TOKENS: Final = 16
"""Of a subject, as NATS recommends. 32 would take the server four times as long to compare."""

PRODUCTS_SUBJECTS: Final = (*(one for each in SUBJECTS.values() for one in each), "in.>")
"""Subjects of the product's own streams, on its own server and on any other."""

BUCKET_PREFIX: Final = "KV_"
"""Prefix of the streams of buckets."""

SERVERS_SUBJECTS: Final = ("$JS.>", "$SYS.>", "$KV.>", "$O.>", "$MQTT.>", "_INBOX.>")
"""Subjects of the server, of buckets, object stores and MQTT, and inboxes."""


def overlap(first: str, second: str) -> bool:
    """Return whether some subject matches both filters."""
    first_tokens, second_tokens = first.split("."), second.split(".")
    for first_token, second_token in zip(first_tokens, second_tokens, strict=False):
        if ">" in (first_token, second_token):
            return True
        if first_token != second_token and "*" not in (first_token, second_token):
            return False
    return len(first_tokens) == len(second_tokens)


def reserved_of_stream(name: str, subjects: Iterable[str]) -> str:
    """Describe why a stream of these subjects is reserved; None if it is not.

    A bucket has its own rule. So a stream of the product is protected even if its mark was removed.
    """
    buckets_own = f"$KV.{name.removeprefix(BUCKET_PREFIX)}.>"
    for subject in subjects:
        is_its_own = name.startswith(BUCKET_PREFIX) and subject == buckets_own
        reason = _products(subject) or ("" if is_its_own else _servers(subject))
        if reason:
            return reason
    return ""


def check_subjects(subjects: Sequence[str]) -> None:
    """Raise ``ValueError`` for invalid subjects, and for those that no stream may have."""
    _check_size("subjects", subjects)
    for subject in subjects:
        _check_form(subject)
        reason = _products(subject) or _servers(subject)
        if reason:
            raise ValueError(f"{reason}; use subjects with another first token")


def check_filters(subjects: Sequence[str]) -> None:
    """Raise ``ValueError`` for invalid subjects."""
    _check_size("filterSubjects", subjects)
    for subject in subjects:
        _check_form(subject)


def _check_size(field: str, subjects: Sequence[str]) -> None:
    size = sum(map(len, subjects))
    if size > MAX_CHARACTERS:
        raise ValueError(
            f"{field}: must have at most {MAX_CHARACTERS} characters together, not {size}; use "
            "wildcards"
        )


def _products(subject: str) -> str:
    for reserved in PRODUCTS_SUBJECTS:
        if overlap(subject, reserved):
            return f"subject {subject!r} overlaps {reserved!r}, which belongs to Reconciler"
    return ""


def _servers(subject: str) -> str:
    for reserved in SERVERS_SUBJECTS:
        if overlap(subject, reserved):
            return f"subject {subject!r} overlaps {reserved!r}, which belongs to the server"
    return ""


def _check_form(subject: str) -> None:
    tokens = subject.split(".")
    is_one = (
        all(tokens)
        and len(tokens) <= MAX_TOKENS
        and ">" not in tokens[:-1]
        and subject.isprintable()
        and " " not in subject
    )
    if not is_one:
        raise ValueError(
            f"{subject[:80]!r} is not a subject; join up to {MAX_TOKENS} tokens by dots, use * for "
            "any single token, and > at the end for all following tokens"
        )
