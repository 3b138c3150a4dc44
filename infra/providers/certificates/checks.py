"""What is wrong with a certificate, and what mends it: a chain of pure checks, each with a reason.

The first that finds something and needs an order decides that there is one; without any, files are
delivered from what is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

from events.manifest import Fields
from infra.providers.certificates.pem import Facts

Remedy = Literal["Order", "Delivery"]
FileState = Literal["Missing", "Differs", "Exposed", "Delivered"]


class Finding(NamedTuple):
    """One thing that is wrong: a reason in one word, what it is about, and what mends it."""

    reason: str
    subject: str
    remedy: Remedy

    def __str__(self) -> str:
        return f"{self.reason}: {self.subject}" if self.subject else self.reason


class Case(NamedTuple):
    """What is looked at: what is kept, what is delivered, and what is wanted, if that is known.

    ``key``: digest of the public half of the key that is kept. ``is_trusted``: whether the issuer
    of today signed it; ``has_authority``: whether the authority that is kept is the issuer's;
    ``decides_duration``: whether the issuer gives as much time as it is asked for.
    """

    key: str | None
    certificate: Facts | None
    files: Mapping[str, FileState]
    is_trusted: bool = True
    has_authority: bool = True
    applied: Fields = {}  # noqa: RUF012 - nobody writes to it
    wanted: Fields | None = None
    decides_duration: bool = True
    is_due: bool = False


Check = Callable[[Case], Iterator[Finding]]


def certificate_kept(case: Case) -> Iterator[Finding]:
    """There is a certificate at all."""
    if case.certificate is None:
        yield Finding("CertificateMissing", "", "Order")


def key_kept(case: Case) -> Iterator[Finding]:
    """There is a key; without it the certificate is worthless."""
    if case.key is None:
        yield Finding("KeyMissing", "", "Order")


def key_belongs(case: Case) -> Iterator[Finding]:
    """The key is the certificate's."""
    certificate = case.certificate
    if certificate is not None and case.key not in (None, certificate.public_key):
        yield Finding("KeyDiffers", "", "Order")


def issuer_signed(case: Case) -> Iterator[Finding]:
    """The issuer of today signed it: one that was made anew has another key."""
    if not case.is_trusted:
        yield Finding("OtherAuthority", "", "Order")


def authority_is_current(case: Case) -> Iterator[Finding]:
    """The authority's own certificate is delivered as it is today."""
    if case.is_trusted and not case.has_authority:
        yield Finding("AuthorityRenewed", "", "Delivery")


def request_is_as_declared(case: Case) -> Iterator[Finding]:
    """What was asked for is what is wanted now."""
    if case.wanted is None or case.certificate is None:
        return
    now: Fields = {
        **case.applied,
        "dnsNames": list(case.certificate.dns_names),
        "ipAddresses": list(case.certificate.ip_addresses),
        "keyAlgorithm": case.certificate.algorithm,
    }
    for name in REQUEST:
        if name == "duration" and not case.decides_duration:
            continue
        if now.get(name) != case.wanted.get(name):
            yield Finding("RequestDiffers", name, "Order")


def near_expiry(case: Case) -> Iterator[Finding]:
    """It is not to be renewed yet; when that is, says the kind's ``due``, by the bus's clock."""
    if case.is_due:
        yield Finding("NearExpiry", "", "Order")


def files_delivered(case: Case) -> Iterator[Finding]:
    """All files are where servers read them."""
    for name, state in case.files.items():
        if state != "Delivered":
            yield Finding(f"File{state}", name, "Delivery")


CHECKS: Final[tuple[Check, ...]] = (
    certificate_kept,
    key_kept,
    key_belongs,
    issuer_signed,
    request_is_as_declared,
    near_expiry,
    authority_is_current,
    files_delivered,
)

REQUEST: Final = (
    "issuer",
    "commonName",
    "dnsNames",
    "ipAddresses",
    "keyAlgorithm",
    "duration",
)
"""The fields that an order is made of; another value is another certificate."""


def findings(case: Case) -> list[Finding]:
    """Return all that is wrong, in the order of the checks."""
    return [found for check in CHECKS for found in check(case)]


def why_order(found: list[Finding]) -> Finding | None:
    """Return the first finding that only another certificate mends."""
    return next((each for each in found if each.remedy == "Order"), None)
