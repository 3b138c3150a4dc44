"""Providers that are imported when a role connects to an API, not when their kind is loaded."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from events.provider_config import ProviderConfigSpec
from reconciler.errors import ConfigurationError
from reconciler.provider import Provider
from reconciler.provider.secrets import Secrets


@dataclass(frozen=True)
class LazyProvider:
    """A provider's class by its name. It takes the ``options`` as keyword arguments."""

    target: str
    extra: str = ""
    options: tuple[tuple[str, Any], ...] = ()

    def __call__(self, config: ProviderConfigSpec, secrets: Secrets) -> Provider:
        """Import the class and build a client; opens no connection yet.

        Raises ``ConfigurationError`` if a library of the extra is not installed.
        """
        module, _, name = self.target.partition(":")
        try:
            provider = getattr(import_module(module), name)
            return provider(config, secrets, **dict(self.options))
        except ImportError as error:
            missing = (error.name or "").partition(".")[0]
            if not self.extra or missing == module.partition(".")[0]:
                raise
            raise ConfigurationError(_describe(missing, error, self.extra)) from None


def _describe(missing: str, error: ImportError, extra: str) -> str:
    if missing in sys.stdlib_module_names:
        return f"not supported on {sys.platform}, where Python has no module {missing!r}"
    problem = f"{missing} is not installed"
    if not isinstance(error, ModuleNotFoundError):  # such as psycopg without libpq
        problem = str(error).partition("\n")[0].rstrip(".")
    return f"{problem}; run pip install 'event-sourced-reconciler[{extra}]' where the roles run"


def lazy(target: str, *, extra: str = "", **options: Any) -> LazyProvider:
    """Return the factory of a provider that is named as ``module:Class``.

    ``extra``: the extra of this distribution whose libraries the provider imports. ``options``:
    keyword arguments of the class, in addition to the configuration and the secrets.
    """
    return LazyProvider(target, extra, tuple(options.items()))
