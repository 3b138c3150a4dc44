"""Create, parse and compare keys and certificates as text. Pure except for randomness."""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import threading
from collections.abc import Sequence
from datetime import datetime

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from infra.providers.certificates.spec import KeyAlgorithm

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

_PUBLIC_EXPONENT = 65_537
_RSA_LOCK = threading.Lock()
"""Lock for creating RSA keys, because each occupies a CPU core for seconds, and a tenant may
declare hundreds."""


class CertificateInfo(msgspec.Struct, frozen=True):
    """The values in a certificate.

    ``public_key`` and ``fingerprint`` are digests of the public key and the whole certificate.
    """

    serial: str
    not_before: datetime
    not_after: datetime
    fingerprint: str
    public_key: str
    algorithm: str
    dns_names: tuple[str, ...]
    ip_addresses: tuple[str, ...]


def new_key(algorithm: KeyAlgorithm) -> PrivateKey:
    """Create a key. An RSA key can take seconds."""
    family, _, size = algorithm.partition("-")
    if family == "RSA":
        with _RSA_LOCK:
            return rsa.generate_private_key(_PUBLIC_EXPONENT, int(size))
    return ec.generate_private_key(ec.SECP256R1() if size == "P256" else ec.SECP384R1())


def key_pem(key: PrivateKey) -> bytes:
    """Encode a private key as PEM."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def read_key(pem: bytes | None) -> PrivateKey | None:
    """Parse a private key; None if it is invalid, or has a type that Reconciler does not create."""
    if pem is None:
        return None
    try:
        # A listing reads all keys, and validating an RSA key takes a third of a second. If another
        # client has changed a key, its public half does not match the certificate.
        key = serialization.load_pem_private_key(
            pem, password=None, unsafe_skip_rsa_key_validation=True
        )
    except (ValueError, TypeError):
        return None
    return key if isinstance(key, PrivateKey) else None


def public_digest(key: PrivateKey) -> str:
    """Return the digest of a key's public half, as in ``CertificateInfo.public_key``."""
    return _digest_of(key.public_key())


def algorithm_of(key: object) -> str:
    """Return the type and size of a public key, as a ``KeyAlgorithm`` if possible."""
    match key:
        case rsa.RSAPublicKey():
            return f"RSA-{key.key_size}"
        case ec.EllipticCurvePublicKey():
            return f"ECDSA-P{key.curve.key_size}"
        case _:
            return type(key).__name__


def certificates_in(pem: bytes | None) -> list[x509.Certificate]:
    """Parse a chain, which starts with the leaf certificate; empty if the text is not PEM."""
    if pem is None:
        return []
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


def encode_certificates(certificates: Sequence[x509.Certificate]) -> bytes:
    """Encode certificates as PEM."""
    return b"".join(each.public_bytes(serialization.Encoding.PEM) for each in certificates)


def read_info(certificate: x509.Certificate) -> CertificateInfo:
    """Return the values in a certificate."""
    names = x509.SubjectAlternativeName([])
    with contextlib.suppress(x509.ExtensionNotFound):
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    key = certificate.public_key()
    return CertificateInfo(
        serial=f"{certificate.serial_number:x}",
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
        public_key=_digest_of(key),
        algorithm=algorithm_of(key),
        dns_names=tuple(sorted(names.get_values_for_type(x509.DNSName))),
        ip_addresses=tuple(sorted(map(str, names.get_values_for_type(x509.IPAddress)))),
    )


def is_signed_by(certificate: x509.Certificate, ca: x509.Certificate) -> bool:
    """Return whether a CA signed a certificate."""
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def build_subject(common_name: str | None) -> x509.Name:
    """Build a subject."""
    if common_name is None:
        return x509.Name([])
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def build_names(
    dns_names: Sequence[str], ip_addresses: Sequence[str]
) -> x509.SubjectAlternativeName | None:
    """Build the names of a certificate; None if there are none."""
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in dns_names]
    names += [x509.IPAddress(ipaddress.ip_address(each)) for each in ip_addresses]
    return x509.SubjectAlternativeName(names) if names else None


def _digest_of(key: object) -> str:
    if not isinstance(key, rsa.RSAPublicKey | ec.EllipticCurvePublicKey):
        return ""
    encoded = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(encoded).hexdigest()
