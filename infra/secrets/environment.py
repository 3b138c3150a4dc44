"""Secrets in environment variables: read-only, and only those that an operator lists."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Final

from events.names import InvalidNameError, check_token
from reconciler.errors import ConfigurationError
from reconciler.provider.secrets import SecretKey

VARIABLE: Final = "RECONCILER_SECRET_ENV"
"""Environment variable with the list: ``NAMESPACE/NAME``, separated by commas."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_RESERVED_PREFIXES: Final = (
    "RECONCILER_",
    "NATS_",
    # credentials that cloud SDKs, clusters and tools read themselves
    "ALIBABA_",
    "ALICLOUD_",
    "ARM_",
    "AWS_",
    "AZURE_",
    "BUILDKITE_",
    "CIRCLE_",
    "CI_",
    "CLOUDFLARE_",
    "CLOUDSDK_",
    "CONSUL_",
    "DIGITALOCEAN_",
    "DOCKER_",
    "GCLOUD_",
    "GCP_",
    "GH_",
    "GITHUB_",
    "GITLAB_",
    "GOOGLE_",
    "HCLOUD_",
    "IBMCLOUD_",
    "KUBE",
    "LINODE_",
    "NOMAD_",
    "NPM_",
    "OCI_",
    "OS_",
    "PULUMI_",
    "SCW_",
    "SSH_",
    "TF_",
    "TWINE_",
    "VAULT_",
)
"""Prefixes of variables that belong to the process and its host, not to a tenant."""


class EnvironmentSecrets:
    """Implements ``reconciler.provider.secrets.SecretStore`` with listed variables.

    A namespace can read only the variables that are listed for it.
    """

    def __init__(self, variables: frozenset[SecretKey]) -> None:
        self._variables = variables

    async def read(self, key: SecretKey, reader: str) -> str | None:
        """Return a variable's value; raises ``ConfigurationError`` if it is not text."""
        if reader != key.namespace or key not in self._variables:
            return None
        return _read(key.name)

    def read_all(self) -> list[str]:
        """Return the values of all readable listed variables."""
        values: list[str] = []
        for key in self._variables:
            with contextlib.suppress(ConfigurationError):
                values.append(_read(key.name) or "")
        return values

    async def write(self, key: SecretKey, value: str) -> None:
        """Raise ``ConfigurationError``, because a process's environment is lost when it exits."""
        del value
        raise ConfigurationError(
            f"secret {key.name!r} cannot be stored in the environment; use the 'files' store"
        )

    async def remove(self, key: SecretKey) -> None:
        """Raise ``ConfigurationError``, as ``write`` does."""
        raise ConfigurationError(f"secret {key.name!r} cannot be removed from the environment")


def parse_variable_list(text: str) -> frozenset[SecretKey]:
    """Parse the list in ``RECONCILER_SECRET_ENV``; raises ``ConfigurationError``."""
    return frozenset(_parse_entry(each.strip()) for each in text.split(",") if each.strip())


def _parse_entry(entry: str) -> SecretKey:
    namespace, slash, name = entry.partition("/")
    try:
        check_token(namespace, what="namespace")
    except InvalidNameError as error:
        raise ConfigurationError(f"{VARIABLE}: {entry!r}: {error}") from None
    if not slash or _NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"{VARIABLE}: {entry!r} is not the NAMESPACE/NAME of an environment variable; use a "
            "value such as billing/DB_PASSWORD"
        )
    prefix = next((each for each in _RESERVED_PREFIXES if name.upper().startswith(each)), None)
    if prefix is not None:
        raise ConfigurationError(
            f"{VARIABLE}: {entry!r} is refused, because variables that begin with {prefix} "
            "hold credentials of the process itself; pass the secret under another variable name"
        )
    return SecretKey(namespace, name)


def _read(name: str) -> str | None:
    value = os.environ.get(name)
    try:
        (value or "").encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"secrets: variable {name} is not UTF-8 text") from None
    return value
