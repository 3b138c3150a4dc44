"""Real systems that ``reconciler up --with`` and the tests start on this machine, as children.

Each keeps its data and its log in a folder of its own, is stopped in order, and ends with the
process that started it, even when that one is killed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class ComponentError(Exception):
    """A component could not be started, or is not installed; the message is one line."""


class Component(Protocol):
    """One system on this machine: a Docker Engine, a PostgreSQL server, a proxy."""

    @property
    def endpoint(self) -> str:
        """Where it listens, as a ``ProviderConfig`` names it."""
        ...

    @property
    def log(self) -> Path:
        """Where it logs."""
        ...

    @property
    def is_running(self) -> bool:
        """Whether its process lives."""
        ...

    async def start(self, data: Path) -> None:
        """Start it on a folder, made if missing, and return once it answers.

        Raises ``ComponentError``: it is not installed (with what to install), or does not start.
        A folder whose last process was killed can be used again.
        """
        ...

    async def stop(self) -> None:
        """End it in order; kill it when that takes too long. Its folder can be used again."""
        ...

    async def kill(self) -> None:
        """End it at once (SIGKILL), as a crash does."""
        ...
