"""Skip imports of libraries that no command uses: half of the start time of a command."""

from __future__ import annotations

import importlib
import sys
from typing import Final

_SPARED: Final = {
    "nats.aio.transport": "aiohttp",  # for WebSockets only; 0.15 s of CPU
    "msgspec._utils": "typing_extensions",  # for Python 3.10 and older; 0.03 s
    "structlog.dev": "rich",  # for tracebacks that show local variables, secrets too; 0.15 s
}


def import_without_spared() -> None:
    """Import these modules as if their optional packages were not installed.

    Code that uses such a package can still import it later.
    """
    for module, spared in _SPARED.items():
        if spared in sys.modules:
            continue
        sys.modules[spared] = None  # type: ignore[assignment] # the import system's "not there"
        try:
            importlib.import_module(module)
        finally:
            del sys.modules[spared]
