"""Names: the identity of a resource, and the tokens that may appear in a NATS subject.

Subjects are the bus's addresses, so an unchecked name is an injection: a literal ``*`` is accepted
by a publish and stored. Every token is therefore checked before it becomes part of a subject.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,63}")
_FINALIZER = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?")
_SHOWN_CHARACTERS = 80

DEFAULT_NAMESPACE = "default"
SYSTEM_NAMESPACE = "system"
"""Where cluster-wide resources live, such as every ``ProviderConfig``."""

KIND_DEFINITION_KIND: Final = "KindDefinition"
PROVIDER_CONFIG_KIND: Final = "ProviderConfig"
_SYSTEM_KINDS: Final = (KIND_DEFINITION_KIND, PROVIDER_CONFIG_KIND)
"""In the order in which they are needed: a configuration may be of a defined kind's provider."""


def system_rank(kind: str) -> int:
    """Return how early resources of a kind are decided, since what comes later may need them."""
    return _SYSTEM_KINDS.index(kind) if kind in _SYSTEM_KINDS else len(_SYSTEM_KINDS)


def namespace_of_kind(kind: str, otherwise: str) -> str:
    """Return the namespace of a kind's resources: what concerns all is in one of its own."""
    return SYSTEM_NAMESPACE if kind in _SYSTEM_KINDS else otherwise


class InvalidNameError(ValueError):
    """A name that cannot be a token of a subject; the message says which and what is allowed."""


def is_token(value: str) -> bool:
    """Return whether ``value`` can be one token of a subject."""
    return _TOKEN.fullmatch(value) is not None


def check_token(value: str, *, what: str) -> str:
    """Return ``value`` if it can be one token of a subject, or raise ``InvalidNameError``."""
    if not is_token(value):
        raise InvalidNameError(
            f"{what} {_shown(value)} is not allowed; use 1 to 63 of the characters A-Z a-z 0-9 _ -"
        )
    return value


def check_finalizer(value: str) -> str:
    """Return ``value`` if a finalizer can have this name, or raise ``InvalidNameError``."""
    if _FINALIZER.fullmatch(value) is None:
        raise InvalidNameError(
            f"finalizer {_shown(value)} is not allowed; use 1 to 128 of the characters A-Z a-z "
            "0-9 . _ / -, and start and end with a letter or digit"
        )
    return value


def _shown(value: str) -> str:
    return repr(value if len(value) <= _SHOWN_CHARACTERS else value[:_SHOWN_CHARACTERS] + "...")


class ResourceKey(msgspec.Struct, frozen=True, gc=False, order=True):
    """The identity of a resource: its namespace, kind and name, each a checked token."""

    namespace: str
    kind: str
    name: str

    @classmethod
    def checked(cls, namespace: str, kind: str, name: str) -> ResourceKey:
        """Build a key from outside text; raises ``InvalidNameError``."""
        return cls(
            check_token(namespace, what="namespace"),
            check_token(kind, what="kind"),
            check_token(name, what="name"),
        )

    @classmethod
    def parse(cls, text: str) -> ResourceKey:
        """Read ``namespace/kind/name``; raises ``InvalidNameError``."""
        parts = text.split("/")
        if len(parts) != 3:  # noqa: PLR2004 - the three parts of the line above
            raise InvalidNameError(f"{text!r} is not a resource name; write namespace/kind/name")
        return cls.checked(*parts)

    @property
    def tokens(self) -> str:
        """The key as three subject tokens: ``namespace.kind.name``."""
        return f"{self.namespace}.{self.kind}.{self.name}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.kind}/{self.name}"


def name_for_external(external_name: str, place: str = "") -> str:
    """Return the resource name for an object that was found in an external API.

    The same text where it is a valid token; else its valid characters and a digest that keeps two
    different names apart. With ``place``, a digest of both: for a name that is taken by a resource
    which lives elsewhere.
    """
    if not place and _TOKEN.fullmatch(external_name) is not None:
        return external_name
    whole = f"{place}/{external_name}" if place else external_name
    digest = hashlib.sha256(whole.encode()).hexdigest()[:16]
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", external_name).strip("-")[:40]
    return f"{readable}-{digest}" if readable else digest
