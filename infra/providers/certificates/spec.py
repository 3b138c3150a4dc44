"""Common fields of the certificate kinds: durations, keys, names, paths. Pure."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import msgspec

STORE: Final = ".reconciler-certificates"
"""Folder of the stored keys, certificates and accounts, below the root."""

MARKER: Final = ".reconciler-certificate"
"""File that names the owner of a folder with delivered files."""

CREATED: Final = ".reconciler-created"
"""File that marks a folder created for the folders of certificates. It is removed with the last."""

Span = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^([1-9][0-9]{0,8}s|[1-9][0-9]{0,6}m|[1-9][0-9]{0,5}h|[1-9][0-9]{0,4}d)(?!\n)$"
    ),
]
"""A duration, such as 90s, 30m, 2160h or 90d. It is at most 99999d in any unit, because a
certificate cannot expire after the year 9999."""

KeyAlgorithm = Literal["ECDSA-P256", "ECDSA-P384", "RSA-2048", "RSA-3072", "RSA-4096"]
DEFAULT_ALGORITHM: Final[KeyAlgorithm] = "ECDSA-P256"

KEY_FILE: Final = "tls.key"
CERTIFICATE_FILE: Final = "tls.crt"
CA_FILE: Final = "ca.crt"
COMBINED_FILE: Final = "tls.pem"

FILE_NAMES: Final = frozenset({KEY_FILE, CERTIFICATE_FILE, CA_FILE, COMBINED_FILE})
"""A directory with one of these names would prevent the delivery of a certificate's files."""

ObjectName = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
RelativePath = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
"""A path below the root."""

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


def seconds_of(span: str) -> int:
    """Return a duration in seconds."""
    return int(span[:-1]) * _SECONDS[span[-1]]


def canonical_span(span: str) -> str:
    """Return a duration in its largest whole unit: 48h is 2d."""
    seconds = seconds_of(span)
    unit = next(unit for unit in "dhms" if seconds % _SECONDS[unit] == 0)
    return f"{seconds // _SECONDS[unit]}{unit}"


def name_problem(name: str) -> str | None:
    """Describe what is wrong with the name of an issuer or a certificate; None if it is valid."""
    if _NAME.fullmatch(name) is None:
        return "use at most 200 letters, digits, . _ and -, and start with a letter or digit"
    return None


def path_problem(path: str) -> str | None:
    """Describe what is wrong with a path below the root; None if it is valid."""
    segments = path.split("/")
    if all(_SEGMENT.fullmatch(segment) for segment in segments):
        reserved = FILE_NAMES.intersection(segments)
        problem = "is the name of a certificate file; use another directory"
        return f"{min(reserved)!r} {problem}" if reserved else None
    return (
        "use a path below the root, such as tls/web: letters, digits, . _ and -, no segment "
        "that starts with a dot, no leading or trailing /"
    )
