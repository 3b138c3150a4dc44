"""The files of a certificate and its key, compared with the certificate in Caddy."""

from __future__ import annotations

import hashlib
import os
import ssl
import stat
from http import HTTPStatus
from typing import Final, NamedTuple

from events.allow import Allow
from events.manifest import Fields
from infra.providers.caddy.configuration import (
    CertificateState,
    Marks,
    Pair,
    certificate_tag,
)
from reconciler.errors import NotDoneError

MAX_FILE_BYTES: Final = 1_000_000

_FILES: Final = ("certificateFile", "keyFile")
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"


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
        files = read_checked_pair(marks.tls, known_files=Files(pair.certificate, pair.key))
    except NotDoneError as error:
        return CertificateState(fingerprint=current_fingerprint, problem=error.message)
    return CertificateState(
        (pair.certificate, pair.key) == files, current_fingerprint, key=files.key
    )


def read_checked_pair(tls: Fields, *, known_files: Files | None = None) -> Files:
    """Read a certificate and its key, which must match. Errors do not quote them.

    ``known_files``: a pair that is known to match. Raises ``NotDoneError``, because files may
    be corrected without a new declaration.
    """
    certificate, key = tls["certificateFile"], tls["keyFile"]
    files = Files(_read(certificate), _read(key))
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
