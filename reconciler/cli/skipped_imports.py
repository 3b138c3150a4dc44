"""Skip imports of libraries that no command uses, which take half of a command's startup time."""

from __future__ import annotations

import importlib
import sys
from typing import Final

_SKIPPED: Final = {
    "nats.aio.transport": "aiohttp",  # only for WebSockets; 0.15 s of CPU
    "msgspec._utils": "typing_extensions",  # for Python 3.10 and older; 0.03 s
    "structlog.dev": "rich",  # for tracebacks that show local variables, including secrets; 0.15 s
}


def import_with_skips() -> None:
    """Import these modules as if their optional packages were not installed.

    Code that uses such a package can still import it later.
    """
    for module, skipped in _SKIPPED.items():
        if skipped in sys.modules:
            continue
        sys.modules[skipped] = None  # type: ignore[assignment] # the import system's marker for a missing module
        try:
            importlib.import_module(module)
        finally:
            del sys.modules[skipped]
