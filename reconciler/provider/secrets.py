"""Secrets for providers: read from a store when they are needed, and never stored.

A spec names a secret in its namespace, or one granted to that namespace. Only the process that
calls the API reads the value, and remembers it in order to hide it (``reconciler.secrecy``). A
keyed digest shows a rotation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from msgspec.structs import replace

from events.secret import SecretRef
from reconciler.errors import ConfigurationError
from reconciler.secrecy import Secrecy

_DIGEST_BYTES = 12
_ENV_IS_OFF: Final = "an operator can enable the 'env' store with RECONCILER_SECRET_ENV"


class SecretKey(NamedTuple):
    """Identity of a secret in a store: its namespace and its name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class SecretStore(Protocol):
    """A source of secrets: files, the environment, or a service with an API."""

    async def read(self, key: SecretKey, reader: str) -> str | None:
        """Return a secret, or None if it is missing or the namespace ``reader`` may not read it.

        The two cases must look the same, so that no namespace can find out which secrets another
        one has.
        Raises ``ConfigurationError`` if the secret cannot be read, and ``NotDoneError`` if the
        store does not respond. Neither error contains a secret.
        """
        ...

    async def write(self, key: SecretKey, value: str) -> None:
        """Store a generated secret. Raises ``ConfigurationError`` if the store is read-only."""
        ...

    async def remove(self, key: SecretKey) -> None:
        """Remove a generated secret. Succeeds if it is already missing."""
        ...


@dataclass(frozen=True, slots=True)
class SecretStores:
    """The stores that a process can read, by name.

    ``key`` is the key for the digests of their secrets. ``secrecy`` remembers the values that were
    read, and the credentials of APIs. ``read_replaced`` returns the values that were stored since
    its last call.
    """

    by_name: Mapping[str, SecretStore] = field(default_factory=dict[str, SecretStore])
    key: bytes = b""
    secrecy: Secrecy = field(default_factory=Secrecy)
    read_replaced: Callable[[], Iterable[str]] = tuple

    def learn_replaced(self) -> None:
        """Hide new values as well: another process may have sent them to an API first."""
        for value in self.read_replaced():
            self.secrecy.add(value)

    def for_api(self, credential: str | None = None) -> Secrets:
        """Return the secrets for a client of an API with this credential."""
        return Secrets(credential, self.by_name, key=self.key, secrecy=self.secrecy)


class Secrets:
    """The secrets that a provider may use: the credential of its API, and those in the stores.

    ``key`` is the key for the digests. All processes need the same one.
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
        self._read: dict[tuple[str, SecretKey], dict[str, str]] = {}

    async def value(self, reference: SecretRef, namespace: str) -> str:
        """Read a secret for a resource in a namespace. All later output hides the value.

        Raises ``ConfigurationError`` if it is missing or not granted, and the errors from its
        store.
        """
        value = await self._value(reference, namespace)
        if value is None:
            raise ConfigurationError(_describe_missing(reference, namespace))
        return value

    def known_values(self, reference: SecretRef, namespace: str) -> list[str]:
        """Return all values of a secret that this process has read, including the current one."""
        return [*self._read.get((reference.store, _key(reference, namespace)), {}).values()]

    async def find(self, reference: SecretRef, namespace: str) -> SecretRef | None:
        """Return the reference with the digest of the current value, or None if it is missing."""
        self._check_key()
        value = await self._value(reference, namespace)
        return None if value is None else replace(reference, digest=self.digest(value))

    async def store(self, reference: SecretRef, value: str, namespace: str) -> SecretRef:
        """Store a generated secret of a namespace, and return the reference with its digest."""
        self._check_key()
        key = _writable_key(reference, namespace)
        self._remember(reference.store, key, value)
        await self._store(reference.store).write(key, value)
        return replace(reference, digest=self.digest(value))

    async def remove(self, reference: SecretRef, namespace: str) -> None:
        """Remove a generated secret of a namespace. Succeeds if it is already missing."""
        await self._store(reference.store).remove(_writable_key(reference, namespace))

    def has_other_value(self, reference: SecretRef, namespace: str) -> bool:
        """Return whether this process has read a secret, but not the value with this digest."""
        values = self._read.get((reference.store, _key(reference, namespace)), {})
        return bool(reference.digest and values) and reference.digest not in values

    def digest(self, value: str) -> str:
        """Return the digest of a value, which only allows comparisons; empty without a key."""
        if not self._key:
            return ""
        keyed = hashlib.blake2b(value.encode(), digest_size=_DIGEST_BYTES, key=self._key)
        return keyed.hexdigest()

    async def _value(self, reference: SecretRef, namespace: str) -> str | None:
        key = _key(reference, namespace)
        value = await self._store(reference.store).read(key, namespace)
        if value is not None:
            self._remember(reference.store, key, value)
        return value

    def _remember(self, store: str, key: SecretKey, value: str) -> None:
        self.secrecy.add(value)
        self._read.setdefault((store, key), {})[self.digest(value)] = value

    def _check_key(self) -> None:
        if not self._key:
            raise ConfigurationError(
                "secrets require a directory with the key for their digests; set "
                "RECONCILER_SECRETS to it for the workers and the observers"
            )

    def _store(self, name: str) -> SecretStore:
        store = self._stores.get(name)
        if store is None:
            hint = f"; {_ENV_IS_OFF}" if name == "env" else ""
            names = ", ".join(sorted(self._stores)) or "none"
            raise ConfigurationError(
                f"secret store {name!r} is unknown; this process has: {names}{hint}"
            )
        return store


def _key(reference: SecretRef, namespace: str) -> SecretKey:
    return SecretKey(reference.namespace or namespace, reference.name)


def _writable_key(reference: SecretRef, namespace: str) -> SecretKey:
    """Return the key of a secret that a resource may write. Raises ``ConfigurationError``."""
    key = _key(reference, namespace)
    if key.namespace != namespace:
        raise ConfigurationError(
            f"secret {reference.path!r} does not belong to namespace {namespace!r}; only the "
            "namespace of a secret may write it"
        )
    return key


def _describe_missing(reference: SecretRef, namespace: str) -> str:
    key = _key(reference, namespace)
    subject = f"secret {key.name!r} in namespace {key.namespace!r}"
    problem = f"missing from store {reference.store!r}"
    if reference.store == "env":
        return f"{subject} is {problem}; add {key} to RECONCILER_SECRET_ENV and set the variable"
    command = f"`reconciler secrets set {key.name} -n {key.namespace}`"
    if key.namespace == namespace:
        return f"{subject} is {problem}; add it with {command}"
    grant = f"`reconciler secrets grant {key.name} -n {key.namespace} --to {namespace}`"
    return (
        f"{subject} is {problem}, or not granted to namespace {namespace!r}; an operator can add "
        f"it with {command}, or grant it with {grant}"
    )
