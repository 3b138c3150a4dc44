"""The process of a server: it logs into a file, and ends with the process that started it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from infra.components import ComponentError
from infra.embedded.child import ending_with_parent

_POLL_SECONDS: Final = 0.02
_NEITHER_USER_NOR_GROUP: Final = (0, 0)


class Child:
    """One process. ``how``: the signal that ends it in order, also when we are gone."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        how: signal.Signals = signal.SIGTERM,
        account: tuple[int, int] = _NEITHER_USER_NOR_GROUP,
        folder: Path | str = "/",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._how = how
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - no shell
                ending_with_parent(command, how=how, account=account),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                env=environment,
                start_new_session=True,  # Ctrl-C is for us: we stop it in order
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it lives."""
        return self._process.poll() is None

    async def until(
        self, answers: Callable[[], bool], name: str, *, deadline: float, seconds: float
    ) -> None:
        """Wait until it answers, asked in a thread; raises ``ComponentError``.

        ``deadline`` is by `time.monotonic`; ``seconds`` is what is said of it.
        """
        while time.monotonic() < deadline:
            if not self.is_running:
                raise ComponentError(f"{name} exited immediately")
            if await asyncio.to_thread(answers):
                return
            await asyncio.sleep(_POLL_SECONDS)
        raise ComponentError(f"{name} did not respond within {seconds:.0f} s")

    async def stop(self, seconds: float) -> None:
        """End it in order; kill it when that takes longer."""
        self._process.send_signal(self._how)
        try:
            await asyncio.to_thread(self._process.wait, seconds)
        except subprocess.TimeoutExpired:
            await self.kill()

    async def kill(self) -> None:
        """End it at once (SIGKILL), as a crash does."""
        self._process.kill()
        await asyncio.to_thread(self._process.wait)
