"""A private CA: its certificate, and the certificates that it signs and revokes.

All functions block, but do not send requests, because the key is in a file in the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from events.manifest import Fields
from infra.providers.certificates.pem import (
    PrivateKey,
    build_names,
    build_subject,
    certificates_in,
    read_key,
)
from infra.providers.certificates.spec import seconds_of
from infra.providers.certificates.store import IssuerRecord, Revocation, Store
from reconciler.errors import NotDoneError

CRL_FILE = "revoked.crl"


class PrivateCa(NamedTuple):
    """The key and the certificate of a CA that can sign."""

    key: PrivateKey
    certificate: x509.Certificate

    def sign(self, fields: Fields, key: PrivateKey) -> x509.Certificate:
        """Sign a certificate for a key. It never outlives the CA's certificate."""
        now = datetime.now(UTC).replace(microsecond=0)
        not_after = now + timedelta(seconds=seconds_of(fields["duration"]))
        names = build_names(fields["dnsNames"], fields["ipAddresses"])
        builder = (
            x509.CertificateBuilder()
            .subject_name(build_subject(fields.get("commonName")))
            .issuer_name(self.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now)
            .not_valid_after(min(not_after, self.certificate.not_valid_after_utc))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
                ),
                critical=False,
            )
            .add_extension(_authority_id(self.certificate), critical=False)
        )
        if names is not None:
            # RFC 5280: critical if there is no subject.
            builder = builder.add_extension(names, critical="commonName" not in fields)
        return builder.sign(self.key, hashes.SHA256())

    def revocation_list(self, revoked: Sequence[Revocation]) -> bytes:
        """Return the revocation list as PEM, valid as long as the CA's certificate."""
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(datetime.now(UTC).replace(microsecond=0))
            .next_update(self.certificate.not_valid_after_utc)
            .add_extension(x509.CRLNumber(len(revoked)), critical=False)
        )
        for revocation in revoked:
            entry = x509.RevokedCertificateBuilder()
            entry = entry.serial_number(int(revocation.serial, 16)).revocation_date(revocation.at)
            builder = builder.add_revoked_certificate(entry.build())
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def self_sign(fields: Fields, key: PrivateKey) -> x509.Certificate:
    """Build a CA's self-signed certificate."""
    now = datetime.now(UTC).replace(microsecond=0)
    subject = build_subject(fields["commonName"])
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(seconds=seconds_of(fields["duration"])))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def load_ca(issuers: Store[IssuerRecord], name: str, record: IssuerRecord) -> PrivateCa:
    """Load a CA for signing. Raises ``NotDoneError`` if its files are missing."""
    key = read_key(issuers.file(name, record.key_file))
    chain = certificates_in(issuers.file(name, record.certificate_file))
    if key is None or not chain:
        raise NotDoneError(
            f"issuer {name!r}: its key or its certificate is missing; restore it from a backup",
            status=424,
        )
    return PrivateCa(key, chain[0])


def revoke(issuers: Store[IssuerRecord], name: str, serial: str) -> None:
    """Revoke a certificate. Revoking it again has no effect."""
    record = issuers.read(name)
    if record is None or not record.uid:
        raise NotDoneError(
            f"issuer {name!r}, which must revoke the certificate, does not exist", status=424
        )
    ca = load_ca(issuers, name, record)
    revoked = record.revoked
    if serial not in {each.serial for each in revoked}:
        revoked = (*revoked, Revocation(serial, datetime.now(UTC).replace(microsecond=0)))
    issuers.put_as(name, CRL_FILE, ca.revocation_list(revoked))
    issuers.write(name, msgspec.structs.replace(record, revoked=revoked))


def _authority_id(ca: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    identifier = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=not signs,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
