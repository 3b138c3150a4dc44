"""Many buses on one nats-server: an account has its own subjects, streams and consumers.

The product's streams have fixed names, so two tests cannot share an account. A server starts
in tens of milliseconds and takes 30 MB; an account costs nothing until it is used.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from infra.embedded import EmbeddedServer

COUNT = 500
"""More accounts than the tests of one process use."""

_SHARED = "shared"
_STORE_BYTES = 1024**5


class Accounts:
    """Assigns the accounts of one server, each of them once."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def configuration(self, folder: Path) -> str:
        """Return lines for the configuration of a server that stores its data in a folder.

        A client without a user gets a separate account. All accounts share one password: they
        are separate, not secret.
        """
        names = [_SHARED, *(f"t{number}" for number in range(1, COUNT + 1))]
        accounts = [
            f"  {name} {{ jetstream: enabled, users: [{{user: {name}, password: pw}}] }}"
            for name in names
        ]
        # Replaces the server's own limit, because each bus reserves the size of its streams.
        jetstream = (
            f"jetstream {{ store_dir: {json.dumps(str(folder))}, sync_interval: always,"
            f" max_file_store: {_STORE_BYTES} }}"
        )
        return "\n".join([jetstream, "accounts {", *accounts, "}", f"no_auth_user: {_SHARED}"])

    def next_url(self, server: EmbeddedServer) -> str:
        """Return the URL of the next unused account; raises ``AssertionError`` after the last."""
        number = next(self._numbers)
        assert number <= COUNT, f"{COUNT} accounts are used up; raise COUNT in tests/accounts.py"
        return f"nats://t{number}:pw@127.0.0.1:{server.port}"
