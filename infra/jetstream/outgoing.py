"""Messages to publish, with their expectations of the stream's state."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

MESSAGE_ID: Final = "Nats-Msg-Id"


class OutgoingMessage(msgspec.Struct, frozen=True, gc=False):
    """A message to publish.

    Attributes:
        headers: the publisher's headers, without those for JetStream.
        expected_filter: a subject filter that matches `subject`, or None for no expectation.
        expected_last: stream sequence of the last message that matches `expected_filter`, or 0.
    """

    subject: str
    payload: bytes
    headers: Mapping[str, str] | None = None
    expected_filter: str | None = None
    expected_last: int = 0


def headers_of(
    message: OutgoingMessage, batch_id: str | None = None, number: int = 0
) -> dict[str, str]:
    """Return the headers to send, including the expectation and the position in a batch."""
    headers = dict(message.headers) if message.headers else {}
    if message.expected_filter is not None:
        headers["Nats-Expected-Last-Subject-Sequence"] = str(message.expected_last)
        headers["Nats-Expected-Last-Subject-Sequence-Subject"] = message.expected_filter
    if batch_id is not None:
        headers["Nats-Batch-Id"] = batch_id
        headers["Nats-Batch-Sequence"] = str(number)
    return headers


def check_expectation(message: OutgoingMessage) -> None:
    """Raise `ValueError` for an expectation that the server would accept and misinterpret."""
    if message.expected_filter is None:
        return
    if message.expected_last < 0:
        raise ValueError(
            f"expected_last {message.expected_last} for {message.subject}: must be at least 0"
        )
    if not subject_matches(message.expected_filter, message.subject):
        raise ValueError(
            f"expected_filter {message.expected_filter!r} does not match {message.subject!r}"
        )


def subject_matches(subject_filter: str, subject: str) -> bool:
    """Return whether a subject filter with `*` and `>` matches a subject."""
    prefix = subject_filter[:-1]
    if subject_filter.endswith(".>") and subject.startswith(prefix):
        return subject != prefix  # the common case, without splitting
    filter_tokens, tokens = subject_filter.split("."), subject.split(".")
    for index, token in enumerate(filter_tokens):
        if token == ">":  # noqa: S105 - a subject token
            return index < len(tokens)
        if index >= len(tokens) or token not in ("*", tokens[index]):
            return False
    return len(filter_tokens) == len(tokens)


def subjects_of(messages: Sequence[OutgoingMessage]) -> str:
    """Return a short description of the messages for an error message."""
    if not messages:
        return "the subject"
    more = f" and {len(messages) - 1} more" if len(messages) > 1 else ""
    return f"{messages[0].subject}{more}"
