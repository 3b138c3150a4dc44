"""Who we are on the bus, and whom we trust: places and names that people give, never secrets."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final

from infra.jetstream.errors import BusAccessError

VARIABLE_PREFIX: Final = "RECONCILER_"
"""Each option has an environment variable: `tls_ca` is `RECONCILER_TLS_CA`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How to be let in; what is left out is taken from the environment.

    Attributes:
        credentials: a `.creds` file: a user's JWT and seed.
        nkey: a file with a user's nkey seed.
        inbox_prefix: first tokens of reply subjects; made of the user's name when left out.
        tls_ca: certificates of the authorities to trust, in the place of the system's.
        tls_cert: our certificate, where the server asks for one.
        tls_key: its private key.
    """

    credentials: Path | None = None
    nkey: Path | None = None
    inbox_prefix: str | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None

    def completed(self, environment: Mapping[str, str] = os.environ) -> "Access":
        """Fill in what was not given from the environment.

        Raises:
            BusAccessError: options that exclude, or that need, each other.
        """
        names = [each.name for each in fields(self) if getattr(self, each.name) is None]
        if self.credentials is not None or self.nkey is not None:
            names = [name for name in names if name not in ("credentials", "nkey")]
        found = {
            name: text if name == "inbox_prefix" else Path(text)
            for name in names
            if (text := environment.get(VARIABLE_PREFIX + name.upper()))
        }
        completed = replace(self, **found)  # pyright: ignore[reportArgumentType]
        completed.check()
        return completed

    def check(self) -> None:
        """Raise `BusAccessError` for options that cannot be used together."""
        if self.credentials is not None and self.nkey is not None:
            raise BusAccessError(
                f"{self.credentials} and {self.nkey}: use credentials or an nkey, not both"
            )
        if self.tls_key is not None and self.tls_cert is None:
            raise BusAccessError(
                f"{self.tls_key}: a TLS key requires its certificate; set that, too"
            )


ANYBODY: Final = Access()
"""Nothing of our own: the environment, or what the URL says."""
