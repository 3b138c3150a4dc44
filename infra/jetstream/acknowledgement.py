"""Decode the server's acknowledgement of a publish, and convert its errors."""

import re
from collections.abc import Sequence
from typing import Final

import msgspec
from nats.aio.msg import Msg

from infra.jetstream.errors import AppendConflictError, BusUnavailableError, StreamFullError
from infra.jetstream.outgoing import OutgoingMessage, subjects_of
from infra.jetstream.parser import Incoming
from infra.jetstream.wire import ApiError, status_of, to_bus_error

TIMEOUT_SECONDS: Final = 5.0
"""Seconds to wait for an acknowledgement before the result counts as unknown.

It is shorter than a leader election, because a failed leader never acknowledges what it received,
and an early retry reaches its successor sooner. Callers that must not give up retry themselves.
"""

_CONFLICT: Final = frozenset({10071, 10164})
# 10071 reports a wrong last sequence and states the actual one; 10164 does not state it.
_ACTUAL_SEQUENCE: Final = re.compile(r"sequence: (\d+)")


class PublishAck(msgspec.Struct, frozen=True):
    """The server's acknowledgement of one stored message."""

    stream: str
    seq: int
    duplicate: bool = False


class Acknowledgement(msgspec.Struct):
    """A publish response: an acknowledgement, or an error."""

    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    count: int = 0
    error: ApiError | None = None


_ack = msgspec.json.Decoder(Acknowledgement)


def read_acknowledgement(
    response: Msg | Incoming, messages: Sequence[OutgoingMessage]
) -> Acknowledgement:
    """Return the acknowledgement in a response to a publish of `messages`.

    Raises:
        BusError: the response contains an error, or no stream accepts the subject.
    """
    # Status 503 means that nothing subscribes to the subject, so no stream stores it.
    if status_of(response) == "503":
        raise BusUnavailableError(
            f"publish: no stream accepts {subjects_of(messages)}, or the server is still starting"
        )
    ack = _ack.decode(response.data)
    if ack.error is None:
        return ack
    if ack.error.err_code in _CONFLICT:
        raise _build_conflict(ack.error, messages)
    error = to_bus_error(ack.error, f"publish to {subjects_of(messages)}")
    if isinstance(error, StreamFullError):
        raise _build_full_error(ack)
    raise error


def _build_full_error(ack: Acknowledgement) -> StreamFullError:
    assert ack.error is not None
    return StreamFullError(
        f"stream {ack.stream or '(unnamed)'} is full: {ack.error.description} (code "
        f"{ack.error.code}/{ack.error.err_code}); nothing was stored. Raise max_bytes, or use "
        "a larger account or disk; pending work then resumes automatically"
    )


def _build_conflict(error: ApiError, messages: Sequence[OutgoingMessage]) -> AppendConflictError:
    expected = {
        message.expected_filter: message.expected_last
        for message in messages
        if message.expected_filter is not None
    }
    # The structured error has no field for the sequence; only the description contains it.
    match = _ACTUAL_SEQUENCE.search(error.description)
    return AppendConflictError(
        f"append to {subjects_of(messages)}: {error.description}",
        filters=expected,
        actual_last=int(match.group(1)) if match else None,
    )
