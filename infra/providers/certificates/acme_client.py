"""An account's requests to an ACME CA (RFC 8555).

All requests block. Responses are decoded with this project's schemas, and refusals raise
``ProviderError`` classes. No error has a 5xx status, because a failing CA is not a failure of the
folder, which is the API of this provider.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import requests
from acme import challenges, errors, messages
from acme.client import ClientNetwork, ClientV2
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from josepy.b64 import b64encode
from josepy.errors import Error as JoseError
from josepy.interfaces import JSONDeSerializable
from josepy.jwa import ES256
from josepy.jwk import JWKEC

from infra.providers.certificates.acme_transport import (
    MAX_REDIRECTS,
    LimitedAdapter,
    ResponseLimitError,
)
from infra.providers.host_guard import HostAddressError, HostGuard
from infra.providers.responses import UNDECODABLE
from reconciler.errors import NotDoneError, ProviderError, RefusedError, UnknownResultError

FAILED_DEPENDENCY: Final = 424
"""Status of a CA's failure, which does not count as a failure of the folder."""

USER_AGENT: Final = "event-sourced-reconciler"
MAX_BAD_NONCES: Final = 10
DEFAULT_LIMIT_SECONDS: Final = 3600.0
"""Time without orders after a rate limit whose end the CA does not state."""

MAX_LIMIT_SECONDS: Final = 30 * 86_400.0
"""Maximum wait that a CA can request. Common limits end within a week."""

MAX_CHAIN_BYTES: Final = 128 * 1024
"""Limit on a certificate chain, which each listing reads. A chain with 100 long names is 40 KiB."""

_REVOKED: Final = "alreadyRevoked"
_NO_ACCOUNT: Final = "accountDoesNotExist"
_NO_RIGHTS: Final = "unauthorized"
_PERMANENT_ERRORS: Final = frozenset(
    {
        "badCSR",
        "badPublicKey",
        "caa",
        "externalAccountRequired",
        "invalidContact",
        "malformed",
        "rejectedIdentifier",
        "unsupportedContact",
        "unsupportedIdentifier",
        "userActionRequired",
    }
)
_NOT_ACME: Final = (AttributeError, KeyError, RecursionError, TypeError, ValueError)
"""Exceptions that the library raises for JSON with an unexpected structure."""

_QUOTED_CHARACTERS: Final = 500
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,128}")
_T = TypeVar("_T")


class LimitedError(Exception):
    """The CA limits the rate of orders, and accepts none before a given time."""

    def __init__(self, until: datetime, reason: str) -> None:
        super().__init__(reason)
        self.until = until
        self.reason = reason

    def as_error(self) -> NotDoneError:
        """Return the error for an action. It does not delay other actions."""
        remaining_seconds = max(0.0, (self.until - datetime.now(UTC)).total_seconds())
        return NotDoneError(
            f"{self.reason} (no orders before {format_instant(self.until)})",
            status=HTTPStatus.TOO_MANY_REQUESTS,
            retry_after_seconds=remaining_seconds,
        )


class NoAccountError(Exception):
    """The CA has no such account."""


class NoOrderError(Exception):
    """The CA has no such order."""


class Problem(msgspec.Struct, frozen=True):
    """The CA's reason for a failure (RFC 7807)."""

    type: str = "about:blank"
    detail: str = ""


class Order(msgspec.Struct, frozen=True):
    """An order as the CA returns it."""

    status: str
    authorizations: list[str]
    finalize: str
    certificate: str = ""
    error: Problem | None = None


class Challenge(msgspec.Struct, frozen=True):
    """A way to prove control of a name."""

    type: str
    url: str
    status: str = "pending"
    token: str = ""
    error: Problem | None = None


class Identifier(msgspec.Struct, frozen=True):
    """A name or address whose control must be proved."""

    type: str
    value: str


class Authorization(msgspec.Struct, frozen=True):
    """The progress of proving control of a name."""

    identifier: Identifier
    status: str
    challenges: list[Challenge]


class _Network(ClientNetwork):
    """Keeps the newest response, whose headers contain the time of the next request."""

    newest: requests.Response | None = None

    def _send_request(
        self, method: str, url: str, *args: object, **kwargs: object
    ) -> requests.Response:
        self.newest = None
        self.newest = super()._send_request(method, url, *args, **kwargs)
        return self.newest


class AcmeClient:
    """A client for one account, used by one action and one thread at a time."""

    def __init__(
        self,
        directory: str,
        key: ec.EllipticCurvePrivateKey,
        *,
        ca_file: Path | None,
        timeout_seconds: float,
        guard: HostGuard,
    ) -> None:
        self._url = directory
        self._key = JWKEC(key=key)
        self._network = _Network(
            self._key,
            alg=ES256,
            user_agent=USER_AGENT,
            timeout=max(1, round(timeout_seconds)),
        )
        session = self._network.session
        session.trust_env = False  # settings in the environment are for other clients
        session.max_redirects = MAX_REDIRECTS
        adapter = LimitedAdapter(ca_file, timeout_seconds, guard)
        for scheme in ("https://", "http://"):
            session.mount(scheme, adapter)
        self._client: ClientV2 | None = None

    def close(self) -> None:
        """Close all connections."""
        self._network.session.close()

    # --- the account

    def use_account(self, url: str) -> None:
        """Sign requests for an existing account."""
        self._network.account = messages.RegistrationResource(body=messages.Registration(), uri=url)

    def register(self, email: str | None) -> str:
        """Create the account of this key, or find it, and return its URL."""
        self._network.account = None
        registration = messages.NewRegistration.from_data(email=email, terms_of_service_agreed=True)
        try:
            url = self._request(lambda client: client.new_account(registration), writes=False).uri
        except errors.ConflictError as conflict:
            url = conflict.location
        url = self._require_location(url, "account")
        self.use_account(url)
        return url

    def set_email(self, url: str, email: str | None) -> None:
        """Set the email address of the account."""
        contact = () if email is None else (f"mailto:{email}",)
        self._post(url, messages.UpdateRegistration(contact=contact))

    def deactivate(self, url: str) -> None:
        """Deactivate the account. An unknown or unauthorized one counts as deactivated."""
        body = messages.UpdateRegistration(status="deactivated")
        try:
            self._post(url, body)
        except NoAccountError:
            return
        except ProviderError as error:
            if not _has_problem_code(error, _NO_RIGHTS):
                raise

    # --- an order

    def order(self, names: list[Identifier]) -> tuple[str, Order]:
        """Order a certificate. Return the order's URL, and the order."""
        kinds = {"dns": messages.IDENTIFIER_FQDN, "ip": messages.IDENTIFIER_IP}
        order_request = messages.NewOrder(
            identifiers=[
                messages.Identifier(typ=kinds[each.type], value=each.value) for each in names
            ]
        )
        response = self._post(self._directory("newOrder"), order_request)
        return self._require_location(response.headers.get("Location"), "order"), _read(
            response, Order
        )

    def _require_location(self, url: str | None, name: str) -> str:
        if not url:
            raise NotDoneError(
                f"{self._url} returned a response that is not ACME: the {name} has no Location",
                status=FAILED_DEPENDENCY,
            )
        return url

    def find_order(self, url: str) -> Order:
        """Read an order. Raises ``NoOrderError``."""
        try:
            return _read(self._post(url, None), Order)
        except ProviderError as error:
            if error.status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
                raise NoOrderError from None
            raise

    def authorization(self, url: str) -> Authorization:
        """Read the progress of proving control of a name."""
        return _read(self._post(url, None), Authorization)

    def key_authorization(self, challenge: Challenge) -> str:
        """Return the response to a challenge. Raises ``RefusedError`` for an invalid token."""
        if _TOKEN.fullmatch(challenge.token) is None:
            raise RefusedError("the CA sent an invalid token", status=424)
        thumbprint = b64encode(self._key.thumbprint()).decode()
        return f"{challenge.token}.{thumbprint}"

    def report_ready(self, challenge: Challenge) -> None:
        """Report that a challenge is ready. Its authorization contains the result."""
        response = challenges.HTTP01Response(key_authorization=self.key_authorization(challenge))
        # Refused if an earlier attempt reported it, and the CA has since validated it.
        with contextlib.suppress(RefusedError):
            self._post(challenge.url, response)

    def finalize(self, order: Order, request: x509.CertificateSigningRequest) -> Order:
        """Request the certificate."""
        certificate_request = messages.CertificateRequest(csr=request)
        return _read(self._post(order.finalize, certificate_request, writes=True), Order)

    def download(self, order: Order) -> bytes:
        """Read the chain of a valid order. Raises ``RefusedError`` if it is too long."""
        chain = self._post(order.certificate, None).content
        if len(chain) > MAX_CHAIN_BYTES:
            raise RefusedError(
                f"{order.certificate[:_QUOTED_CHARACTERS]}: the certificate with its chain is "
                f"longer than {MAX_CHAIN_BYTES // 1024} KiB",
                status=FAILED_DEPENDENCY,
            )
        return chain

    def revoke(self, certificate: x509.Certificate) -> None:
        """Revoke a certificate. Revoking it again has no effect."""
        revocation = messages.Revocation(certificate=certificate, reason=0)
        try:
            self._post(self._directory("revokeCert"), revocation, writes=True)
        except ProviderError as error:
            if not _has_problem_code(error, _REVOKED):
                raise

    def retry_after_seconds(self, default: float) -> float:
        """Return the wait in seconds that the newest response requests."""
        seconds = _retry_after(self._network.newest)
        return default if seconds is None else seconds

    # --- requests

    def _directory(self, name: str) -> str:
        return self._request(lambda client: str(client.directory[name]), writes=False)

    def _post(
        self, url: str, content: JSONDeSerializable | None, *, writes: bool = False
    ) -> requests.Response:
        def post(client: ClientV2) -> requests.Response:
            nonce_url = str(client.directory["newNonce"])
            return self._network.post(url, content, new_nonce_url=nonce_url)

        return self._request(post, writes=writes)

    def _request(self, request: Callable[[ClientV2], _T], *, writes: bool) -> _T:
        """Make a request. Retry it if its nonce was rejected, because the CA did not execute it."""
        for _ in range(MAX_BAD_NONCES):
            self._network.newest = None
            try:
                if self._client is None:
                    directory = ClientV2.get_directory(self._url, self._network)
                    self._client = ClientV2(directory, self._network)
                return request(self._client)
            except messages.Error as problem:
                if problem.code != "badNonce":
                    raise self._classify_problem(problem) from None
            except errors.ConflictError:
                raise
            except (errors.Error, requests.RequestException, JoseError, *_NOT_ACME) as error:
                raise self._classify_failure(error, writes=writes) from None
        raise NotDoneError(f"{self._url} rejects every nonce", status=FAILED_DEPENDENCY)

    def _classify_problem(self, problem: messages.Error) -> Exception:
        newest = self._network.newest
        status = FAILED_DEPENDENCY if newest is None else newest.status_code
        code = str(problem.typ).rpartition(":")[2]
        detail = str(problem.detail or problem.title or "no reason")[:_QUOTED_CHARACTERS]
        text = f"{self._url} returned {code[:_QUOTED_CHARACTERS]}: {detail}"
        if code == "rateLimited" or status == HTTPStatus.TOO_MANY_REQUESTS:
            seconds = self.retry_after_seconds(DEFAULT_LIMIT_SECONDS)
            return LimitedError(datetime.fromtimestamp(_now() + seconds, UTC), text)
        if code == _NO_ACCOUNT:
            return NoAccountError(text)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return NotDoneError(
                text, status=FAILED_DEPENDENCY, retry_after_seconds=_retry_after(newest)
            )
        if status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
            return NotDoneError(text, status=status)
        kind = RefusedError if code in _PERMANENT_ERRORS else NotDoneError
        return kind(text, status=FAILED_DEPENDENCY)

    def _classify_failure(self, error: Exception, *, writes: bool) -> ProviderError:
        newest = self._network.newest
        if isinstance(error, requests.exceptions.SSLError):
            reason = "its certificate is not trusted; set spec.acme.caFile to the CA to trust"
        elif isinstance(error, ResponseLimitError):
            reason = f"invalid response: {error}"
        elif isinstance(error, requests.ConnectionError):
            reason = _describe_unreachable(error)
        elif isinstance(error, requests.Timeout):
            reason = "no response before the timeout"
        else:
            reason = "its response is not ACME"
        # Nothing was sent if the connection was refused or not trusted.
        unsent_errors = (requests.exceptions.SSLError, requests.ConnectTimeout)
        is_sent = writes and newest is None and not isinstance(error, unsent_errors)
        kind = UnknownResultError if is_sent else NotDoneError
        return kind(
            f"{self._url}: {reason}",
            status=FAILED_DEPENDENCY,
            retry_after_seconds=_retry_after(newest),
        )


def _describe_unreachable(error: BaseException) -> str:
    """Describe why there was no connection, with a remedy if it is not allowed."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, HostAddressError):
            return str(cause)
        reason = getattr(cause.args[0], "reason", None) if cause.args else None
        cause = reason if isinstance(reason, BaseException) else cause.__cause__
    return "it is not reachable"


def format_instant(until: datetime) -> str:
    """Format an instant for a message, rounded up to a second."""
    return f"{until + timedelta(seconds=1):%Y-%m-%dT%H:%M:%SZ}"


def _has_problem_code(error: ProviderError, code: str) -> bool:
    return f" returned {code}: " in error.message


def _read(response: requests.Response, result_type: type[_T]) -> _T:
    try:
        return msgspec.json.decode(response.content, type=result_type)
    except UNDECODABLE as error:
        raise NotDoneError(
            f"{response.url} returned a response that is not ACME: {error}",
            status=FAILED_DEPENDENCY,
        ) from None


def _retry_after(response: requests.Response | None) -> float | None:
    """Return the wait in seconds that a response requests as a number or a date."""
    header = "" if response is None else response.headers.get("Retry-After", "")
    if header.strip().isdecimal():
        return min(float(header), MAX_LIMIT_SECONDS)
    try:
        until = parsedate_to_datetime(header).timestamp()
    except (IndexError, OverflowError, TypeError, ValueError):
        return None
    return min(max(0.0, until - _now()), MAX_LIMIT_SECONDS)


def _now() -> float:
    return datetime.now(UTC).timestamp()
