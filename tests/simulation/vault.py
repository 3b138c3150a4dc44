"""The secrets of the simulated processes: changed by people, read by permitted processes."""

from __future__ import annotations

import hashlib
from typing import Any, cast

from msgspec.structs import replace

from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields
from events.secret import SecretRef
from reconciler.errors import NotDoneError
from reconciler.provider.secrets import SecretKey, Secrets
from tests.memory_bus.network import Network

KEY = b"simulated"
"""The key of the digests of all processes."""


class Vault:
    """The current secrets of the store, and all values that it ever had."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.ever: set[str] = set()
        self.removed: set[str] = set()

    def put(self, name: str, value: str) -> None:
        """Change a secret; an empty value removes it."""
        if value:
            self.values[name] = value
            self.ever.add(value)
        elif self.values.pop(name, None):
            self.removed.add(name)

    def put_back(self) -> None:
        """Restore each removed secret, because a call that began with one cannot end without it."""
        for name in self.removed - self.values.keys():
            self.put(name, f"planted-{name}-back")

    def digest(self, name: str) -> str:
        """Digest a secret as the product documents it; empty if there is none."""
        value = self.values.get(name)
        return "" if value is None else digest_of(value)


def mark_of(field: Any, mark: str) -> dict[str, Any] | None:
    """Give what a field has in the place of a value: a reference or a secret, by its mark."""
    return cast("dict[str, Any]", field) if isinstance(field, dict) and mark in field else None


async def with_values(action: Action, secrets: Secrets) -> Fields:
    """Give the fields that the API gets: a secret's value, and which secret it is."""
    fields = dict(action.fields)
    for name, each in action.fields.items():
        secret = mark_of(each, "$secret")
        if secret is not None:
            value = await secrets.value(SecretRef(secret["$secret"]), action.namespace)
            fields[name] = {**secret, "value": value}
    return fields


def without_values(existing: ExternalObject) -> ExternalObject:
    """Give an object as it is shown to others: a secret's digest in the place of its value."""
    return replace(existing, fields={name: _hidden(each) for name, each in existing.fields.items()})


def digest_of(value: str) -> str:
    """Digest a secret as the product documents it."""
    return hashlib.blake2b(value.encode(), digest_size=12, key=KEY).hexdigest()


def _hidden(field: Any) -> Any:
    secret = mark_of(field, "$secret")
    if secret is None or "value" not in secret:
        return field
    return {"$secret": secret["$secret"], "digest": digest_of(secret["value"])}


class SimulatedSecrets:
    """Implements ``reconciler.provider.secrets.SecretStore``."""

    def __init__(self, vault: Vault, network: Network) -> None:
        self._vault = vault
        self._network = network

    async def read(self, key: SecretKey, reader: str) -> str | None:
        fault = self._network.strike("secret")
        await self._network.before(fault)
        if fault is not None and fault.strike == "refuse":
            raise NotDoneError("the secret store does not respond")
        return self._vault.values.get(key.name) if reader == key.namespace else None

    async def write(self, key: SecretKey, value: str) -> None:
        raise AssertionError("nothing here makes secrets")

    async def remove(self, key: SecretKey) -> None:
        raise AssertionError("nothing here makes secrets")
