"""CA and client certificates of an HTTPS client. Verification is always on."""

from __future__ import annotations

import ssl

from events.provider_config import Tls
from reconciler.errors import ConfigurationError


def build_ssl_context(tls: Tls | None) -> ssl.SSLContext:
    """Build a context that verifies the API's name and certificate.

    Without a CA file, it trusts the same CAs as httpx: those in SSL_CERT_FILE, otherwise Mozilla's.
    Raises ``ConfigurationError``.
    """
    if tls is None or tls.ca_file is None:
        import httpx  # noqa: PLC0415 - takes 0.2 s of CPU, and most processes do not need TLS

        context = httpx.create_ssl_context()
    else:
        try:
            context = ssl.create_default_context(cafile=tls.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(
                f"spec.tls.caFile: {tls.ca_file}: {_describe_error(error)}"
            ) from None
    if tls is not None and tls.certificate_file is not None:
        try:
            context.load_cert_chain(tls.certificate_file, tls.key_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(
                f"spec.tls.certificateFile: {tls.certificate_file}: {_describe_error(error)}"
            ) from None
    elif tls is not None and tls.key_file is not None:
        raise ConfigurationError(
            "spec.tls.keyFile: requires spec.tls.certificateFile; set that, too"
        )
    return context


def certificate_problem(error: ssl.SSLCertVerificationError) -> str:
    """Describe the problem with an API's certificate, and its remedy."""
    remedy = "set spec.tls.caFile to the CAs to trust, and use the API's host name in spec.endpoint"
    return f"{error.verify_message} ({remedy})"


def _describe_error(error: OSError) -> str:
    is_file_error = error.errno and not isinstance(error, ssl.SSLError)
    return (
        f"cannot read the file: {error.strerror}" if is_file_error else "contains no valid PEM text"
    )
