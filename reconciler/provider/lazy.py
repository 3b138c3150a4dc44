"""Libraries from extras, which are imported on use and named in errors if they are missing."""

from __future__ import annotations

import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution, requires
from typing import Any, Final

from events.provider_config import ProviderConfigSpec
from reconciler.errors import ConfigurationError, MissingExtraError
from reconciler.provider import Provider
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.secrets import Secrets
from reconciler.shadowing import DISTRIBUTION

_REQUIREMENT: Final = re.compile(
    r"(?P<name>[\w.-]+).*;(?P<marker>.*)extra == ['\"](?P<extra>[\w-]+)"
)
_NOT_ON_WINDOWS: Final = re.compile(r"sys_platform != ['\"]win32")


@dataclass(frozen=True)
class LazyProvider:
    """A named provider class, which takes the ``options`` as keyword arguments."""

    target: str
    extra: str = ""
    options: tuple[tuple[str, Any], ...] = ()

    def __call__(
        self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit
    ) -> Provider:
        """Import the class and build a client, without opening a connection.

        Raises ``MissingExtraError`` if a library of the extra is not installed.
        """
        with _explain_import_error(self.target, self.extra):
            return _import(self.target)(config, secrets, permit, **dict(self.options))


def lazy(target: str, *, extra: str = "", **options: Any) -> LazyProvider:
    """Return a factory for the provider that ``module:Class`` names.

    ``extra``: the extra that installs the libraries the provider imports. ``options``:
    keyword arguments of the class, in addition to those of a ``ProviderFactory``.
    """
    return LazyProvider(target, extra, tuple(options.items()))


def load(target: str, *, extra: str) -> Any:
    """Import the object ``module:name``. Raises ``MissingExtraError``."""
    with _explain_import_error(target, extra):
        return _import(target)


def check_extra(extra: str, user: str) -> None:
    """Raise ``MissingExtraError`` unless everything that an extra requires is installed.

    ``user`` is the subject of the message: the component that requires the extra.
    """
    for name in _distributions(extra):
        try:
            distribution(name)
        except PackageNotFoundError:
            problem = f"{user} requires the {extra!r} extra, but {name} is not installed"
            raise MissingExtraError(problem, install_command(extra)) from None


def install_command(extra: str) -> str:
    """Return the command that adds an extra to the environment of this installation."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def _import(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


@contextmanager
def _explain_import_error(target: str, extra: str) -> Generator[None]:
    """Turn the ``ImportError`` of a library into a ``MissingExtraError``."""
    try:
        yield
    except ImportError as error:
        module_name = (error.name or "").partition(".")[0]
        if not extra or module_name == re.split("[.:]", target, maxsplit=1)[0]:
            raise
        if module_name in sys.stdlib_module_names:
            raise ConfigurationError(
                f"not supported on {sys.platform}, where Python has no {module_name!r} module"
            ) from None
        problem = f"{module_name} is not installed"
        if not isinstance(error, ModuleNotFoundError):  # such as psycopg without libpq
            problem = str(error).partition("\n")[0].rstrip(".")
        raise MissingExtraError(problem, install_command(extra)) from None


def _distributions(extra: str) -> Generator[str]:
    """Return the requirements of an extra, from the metadata of the installed distribution."""
    for requirement in requires(DISTRIBUTION) or ():
        match = _REQUIREMENT.match(requirement)
        if match is None or match["extra"] != extra:
            continue
        if sys.platform != "win32" or _NOT_ON_WINDOWS.search(match["marker"]) is None:
            yield match["name"]
