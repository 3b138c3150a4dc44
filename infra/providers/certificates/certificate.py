"""The ``Certificate`` kind: a key, a certificate for it, and the files that servers read."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final, Literal

import msgspec

from events.external import ExternalObject
from events.manifest import Fields
from infra.providers.certificates.issuer import renewal_at
from infra.providers.certificates.spec import (
    DEFAULT_ALGORITHM,
    KeyAlgorithm,
    ObjectName,
    RelativePath,
    Span,
    canonical_span,
    name_problem,
    path_problem,
    seconds_of,
)
from reconciler.provider import Capabilities
from reconciler.provider.kind import Kind, ObjectUse
from reconciler.provider.lazy import lazy

DEFAULT_DURATION: Final = "90d"

_LABEL = r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)"
_DNS_NAME = re.compile(rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*")
_MAX_DNS_NAME: Final = 253


class CertificateFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A TLS certificate, renewed before it expires."""

    issuer: Annotated[
        ObjectName,
        msgspec.Meta(
            description="Name of an Issuer with the same ProviderConfig, or a reference to it."
        ),
    ]
    common_name: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=64)] | None,
        msgspec.Meta(description="Common name of the subject. With ACME, one of dnsNames."),
    ] = None
    dns_names: Annotated[
        Annotated[list[str], msgspec.Meta(max_length=100)],
        msgspec.Meta(description="DNS names of the certificate, in any order."),
    ] = []
    ip_addresses: Annotated[
        Annotated[list[str], msgspec.Meta(max_length=100)],
        msgspec.Meta(description="IP addresses of the certificate, in any order."),
    ] = []
    duration: Annotated[
        Span,
        msgspec.Meta(description="Lifetime, such as 90d or 48h. With ACME, the CA decides."),
    ] = DEFAULT_DURATION
    renew_before: Annotated[
        Span | None,
        msgspec.Meta(
            description="Time between the renewal and the end of the lifetime, less than "
            "duration. Default: a third of the lifetime."
        ),
    ] = None
    key_algorithm: Annotated[
        KeyAlgorithm, msgspec.Meta(description="Algorithm and size of the private key.")
    ] = DEFAULT_ALGORITHM
    key_rotation: Annotated[
        Literal["AtRenewal", "Never"],
        msgspec.Meta(
            description="AtRenewal: each new certificate has a new key. Never: the key stays until "
            "keyAlgorithm changes."
        ),
    ] = "AtRenewal"
    folder: Annotated[
        RelativePath | None,
        msgspec.Meta(
            description="Directory of the files, under the root. Default: the name of the "
            "certificate."
        ),
    ] = None
    revoke_on_delete: Annotated[
        bool,
        msgspec.Meta(description="Whether to revoke the certificate when its resource is deleted."),
    ] = False

    def __post_init__(self) -> None:
        if not (self.common_name or self.dns_names or self.ip_addresses):
            raise ValueError("set at least one of commonName, dnsNames and ipAddresses")
        for name in self.dns_names:
            if _DNS_NAME.fullmatch(name) is None or len(name) > _MAX_DNS_NAME:
                raise ValueError(
                    f"dnsNames: {name!r} is not a DNS name; write international names as punycode "
                    "(xn--…)"
                )
        for address in self.ip_addresses:
            ipaddress.ip_address(address)
        if (problem := name_problem(self.issuer)) is not None:
            raise ValueError(f"issuer: {problem}")
        if self.folder is not None and (problem := path_problem(self.folder)) is not None:
            raise ValueError(f"folder: {problem}")
        renew_before = self.renew_before
        if renew_before is not None and seconds_of(renew_before) >= seconds_of(self.duration):
            raise ValueError(
                f"renewBefore: {renew_before} must be less than duration, {self.duration}"
            )


class CertificateOutputs(msgspec.Struct, frozen=True, rename="camel"):
    """The values of a certificate, and the paths of its files.

    ``combined_file`` contains the key and the chain, and is replaced in one step. ``digest``
    changes with any of the files.
    """

    serial: Annotated[str, msgspec.Meta(description="Serial number.")]
    not_before: Annotated[str, msgspec.Meta(description="Start of the validity period (ISO 8601).")]
    not_after: Annotated[str, msgspec.Meta(description="End of the validity period (ISO 8601).")]
    fingerprint: Annotated[str, msgspec.Meta(description="SHA-256 fingerprint of the certificate.")]
    key_file: Annotated[str, msgspec.Meta(description="Path of the private key (tls.key).")]
    certificate_file: Annotated[
        str, msgspec.Meta(description="Path of the certificate with its chain (tls.crt).")
    ]
    ca_file: Annotated[str, msgspec.Meta(description="Path of the CA's certificate (ca.crt).")]
    combined_file: Annotated[
        str, msgspec.Meta(description="Path of one file with the key and the chain (tls.pem).")
    ]
    digest: Annotated[
        str,
        msgspec.Meta(
            description="Digest that changes whenever one of the files changes. Reference it from "
            "resources that must reload."
        ),
    ]


def normalize(fields: Fields) -> Fields:
    """Return a certificate's fields in canonical form: sorted unique names, and no problems."""
    present = {name: value for name, value in fields.items() if value is not None}
    for span in ("duration", "renewBefore"):
        if span in present:
            present[span] = canonical_span(present[span])
    return {
        "problems": [],
        **present,
        "dnsNames": sorted({name.lower() for name in fields.get("dnsNames") or ()}),
        "ipAddresses": sorted(
            {str(ipaddress.ip_address(each)) for each in fields.get("ipAddresses") or ()}
        ),
    }


def find_claims(external_name: str, fields: Fields) -> Sequence[str]:
    """Return the directory of a certificate's files."""
    return [fields.get("folder") or external_name]


def find_uses(_external_name: str, fields: Fields) -> Sequence[ObjectUse]:
    """Return the issuer of a certificate."""
    issuer = fields.get("issuer")
    return [ObjectUse("spec.issuer", "Issuer", issuer)] if issuer else []


def renewal_time(fields: Fields, observed: ExternalObject) -> datetime | None:
    """Return when a certificate must be renewed."""
    return renewal_at(fields.get("renewBefore"), observed)


CERTIFICATE = Kind(
    name="Certificate",
    api_version="certificates/v1",
    provider="certificates",
    schema=CertificateFields,
    capabilities=Capabilities(
        idempotency_keys=False, deterministic_names=True, labels=True, conditional_writes=True
    ),
    connect=lazy(
        "infra.providers.certificates.certificates:CertificatesProvider", extra="certificates"
    ),
    normalize=normalize,
    name_problem=name_problem,
    outputs=CertificateOutputs,
    renewal_time=renewal_time,
    find_claims=find_claims,
    find_uses=find_uses,
)
"""The ``Certificate`` kind."""
