"""Skip imports of libraries that no command uses, which take half of a command's startup time."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any, Final

_SKIPPED: Final = {
    "nats.aio.transport": "aiohttp",  # only for WebSockets; 0.15 s of CPU
    "msgspec._utils": "typing_extensions",  # for Python 3.10 and older; 0.03 s
    "structlog.dev": "rich",  # for tracebacks that show local variables, including secrets; 0.15 s
}


_POSTPONED: Final = "nats.js"
"""The bus library's own interface to JetStream, which its client module imports; 0.02 s."""


def import_with_skips() -> None:
    """Import these modules as if their optional packages were not installed.

    Code that uses such a package can still import it later.
    """
    postponed = None if _POSTPONED in sys.modules else _find_postponed(_POSTPONED)
    if postponed is not None:
        sys.modules[_POSTPONED] = postponed
    for module, skipped in _SKIPPED.items():
        if skipped in sys.modules:
            continue
        sys.modules[skipped] = None  # type: ignore[assignment] # the import system's marker for a missing module
        try:
            importlib.import_module(module)
        finally:
            del sys.modules[skipped]
    if postponed is not None:  # as an import that executes the module does
        package, _, name = _POSTPONED.rpartition(".")
        setattr(importlib.import_module(package), name, postponed)


class _Postponed(ModuleType):
    """A module that is executed when one of its attributes is first read.

    With ``importlib.util.LazyLoader``, an import of the module would already execute it.
    """

    _is_executed = False

    def __getattr__(self, name: str) -> Any:
        spec = self.__spec__
        if self._is_executed or spec is None or spec.loader is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self._is_executed = True
        spec.loader.exec_module(self)
        return getattr(self, name)


def _find_postponed(name: str) -> ModuleType | None:
    """Return a submodule that has not been executed, or None if its package is not installed."""
    package = find_spec(name.rpartition(".")[0])
    spec = (
        None if package is None else PathFinder.find_spec(name, package.submodule_search_locations)
    )
    if spec is None:
        return None
    module = module_from_spec(spec)
    module.__class__ = _Postponed
    return module
