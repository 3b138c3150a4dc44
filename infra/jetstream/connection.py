"""Connect to the bus, and send requests to its JetStream API."""

import asyncio
import contextlib
import logging
import os
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from urllib.parse import ParseResult, urlsplit

import msgspec
import nats.errors
from nats.aio.client import Client, ServerVersion
from nats.aio.msg import Msg

from infra.jetstream.access import DEFAULT_ACCESS, Access
from infra.jetstream.errors import (
    BusAccessError,
    BusDeniedError,
    BusError,
    BusUnavailableError,
    IncompatibleServerError,
    ResponseTooLargeError,
)
from infra.jetstream.identity import Identity, Login
from infra.jetstream.parser import Incoming
from infra.jetstream.transport_security import TransportSecurity
from infra.jetstream.wire import (
    JETSTREAM_DISABLED_REMEDY,
    PENDING_BYTES,
    AccessFailedError,
    ApiError,
    FastClient,
    is_refusal,
    request,
    send,
    status_of,
    subscribe,
    suspect_server,
    to_bus_error,
    unsubscribe,
)

_SCHEMES: Final = ("nats", "tls", "ws", "wss")
MIN_MAX_PAYLOAD_BYTES: Final = 1024 * 1024
"""Smallest supported `max_payload` of a server, which is the NATS default.

An event contains the fields of a declaration and of an object, and a row contains more. A message
that does not fit would be retried endlessly, and delay all tenants.
"""

OLDEST_SERVER: Final = (2, 14)  # streams without a duplicate window (ADR 0059)
_DEFAULT_PORT: Final = 4222
API_TIMEOUT_SECONDS: Final = 10.0
_RECONNECT_WAIT_SECONDS: Final = 0.25
_CONNECT_SECONDS: Final = 5

MAX_RESPONSE_BYTES: Final = 8 * 1024 * 1024
"""Largest accepted JetStream API response. Decoded JSON takes up to 22 times its encoded size."""

_REFUSED_WAIT_SECONDS: Final = 1.0
_CANCEL_SECONDS: Final = 0.5
# Consecutive refusals. A server that is reloading its configuration rejects a client that is
# logging in.
_MAX_REFUSALS: Final = 3
# Errors on the first connection that a retry cannot resolve.
_PERMANENT_ERRORS: Final = (AccessFailedError, ssl.SSLCertVerificationError)
_UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_USER: Final = re.compile(r"(^|,|//)[^/,\s]*@")
_PING_SECONDS: Final = 5  # after two without a response, nats-py treats the connection as lost
# Connection timeout and ping interval if there are several servers.
_CLUSTER_WAIT_SECONDS: Final = 2
# Reads that need a leader: a server without one returns its own, possibly stale, state.
_LEADER_READS: Final = ("STREAM.INFO.", "STREAM.MSG.GET.", "CONSUMER.INFO.")
_NO_LEADER: Final = 10008
# Requests without side effects, which may be sent more than once.
_READ_REQUESTS: Final = (
    *_LEADER_READS,
    "INFO",
    "STREAM.NAMES",
    "CONSUMER.NAMES.",
    "CONSUMER.LIST.",
)
_REPEAT_SECONDS: Final = 2.0
"""Interval between requests. A leader that just failed never responds; its successor does."""

_SECOND_RESPONSE_SECONDS: Final = 1.0
_CHECK_SECONDS: Final = 5.0
_CONNECT_POLL_SECONDS: Final = 0.02
_CHECK_PAUSE_SECONDS: Final = 5.0  # between checks of a silent connection; doubles each time
_MAX_CHECK_PAUSE_SECONDS: Final = 300.0
_ELECTION_PAUSE_SECONDS: Final = 1.0
_ACCOUNT_INFO: Final = "$JS.API.INFO"
_CHECK_ATTEMPTS: Final = 3
_NO_RESPONSE: Final = "no response"
_ISOLATED: Final = "its server cannot reach the other servers"
_TOO_MANY_CONNECTIONS: Final = "maximum connections exceeded"
_CLOSED_ERRORS: Final = (BrokenPipeError, ConnectionResetError, nats.errors.UnexpectedEOF)
_log = logging.getLogger(__name__)


class _Cluster(msgspec.Struct):
    leader: str = ""


class _Response(msgspec.Struct):
    error: ApiError | None = None
    cluster: _Cluster | None = None


_response = msgspec.json.Decoder(_Response)


class _Callbacks:
    """The client's callbacks: log each change once, and keep errors from the first connection."""

    def __init__(self, name: str, identity: Identity) -> None:
        self._name = name
        self._identity = identity
        self._last_logged = ""
        self.last = ""
        # Maps each server to the number of its last failed attempt, and the reason.
        self._failures: dict[str, tuple[int, str]] = {}
        self.is_connected = False
        self._refusals = 0
        self.refused = asyncio.Event()
        self.client: FastClient | None = None

    async def error(self, error: Exception) -> None:
        if self.refused.is_set():
            return  # results from closing the refused connection
        self.last = self._describe_error(error)
        self._record_failure(error)
        is_refused = _is_user_rejected(str(error))
        self._refusals += is_refused
        if not self.is_connected and (
            self._refusals >= _MAX_REFUSALS or isinstance(error, _PERMANENT_ERRORS)
        ):
            self.refused.set()
        level = logging.DEBUG if self.last == self._last_logged else logging.WARNING
        # An unreachable server causes the same error four times per second.
        self._last_logged = self.last
        _log.log(level, "bus connection %s: %s", self._name, self.last)
        if self.is_connected and is_refused:
            await asyncio.sleep(_REFUSED_WAIT_SECONDS)

    def _describe_error(self, error: Exception) -> str:
        text = redact_url(str(error) or type(error).__name__)
        if _is_user_rejected(text):
            return (
                f"the server rejects user {self._identity} ({text}); use other credentials. If "
                "you replace the credentials file, the next attempt reads the new one"
            )
        if isinstance(error, ssl.SSLCertVerificationError):
            return (
                f"the server's certificate is not trusted ({error.verify_message}); set "
                "--tls-ca to the CA certificates to trust, and use a host name from the "
                "certificate in the URL"
            )
        return f"TLS: {text}" if isinstance(error, ssl.SSLError) else text

    def _record_failure(self, error: Exception) -> None:
        """Record the first error of an attempt. Later ones only result from closing it."""
        if self.is_connected or self.client is None:
            return
        server, attempt = self.client.last_server, self.client.attempts
        newest, known = self._failures.get(server, (0, ""))
        if newest != attempt:
            number = error.errno if isinstance(error, OSError) else None
            reason = self.last if number is None else os.strerror(number)
            reason = "no response" if isinstance(error, TimeoutError) else reason
            # The operating system discards the server's error message if more bytes were sent to a
            # closed connection. In that case, keep the reason from an earlier attempt.
            is_message_lost = isinstance(error, _CLOSED_ERRORS) and _TOO_MANY_CONNECTIONS in known
            self._failures[server] = (attempt, known if is_message_lost else reason)

    def describe(self, url: str, timeout_seconds: float) -> str:
        """Return an error message: the unreachable servers, the reasons, and a remedy."""
        urls = server_urls(url)
        reasons = {server: reason for server, (_, reason) in self._failures.items()}
        all_reasons = " ".join(reasons.values())
        remedy = f"check that the server{'s are' if len(urls) > 1 else ' is'} running"
        if _TOO_MANY_CONNECTIONS in all_reasons:
            remedy = "close other clients, or raise the server's max_connections"
        if len(urls) > 1:
            server_list = ", ".join(
                f"{server} ({reasons.get(server, 'no response')})" for server in map(_address, urls)
            )
            return f"cannot reach any server in the cluster: {server_list}; {remedy}"
        no_response = f"no response within {timeout_seconds:g} s"
        reason = self.last if _TOO_MANY_CONNECTIONS not in all_reasons else all_reasons
        return f"cannot reach {redact_url(url)}: {reason or no_response}; {remedy}"

    async def disconnected(self) -> None:
        if self.client is not None and self.client.is_closed:
            return  # closed on purpose
        if self.client is not None:
            self.client.fail_pending()
            self.client.denials.reset()
        _log.info("bus connection %s: lost; reconnecting", self._name)

    async def reconnected(self) -> None:
        self._last_logged = ""
        _log.info("bus connection %s: reconnected", self._name)
        if self.client is not None:
            self.client.notify_reconnected()


class _ServerCheck:
    """Reconnects a connection whose server is unusable, if a second connection works.

    The server may have lost this connection's subscriptions, or be cut off from the rest of its
    cluster. A server that is cut off immediately responds that there is no leader, or considers
    itself the leader for up to 20 s. A connection to a slow server is kept, because reconnecting
    would increase its load.
    """

    def __init__(
        self, client: FastClient, name: str, connect_second: Callable[[], Awaitable[Client]]
    ) -> None:
        self._client = client
        self._name = name
        self._connect_second = connect_second
        self._task: asyncio.Future[None] | None = None
        self._pause = _CHECK_PAUSE_SECONDS
        self._not_before = 0.0

    def start(self) -> None:
        """Start a check of the connection, unless one is running or has just ended."""
        if (self._task is None or self._task.done()) and time.monotonic() >= self._not_before:
            self._task = asyncio.ensure_future(self._check())

    async def _check(self) -> None:
        problem = await _find_problem(self._client)
        may_be_isolated = not problem and is_clustered(self._client)
        # A lost connection is already being repaired.
        if (problem or may_be_isolated) and self._client.is_connected:
            problem = await self._compare(problem)
        if not problem:
            self._pause = _CHECK_PAUSE_SECONDS
        elif problem == _NO_RESPONSE:
            self._pause = min(2 * self._pause, _MAX_CHECK_PAUSE_SECONDS)
        else:  # an election takes only seconds, and checking an isolated server is cheap
            self._pause = _ELECTION_PAUSE_SECONDS
        self._not_before = time.monotonic() + self._pause

    async def _compare(self, problem: str) -> str:
        """Reconnect if a second connection works. Return this server's problem, or ""."""
        try:
            second = await self._connect_second()
        except BusError as error:
            if problem:
                _log.warning(
                    "bus connection %s: %s, and another connection could not be opened: %s",
                    self._name,
                    problem,
                    error,
                )
            return problem
        second_address = _server_address(second)
        try:
            if not problem and await _receives_response(second, self._client):
                return ""
            problem = problem or _ISOLATED
            other_problem = await _find_problem(second)
        finally:
            await close(second)
        if other_problem:
            _log.warning(
                "bus connection %s: %s, and a second connection does not work either; the server "
                "is overloaded, its cluster has no quorum, or it must be restarted",
                self._name,
                problem,
            )
        elif self._client.is_connected:
            _log.warning(
                "bus connection %s: %s, but a second connection to %s works; reconnecting",
                self._name,
                problem,
                second_address,
            )
            await self._client.force_reconnect()
        return problem


async def _receives_response(second: Client, client: Client) -> bool:
    """Return whether a response to a request from `client` arrives on the `second` connection.

    If so, the servers of both connections and the metadata leader can reach each other.
    """
    received: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_message(_message: Incoming) -> None:
        if not received.done():
            received.set_result(None)

    inbox = second.new_inbox()
    subscription = await subscribe(second, inbox, on_message)
    try:
        await request(client, _ACCOUNT_INFO, b"", timeout=_CHECK_SECONDS)
        for _ in range(_CHECK_ATTEMPTS):  # the subscription takes time to reach all servers
            await send(client, _ACCOUNT_INFO, b"", reply=inbox)
            await asyncio.wait((received,), timeout=_SECOND_RESPONSE_SECONDS)
            if received.done():
                return True
    except BusDeniedError:
        return True  # a user without this permission cannot check
    except BusError:
        return False
    finally:
        await unsubscribe(subscription)
    return False


def _is_user_rejected(text: str) -> bool:
    """Return whether the server rejected the user, rather than a login that took too long."""
    return is_refusal(text) and "timeout" not in text.lower()


async def _find_problem(client: Client) -> str:
    """Return the reason JetStream is unusable on a connection; "" if it responds and has a leader.

    A response that denies the request is sufficient. Responses on other subjects prove nothing,
    because the server handles those requests elsewhere.
    """
    try:
        response = await request(client, _ACCOUNT_INFO, b"", timeout=_CHECK_SECONDS)
    except BusUnavailableError:
        return _NO_RESPONSE
    except BusError:
        return ""
    return "its server has no leader" if _lacks_leader(response) else ""


async def connect(
    url: str,
    *,
    name: str,
    timeout_seconds: float = 30,
    access: Access = DEFAULT_ACCESS,
    login: Login | None = None,
) -> Client:
    """Connect, and reconnect after every later loss, with no limit on attempts.

    A later rejection, for example of an expired user or a revoked key, is also retried. Each
    attempt rereads the key file.

    Args:
        url: one server, or several in a cluster, separated by commas. Any that responds is used,
            and another one replaces it after a loss. `tls://` requires TLS.
        name: shown by the server's monitoring.
        timeout_seconds: time limit for the first connection; the server may still be starting.
        access: user and trusted CA certificates. Missing options are read from the environment.
        login: user on a server other than the bus. If given, the environment is ignored.

    Raises:
        BusAccessError: a key or certificate cannot be used, the server rejects the user, or the
            server's certificate is not trusted.
        BusUnavailableError: no connection within `timeout_seconds`.
    """
    if login is None:
        access = access.with_environment()
    urls = server_urls(url)
    identity = Identity(urls, access, login)
    security = TransportSecurity(urls, access)
    if security.required:
        security.context()  # an invalid file must fail here, not at every later attempt
    callbacks = _Callbacks(name, identity)

    def connect_second() -> Awaitable[Client]:
        return connect(
            other_servers(urls, client),
            name=f"{name} (comparison)",
            timeout_seconds=_CHECK_SECONDS,
            access=access,
            login=login,
        )

    client = callbacks.client = FastClient(identity, security)
    connecting = asyncio.ensure_future(
        client.connect(
            urls,
            name=name,
            error_cb=callbacks.error,
            disconnected_cb=callbacks.disconnected,
            reconnected_cb=callbacks.reconnected,
            max_reconnect_attempts=-1,
            reconnect_time_wait=_RECONNECT_WAIT_SECONDS,  # type: ignore[arg-type] # a float works
            connect_timeout=(  # leave time to try each server once
                _CONNECT_SECONDS
                if len(urls) == 1
                else min(_CLUSTER_WAIT_SECONDS, timeout_seconds / len(urls))  # type: ignore[arg-type]
            ),
            ping_interval=_PING_SECONDS if len(urls) == 1 else _CLUSTER_WAIT_SECONDS,
            pending_size=PENDING_BYTES,
            inbox_prefix=identity.inbox_prefix,
            user=(login.user or None) if login is not None else None,
            password=login.password if login is not None else None,
            token=login.token if login is not None else None,
        )
    )
    refused = asyncio.ensure_future(callbacks.refused.wait())
    try:
        await asyncio.wait(
            (connecting, refused), timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if connecting.done():
            connecting.result()
            callbacks.is_connected = True
            if len(urls) > 1:
                client.options["connect_timeout"] = _CLUSTER_WAIT_SECONDS
            client.on_suspicion = _ServerCheck(client, name, connect_second).start
            return client
    except (OSError, ValueError, nats.errors.Error) as error:
        callbacks.last = callbacks.last or str(error)
        raise BusUnavailableError(callbacks.describe(url, timeout_seconds)) from error
    finally:
        refused.cancel()
        if not connecting.done():
            while not connecting.done():  # nats-py occasionally swallows a cancellation
                connecting.cancel()
                await asyncio.wait((connecting,), timeout=_CANCEL_SECONDS)
            # The connection is incomplete, so any attribute may be missing.
            with contextlib.suppress(Exception):
                await client.close()
    if callbacks.refused.is_set():
        raise BusAccessError(f"cannot use {redact_url(url)}: {callbacks.last}")
    raise BusUnavailableError(callbacks.describe(url, timeout_seconds))


def server_urls(url: str) -> list[str]:
    """Split a server list in NATS notation: `host-a,nats://host-b:4222`.

    Raises:
        BusUnavailableError: the list is empty, or a URL has an unsupported scheme.
    """
    urls = [each.strip() for each in url.split(",") if each.strip()]
    if not urls:
        raise BusUnavailableError(
            f"{url!r} does not contain a server; use a URL such as nats://host:4222"
        )
    urls = [each if "://" in each else f"nats://{each}" for each in urls]
    for server_url in urls:
        if server_url.partition("://")[0].lower() not in _SCHEMES:
            raise BusUnavailableError(
                f"{redact_url(server_url)} is not a NATS server URL; use "
                "nats://host:4222 or tls://host:4222"
            )
    return urls


def _address(url: str) -> str:
    """Return the host and port of a URL in the format of `FastClient.last_server`."""
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or _DEFAULT_PORT}"


def other_servers(urls: Sequence[str], client: Client) -> str:
    """Return the other servers that a client may use, or all if there are no others.

    For a server announced by the cluster, the user and scheme of the first URL are used.
    """
    current_url = client.connected_url
    first = urlsplit(urls[0])
    user, at, _ = first.netloc.rpartition("@")
    announced = [f"{first.scheme}://{user}{at}{each.netloc}" for each in client.discovered_servers]
    others = [
        each
        for each in (*urls, *announced)
        if current_url is None or not _is_same_server(each, current_url)
    ]
    return ",".join(others or urls)


def _is_same_server(url: str, server: ParseResult) -> bool:
    parts = urlsplit(url)
    return (parts.hostname, parts.port) == (server.hostname, server.port)


async def leave_server(client: Client) -> None:
    """Reconnect, preferably to another server, and wait up to 5 s for the connection."""
    await client.force_reconnect()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CHECK_SECONDS):
            while not client.is_connected:  # noqa: ASYNC110 - nats-py has no event for this
                await asyncio.sleep(_CONNECT_POLL_SECONDS)


async def close(client: Client) -> None:
    """Close a connection, and ignore errors if it is already broken."""
    try:
        await client.close()
    except (OSError, RuntimeError, nats.errors.Error) as error:
        _log.debug("closing a broken connection: %s", error)


async def require_jetstream(nc: Client) -> ServerVersion:
    """Check that the server is supported and has JetStream enabled, and return its version.

    Raises:
        IncompatibleServerError: the server is older than 2.14, its `max_payload` is below 1 MiB, or
            JetStream is disabled.
        BusUnavailableError: there is no response, the server is starting, or the cluster has no
            leader.
    """
    version = nc.connected_server_version
    if (version.major, version.minor) < OLDEST_SERVER:
        version_text = f"{version.major}.{version.minor}.{version.patch}"
        raise IncompatibleServerError(
            f"nats-server {version_text} at {_server_address(nc)} is too old; upgrade it to "
            f"{'.'.join(map(str, OLDEST_SERVER))} or newer"
        )
    if nc.max_payload < MIN_MAX_PAYLOAD_BYTES:
        raise IncompatibleServerError(
            f"nats-server at {_server_address(nc)} accepts messages of at most {nc.max_payload} "
            "bytes; set max_payload in its configuration to 1MB or more"
        )
    try:
        await api_request(nc, "INFO", None)
    except BusUnavailableError as error:
        # No responder means that JetStream is disabled, unless the server announced it: then it is
        # still starting.
        is_starting = isinstance(nc, FastClient) and nc.announces_jetstream
        if isinstance(error.__cause__, nats.errors.NoRespondersError) and not is_starting:
            raise IncompatibleServerError(
                f"JetStream is disabled on the server at {_server_address(nc)}; "
                f"{JETSTREAM_DISABLED_REMEDY}"
            ) from error
        if is_clustered(nc) and not isinstance(error.__cause__, nats.errors.NoRespondersError):
            raise BusUnavailableError(
                f"JetStream does not respond at {_server_address(nc)} ({error}). After a server in "
                "a cluster fails, an election takes about 10 seconds; retry after that. If it "
                "still does not respond, check that more than half of the servers are running "
                "and can reach each other"
            ) from error
        raise
    return version


def is_clustered(nc: Client) -> bool:
    """Return whether the server is in a cluster, where other servers may have newer data."""
    return not isinstance(nc, FastClient) or nc.server_is_clustered


def _lacks_leader(message: Msg | Incoming) -> bool:
    """Return whether a response reports that its server knows of no leader."""
    if len(message.data) > MAX_RESPONSE_BYTES:
        return False
    try:
        response = _response.decode(message.data)
    except _UNDECODABLE:
        return False
    if response.error is not None:
        return response.error.err_code == _NO_LEADER
    return response.cluster is not None and not response.cluster.leader


async def _await_conclusive_response(
    nc: Client, first: Msg, subject: str, payload: bytes
) -> Msg | Incoming:
    """Send a request again, and return the first conclusive response, or `first` after 1 s.

    A server with a stale copy responds immediately and may do so for minutes. The leader's response
    comes second, and a plain request returns only the first one.
    """
    conclusive: asyncio.Future[Incoming] = asyncio.get_running_loop().create_future()

    def on_message(message: Incoming) -> None:
        if not conclusive.done() and not status_of(message) and not _lacks_leader(message):
            conclusive.set_result(message)

    inbox = nc.new_inbox()
    subscription = await subscribe(nc, inbox, on_message)
    try:
        await send(nc, subject, payload, reply=inbox)
        async with asyncio.timeout(_SECOND_RESPONSE_SECONDS):
            return await conclusive
    except TimeoutError:
        return first
    finally:
        await unsubscribe(subscription)


async def _repeated_request(nc: Client, subject: str, payload: bytes, seconds: float) -> Msg:
    """Send a request without side effects every two seconds, and return the first response."""
    deadline = time.monotonic() + seconds
    attempts: list[asyncio.Task[Msg]] = []
    try:
        while True:
            remaining = deadline - time.monotonic()
            if remaining > 0:
                attempt = request(nc, subject, payload, timeout=remaining)
                attempts.append(asyncio.ensure_future(attempt))
            done, _ = await asyncio.wait(
                attempts, timeout=_REPEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            for each in done:
                return each.result()
    finally:
        for each in attempts:
            each.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)


async def api_request(
    nc: Client,
    subject_suffix: str,
    body: dict[str, Any] | None,
    timeout: float = API_TIMEOUT_SECONDS,  # noqa: ASYNC109 - passed on to nats-py
    *,
    max_response_bytes: int | None = None,
) -> dict[str, Any]:
    """Send a request to `$JS.API.<subject_suffix>`, and return the response's JSON object.

    Without `max_response_bytes`, a response may have `MAX_RESPONSE_BYTES`.

    Raises:
        BusError: the server returned an error. Its code determines the class.
        BusUnavailableError: no response within `timeout` seconds.
    """
    payload = msgspec.json.encode(body) if body is not None else b""
    subject = f"$JS.API.{subject_suffix}"
    if subject_suffix.startswith(_READ_REQUESTS) and is_clustered(nc):
        message = await _repeated_request(nc, subject, payload, timeout)
    else:
        message = await request(nc, subject, payload, timeout=timeout)
    if _lacks_leader(message) and subject_suffix.startswith(_LEADER_READS):
        message = await _await_conclusive_response(nc, message, subject, payload)
    size = len(message.data)
    limit = MAX_RESPONSE_BYTES if max_response_bytes is None else max_response_bytes
    if size > limit:
        raise ResponseTooLargeError(
            f"{subject_suffix}: the response is {size} bytes long, more than the limit of "
            f"{limit // 1024**2} MiB"
        )
    try:
        error = _response.decode(message.data).error
        if error is None:
            return msgspec.json.decode(message.data, type=dict[str, Any])
    except _UNDECODABLE as unreadable:
        raise BusError(f"{subject_suffix}: invalid response: {unreadable}") from None
    if error.err_code == _NO_LEADER:
        suspect_server(nc)
    raise to_bus_error(error, subject_suffix)


def redact_url(url: str) -> str:
    """Return URLs for display, without user, password and token."""
    return _USER.sub(r"\1", url)


def _server_address(nc: Client) -> str:
    url = nc.connected_url
    return f"{url.hostname}:{url.port}" if url else "an unknown address"
