"""Secrets for providers: read from a store when they are needed, and never stored.

A spec names a secret, and only the process that calls the API reads its value. The process
remembers what it has read, to hide it (``reconciler.secrecy``). A keyed digest shows a rotation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from events.secret import SecretRef
from reconciler.errors import ConfigurationError
from reconciler.secrecy import Secrecy

_DIGEST_BYTES = 12


class SecretStore(Protocol):
    """A place where secrets are: files, the environment, or a service with an API."""

    async def read(self, name: str) -> str | None:
        """Return a secret, or None if there is none of that name.

        Raises ``ConfigurationError`` if it may not be read as it is, ``TransientError`` if the
        store does not answer; neither repeats a secret.
        """
        ...

    async def write(self, name: str, value: str) -> None:
        """Store a generated secret; raises ``ConfigurationError`` where nothing can be stored."""
        ...

    async def remove(self, name: str) -> None:
        """Remove a generated secret; one that is gone is a success."""
        ...


@dataclass(frozen=True, slots=True)
class SecretStores:
    """The stores that a process can read, by name; ``key`` keys the digests of their secrets.

    ``secrecy`` remembers what was read from them, and the credentials of APIs.
    """

    by_name: Mapping[str, SecretStore] = field(default_factory=dict[str, SecretStore])
    key: bytes = b""
    secrecy: Secrecy = field(default_factory=Secrecy)

    def for_api(self, credential: str | None = None) -> Secrets:
        """Return the secrets for a client of an API with this credential."""
        return Secrets(credential, self.by_name, key=self.key, secrecy=self.secrecy)


class Secrets:
    """What a provider may know of secrets: the credential of its API, and the stores.

    ``key`` keys the digests: all processes need the same one.
    """

    def __init__(
        self,
        credential: str | None = None,
        stores: Mapping[str, SecretStore] | None = None,
        *,
        key: bytes = b"",
        secrecy: Secrecy | None = None,
    ) -> None:
        self.credential = credential
        self.secrecy = secrecy or Secrecy()
        self.secrecy.add(credential or "")
        self._stores = dict(stores or {})
        self._key = key
        self._read: dict[tuple[str, str], set[str]] = {}

    async def value(self, reference: SecretRef) -> str:
        """Read a secret; from now on it is hidden in everything that comes from an API.

        Raises ``ConfigurationError`` if it is not there, and as its store does.
        """
        value = await self._store(reference.store).read(reference.name)
        if value is None:
            raise ConfigurationError(
                f"secret {reference.name!r} is missing in store {reference.store!r}; add it"
            )
        self._note(reference, value)
        return value

    async def find(self, reference: SecretRef) -> SecretRef | None:
        """Return the reference with the digest of today's value, or None if there is no value."""
        self._check_key()
        value = await self._store(reference.store).read(reference.name)
        if value is None:
            return None
        self._note(reference, value)
        return SecretRef(reference.name, reference.store, self.digest(value))

    async def keep(self, reference: SecretRef, value: str) -> SecretRef:
        """Store a generated secret, and return the reference with its digest."""
        self._check_key()
        self._note(reference, value)
        await self._store(reference.store).write(reference.name, value)
        return SecretRef(reference.name, reference.store, self.digest(value))

    async def remove(self, reference: SecretRef) -> None:
        """Remove a generated secret; one that is gone is a success."""
        await self._store(reference.store).remove(reference.name)

    def is_of_another_time(self, reference: SecretRef) -> bool:
        """Whether a secret was read here, but never with the value that has this digest."""
        read = self._read.get((reference.store, reference.name), set())
        return bool(reference.digest and read) and reference.digest not in read

    def digest(self, value: str) -> str:
        """Digest a value, so that it can be compared without being known; empty without a key."""
        if not self._key:
            return ""
        keyed = hashlib.blake2b(value.encode(), digest_size=_DIGEST_BYTES, key=self._key)
        return keyed.hexdigest()

    def _note(self, reference: SecretRef, value: str) -> None:
        self.secrecy.add(value)
        read = self._read.setdefault((reference.store, reference.name), set())
        read.add(self.digest(value))

    def _check_key(self) -> None:
        if not self._key:
            raise ConfigurationError(
                "secrets require a directory with the key for their digests; set "
                "RECONCILER_SECRETS to it for all roles"
            )

    def _store(self, name: str) -> SecretStore:
        store = self._stores.get(name)
        if store is None:
            known = ", ".join(sorted(self._stores)) or "none"
            raise ConfigurationError(f"secret store {name!r} is unknown; this process has: {known}")
        return store
