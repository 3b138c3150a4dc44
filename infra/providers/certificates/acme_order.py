"""Obtain a certificate from an ACME CA: an order, proofs of control, and the certificate.

Each step is one request, after which a crash is possible. The order's URL is recorded before the
order is finalized, so a retry finds the same order and the same certificate.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from events.manifest import Fields
from infra.providers.certificates import http01
from infra.providers.certificates.acme_client import (
    FAILED_DEPENDENCY,
    AcmeClient,
    Authorization,
    Challenge,
    Identifier,
    LimitedError,
    NoAccountError,
    NoOrderError,
    Order,
)
from infra.providers.certificates.pem import PrivateKey, build_names, build_subject
from infra.providers.file_root import FileRoot
from reconciler.errors import NotDoneError, RefusedError, UnknownResultError

_T = TypeVar("_T")

FIRST_POLL_SECONDS: Final = 0.05
MAX_POLL_SECONDS: Final = 5.0


class OrderFailedError(NotDoneError):
    """The CA will not issue a certificate for this order. Another order may succeed."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(
            f"the order {url} failed: {reason}; the next attempt places a new order",
            status=FAILED_DEPENDENCY,
        )


class Step(Protocol):
    """Runs a blocking step in a thread, when the permit allows it."""

    async def __call__(self, function: Callable[[], _T], /) -> _T:
        """Run the step."""
        ...


class AcmeOrder:
    """An order that can be resumed in any state until its certificate is issued."""

    def __init__(
        self,
        client: AcmeClient,
        step: Step,
        root: FileRoot,
        solver: Mapping[str, str],
        *,
        timeout_seconds: float,
    ) -> None:
        self._client = client
        self._step = step
        self._root = root
        self._solver = solver
        self._record_limit: Callable[[LimitedError], None] = _ignore_limit
        self.is_finalized = False
        self._deadline = time.monotonic() + timeout_seconds

    async def certificate(
        self,
        fields: Fields,
        key: PrivateKey,
        url: str,
        *,
        record_order: Callable[[str], None],
        register: Callable[[], None],
        record_limit: Callable[[LimitedError], None],
    ) -> bytes:
        """Return the chain of the order at ``url``, or of a new one that ``record_order`` records.

        ``register`` recreates an account that the CA has lost. ``record_limit`` records when
        the CA accepts orders again. Both are called in the step that detects it.
        """
        self._record_limit = record_limit
        names = identifiers_of(fields)
        if url and (existing := await self._request(lambda: self._find_order(url))) is not None:
            try:
                return await self._complete(url, existing, fields, key)
            except OrderFailedError:  # such as after a crash during the validation
                await self._request(lambda: record_order(""))
        url, order = await self._request(lambda: self._place_order(names, record_order, register))
        try:
            return await self._complete(url, order, fields, key)
        except OrderFailedError:
            await self._request(lambda: record_order(""))
            raise

    async def _complete(self, url: str, order: Order, fields: Fields, key: PrivateKey) -> bytes:
        """Execute the remaining steps of an order, and return the chain."""
        self.is_finalized = order.status in ("processing", "valid")
        while order.status != "valid":
            self._check_time(0.0, f"order {url} is {order.status}")
            match order.status:
                case "pending":
                    await self._authorize(url, order)
                    order = await self._wait_for_next_state(order, url)
                case "ready":
                    order = await self._finalize(order, fields, key)
                case "processing":
                    order = await self._wait_for_next_state(order, url)
                case _:
                    raise OrderFailedError(url, _describe_failure(order))
        valid_order = order
        return await self._request(lambda: self._client.download(valid_order))

    async def _request(self, request: Callable[[], _T], /) -> _T:
        return await self._step(lambda: self._call_and_record_limit(request))

    def _call_and_record_limit(self, request: Callable[[], _T]) -> _T:
        try:
            return request()
        except LimitedError as limit:
            self._record_limit(limit)
            raise

    def _find_order(self, url: str) -> Order | None:
        try:
            return self._client.find_order(url)
        except (NoAccountError, NoOrderError):
            return None  # the CA has lost it

    def _place_order(
        self,
        names: list[Identifier],
        record_order: Callable[[str], None],
        register: Callable[[], None],
    ) -> tuple[str, Order]:
        try:
            url, order = self._client.order(names)
        except NoAccountError:
            register()
            url, order = self._client.order(names)
        record_order(url)
        return url, order

    async def _finalize(self, order: Order, fields: Fields, key: PrivateKey) -> Order:
        self.is_finalized = True
        return await self._request(lambda: self._client.finalize(order, build_request(fields, key)))

    async def _wait_for_next_state(self, order: Order, url: str) -> Order:
        """Wait until an order has left its state."""
        initial_status, pause = order.status, FIRST_POLL_SECONDS
        if initial_status == "pending":
            order = await self._request(lambda: self._client.find_order(url))
        while order.status in (initial_status, "processing"):
            pause = await self._pause(pause, f"order {url} is {order.status}")
            order = await self._request(lambda: self._client.find_order(url))
        return order

    async def _authorize(self, url: str, order: Order) -> None:
        """Prove control of all names. Raises ``OrderFailedError``."""
        for authorization_url in order.authorizations:
            self._check_time(0.0, f"not all authorizations of order {url} have been checked")
            authorization = await self._request(
                lambda url=authorization_url: self._client.authorization(url)
            )
            if authorization.status == "pending":
                authorization = await self._prove(authorization, authorization_url)
            if authorization.status != "valid":
                details = [
                    each.error.detail for each in authorization.challenges if each.error is not None
                ]
                reason = "; ".join(details) or authorization.status
                raise OrderFailedError(url, f"{authorization.identifier.value}: {reason}")

    async def _prove(self, authorization: Authorization, url: str) -> Authorization:
        """Respond to a challenge for a name until the CA has validated it."""
        challenge = next(
            (each for each in authorization.challenges if each.type == "http-01"), None
        )
        name = authorization.identifier.value
        if challenge is None:
            raise RefusedError(
                f"{name}: the CA does not offer http-01 for this name",
                status=FAILED_DEPENDENCY,
            )
        # checks the token, which becomes a file name
        response = self._client.key_authorization(challenge)
        try:
            await self._request(lambda: self._publish_response(challenge, response))
            pause = FIRST_POLL_SECONDS
            while True:
                authorization = await self._request(lambda: self._client.authorization(url))
                if authorization.status != "pending":
                    return authorization
                pause = await self._pause(pause, f"the validation of {name} is still pending")
        finally:
            # The removal does not send a request, and must also complete after a cancellation.
            await asyncio.shield(asyncio.to_thread(self._remove_response, challenge, response))

    def _publish_response(self, challenge: Challenge, response: str) -> None:
        if "listen" in self._solver:
            http01.add_response(self._solver["listen"], challenge.token, response)
        else:
            http01.write_response(self._root, self._solver["folder"], challenge.token, response)
        if challenge.status == "pending":
            self._client.report_ready(challenge)

    def _remove_response(self, challenge: Challenge, response: str) -> None:
        if "listen" in self._solver:
            http01.remove_response(self._solver["listen"], challenge.token)
        else:
            http01.unlink_response(self._root, self._solver["folder"], challenge.token, response)

    async def _pause(self, seconds: float, state: str) -> float:
        """Wait before the next read, and return the following wait."""
        wait = max(seconds, self._client.retry_after_seconds(0.0))
        self._check_time(wait, state)
        await asyncio.sleep(wait)
        return min(seconds * 2, MAX_POLL_SECONDS)

    def _check_time(self, wait: float, state: str) -> None:
        """Raise ``UnknownResultError`` if a wait would exceed the deadline of the attempt."""
        if time.monotonic() + wait > self._deadline:
            raise UnknownResultError(
                f"{state}; the next attempt reads it again", status=FAILED_DEPENDENCY
            )


def _ignore_limit(_limit: LimitedError) -> None:
    """Ignore a limit, because nothing has been ordered yet."""


def identifiers_of(fields: Fields) -> list[Identifier]:
    """Return the identifiers of an order. Raises ``RefusedError`` if ACME cannot order them."""
    names, addresses = fields["dnsNames"], fields["ipAddresses"]
    common_name = fields.get("commonName")
    if common_name is not None and common_name.lower() not in names:
        raise RefusedError(
            f"commonName {common_name!r}: ACME requires it in dnsNames; add it there, or omit "
            "commonName"
        )
    if wildcards := [name for name in names if name.startswith("*")]:
        raise RefusedError(
            f"{wildcards[0]}: HTTP validation does not support wildcards; list each host"
        )
    if not names and not addresses:
        raise RefusedError("ACME requires dnsNames or ipAddresses; set one of them")
    return [
        *(Identifier("dns", name) for name in names),
        *(Identifier("ip", address) for address in addresses),
    ]


def build_request(fields: Fields, key: PrivateKey) -> x509.CertificateSigningRequest:
    """Build a certificate signing request."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        build_subject(fields.get("commonName"))
    )
    if (names := build_names(fields["dnsNames"], fields["ipAddresses"])) is not None:
        builder = builder.add_extension(names, critical=False)
    return builder.sign(key, hashes.SHA256())


def _describe_failure(order: Order) -> str:
    return order.status if order.error is None else order.error.detail or order.error.type
