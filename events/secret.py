"""References to secrets, which specs, outputs and the log contain instead of the values."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from events.names import check_token

DEFAULT_STORE: Final = "files"
SECRET_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


class SecretRef(
    msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True
):
    """A reference to a secret in a store: ``{"$secret": "db-password", "store": "files"}``.

    ``digest`` distinguishes the values of the secret. It is keyed, so that a reader of the log
    cannot test passwords against it, and a declaration must not contain it. ``namespace`` is the
    secret's namespace; if it is empty, the namespace of the resource that contains the reference.
    """

    name: str = msgspec.field(name="$secret")
    store: str = DEFAULT_STORE
    digest: str = ""
    namespace: str = ""

    def __post_init__(self) -> None:
        if SECRET_NAME.fullmatch(self.store) is None:
            raise ValueError("store: must be the name of a secret store, such as files or env")
        if SECRET_NAME.fullmatch(self.name) is None:
            raise ValueError(
                "$secret: must be the name of a secret (characters A-Z a-z 0-9 _ . -), never "
                "the secret itself"
            )
        if self.namespace:
            check_token(self.namespace, what="namespace")

    @property
    def path(self) -> str:
        """The secret as ``store/name``, or ``store/namespace/name`` in another namespace."""
        return "/".join(filter(None, (self.store, self.namespace, self.name)))

    def label(self, namespace: str = "") -> str:
        """Return the secret as shown in messages: ``default/db (files store)``.

        ``namespace`` is the namespace of the resource, for a reference without one.
        """
        key = "/".join(filter(None, (self.namespace or namespace, self.name)))
        return f"{key} ({self.store} store)"

    @classmethod
    def from_path(cls, path: str) -> SecretRef:
        """Return the reference to a ``path``. Raises ``ValueError`` if it is invalid."""
        store, *namespace, name = path.split("/")
        return cls(name, store, namespace="/".join(namespace))
