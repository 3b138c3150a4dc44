"""Credentials and TLS files for the connection to the bus, as paths and names, never as secrets."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final

from infra.jetstream.errors import BusAccessError

VARIABLE_PREFIX: Final = "RECONCILER_"
"""Each option has an environment variable. For `tls_ca`, it is `RECONCILER_TLS_CA`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Connection options. An option that is None is read from the environment.

    Attributes:
        credentials: path of a `.creds` file with a user's JWT and seed.
        nkey: path of a file with a user's nkey seed.
        inbox_prefix: first tokens of reply subjects; derived from the user's name if None.
        tls_ca: trusted CA certificates, instead of the system's.
        tls_cert: client certificate, for a server that requires one.
        tls_key: private key of `tls_cert`.
    """

    credentials: Path | None = None
    nkey: Path | None = None
    inbox_prefix: str | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None

    def with_environment(self, environment: Mapping[str, str] = os.environ) -> "Access":
        """Return these options, completed from the environment.

        Raises:
            BusAccessError: two options are mutually exclusive, or one requires another that is
                missing.
        """
        # Credentials or an nkey passed as an argument override both variables.
        names = [each.name for each in fields(self) if getattr(self, each.name) is None]
        if self.credentials is not None or self.nkey is not None:
            names = [name for name in names if name not in ("credentials", "nkey")]
        values = {
            name: text if name == "inbox_prefix" else Path(text)
            for name in names
            if (text := environment.get(VARIABLE_PREFIX + name.upper()))
        }
        completed = replace(self, **values)  # pyright: ignore[reportArgumentType]
        completed.check()
        return completed

    def check(self) -> None:
        """Raise `BusAccessError` if options conflict, or one requires another that is missing."""
        if self.credentials is not None and self.nkey is not None:
            raise BusAccessError(
                f"{self.credentials} and {self.nkey}: use credentials or an nkey, not both"
            )
        if self.tls_key is not None and self.tls_cert is None:
            raise BusAccessError(
                f"{self.tls_key}: a TLS key requires its certificate; set that as well"
            )


DEFAULT_ACCESS: Final = Access()
"""Only options from the environment; without any, the user in the URL applies."""
