"""Subjects: which are valid, which overlap, and which are reserved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from infra.bus.streams import SUBJECTS

MAX_SUBJECTS: Final = 32
"""Limit on the subjects of a stream or a consumer. The server compares each new subject with all
subjects of all streams, and meanwhile does not process other requests. With 7,000 others, comparing
1,000 subjects of 220 characters takes 14 s."""

MAX_CHARACTERS: Final = 4_096
"""Limit on the total length of these subjects."""

MAX_TOKENS: Final = 16
"""Limit on a subject's tokens, as NATS recommends. Comparing 32 tokens takes four times as long."""

OWN_SUBJECTS: Final = (*(subject for each in SUBJECTS.values() for subject in each), "in.>")
"""Subjects of Reconciler's own streams, which are reserved on every server."""

BUCKET_PREFIX: Final = "KV_"
"""Name prefix of the streams that store buckets."""

SERVER_SUBJECTS: Final = ("$JS.>", "$SYS.>", "$KV.>", "$O.>", "$MQTT.>", "_INBOX.>")
"""Subjects of the server, buckets, object stores, MQTT and inboxes."""


def overlap(first: str, second: str) -> bool:
    """Return whether any subject matches both filters."""
    first_tokens, second_tokens = first.split("."), second.split(".")
    for first_token, second_token in zip(first_tokens, second_tokens, strict=False):
        if ">" in (first_token, second_token):
            return True
        if first_token != second_token and "*" not in (first_token, second_token):
            return False
    return len(first_tokens) == len(second_tokens)


def describe_reserved_stream(name: str, subjects: Iterable[str]) -> str:
    """Describe why a stream with these subjects is reserved; empty if it is not.

    A bucket may have its own subject. This protects Reconciler's streams even if their mark was
    removed.
    """
    bucket_subject = f"$KV.{name.removeprefix(BUCKET_PREFIX)}.>"
    for subject in subjects:
        is_own_bucket = name.startswith(BUCKET_PREFIX) and subject == bucket_subject
        reason = _describe_own_overlap(subject) or (
            "" if is_own_bucket else _describe_server_overlap(subject)
        )
        if reason:
            return reason
    return ""


def check_subjects(subjects: Sequence[str]) -> None:
    """Raise ``ValueError`` for invalid or reserved subjects."""
    _check_size("subjects", subjects)
    for subject in subjects:
        _check_syntax(subject)
        reason = _describe_own_overlap(subject) or _describe_server_overlap(subject)
        if reason:
            raise ValueError(f"{reason}; use subjects with a different first token")


def check_filters(subjects: Sequence[str]) -> None:
    """Raise ``ValueError`` for invalid subjects."""
    _check_size("filterSubjects", subjects)
    for subject in subjects:
        _check_syntax(subject)


def _check_size(field: str, subjects: Sequence[str]) -> None:
    size = sum(map(len, subjects))
    if size > MAX_CHARACTERS:
        raise ValueError(
            f"{field}: must have at most {MAX_CHARACTERS} characters in total, not {size}; use "
            "wildcards"
        )


def _describe_own_overlap(subject: str) -> str:
    for reserved in OWN_SUBJECTS:
        if overlap(subject, reserved):
            return f"subject {subject!r} overlaps {reserved!r}, which belongs to Reconciler"
    return ""


def _describe_server_overlap(subject: str) -> str:
    for reserved in SERVER_SUBJECTS:
        if overlap(subject, reserved):
            return f"subject {subject!r} overlaps {reserved!r}, which belongs to the server"
    return ""


def _check_syntax(subject: str) -> None:
    tokens = subject.split(".")
    is_valid = (
        all(tokens)
        and len(tokens) <= MAX_TOKENS
        and ">" not in tokens[:-1]
        and subject.isprintable()
        and " " not in subject
    )
    if not is_valid:
        raise ValueError(
            f"{subject[:80]!r} is not a subject; join up to {MAX_TOKENS} tokens with dots, use * "
            "for any single token, and > at the end for all following tokens"
        )
