"""TLS settings for the connection to the bus."""

import ssl
from collections.abc import Sequence

from infra.jetstream.access import Access
from infra.jetstream.errors import BusAccessError


class TransportSecurity:
    """The configured TLS settings. Each connection rereads the files, so they can be replaced.

    Attributes:
        required: whether TLS is required before anything is sent.
    """

    def __init__(self, urls: Sequence[str], access: Access) -> None:
        self._access = access
        self.required = (
            access.tls_ca is not None
            or access.tls_cert is not None
            or any(url.startswith(("tls://", "wss://")) for url in urls)
        )

    def context(self) -> ssl.SSLContext:
        """Return a context that verifies the server's name and CA.

        Raises:
            BusAccessError: a file cannot be used.
        """
        ca, certificate = self._access.tls_ca, self._access.tls_cert
        try:
            context = ssl.create_default_context(cafile=ca)
        except (OSError, ssl.SSLError) as error:
            raise BusAccessError(f"TLS CA file {ca}: {_reason(error)}") from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if certificate is not None:
            try:
                context.load_cert_chain(certificate, self._access.tls_key)
            except (OSError, ssl.SSLError) as error:
                raise BusAccessError(f"TLS certificate {certificate}: {_reason(error)}") from None
        return context


def _reason(error: OSError) -> str:
    return error.strerror if error.strerror and error.errno else "no valid PEM data"
