"""Check certificates: pure functions in a fixed order, each with a reason and a remedy.

If a finding requires an order, one is placed. Otherwise the stored files are delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

from events.manifest import Fields
from infra.providers.certificates.pem import CertificateInfo

Remedy = Literal["Order", "Delivery"]
FileState = Literal["Missing", "Differs", "Exposed", "Delivered"]


class Finding(NamedTuple):
    """A problem: a one-word reason, its subject, and the remedy."""

    reason: str
    subject: str
    remedy: Remedy

    def __str__(self) -> str:
        return f"{self.reason}: {self.subject}" if self.subject else self.reason


class Case(NamedTuple):
    """The input of the checks: the stored and delivered state, and the declared one if known.

    ``key``: digest of the public half of the stored key. ``is_trusted``: whether the current issuer
    signed the certificate. ``has_current_ca``: whether the stored CA certificate is the issuer's.
    ``grants_duration``: whether the issuer grants the requested duration. ``is_key_exposed``:
    whether other accounts may read the stored key.
    """

    key: str | None
    certificate: CertificateInfo | None
    files: Mapping[str, FileState]
    is_trusted: bool = True
    has_current_ca: bool = True
    applied: Fields = {}  # noqa: RUF012 - never mutated
    desired: Fields | None = None
    grants_duration: bool = True
    is_due: bool = False
    is_key_exposed: bool = False


Check = Callable[[Case], Iterator[Finding]]


def certificate_exists(case: Case) -> Iterator[Finding]:
    """A certificate exists."""
    if case.certificate is None:
        yield Finding("CertificateMissing", "", "Order")


def key_exists(case: Case) -> Iterator[Finding]:
    """A key exists. Without it, the certificate is useless."""
    if case.key is None:
        yield Finding("KeyMissing", "", "Order")


def key_matches_certificate(case: Case) -> Iterator[Finding]:
    """The key belongs to the certificate."""
    certificate = case.certificate
    if certificate is not None and case.key not in (None, certificate.public_key):
        yield Finding("KeyDiffers", "", "Order")


def key_is_private(case: Case) -> Iterator[Finding]:
    """Only the worker's account may read the stored key."""
    if case.is_key_exposed:
        yield Finding("KeyExposed", "", "Delivery")


def is_signed_by_issuer(case: Case) -> Iterator[Finding]:
    """The current issuer signed the certificate. A recreated issuer has a different key."""
    if not case.is_trusted:
        yield Finding("OtherAuthority", "", "Order")


def ca_is_current(case: Case) -> Iterator[Finding]:
    """The CA's current certificate is delivered."""
    if case.is_trusted and not case.has_current_ca:
        yield Finding("AuthorityRenewed", "", "Delivery")


def request_matches_declaration(case: Case) -> Iterator[Finding]:
    """The request matches the declaration."""
    if case.desired is None or case.certificate is None:
        return
    applied: Fields = {
        **case.applied,
        "dnsNames": list(case.certificate.dns_names),
        "ipAddresses": list(case.certificate.ip_addresses),
        "keyAlgorithm": case.certificate.algorithm,
    }
    for name in REQUEST:
        if name == "duration" and not case.grants_duration:
            continue
        if applied.get(name) != case.desired.get(name):
            yield Finding("RequestDiffers", name, "Order")


def near_expiry(case: Case) -> Iterator[Finding]:
    """No renewal is due. The kind's ``renewal_time`` decides when, using the bus's clock."""
    if case.is_due:
        yield Finding("NearExpiry", "", "Order")


def files_are_delivered(case: Case) -> Iterator[Finding]:
    """All files are where servers read them."""
    for name, state in case.files.items():
        if state != "Delivered":
            yield Finding(f"File{state}", name, "Delivery")


CHECKS: Final[tuple[Check, ...]] = (
    certificate_exists,
    key_exists,
    key_matches_certificate,
    is_signed_by_issuer,
    request_matches_declaration,
    near_expiry,
    ca_is_current,
    key_is_private,
    files_are_delivered,
)

REQUEST: Final = (
    "issuer",
    "commonName",
    "dnsNames",
    "ipAddresses",
    "keyAlgorithm",
    "duration",
)
"""The fields of an order. A changed value requires a new certificate."""


def findings(case: Case) -> list[Finding]:
    """Return all findings, in the order of the checks."""
    return [finding for check in CHECKS for finding in check(case)]


def find_order_reason(candidates: list[Finding]) -> Finding | None:
    """Return the first finding that requires a new certificate."""
    return next((each for each in candidates if each.remedy == "Order"), None)
