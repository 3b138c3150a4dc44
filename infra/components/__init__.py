"""Real systems that ``reconciler up --with`` and the tests start as child processes.

Each keeps its data and log in its own directory, can be shut down gracefully, and exits with its
parent, even if the parent is killed.
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
        """Whether its processes are running."""
        ...

    async def start(self, data: Path) -> None:
        """Start it with a data directory, created if missing, and return once it responds.

        A directory can be reused even if its last process was killed.

        Raises:
            ComponentError: it is not installed (the message says what to install), or does not
            start.
        """
        ...

    async def stop(self) -> None:
        """Shut it down, and kill it after a timeout. The directory can be reused."""
        ...

    async def kill(self) -> None:
        """Kill it immediately with SIGKILL, to simulate a crash."""
        ...
