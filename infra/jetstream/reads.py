"""Read without a consumer: last messages, subject histories, and the leader's state."""

import asyncio
import base64
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeVar, overload

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from infra.jetstream.connection import API_TIMEOUT_SECONDS, api_request, is_clustered
from infra.jetstream.errors import (
    BusError,
    BusRefusedError,
    BusUnavailableError,
    NotFoundOnBusError,
)
from infra.jetstream.parser import DESCRIPTION, Incoming
from infra.jetstream.wire import (
    encode,
    fail_on_denial,
    on_loss,
    request,
    status_of,
    subscribe,
    unsubscribe,
    write,
)

# A filter matches up to 4 subjects, and the server returns 413 above 1,024 subjects.
FILTERS_PER_REQUEST: Final = 256
MESSAGES_PER_REQUEST: Final = 1_000
_CONCURRENT_READS: Final = 32
_MAX_REQUESTS_IN_FLIGHT: Final = 256
_MAX_MESSAGES_IN_FLIGHT: Final = 4_000
# The server disconnects a client with 64 MiB of unread bytes (its `max_pending`).
_MAX_BYTES_IN_FLIGHT: Final = 16 * 1024 * 1024
MAX_INDEX_BYTES: Final = 48 * 1024 * 1024
"""Largest page of an index: 100,000 subjects. Those of the log have at most 24 MiB."""
_TOO_MANY: Final = 413
_NOT_FOUND: Final = 404
# For a subject without messages, the description is "No Results".
_UNREADABLE: Final = "Message Not Found"
_MAX_SUBJECTS: Final = 1_024
_ATTEMPT_SECONDS: Final = 1.5

_SEQUENCE: Final = "Nats-Sequence"
_SUBJECT: Final = "Nats-Subject"
_TIME: Final = "Nats-Time-Stamp"
_PENDING: Final = "Nats-Num-Pending"
_ADDED_BY_READ: Final = frozenset(
    {_SEQUENCE, _SUBJECT, _TIME, _PENDING}
    | {"Nats-Stream", "Nats-Last-Sequence", "Nats-UpTo-Sequence"}
)


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A message stored in a stream.

    Attributes:
        stamp: storage time as the server wrote it: nanoseconds, or RFC 3339.
    """

    seq: int
    subject: str
    payload: bytes
    headers: Mapping[str, str] | None
    stamp: int | str

    @property
    def time_ns(self) -> int:
        """The storage time, in nanoseconds since 1970."""
        if isinstance(self.stamp, int):
            return self.stamp
        seconds, _, fraction = self.stamp.rstrip("Z").partition(".")
        whole = datetime.fromisoformat(seconds).replace(tzinfo=UTC)
        return int(whole.timestamp()) * 1_000_000_000 + int(fraction.ljust(9, "0"))

    @property
    def time(self) -> datetime:
        """The storage time, truncated to microseconds."""
        seconds, nanoseconds = divmod(self.time_ns, 1_000_000_000)
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=nanoseconds // 1_000)


class SubjectCounts(NamedTuple):
    """The number of messages per subject, from `first_seq` to `last_seq`.

    A message stored after `last_seq`, during the count, may or may not be included.
    """

    first_seq: int
    last_seq: int
    counts: Mapping[str, int]


class StreamState(msgspec.Struct, frozen=True, gc=False):
    """The content and configuration of a stream.

    Attributes:
        first_seq: sequence of the oldest message (`last_seq + 1` if the stream is empty).
        last_seq: the last assigned sequence; 0 if there is none.
        bytes: total size of the stored messages.
    """

    first_seq: int
    last_seq: int
    messages: int
    bytes: int
    config: dict[str, Any]
    created: str


async def last_for_subjects(
    nc: Client, stream: str, filters: Sequence[str], *, up_to: int | None = None
) -> list[StoredMessage]:
    """Return the last message of every subject that the filters match, in any order.

    The number of filters and of their subjects is unlimited. A follower may respond, so the newest
    messages may be missing.

    Args:
        up_to: ignore messages after this stream sequence.

    Raises:
        BusUnavailableError: no response, or the stream does not exist or does not allow direct
            reads.
    """
    messages: list[StoredMessage] = []
    for start in range(0, len(filters), FILTERS_PER_REQUEST):
        messages += await _last_of(nc, stream, filters[start : start + FILTERS_PER_REQUEST], up_to)
    return messages


async def _last_of(
    nc: Client, stream: str, filters: Sequence[str], up_to: int | None
) -> list[StoredMessage]:
    body: dict[str, Any] = {"multi_last": filters, "batch": _MAX_SUBJECTS}
    if up_to is not None:
        body["up_to_seq"] = up_to
    try:
        [(messages, is_truncated)] = await _direct_gets(nc, stream, [body])
        if not is_truncated:
            return messages
    except BusRefusedError as error:
        if error.code not in (_TOO_MANY, _NOT_FOUND):
            raise
    # Read fewer subjects per request, to stay below the server's limits on subjects and bytes, or
    # to isolate an unreadable message.
    if len(filters) > 1:
        half = len(filters) // 2
        first = await _last_of(nc, stream, filters[:half], up_to)
        return first + await _last_of(nc, stream, filters[half:], up_to)
    if "*" not in filters[0] and not filters[0].endswith(">"):
        return await _last_readable(nc, stream, filters[0], up_to)
    counts = (await subject_counts(nc, stream, filters[0])).counts
    return await last_for_subjects(nc, stream, list(counts), up_to=up_to)


async def _last_readable(
    nc: Client, stream: str, subject: str, up_to: int | None
) -> list[StoredMessage]:
    """Return the last readable message of a subject, if it has any."""
    messages = await read_subject(nc, stream, subject)
    return [each for each in messages if up_to is None or each.seq <= up_to][-1:]


async def last_by_subject(nc: Client, stream: str, subjects: Sequence[str]) -> list[StoredMessage]:
    """Return the last message of each subject, with one request per subject.

    The request's subject contains the subject, so permissions can restrict it. This takes one round
    trip per subject, 32 at a time, so `last_for_subjects` is faster.

    Raises:
        BusDeniedError: the user may not read a subject.
        BusUnavailableError: no response, or the stream does not exist or does not allow direct
            reads.
    """
    semaphore = asyncio.Semaphore(_CONCURRENT_READS)

    async def read(subject: str) -> StoredMessage | None:
        async with semaphore:
            return await _read_last(nc, stream, subject)

    results = await asyncio.gather(*(read(subject) for subject in subjects))
    return [message for message in results if message is not None]


async def _read_last(nc: Client, stream: str, subject: str) -> StoredMessage | None:
    request_subject = f"$JS.API.DIRECT.GET.{stream}.{subject}"
    response = await _first_response(nc, request_subject)
    status = status_of(response)
    if status == "404":
        return None
    headers = response.headers or {}
    if status:
        raise _to_error(request_subject, status, headers.get(DESCRIPTION, ""))
    return _parse_direct(response.data, headers)


async def _first_response(nc: Client, request_subject: str) -> Msg:
    failure: BusUnavailableError | None = None
    for timeout_seconds, _ in _attempts_for(nc):
        try:
            return await request(nc, request_subject, b"", timeout=timeout_seconds)
        except BusUnavailableError as error:
            if not isinstance(error.__cause__, nats.errors.TimeoutError):
                raise
            failure = error
    assert failure is not None
    raise failure


async def read_subject(
    nc: Client,
    stream: str,
    subject_filter: str,
    *,
    start_seq: int = 1,
    limit: int | None = None,
) -> list[StoredMessage]:
    """Return the messages that match a subject filter, in stream order from `start_seq`.

    A follower may respond, so the newest messages may be missing.

    Args:
        limit: maximum number of messages; None for all.

    Raises:
        BusUnavailableError: no response, or the stream does not exist or does not allow direct
            reads.
    """
    stored: list[StoredMessage] = []
    while limit is None or len(stored) < limit:
        size = MESSAGES_PER_REQUEST
        if limit is not None:
            size = min(size, limit - len(stored))
        body = {"batch": size, "seq": start_seq, "next_by_subj": subject_filter}
        [(messages, more)] = await _direct_gets(nc, stream, [body])
        stored += messages
        if not more or not messages:
            break
        start_seq = messages[-1].seq + 1
    return stored


class SubjectStart(NamedTuple):
    """A request for a subject's first messages: at most `limit`, and at most one response."""

    subject: str
    limit: int


async def read_starts(
    nc: Client, stream: str, starts: Sequence[SubjectStart]
) -> list[list[StoredMessage]]:
    """Return the first messages of many subjects, in stream order per subject.

    A follower may respond, so the newest messages may be missing.

    Raises:
        BusUnavailableError: no response, or the stream does not exist or does not allow direct
            reads.
    """
    results: list[list[StoredMessage]] = []
    bodies: list[dict[str, Any]] = []
    requested = 0
    for number, (subject, limit) in enumerate(starts, 1):
        batch = min(limit, MESSAGES_PER_REQUEST)
        bodies.append({"batch": batch, "seq": 1, "next_by_subj": subject})
        requested += batch
        # The server disconnects a client with too many unread bytes, so the messages in flight are
        # bounded.
        is_enough = len(bodies) == _MAX_REQUESTS_IN_FLIGHT or requested >= _MAX_MESSAGES_IN_FLIGHT
        if is_enough or number == len(starts):
            results += [messages for messages, _ in await _direct_gets(nc, stream, bodies)]
            bodies, requested = [], 0
    return results


async def last_from_leader(nc: Client, stream: str, subject_filter: str) -> StoredMessage | None:
    """Return the last message that matches a filter from the stream's leader, or None.

    This is slower than a direct read, but includes every acknowledged append.

    Raises:
        NotFoundOnBusError: the stream does not exist.
        BusUnavailableError: no response.
    """
    return await _from_leader(nc, stream, {"last_by_subj": subject_filter})


async def message_from_leader(nc: Client, stream: str, seq: int) -> StoredMessage | None:
    """Return the message at a stream sequence from the stream's leader, or None.

    Raises:
        NotFoundOnBusError: the stream does not exist.
        BusUnavailableError: no response.
    """
    return await _from_leader(nc, stream, {"seq": seq})


async def _from_leader(nc: Client, stream: str, body: dict[str, Any]) -> StoredMessage | None:
    try:
        response = await api_request(nc, f"STREAM.MSG.GET.{stream}", body)
    except NotFoundOnBusError as error:
        if "no message found" in str(error):
            return None
        raise
    message: dict[str, Any] = response["message"]
    return StoredMessage(
        message["seq"],
        message["subject"],
        base64.b64decode(message.get("data") or ""),
        _parse_headers(base64.b64decode(message.get("hdrs") or "")),
        message["time"],
    )


async def stream_state(nc: Client, stream: str) -> StreamState:
    """Return a stream's state and configuration from its leader.

    Raises:
        NotFoundOnBusError: the stream does not exist.
        BusUnavailableError: no response, or the stream has no leader. Without a leader, a server
            would report an empty stream.
    """
    info = await _stream_info(nc, stream, None)
    state = info["state"]
    return StreamState(
        first_seq=state["first_seq"],
        last_seq=state["last_seq"],
        messages=state["messages"],
        bytes=state["bytes"],
        config=info["config"],
        created=info["created"],
    )


async def _stream_info(nc: Client, stream: str, body: dict[str, Any] | None) -> dict[str, Any]:
    info = await api_request(nc, f"STREAM.INFO.{stream}", body, max_response_bytes=MAX_INDEX_BYTES)
    # A standalone server does not report a cluster.
    if not info.get("cluster", {"leader": "the only server"}).get("leader"):
        raise BusUnavailableError(
            f"stream {stream} has no leader at the moment, so its content is unknown"
        )
    return info


async def subject_counts(nc: Client, stream: str, subject_filter: str) -> SubjectCounts:
    """Count the messages of each subject that a filter matches, from the leader's index.

    Raises:
        NotFoundOnBusError: the stream does not exist.
        BusUnavailableError: no response, or the stream has no leader.
        ResponseTooLargeError: 100,000 subjects, one page, have more than 48 MiB.
    """
    counts: dict[str, int] = {}
    offset, total, first_seq, last_seq = 0, 1, 0, 0
    # Not `len(counts)`, because a page may repeat a subject when new messages arrive.
    while offset < total:
        body = {"subjects_filter": subject_filter, "offset": offset}
        info = await _stream_info(nc, stream, body)
        first_seq = first_seq or info["state"]["first_seq"]
        last_seq = last_seq or info["state"]["last_seq"]
        page: dict[str, int] = info["state"].get("subjects") or {}
        counts |= page
        offset += len(page)
        total = info.get("total", 0) if page else 0
    return SubjectCounts(first_seq, last_seq, counts)


class _Response:
    """The messages in one response, and the empty message that ends it."""

    def __init__(self) -> None:
        self.messages: list[StoredMessage] = []
        self.end: Incoming | None = None
        self._last: Mapping[str, str] = {}

    def receive(self, message: Incoming) -> None:
        if status_of(message):
            self.end = message
        else:
            self._last = message.headers or {}
            self.messages.append(_parse_direct(message.data, self._last))

    @property
    def pending(self) -> int:
        """The number of messages that remain on the server."""
        return int(self._last.get(_PENDING, "0"))


class _Requests:
    """Concurrent requests, each sent in one or more attempts.

    The last token of a reply subject is the number of the attempt. The first complete response is
    used.
    """

    def __init__(self, count: int) -> None:
        self.responses: dict[int, _Response] = {}
        self.is_lost = False
        self._count = count
        self._attempts: list[_Response] = []
        self._progress = asyncio.Event()

    @property
    def open_requests(self) -> list[int]:
        return [number for number in range(self._count) if number not in self.responses]

    def start_attempts(self, copies: int) -> Iterator[tuple[int, int]]:
        """Start `copies` attempts. Yield each open request with the number of each attempt."""
        for _ in range(copies):
            first = len(self._attempts)
            self._attempts += [_Response() for _ in range(self._count)]
            yield from ((number, first + number) for number in self.open_requests)

    def receive(self, message: Incoming) -> None:
        attempt = int(message.subject.rsplit(".", 1)[1])
        response = self._attempts[attempt]
        response.receive(message)
        if response.end is message:
            self.responses.setdefault(attempt % self._count, response)
        self._progress.set()

    def handle_loss(self) -> None:
        self.is_lost = True
        self._progress.set()

    async def wait_for_all(self, timeout_seconds: float) -> bool:
        """Wait for all responses. Return False after `timeout_seconds` without a message.

        Return False immediately if the connection was lost.
        """
        while len(self.responses) < self._count:
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self._progress.wait()
            except TimeoutError:
                return False
            self._progress.clear()
            if self.is_lost:
                return False
        return True


def _attempts_for(nc: Client) -> list[tuple[float, int]]:
    """Return the time limit in seconds and the number of copies for each round of a read.

    In a cluster, a random server with a replica of the stream responds. A failed server may be
    chosen until its routes are closed, which may take a minute.
    """
    if is_clustered(nc):
        return [(_ATTEMPT_SECONDS, copies) for copies in (1, 2, 3, 3, 3, 3)]
    return [(API_TIMEOUT_SECONDS, 1)]


async def _direct_gets(
    nc: Client, stream: str, bodies: Sequence[dict[str, Any]]
) -> list[tuple[list[StoredMessage], bool]]:
    """Send several direct reads. For each, return the messages, and whether more exist.

    A response contains at least one message, unless none exists.
    """
    inbox = nc.new_inbox()
    requests = _Requests(len(bodies))
    subject = f"$JS.API.DIRECT.GET.{stream}"
    limit = {"max_bytes": _MAX_BYTES_IN_FLIGHT // max(1, len(bodies))}
    encoded = [msgspec.json.encode(body | limit) for body in bodies]
    subscription = await subscribe(nc, f"{inbox}.*", requests.receive)
    try:
        async with fail_on_denial(nc, (subject,)):
            with on_loss(nc, requests.handle_loss):
                for timeout_seconds, copies in _attempts_for(nc):
                    commands = [
                        encode(nc, subject, encoded[number], {}, reply=f"{inbox}.{attempt}")
                        for number, attempt in requests.start_attempts(copies)
                    ]
                    await write(nc, commands, subject)
                    if await requests.wait_for_all(timeout_seconds) or requests.is_lost:
                        break
    finally:
        await unsubscribe(subscription)
    if requests.open_requests:
        raise BusUnavailableError(f"{subject}: no response before the timeout")
    return [
        _check_response(subject, body, requests.responses[number])
        for number, body in enumerate(bodies)
    ]


def _check_response(
    subject: str, body: dict[str, Any], response: _Response
) -> tuple[list[StoredMessage], bool]:
    assert response.end is not None
    headers = response.end.headers or {}
    status, description = status_of(response.end), headers.get(DESCRIPTION, "")
    # The server ends its response at a message that it cannot read (in a damaged file, or just
    # deleted). The last messages of the remaining subjects are then missing.
    is_truncated = "multi_last" in body and status == "404" and description == _UNREADABLE
    if is_truncated or status not in ("204", "404"):  # end of the batch, or no such message
        raise _to_error(subject, status, description)
    # Older servers count one pending message too few at the end of a response of last messages.
    if "multi_last" in body or (pending := headers.get(_PENDING)) is None:
        return response.messages, response.pending > 0
    return response.messages, int(pending) > 0


def _to_error(subject: str, status: str, description: str) -> BusError:
    if status == "503":
        return BusUnavailableError(
            f"{subject}: no responder (the stream is missing, lacks allow_direct, or is still "
            "starting)"
        )
    return BusRefusedError(f"{subject}: {status} {description}", code=int(status))


def _parse_direct(payload: bytes, headers: Mapping[str, str]) -> StoredMessage:
    return StoredMessage(
        int(headers[_SEQUENCE]),
        headers[_SUBJECT],
        payload,
        _OriginalHeaders(headers),
        headers[_TIME],
    )


_Default = TypeVar("_Default")


class _OriginalHeaders(Mapping[str, str]):
    """A message's headers without those that a direct read adds, evaluated on access."""

    __slots__ = ("_all",)

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._all = headers

    def __getitem__(self, name: str) -> str:
        if name in _ADDED_BY_READ:
            raise KeyError(name)
        return self._all[name]

    @overload
    def get(self, key: str, /) -> str | None: ...
    @overload
    def get(self, key: str, /, default: str | _Default) -> str | _Default: ...
    def get(self, key: str, /, default: str | _Default | None = None) -> str | _Default | None:
        return default if key in _ADDED_BY_READ else self._all.get(key, default)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._all if name not in _ADDED_BY_READ)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return True  # checking would parse all headers


def _parse_headers(raw: bytes) -> dict[str, str] | None:
    """Return the headers of a stored block (status line, then `Name: value` lines)."""
    parsed: dict[str, str] = {}
    for line in raw.decode("utf-8", "replace").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            parsed[name.strip()] = value.strip()
    return parsed or None
