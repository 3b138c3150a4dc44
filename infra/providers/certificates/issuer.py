"""The ``Issuer`` kind: a private CA, or an account with an ACME CA.

They are one kind, so that certificates reference either in the same way.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Final

import msgspec

from events.external import ExternalObject
from events.manifest import Fields
from infra.providers.certificates.spec import (
    DEFAULT_ALGORITHM,
    KeyAlgorithm,
    RelativePath,
    Span,
    canonical_span,
    name_problem,
    path_problem,
    seconds_of,
)
from reconciler.provider import Capabilities
from reconciler.provider.host_access import HostUse, format_address, names_host, url_host
from reconciler.provider.kind import Kind
from reconciler.provider.lazy import lazy

DEFAULT_DURATION: Final = "3650d"

_DIRECTORY = re.compile(r"https://[^\s@?#]+")
_MAX_PORT: Final = 65_535


class OwnCa(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A private CA. Its key never leaves the root."""

    common_name: Annotated[
        Annotated[str, msgspec.Meta(min_length=1, max_length=64)],
        msgspec.Meta(description="Name of the CA in its certificate."),
    ]
    duration: Annotated[
        Span, msgspec.Meta(description="Lifetime of its certificate, such as 3650d or 12h.")
    ] = DEFAULT_DURATION
    renew_before: Annotated[
        Span | None,
        msgspec.Meta(
            description="Time between the renewal and the end of the lifetime. Default: a "
            "third of the lifetime."
        ),
    ] = None
    key_algorithm: Annotated[
        KeyAlgorithm, msgspec.Meta(description="Algorithm and size of its private key.")
    ] = DEFAULT_ALGORITHM


class Http01(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Proof of control of a name, served over HTTP by the worker or by your web server."""

    listen: Annotated[
        str | None,
        msgspec.Meta(
            description="ADDRESS:PORT that the worker listens on during validation, such as "
            "127.0.0.1:5002. Declare listen or folder."
        ),
    ] = None
    folder: Annotated[
        RelativePath | None,
        msgspec.Meta(
            description="Directory, under the root, that your own web server serves. "
            "Declare listen or folder."
        ),
    ] = None

    def __post_init__(self) -> None:
        if (self.listen is None) == (self.folder is None):
            raise ValueError("http01: set exactly one of listen and folder")
        if self.folder is not None and (problem := path_problem(self.folder)) is not None:
            raise ValueError(f"http01.folder: {problem}")
        if self.listen is not None and address_of(self.listen) is None:
            raise ValueError(
                "http01.listen: must have the form ADDRESS:PORT, such as 127.0.0.1:5002 or [::1]:80"
            )


class Acme(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """An account with an ACME CA (RFC 8555)."""

    directory: Annotated[str, msgspec.Meta(description="https URL of the CA's ACME directory.")]
    http01: Annotated[
        Http01,
        msgspec.Meta(
            description="How the worker proves control of a name, with an HTTP-01 challenge."
        ),
    ]
    accept_terms: Annotated[
        bool, msgspec.Meta(description="Must be true: you accept the CA's terms of service.")
    ] = False
    email: Annotated[str | None, msgspec.Meta(description="Contact address for the CA.")] = None
    ca_file: Annotated[
        RelativePath | None,
        msgspec.Meta(
            description="File, under the root, with the CAs to trust for the directory's "
            "HTTPS. Default: the system's CAs."
        ),
    ] = None

    def __post_init__(self) -> None:
        if _DIRECTORY.fullmatch(self.directory) is None:
            raise ValueError("acme.directory: must be an https:// URL without a user or a query")
        if not self.accept_terms:
            raise ValueError(
                "acme.acceptTerms: must be true, because an account requires your agreement to the "
                "CA's terms"
            )
        if self.email is not None and "@" not in self.email:
            raise ValueError("acme.email: must be an address, such as ops@example.org")
        if self.ca_file is not None and (problem := path_problem(self.ca_file)) is not None:
            raise ValueError(f"acme.caFile: {problem}")


class IssuerFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A private CA, or an account with an ACME CA."""

    own_ca: Annotated[
        OwnCa | None, msgspec.Meta(description="A private CA. Declare ownCa or acme.")
    ] = None
    acme: Annotated[
        Acme | None,
        msgspec.Meta(description="An account with an ACME CA (RFC 8555). Declare ownCa or acme."),
    ] = None

    def __post_init__(self) -> None:
        if (self.own_ca is None) == (self.acme is None):
            raise ValueError("set exactly one of ownCa and acme")


class IssuerOutputs(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The CA's certificate (PEM) with its fingerprint and validity, or the account's URL."""

    name: Annotated[str, msgspec.Meta(description="Name of the issuer.")]
    certificate: Annotated[
        str, msgspec.Meta(description="Certificate of the private CA, in PEM.")
    ] = ""
    fingerprint: Annotated[
        str, msgspec.Meta(description="SHA-256 fingerprint of that certificate.")
    ] = ""
    not_before: Annotated[
        str, msgspec.Meta(description="Start of its validity period (ISO 8601).")
    ] = ""
    not_after: Annotated[
        str, msgspec.Meta(description="End of its validity period (ISO 8601).")
    ] = ""
    revoked: Annotated[
        str, msgspec.Meta(description="Path of the revocation list, after the first revocation.")
    ] = ""
    account: Annotated[str, msgspec.Meta(description="URL of the ACME account.")] = ""


def address_of(listen: str) -> tuple[str, int] | None:
    """Parse ``ADDRESS:PORT``; None if it is invalid."""
    host, _, port = listen.rpartition(":")
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    if not port.isdecimal() or not 0 < int(port) <= _MAX_PORT:
        return None
    return str(address), int(port)


def normalize(fields: Fields) -> Fields:
    """Return an issuer's fields in canonical form: its type, and durations in the largest unit."""
    present = {name: value for name, value in fields.items() if value is not None}
    for name in ("ownCa", "acme"):
        if isinstance(present.get(name), dict):
            variant: Fields = present[name]
            canonical: Fields = {key: value for key, value in variant.items() if value is not None}
            for span in ("duration", "renewBefore"):
                if span in canonical:
                    canonical[span] = canonical_span(canonical[span])
            if isinstance(canonical.get("http01"), dict):
                solver: Fields = canonical["http01"]
                canonical["http01"] = {
                    key: value for key, value in solver.items() if value is not None
                }
            present[name] = canonical
    return {"problems": [], **present, "type": "Acme" if "acme" in present else "OwnCa"}


def find_host_uses(fields: Fields) -> Sequence[HostUse]:
    """Return the host's addresses that an issuer listens on or connects to (ADR 0060).

    Other names are checked at each connection, after they are resolved.
    """
    acme: Fields = fields.get("acme") or {}
    http01: Fields = acme.get("http01") or {}
    listen = http01.get("listen")
    host_uses: list[HostUse] = []
    if listen:
        address = address_of(listen)
        assert address is not None, "the schema has checked it"
        host_uses.append(HostUse("spec.acme.http01.listen", "listen", format_address(*address)))
    if directory := acme.get("directory"):
        host, port = url_host(directory, 443)
        if names_host(host):
            host_uses.append(
                HostUse("spec.acme.directory", "addresses", format_address(host, port))
            )
    return host_uses


def compute_renewal_time(
    not_before: datetime, not_after: datetime, renew_before: str | None
) -> datetime:
    """Return the renewal time: after two thirds of the lifetime, or as declared.

    It is never in the first third, because a CA may grant less time than requested.
    """
    lifetime = not_after - not_before
    margin = lifetime / 3 if renew_before is None else timedelta(seconds=seconds_of(renew_before))
    return not_after - min(margin, lifetime * 2 / 3)


def renewal_at(renew_before: str | None, observed: ExternalObject) -> datetime | None:
    """Return the renewal time of an object; None if it never expires."""
    not_before, not_after = observed.outputs.get("notBefore"), observed.outputs.get("notAfter")
    if not not_before or not not_after:
        return None
    return compute_renewal_time(
        datetime.fromisoformat(not_before), datetime.fromisoformat(not_after), renew_before
    )


def renewal_time(fields: Fields, observed: ExternalObject) -> datetime | None:
    """Return when a private CA must be renewed. It keeps its key."""
    own_ca: Fields | None = fields.get("ownCa")
    return None if own_ca is None else renewal_at(own_ca.get("renewBefore"), observed)


def describe_data_loss(fields: Fields | None, observed: ExternalObject) -> str:
    """Describe the loss of a private CA's key. An account can be recreated."""
    if fields is not None or observed.fields.get("type") != "OwnCa":
        return ""
    return (
        f"the key of CA {observed.name}, which is required to renew the certificates that it signed"
    )


ISSUER = Kind(
    name="Issuer",
    api_version="certificates/v1",
    provider="certificates",
    schema=IssuerFields,
    capabilities=Capabilities(
        idempotency_keys=False, deterministic_names=True, labels=True, conditional_writes=True
    ),
    connect=lazy("infra.providers.certificates.issuers:IssuersProvider", extra="certificates"),
    normalize=normalize,
    name_problem=name_problem,
    outputs=IssuerOutputs,
    find_host_uses=find_host_uses,
    renewal_time=renewal_time,
    immutable=frozenset({"type", "ownCa.commonName", "ownCa.keyAlgorithm", "acme.directory"}),
    describe_data_loss=describe_data_loss,
)
"""The ``Issuer`` kind."""
