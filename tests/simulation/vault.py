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
    """The current secrets of the store, and all values that it has ever held."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.all_values: set[str] = set()
        self.removed_names: set[str] = set()

    def put(self, name: str, value: str) -> None:
        """Change a secret; an empty value removes it."""
        if value:
            self.values[name] = value
            self.all_values.add(value)
        elif self.values.pop(name, None):
            self.removed_names.add(name)

    def restore_removed(self) -> None:
        """Restore each removed secret, because a call that began with one cannot end without it."""
        for name in self.removed_names - self.values.keys():
            self.put(name, f"planted-{name}-back")

    def digest(self, name: str) -> str:
        """Digest a secret as the product documents it; empty if there is none."""
        value = self.values.get(name)
        return "" if value is None else digest_of(value)


def marked_value(field: Any, mark: str) -> dict[str, Any] | None:
    """Return the reference or secret that replaces a field's value, if it has this mark."""
    return cast("dict[str, Any]", field) if isinstance(field, dict) and mark in field else None


async def resolve_secrets(action: Action, secrets: Secrets) -> Fields:
    """Return the fields for the API, which name each secret and contain its value."""
    fields = dict(action.fields)
    for name, each in action.fields.items():
        secret = marked_value(each, "$secret")
        if secret is not None:
            value = await secrets.value(SecretRef(secret["$secret"]), action.namespace)
            fields[name] = {**secret, "value": value}
    return fields


def hide_secrets(existing: ExternalObject) -> ExternalObject:
    """Return an object with the digest of each secret instead of its value."""
    return replace(
        existing, fields={name: _hide_secret(each) for name, each in existing.fields.items()}
    )


def digest_of(value: str) -> str:
    """Digest a secret as the product documents it."""
    return hashlib.blake2b(value.encode(), digest_size=12, key=KEY).hexdigest()


def _hide_secret(field: Any) -> Any:
    secret = marked_value(field, "$secret")
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
        raise AssertionError("the simulation does not change secrets")

    async def remove(self, key: SecretKey) -> None:
        raise AssertionError("the simulation does not change secrets")
