"""The nftables table for the services, in the process's network namespace or a named one."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from reconciler.errors import ConfigurationError

FAMILY: Final = "ip"

_TABLE: Final = r"(?P<table>[A-Za-z_][A-Za-z0-9_.-]{0,62})"
_NAMESPACE: Final = r"(?P<namespace>[A-Za-z0-9_][A-Za-z0-9_.-]{0,62})"
_ENDPOINT: Final = re.compile(rf"(?:nft:|netns:{_NAMESPACE}/){_TABLE}")


class TableRef(NamedTuple):
    """A table. If ``namespace`` is None, it is in the process's own namespace."""

    table: str
    namespace: str | None = None

    def __str__(self) -> str:
        suffix = "" if self.namespace is None else f" of network namespace {self.namespace}"
        return f"table {FAMILY} {self.table}{suffix}"


def parse_endpoint(endpoint: str) -> TableRef:
    """Parse an endpoint. Raises ``ConfigurationError``."""
    match = _ENDPOINT.fullmatch(endpoint)
    if match is None:
        raise ConfigurationError(
            "spec.endpoint: must be nft:TABLE, or netns:NAMESPACE/TABLE for a namespace that "
            "ip netns lists; use a table that no other program uses, with a name of 1 to 63 "
            "characters a-z A-Z 0-9 _ . - that starts with a letter or _"
        )
    return TableRef(match["table"], match["namespace"])
