"""Host access: parts of the host that a ``ProviderConfig`` allows resources to use (ADR 0060)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, Final, Literal

import msgspec

from events.field_types import description
from events.manifest import InvalidManifestError, ManifestStruct

Category = Literal[
    "addresses",
    "binds",
    "certificates",
    "devices",
    "hosts",
    "images",
    "listen",
    "modes",
    "networks",
    "privileges",
    "renderers",
    "users",
]
"""Name of a list in ``Allow``."""

ANY: Final = "**"
EVERY_PATH: Final = "/**"
ROOT: Final = "0"

_Patterns = Annotated[
    tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=4096)], ...],
    msgspec.Meta(max_length=1000),
]
_PATHS: Final = frozenset({"binds", "certificates"})


class Allow(ManifestStruct, frozen=True):
    """Parts of the host that resources may use. * matches within a path segment, ** anything."""

    addresses: Annotated[
        _Patterns,
        description(
            "Addresses that resources may name: addresses of the host and host names of "
            "backends as HOST:PORT, and repositories as file:///PATH."
        ),
    ] = ()
    binds: Annotated[
        _Patterns,
        description(
            "Paths on the Engine's host that containers and volumes may mount. A pattern does not "
            "include the paths below it."
        ),
    ] = ()
    certificates: Annotated[
        _Patterns,
        description("Paths of certificates and keys that routes may use, where the roles run."),
    ] = ()
    devices: Annotated[
        _Patterns,
        description(
            "Volumes with other drivers and filesystems, as type=TYPE,device=DEVICE,o=OPTIONS."
        ),
    ] = ()
    hosts: Annotated[
        _Patterns,
        description(
            "Host names that routes may name, and for which their certificates may be valid, in "
            "lower case. A route without hosts needs *. Default: all."
        ),
    ] = (ANY,)
    images: Annotated[_Patterns, description("Container images. Default: all.")] = (ANY,)
    listen: Annotated[
        _Patterns,
        description(
            "Addresses of the host on which resources may accept connections, as ADDRESS:PORT. "
            "0.0.0.0 means all."
        ),
    ] = ()
    modes: Annotated[
        _Patterns,
        description("Modes of files with a setuid, setgid or sticky bit, as four digits."),
    ] = ()
    networks: Annotated[
        _Patterns,
        description("Container networks, such as host. bridge and none are always allowed."),
    ] = ()
    privileges: Annotated[
        _Patterns,
        description(
            "Privileges that reach beyond the databases: createRole, replication and predefined "
            "roles such as pg_monitor for database roles, and extension:NAME for databases."
        ),
    ] = ()
    renderers: Annotated[_Patterns, description("Renderers that Git sources may use.")] = ()
    users: Annotated[
        _Patterns,
        description(
            "Container users, as USER or USER:GROUP, and owners of files. 0 allows every user. "
            "In containers, numbers other than 0 are always allowed."
        ),
    ] = ()

    def permits(self, category: Category, value: str) -> bool:
        """Return whether a pattern in a list matches. A value with .. in its path never matches."""
        if category == "users" and matches(ROOT, self.users):
            return True  # root can become any user
        patterns: tuple[str, ...] = getattr(self, category)
        return not has_parent(value) and matches(value, patterns)


NOTHING: Final = Allow()


def matches(value: str, patterns: Iterable[str]) -> bool:
    """Return whether one of the patterns matches the whole value."""
    return any(_compiled(pattern).fullmatch(value) is not None for pattern in patterns)


def has_parent(path: str) -> bool:
    """Return whether a path contains a .. segment, which leads out of a directory."""
    return ".." in path.split("/")


def check_allow(allow: Allow) -> None:
    """Raise ``InvalidManifestError`` for patterns that allow more, or less, than they name.

    A container that may write to a directory can create a symbolic link there. Therefore, no path
    below an allowed directory can also be allowed. Hosts are compared in their canonical form.
    """
    for pattern in allow.hosts:
        if pattern != (canonical := pattern.lower().removesuffix(".")):
            raise InvalidManifestError(
                f"spec.allow.hosts: {pattern!r} matches no host; write {canonical!r}"
            )
    for category in _PATHS:
        for pattern in getattr(allow, category):
            if not pattern.startswith("/") or has_parent(pattern) or pattern != _plain(pattern):
                raise InvalidManifestError(
                    f"spec.allow.{category}: {pattern!r} must be an absolute path without '..', "
                    "'//' or a trailing '/'"
                )
    for pattern in allow.binds:
        if ANY in pattern and pattern != EVERY_PATH:
            raise InvalidManifestError(
                f"spec.allow.binds: {pattern!r} must not contain '**', because containers can "
                "create symbolic links below a directory; use '*' for one segment, or '/**' for "
                "everything"
            )
        outer = next((each for each in allow.binds if _is_below(pattern, each)), None)
        if outer is not None and EVERY_PATH not in allow.binds:
            raise InvalidManifestError(
                f"spec.allow.binds: {pattern!r} is below {outer!r}, where containers can create "
                "symbolic links; remove one of them"
            )


def _is_below(pattern: str, outer: str) -> bool:
    """Return whether a path of one pattern may be below a path of the other."""
    inner_segments, outer_segments = pattern.split("/"), outer.split("/")
    if outer == "/":
        return pattern != "/"
    if len(inner_segments) <= len(outer_segments):
        return False
    pairs = zip(inner_segments, outer_segments, strict=False)
    return all("*" in inner or "*" in outer or inner == outer for inner, outer in pairs)


def _plain(path: str) -> str:
    return "/" + "/".join(segment for segment in path.split("/") if segment not in ("", "."))


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*|\*)", pattern)
    wild = {"**": ".*", "*": "[^/]*"}
    return re.compile("".join(wild.get(part) or re.escape(part) for part in parts), re.DOTALL)
