"""The files of a certificate and its key, compared with the certificate in Caddy.

Caddy selects among the certificates of all routes by the host name of the connection, whichever
route a certificate was loaded for. So a certificate is loaded only if its ``ProviderConfig``
permits each of its names.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import ssl
import stat
from collections.abc import Iterator
from functools import lru_cache
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address
from typing import Final, NamedTuple

from cryptography import x509

from events.allow import ANY, Allow, matches
from events.excerpt import quote
from events.manifest import Fields
from infra.providers.caddy.configuration import (
    CertificateState,
    Marks,
    Pair,
    certificate_tag,
)
from infra.providers.caddy.spec import EVERY_HOST
from reconciler.errors import NotDoneError

MAX_FILE_BYTES: Final = 128 * 1024
MAX_NAMES: Final = 1000
"""Limit on the names of a certificate, each of which is compared with each pattern."""

_FILES: Final = ("certificateFile", "keyFile")
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
_FIRST_BLOCK: Final = re.compile(
    rf"{_BEGIN}\r?\n([A-Za-z0-9+/=\r\n]+)\n{_END}(?=[ \t\r]*(?:\n|\Z))"
)
"""A block that every parser reads in the same way. Some skip a block that others accept."""


class Files(NamedTuple):
    """The content of the two files."""

    certificate: str
    key: str


def compare_certificate(marks: Marks | None, pair: Pair | None, allow: Allow) -> CertificateState:
    """Compare Caddy's certificate for a route with the files.

    Unusable files are reported as a problem, but the certificate in Caddy is kept. Any client of
    Caddy can write marks that name other files, so only files that ``allow`` permits are read.
    """
    if marks is None:
        return CertificateState()
    is_own = pair is not None and certificate_tag(marks.uid) in (pair.tags or ())
    if marks.tls is None:
        return CertificateState(is_current=not is_own)
    if pair is None or not is_own:
        return CertificateState(is_current=False)
    current_fingerprint = fingerprint(pair)
    for name in _FILES:
        path: object = marks.tls.get(name)
        if not isinstance(path, str) or not allow.permits("certificates", path):
            reason = f"spec.allow.certificates of the ProviderConfig does not permit its {name}"
            return CertificateState(fingerprint=current_fingerprint, problem=reason)
    try:
        files = read_checked_pair(marks.tls, allow, known_files=Files(pair.certificate, pair.key))
    except NotDoneError as error:
        return CertificateState(fingerprint=current_fingerprint, problem=error.message)
    return CertificateState(
        (pair.certificate, pair.key) == files, current_fingerprint, key=files.key
    )


def read_checked_pair(tls: Fields, allow: Allow, *, known_files: Files | None = None) -> Files:
    """Read a certificate with permitted names, and its key. Errors do not quote the key.

    ``known_files``: a pair that is known to match. Raises ``NotDoneError``, because files may
    be corrected without a new declaration.
    """
    certificate, key = tls["certificateFile"], tls["keyFile"]
    files = Files(_read(certificate), _read(key))
    if problem := _find_name_problem(files.certificate, allow.hosts):
        raise NotDoneError(f"{certificate} {problem}", status=HTTPStatus.CONFLICT)
    if files == known_files:
        return files
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, _no_password)
    except (OSError, ValueError, TypeError) as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        raise NotDoneError(
            f"{certificate} and {key} are invalid ({reason}); "
            "replace them with a certificate and its key",
            status=HTTPStatus.CONFLICT,
        ) from None
    return files


def fingerprint(pair: Pair | None) -> str | None:
    """Return the SHA-256 of Caddy's certificate; None if there is none."""
    if pair is None:
        return None
    try:
        begin, end = pair.certificate.index(_BEGIN), pair.certificate.index(_END) + len(_END)
        der = ssl.PEM_cert_to_DER_cert(pair.certificate[begin:end])
    except ValueError:
        return None
    return hashlib.sha256(der).hexdigest()


@lru_cache(maxsize=512)
def _find_name_problem(certificate: str, hosts: tuple[str, ...]) -> str | None:
    """Describe a name for which Caddy must not use a certificate; None if it has no such name."""
    if ANY in hosts or EVERY_HOST in hosts:
        return None
    try:
        names = sorted(set(_read_names(certificate)))
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return (
            "must begin with a certificate whose names can be read, because spec.allow.hosts of "
            "the ProviderConfig restricts them"
        )
    if len(names) > MAX_NAMES:
        return f"has {len(names)} names, more than the limit of {MAX_NAMES}"
    name = next((each for each in names if not matches(each, hosts)), None)
    if name is None:
        return None
    return (
        f"is also valid for {quote(name)}, so Caddy would use it for that host, which "
        "spec.allow.hosts of the ProviderConfig does not permit; use a certificate without it"
    )


def _read_names(certificate: str) -> Iterator[str]:
    """Yield the names by which Caddy may select a certificate, in lower case.

    Caddy compares the common name and all alternative names that are texts, not only DNS names.
    """
    start = certificate.find("-----BEGIN")
    block = _FIRST_BLOCK.match(certificate, max(start, 0))
    if block is None or certificate[:start][-1:] not in ("", "\n"):
        raise ValueError("it does not begin with a certificate")
    text = block[1].replace("\r", "").replace("\n", "")
    leaf = x509.load_der_x509_certificate(base64.b64decode(text, validate=True))
    values: list[object] = [
        each.value for each in leaf.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    ]
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = ()
    values += [each.value for each in names]
    for value in values:
        if isinstance(value, str | IPv4Address | IPv6Address):  # Caddy ignores other types
            name = str(getattr(value, "ipv4_mapped", None) or value).lower().removesuffix(".")
            if _may_be_host(name):
                yield name


def _may_be_host(name: str) -> bool:
    """Return whether a name has only characters of hosts, unlike a URL or a text with spaces."""
    return all(each.isalnum() or each in "-._:*" or not each.isascii() for each in name)


def _no_password() -> str:
    return ""


def _open_nonblocking(path: str, flags: int) -> int:
    """Open a file without blocking, even if it is a pipe without a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _read(path: str) -> str:
    try:
        with open(path, "rb", opener=_open_nonblocking) as file:
            is_file = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            content = file.read(MAX_FILE_BYTES + 1) if is_file else b""
        if is_file and len(content) <= MAX_FILE_BYTES:
            return content.decode("ascii")
    except OSError as error:
        raise NotDoneError(
            f"cannot read {path}: {error.strerror}", status=HTTPStatus.CONFLICT
        ) from None
    except UnicodeDecodeError:
        pass
    raise NotDoneError(
        f"{path} is not a PEM file of at most {MAX_FILE_BYTES} bytes", status=HTTPStatus.CONFLICT
    )
