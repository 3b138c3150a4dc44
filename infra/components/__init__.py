"""Real systems that ``reconciler up --with`` and the tests start on this machine as children.

Each keeps its data and its log in its own directory, can be shut down in order, and ends with the
process that started it, even if that process is killed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class ComponentError(Exception):
    """A component is not installed or could not be started. The message is one line."""


class Component(Protocol):
    """A system on this machine: a Docker Engine, a PostgreSQL server, a proxy."""

    @property
    def endpoint(self) -> str:
        """The address for a ``ProviderConfig``."""
        ...

    @property
    def log(self) -> Path:
        """The log file."""
        ...

    @property
    def is_running(self) -> bool:
        """Whether its process is running."""
        ...

    async def start(self, data: Path) -> None:
        """Start it on a directory, which is created if missing, and return once it responds.

        A directory can be used again after its last process was killed.

        Raises:
            ComponentError: it is not installed (with what to install), or does not start.
        """
        ...

    async def stop(self) -> None:
        """Shut it down, and kill it after a timeout. The directory can be used again."""
        ...

    async def kill(self) -> None:
        """Kill it immediately (SIGKILL), as a crash does."""
        ...
