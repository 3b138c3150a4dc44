"""Send requests and messages on a connection, and convert server errors to those in `errors`.

This is the only module that handles nats-py's exceptions. All other modules use `BusError`.
"""

import asyncio
import contextlib
import functools
import re
import ssl
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager
from typing import Final, cast

import msgspec
import nats.errors
from nats.aio.client import Client, Srv
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.protocol.parser import ERR_RE

from infra.jetstream.denials import Denial, DenialListener, Denials, parse_denial
from infra.jetstream.errors import (
    BusAccessError,
    BusDeniedError,
    BusError,
    BusRefusedError,
    BusUnavailableError,
    IncompatibleServerError,
    MessageTooLargeError,
    NotFoundOnBusError,
    StreamFullError,
)
from infra.jetstream.foreign_bytes import decode_text, read_any_subject
from infra.jetstream.identity import Identity
from infra.jetstream.parser import (
    STATUS,
    Headers,
    Incoming,
    Listener,
    MessageParser,
    MessageTooLongError,
    read_headers,
)
from infra.jetstream.transport_security import TransportSecurity

MAX_HEADERS_BYTES: Final = 65_535  # JetStream's limit (10097); the connection itself has none
# The server closes the connection on a protocol line over 4,096 bytes, and nats-py then closes the
# client permanently. This leaves room for the reply subject and the sizes.
MAX_SUBJECT_BYTES: Final = 3_000

_CLOSE_SECONDS: Final = 1.0
PENDING_BYTES: Final = 64 * 1024 * 1024  # limit on unsent bytes, including during a reconnection

_HEADER_NAME: Final = re.compile(r"[!-9;-~]+")
_LINE_BREAKS_TO_SPACES: Final = {ord("\r"): " ", ord("\n"): " "}
_ACK_TOKENS: Final = ["$JS", "ACK"]
_OLD_REPLY_TOKENS: Final = 9
_STREAM_FULL: Final = frozenset({10002, 10023, 10028, 10047, 10077})
_TOO_LARGE: Final = frozenset({10054, 10097})
_NOT_FOUND: Final = frozenset({10014, 10037, 10059})
_JETSTREAM_DISABLED: Final = frozenset({10039, 10076})
_UNAVAILABLE: Final = frozenset({10008, 10009, 10041})
_TOO_MANY_WAITING: Final = 10167
_CREATE_FAILED: Final = 10049
_NO_CLUSTER: Final = 10074  # replicas on a single server


JETSTREAM_DISABLED_REMEDY: Final = (
    'start the server with -js, or with "jetstream {}" in its configuration. A server with a full '
    "disk turns JetStream off: free space, and restart it"
)


class ApiError(msgspec.Struct, frozen=True):
    """The `error` object of a JetStream response."""

    code: int = 0
    err_code: int = 0
    description: str = ""


def to_bus_error(error: ApiError, what: str) -> BusError:
    """Convert the server's error in a response to `what` to a `BusError`."""
    text = f"{what}: {error.description} (code {error.code}/{error.err_code})"
    if error.err_code in _STREAM_FULL:
        return StreamFullError(text)
    if error.err_code in _TOO_LARGE:
        return MessageTooLargeError(text)
    if error.err_code in _NOT_FOUND:
        return NotFoundOnBusError(text)
    if error.err_code in _JETSTREAM_DISABLED:
        return IncompatibleServerError(f"{text}; {JETSTREAM_DISABLED_REMEDY}")
    if error.err_code in _UNAVAILABLE:
        return BusUnavailableError(
            f"{text}; retry in 10 seconds, after an election. If the cluster still has no leader, "
            "check that more than half of its servers are running and can reach each other"
        )
    # Too many messages for one stream are pending, across all clients.
    if error.err_code == _TOO_MANY_WAITING:
        return BusUnavailableError(f"{text}; retry later")
    if error.err_code == _CREATE_FAILED:
        text += "; the server's disk is full, or the server cannot write to it"
    if error.err_code == _NO_CLUSTER:
        text += "; use --replicas 1, or a cluster"
    return BusRefusedError(text, code=error.code, err_code=error.err_code)


class BusErrors:
    """Converts nats-py's exceptions to `BusError` in a `with` block.

    It also raises a cancellation that nats-py has swallowed. nats-py uses `asyncio.wait_for`, which
    before Python 3.12 returns the result and drops a cancellation that arrives at the same time, so
    the service would never stop.
    """

    __slots__ = ("_cancellations", "_task", "_what")

    def __init__(self, what: str) -> None:
        """Use `what` as the failed operation."""
        self._what = what
        self._task = asyncio.current_task()
        self._cancellations = 0 if self._task is None else self._task.cancelling()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._task is not None and self._task.cancelling() > self._cancellations:
            raise asyncio.CancelledError
        if error is not None:
            _raise_bus_error(self._what, error)


def _raise_bus_error(what: str, error: BaseException) -> None:
    """Raise the `BusError` for an exception of nats-py. Return for any other exception."""
    match error:
        case nats.errors.MaxPayloadError():
            raise MessageTooLargeError(f"{what}: larger than the server's max_payload") from error
        case nats.errors.NoRespondersError():
            raise BusUnavailableError(
                f"{what}: no responder (the stream is missing, JetStream is disabled, or the "
                "server is still starting)"
            ) from error
        case nats.errors.TimeoutError() | TimeoutError():
            raise BusUnavailableError(
                f"{what}: no response before the timeout, so the result is unknown"
            ) from error
        case nats.errors.BadSubjectError() | nats.errors.BadHeaderError():
            raise ValueError(f"{what}: {error}") from error
        case nats.errors.Error() | OSError():
            name = type(error).__name__
            raise BusUnavailableError(f"{what}: {name}: {error}") from error
        case _:
            pass


async def request(
    nc: Client,
    subject: str,
    payload: bytes,
    *,
    timeout: float,  # noqa: ASYNC109 - nats-py's own request takes it
    headers: Mapping[str, str] | None = None,
) -> Msg:
    """Send a request, and return the response.

    Raises:
        BusUnavailableError: no response within `timeout` seconds, or no responder.
        BusDeniedError: the user may not publish to the subject or subscribe to its own inbox.
        MessageTooLargeError: the message exceeds the server's limit; nothing was sent.
    """
    check_size(nc, subject, payload, headers)
    async with fail_on_denial(nc, (subject,)):
        with BusErrors(f"request to {subject}"):
            try:
                return await nc.request(
                    subject, payload, timeout=timeout, headers=dict(headers) if headers else None
                )
            except (nats.errors.TimeoutError, nats.errors.NoRespondersError):
                suspect_server(nc)
                raise
            except nats.errors.Error as error:
                if isinstance(nc, FastClient) and nc.limit_error:
                    raise BusUnavailableError(f"request to {subject}: {nc.limit_error}") from error
                raise


async def request_service(
    nc: Client,
    subject: str,
    payload: bytes,
    *,
    timeout: float,  # noqa: ASYNC109 - nats-py's own request takes it
) -> Msg | None:
    """Send a request to other clients, and return the first response; None without a responder.

    Raises the same errors as ``request``.
    """
    check_size(nc, subject, payload, None)
    async with fail_on_denial(nc, (subject,)):
        with BusErrors(f"request to {subject}"):
            try:
                return await nc.request(subject, payload, timeout=timeout)
            except nats.errors.NoRespondersError:
                return None


@contextlib.asynccontextmanager
async def fail_on_denial(nc: Client, subjects: Collection[str]) -> AsyncGenerator[None]:
    """Stop waiting for a response as soon as the server denies one of the subjects.

    Raises:
        BusDeniedError: a subject was denied. The message names it and the user.
    """
    denials: list[Denial] = []
    if isinstance(nc, FastClient) and nc.denials.inbox_denial is not None:
        raise nc.denial_error(nc.denials.inbox_denial)
    try:
        async with asyncio.timeout(None) as limit:

            def handle_denial(denial: Denial) -> bool:
                if not any(map(denial.concerns, subjects)) and not _concerns_inbox(nc, denial):
                    return False
                if not denials:
                    # A timeout is the only way to interrupt the body from a callback.
                    limit.reschedule(0)
                denials.append(denial)
                return True

            with on_denial(nc, handle_denial):
                yield
    except TimeoutError:
        if denials and isinstance(nc, FastClient):
            raise nc.denial_error(denials[0]) from None
        raise


def on_denial(nc: Client, listener: DenialListener) -> AbstractContextManager[None]:
    """Call `listener` for each denial during the context."""
    return nc.denials.register(listener) if isinstance(nc, FastClient) else contextlib.nullcontext()


def _concerns_inbox(nc: Client, denial: Denial) -> bool:
    return isinstance(nc, FastClient) and nc.denials.inbox_denial is denial


async def send(
    nc: Client,
    subject: str,
    payload: bytes,
    *,
    reply: str = "",
    headers: Mapping[str, str] | None = None,
) -> None:
    """Check the size of a message, and publish it without waiting for a response.

    Raises:
        BusUnavailableError: the connection is closed, or its buffer is full during a reconnection.
        MessageTooLargeError: the message exceeds the server's limit; nothing was sent.
    """
    check_size(nc, subject, payload, headers)
    with BusErrors(subject):
        await nc.publish(subject, payload, reply=reply, headers=dict(headers) if headers else None)


def encode(
    nc: Client, subject: str, payload: bytes, headers: Mapping[str, str], *, reply: str = ""
) -> bytes:
    """Encode one message in the wire protocol, for `write`.

    Raises:
        MessageTooLargeError: the message exceeds the server's limit.
        ValueError: the subject or a header name is invalid in the protocol.
    """
    if not subject.isprintable() or " " in subject or not subject:
        raise ValueError(f"subject {subject!r}: spaces and control characters are not allowed")
    text = "NATS/1.0\r\n"
    for name, value in headers.items():
        if not _is_header_name(name):
            raise ValueError(
                f"message to {subject}: header name {name!r} must be printable ASCII without "
                "spaces or colons"
            )
        has_line_break = "\r" in value or "\n" in value
        clean = value.translate(_LINE_BREAKS_TO_SPACES) if has_line_break else value
        text += f"{name}: {clean}\r\n"
    block = (text + "\r\n").encode() if headers else b""
    block_size = len(block)
    size = block_size + len(payload)
    if size > nc.max_payload or block_size > MAX_HEADERS_BYTES or len(subject) > MAX_SUBJECT_BYTES:
        check_size(nc, subject, payload, headers)
    if not headers:
        return f"PUB {subject} {reply} {size}\r\n".encode() + payload + b"\r\n"
    line = f"HPUB {subject} {reply} {block_size} {size}\r\n".encode()
    return b"".join((line, block, payload, b"\r\n"))


@functools.lru_cache(maxsize=256)
def _is_header_name(name: str) -> bool:
    return _HEADER_NAME.fullmatch(name) is not None


async def write(nc: Client, commands: Sequence[bytes], what: str) -> None:
    """Write encoded messages to the connection in one call.

    A batch of 500 messages with headers takes 18 µs of processor time per message with nats-py's
    `publish`, and 3 to 7 µs here, at 1.3 to 1.7 times the throughput. It calls the same methods as
    `publish`, so it also waits for a reconnection.

    Raises:
        BusUnavailableError: the connection is closed, or its buffer is full during a reconnection.
    """
    buffer = b"".join(commands)
    if nc.is_closed or nc.is_draining_pubs:
        raise BusUnavailableError(f"{what}: the connection to the bus was closed")
    if not nc.is_connected and nc.pending_data_size + len(buffer) > PENDING_BYTES:
        raise BusUnavailableError(
            f"{what}: nothing was sent, because the client is reconnecting and its buffer is full"
        )
    with BusErrors(what):
        await nc._send_command(buffer)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        await nc._flush_pending()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]


class AccessFailedError(nats.errors.Error):
    """A `BusAccessError` in a form that makes nats-py retry."""


class LossTolerantTransport(TcpTransport):
    """A transport that fails as nats-py expects once the connection has ended.

    uvloop raises `RuntimeError` on a write after a connection loss that nats-py has not detected
    yet, where nats-py expects an `OSError`. Before reconnecting, nats-py also waits for the
    transport to close, which may never happen.
    """

    def write(self, payload: bytes) -> None:
        """Send, or raise `ConnectionResetError`."""
        try:
            super().write(payload)  # pyright: ignore[reportUnknownMemberType]
        except RuntimeError as error:
            raise ConnectionResetError(str(error)) from error

    def writelines(self, payload: list[bytes]) -> None:
        """Send all payloads, or raise `ConnectionResetError`."""
        try:
            super().writelines(payload)  # pyright: ignore[reportUnknownMemberType]
        except RuntimeError as error:
            raise ConnectionResetError(str(error)) from error

    async def wait_closed(self) -> None:
        """Wait at most 1 s, because after a failed TLS handshake the transport never closes."""
        task = asyncio.current_task()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await super().wait_closed()
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            # All waits share one future, and a cancelled wait cancels it for the others.
            if task is None or task.cancelling():
                raise


class FastClient(Client):
    """A client that dispatches messages directly, and fails pending requests on connection loss.

    It accepts any bytes that other clients put into subjects and headers (``foreign_bytes``).

    The parser passes a message directly to its listener, without a queue or task switch, and parses
    headers faster.

    It reconnects where nats-py gives up: when the user has expired or its key was revoked, because
    the file may contain a new key, and when the server has too many connections. If TLS is
    required, it refuses a connection without TLS, which nats-py accepts if the server offers none.

    nats-py has no public interface for this, so the class uses private members, which
    `tests/test_private_members.py` lists.
    """

    def __init__(
        self, identity: Identity | None = None, security: TransportSecurity | None = None
    ) -> None:
        read_any_subject()
        super().__init__()
        self.loss_listeners: set[Callable[[], None]] = set()
        self.reconnect_listeners: set[Callable[[], None]] = set()
        self.on_suspicion: Callable[[], None] | None = None
        self.last_server = ""  # host and port of the last connection attempt
        self.attempts = 0
        self.limit_error = ""  # why the connection ended, if the server exceeded a size limit
        self.identity = identity
        self.denials = Denials(identity.inbox_prefix if identity else "_INBOX")
        self._security = security
        self._listeners: dict[int, Listener] = {}
        self._ps = MessageParser(self, self._dispatch)

    async def listen(self, subject: str, listener: Listener) -> Subscription:
        """Subscribe. The listener receives the messages one by one, in order."""

        async def deliver(message: Msg) -> None:
            listener(Incoming(message.subject, message.reply, message.data, message.headers))

        # The id that `subscribe` will assign, because a message may arrive before it returns.
        number = self._sid + 1
        self._listeners[number] = listener
        # nats-py would drop messages beyond its limits on pending messages. The listeners in this
        # package only append to a list, and limit what the server may send.
        subscription = await self.subscribe(  # pyright: ignore[reportUnknownMemberType]
            subject, cb=deliver, pending_msgs_limit=0, pending_bytes_limit=0
        )
        if subscription._id != number:  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
            del self._listeners[number]
        return subscription

    async def _send_ping(self, future: asyncio.Future[object] | None = None) -> None:
        """Send the pending bytes before the PING, so that the response to a `flush` covers them.

        nats-py's PING overtakes them, so the PONG might arrive before the server has the
        subscription.
        """
        pending: list[bytes] = self._pending
        if pending and self._transport is not None:
            self._pending, self._pending_data_size = [], 0
            self._transport.writelines(pending)
        await super()._send_ping(future)  # pyright: ignore[reportUnknownMemberType]

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        self._listeners.pop(sid, None)
        super()._remove_sub(sid, max_msgs)

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        if (rest := self._dispatch(sid, subject, reply, data, headers)) is not None:
            await rest

    def _dispatch(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> Awaitable[None] | None:
        """Pass a message to its listener. Return an awaitable if work remains, which is rare."""
        listener = self._listeners.get(sid)
        if listener is None:
            return super()._process_msg(sid, subject, reply, data, headers)
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(data)
        try:
            # As `decode_text`, without its calls.
            listener(
                Incoming(
                    subject.decode("utf-8", "replace"),
                    reply.decode("utf-8", "replace"),
                    data,
                    read_headers(headers),
                )
            )
        except Exception as error:  # noqa: BLE001 - one message must not end the read task
            return self._error_cb(error)
        return None

    def denial_error(self, denial: Denial) -> BusDeniedError:
        """Return the error for a denial, with the user's name."""
        return denial.error(str(self.identity or "(unknown)"))

    async def _process_op_err(self, e: Exception) -> None:
        """End the connection. Report the reason, which nats-py does not report if it reconnects."""
        if isinstance(e, MessageTooLongError):
            self.limit_error = str(e)
            await self._error_cb(e)
        await super()._process_op_err(e)

    async def _attempt_reconnect(self) -> None:
        """Reconnect after any error. An unexpected one would otherwise end nats-py's task."""
        while True:
            try:
                return await super()._attempt_reconnect()
            except Exception as error:  # noqa: BLE001 - without a retry the client stays disconnected
                self._status = Client.RECONNECTING
                await self._error_cb(error)
                await asyncio.sleep(self.options["reconnect_time_wait"])

    async def _select_next_server(self) -> None:
        """Try the current server last, because it may be silent or isolated."""
        self._server_pool.sort(key=lambda each: each is self._current_server)
        await super()._select_next_server()

    async def _connect_to_server(self, s: Srv) -> None:
        self.last_server = f"{s.uri.hostname}:{s.uri.port}"
        self.attempts += 1
        # See `_abandon_last_attempt`: an attempt that failed late leaves tasks behind.
        self._abandon_last_attempt()
        await super()._connect_to_server(s)
        if type(self._transport) is TcpTransport:  # nats-py has no transport parameter
            original, self._transport = self._transport, LossTolerantTransport()
            vars(self._transport).update(vars(original))

    async def _process_connect_init(self) -> None:
        """Log in. If the server ends the connection, raise the error that it sent first."""
        try:
            await super()._process_connect_init()
        except OSError as error:
            if (error_text := self._read_final_error()) is not None:
                raise nats.errors.Error(f"nats: {error_text}") from error
            raise
        # nats-py mistakes the end of the connection for the response to its ping.
        if not self.is_connected and self._transport is not None and self._transport.at_eof():
            raise nats.errors.UnexpectedEOF

    def _read_final_error(self) -> str | None:
        """Return the unread error message from a server that ended the connection, or None."""
        reader = cast("asyncio.StreamReader | None", vars(self._transport).get("_io_reader"))
        received = b"" if reader is None else bytes(vars(reader).get("_buffer", b""))
        match = ERR_RE.match(received)
        return None if match is None else (match.group(1) or b"").decode(errors="replace")

    def _abandon_last_attempt(self) -> None:
        """Cancel the tasks of an attempt that failed late, which would use the next connection.

        A second reader would consume bytes of the handshake, or fail it with an error.
        """
        for name in ("_reading_task", "_ping_interval_task", "_flusher_task"):
            task = cast("asyncio.Task[None] | None", self.__dict__[name])
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    @property
    def ssl_context(self) -> ssl.SSLContext:
        """The TLS settings, read from the current files."""
        if self._security is None:
            return super().ssl_context
        with _convert_access_errors():
            return self._security.context()

    def _connect_command(self) -> bytes:
        """Return the CONNECT command, with the current content of the key file."""
        if self._security is not None and self._security.required:
            self._require_tls()
        key_file = self.identity.key_file if self.identity is not None else None
        if key_file is not None:
            with _convert_access_errors():
                key = key_file.read()
            self._signature_cb = key.sign
            self._user_jwt_cb = (lambda: bytearray(key.jwt.encode())) if key.jwt else None
            self._public_nkey = key.public
        return super()._connect_command()

    def _require_tls(self) -> None:
        if not self._server_info.get("tls_required"):
            raise AccessFailedError(
                "the server does not offer TLS, which is required; nothing was sent to it"
            )

    # On these errors, nats-py closes the client permanently, but this ends only the connection.
    async def _process_err(self, err_msg: str) -> None:
        denial = parse_denial(self._original_text(err_msg))
        if denial is not None and self.denials.notify(denial):
            return
        if is_refusal(err_msg) or "connections exceeded" in err_msg.lower():
            await self._error_cb(nats.errors.Error(err_msg))
            await self._process_op_err(nats.errors.AuthorizationError())
            return
        await super()._process_err(err_msg)

    def _original_text(self, lowered: str) -> str:
        """Return the server's message in its original case, because subjects are case-sensitive."""
        # nats-py passes the message in lower case, but its parser still has the original.
        match = ERR_RE.match(self._ps.buf)
        message = "" if match is None else (match.group(1) or b"").decode(errors="replace")
        return message if message.lower() == lowered else lowered

    @property
    def announces_jetstream(self) -> bool:
        """Whether the server announces JetStream, even if it is not ready."""
        return bool(self._server_info.get("jetstream"))

    @property
    def requires_authentication(self) -> bool:
        """Whether the server requires credentials."""
        return bool(self._server_info.get("auth_required"))

    @property
    def server_is_clustered(self) -> bool:
        """Whether the server announces that it is in a cluster."""
        return bool(self._server_info.get("cluster"))

    def fail_pending(self) -> None:
        """Fail every pending request, because its response belongs to the lost connection.

        Otherwise each would wait for its timeout, although the server may be back within a second.
        It is unknown whether a request was executed.
        """
        responses = cast("dict[str, asyncio.Future[object]]", self.__dict__["_resp_map"])
        for future in list(responses.values()):
            if not future.done():
                future.set_exception(nats.errors.ConnectionReconnectingError())
        for listener in list(self.loss_listeners):
            listener()

    def notify_reconnected(self) -> None:
        """Notify the listeners that the connection works again."""
        self.limit_error = ""
        for listener in list(self.reconnect_listeners):
            listener()

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Msg:
        return self.msg_class(
            subject=decode_text(subject),
            reply=decode_text(reply),
            data=data,
            headers=headers,
            _client=self,
            _sid=sid,
        )

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        """Parse headers. Return None for an invalid block."""
        try:
            return await super()._process_headers(headers)  # pyright: ignore[reportUnknownMemberType]
        except (UnicodeDecodeError, IndexError):
            return None

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        parsed: dict[str, str] = {}
        for line in raw.decode("utf-8", "replace").split("\r\n"):
            name, colon, value = line.partition(":")
            if colon and " " not in name:
                parsed[name] = value.strip()
        return parsed


@contextlib.contextmanager
def _convert_access_errors() -> Generator[None]:
    """Convert `BusAccessError` to an error that makes nats-py retry."""
    try:
        yield
    except BusAccessError as error:
        raise AccessFailedError(str(error)) from error


def suspect_server(nc: Client) -> None:
    """Trigger a check of the server after a request received no response, or found no leader."""
    if isinstance(nc, FastClient) and nc.on_suspicion is not None and nc.is_connected:
        nc.on_suspicion()


def is_refusal(text: str) -> bool:
    """Return whether a server's message means that it rejects or no longer accepts the user."""
    lowered = text.lower()
    return "authorization violation" in lowered or "authentication" in lowered


@contextlib.contextmanager
def on_loss(nc: Client, listener: Callable[[], None]) -> Generator[None]:
    """Call `listener` if the connection is lost during the context."""
    listeners = nc.loss_listeners if isinstance(nc, FastClient) else set[Callable[[], None]]()
    listeners.add(listener)
    try:
        yield
    finally:
        listeners.discard(listener)


@contextlib.contextmanager
def on_connection_change(nc: Client, listener: Callable[[], None]) -> Generator[None]:
    """Call `listener` if the connection is lost or restored during the context."""
    reconnect_listeners = (
        nc.reconnect_listeners if isinstance(nc, FastClient) else set[Callable[[], None]]()
    )
    reconnect_listeners.add(listener)
    try:
        with on_loss(nc, listener):
            yield
    finally:
        reconnect_listeners.discard(listener)


def check_size(nc: Client, subject: str, payload: bytes, headers: Mapping[str, str] | None) -> None:
    """Raise an error if this message would make the server close the connection.

    nats-py checks only the payload, but the server includes the headers. It rejects the message
    with a protocol error, after which nats-py closes the client permanently.

    Raises:
        MessageTooLargeError: the message states the size and the limit.
    """
    if len(subject) > MAX_SUBJECT_BYTES:
        raise MessageTooLargeError(
            f"subject {subject[:80]}…: {len(subject)} bytes long, but at most "
            f"{MAX_SUBJECT_BYTES} are allowed"
        )
    header_bytes = headers_size(headers) if headers else 0
    if header_bytes > MAX_HEADERS_BYTES:
        raise MessageTooLargeError(
            f"message to {subject}: contains {header_bytes} bytes of headers, but at most "
            f"{MAX_HEADERS_BYTES} are allowed"
        )
    size = header_bytes + len(payload)
    limit = nc.max_payload
    if size > limit:
        raise MessageTooLargeError(
            f"message to {subject}: {size} bytes long with headers, but the server's "
            f"max_payload is {limit}"
        )


def headers_size(headers: Mapping[str, str]) -> int:
    """Return the encoded size of the headers, in bytes."""
    size = 12  # "NATS/1.0", its line break, and the empty line
    for name, value in headers.items():
        size += len(name) + 4 + (len(value) if value.isascii() else len(value.encode()))
    return size


def status_of(message: Msg | Incoming) -> str:
    """Return the inline status of a message ("404"), or "" for a message with content."""
    headers = message.headers
    if headers is None or isinstance(headers, Headers):
        return ""
    return headers.get(STATUS, "")


async def subscribe(nc: Client, subject: str, listener: Listener) -> Subscription:
    """Subscribe. The listener receives the messages one by one, in order.

    Raises:
        BusUnavailableError: the connection is closed.
    """
    with BusErrors(subject):
        return await cast("FastClient", nc).listen(subject, listener)


async def unsubscribe(subscription: Subscription) -> None:
    """End a subscription. Do nothing if the subscription or its connection has ended."""
    with contextlib.suppress(nats.errors.Error):
        await subscription.unsubscribe()


def split_reply(reply: str) -> list[str]:
    """Return the parts of an acknowledgement subject, starting with the consumer's name.

    In order: consumer, deliveries, stream sequence, consumer sequence, time in ns, pending. The old
    format has nine tokens, and the format with a domain and account has eleven or more. For any
    other subject, as in a heartbeat, the result is empty.
    """
    tokens = reply.split(".")
    if tokens[:2] != _ACK_TOKENS:
        return []
    return tokens[3:] if len(tokens) == _OLD_REPLY_TOKENS else tokens[5:]
