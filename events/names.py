"""Names: identities of resources, and tokens of NATS subjects.

A subject is an address on the bus, so an unchecked name would allow injection: the server accepts
and stores messages on a subject with a literal ``*``. Every token is therefore checked before it
becomes part of a subject.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,63}")
_FINALIZER = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?")
_MAX_QUOTED_CHARACTERS = 80

DEFAULT_NAMESPACE = "default"
SYSTEM_NAMESPACE = "system"
"""Namespace of cluster-wide resources, such as every ``ProviderConfig``."""

KIND_DEFINITION_KIND: Final = "KindDefinition"
PROVIDER_CONFIG_KIND: Final = "ProviderConfig"
_SYSTEM_KINDS: Final = (KIND_DEFINITION_KIND, PROVIDER_CONFIG_KIND)
"""In dependency order: a ProviderConfig may use the provider of a defined kind."""


def system_rank(kind: str) -> int:
    """Return the rank of a kind in the order of decisions.

    Later kinds may depend on earlier ones.
    """
    return _SYSTEM_KINDS.index(kind) if kind in _SYSTEM_KINDS else len(_SYSTEM_KINDS)


def namespace_of_kind(kind: str, default: str) -> str:
    """Return the namespace of a kind's resources: the system namespace, or ``default``."""
    return SYSTEM_NAMESPACE if kind in _SYSTEM_KINDS else default


class InvalidNameError(ValueError):
    """A name is invalid as a subject token.

    The message contains the name and the allowed characters.
    """


def is_token(value: str) -> bool:
    """Return whether ``value`` is valid as one subject token."""
    return _TOKEN.fullmatch(value) is not None


def check_token(value: str, *, what: str) -> str:
    """Return ``value`` if it is valid as a subject token.

    Raises ``InvalidNameError`` otherwise.
    """
    if _TOKEN.fullmatch(value) is None:
        raise InvalidNameError(
            f"{what} {_quote(value)} is not allowed; use 1 to 63 of the characters A-Z a-z 0-9 _ -"
        )
    return value


def check_finalizer(value: str) -> str:
    """Return ``value`` if it is a valid finalizer name. Raises ``InvalidNameError`` otherwise."""
    if _FINALIZER.fullmatch(value) is None:
        raise InvalidNameError(
            f"finalizer {_quote(value)} is not allowed; use 1 to 128 of the characters A-Z a-z "
            "0-9 . _ / -, and start and end with a letter or digit"
        )
    return value


def _quote(value: str) -> str:
    return repr(
        value if len(value) <= _MAX_QUOTED_CHARACTERS else value[:_MAX_QUOTED_CHARACTERS] + "..."
    )


class ResourceKey(msgspec.Struct, frozen=True, gc=False, order=True):
    """The identity of a resource: its namespace, kind and name, each a checked token."""

    namespace: str
    kind: str
    name: str

    @classmethod
    def checked(cls, namespace: str, kind: str, name: str) -> ResourceKey:
        """Return the key of three untrusted names. Raises ``InvalidNameError``."""
        return cls(
            check_token(namespace, what="namespace"),
            check_token(kind, what="kind"),
            check_token(name, what="name"),
        )

    @classmethod
    def parse(cls, text: str) -> ResourceKey:
        """Parse ``namespace/kind/name``. Raises ``InvalidNameError``."""
        parts = text.split("/")
        if len(parts) != 3:  # noqa: PLR2004 - namespace, kind and name
            raise InvalidNameError(f"{text!r} is not a resource name; expected namespace/kind/name")
        return cls.checked(*parts)

    @property
    def tokens(self) -> str:
        """The key as subject tokens: ``namespace.kind.name``."""
        return f"{self.namespace}.{self.kind}.{self.name}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.kind}/{self.name}"


def name_for_external(external_name: str, location: str = "") -> str:
    """Return the resource name for an object of an external API.

    It is ``external_name`` itself if that is a valid token. Otherwise it consists of the valid
    characters and a digest, which distinguishes similar names. With ``location``, the digest also
    covers it, in case a resource at another location already has the name.
    """
    if not location and _TOKEN.fullmatch(external_name) is not None:
        return external_name
    whole = f"{location}/{external_name}" if location else external_name
    digest = hashlib.sha256(whole.encode()).hexdigest()[:16]
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", external_name).strip("-")[:40]
    return f"{readable}-{digest}" if readable else digest
