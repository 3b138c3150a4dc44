"""A server process that logs to a file, and exits with its parent."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from infra.components import ComponentError
from infra.embedded.child import bind_to_parent

_POLL_SECONDS: Final = 0.02
_OWN_ACCOUNT: Final = (0, 0)


class Child:
    """One process. ``stop_signal``: the signal to shut it down, including when its parent ends."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        stop_signal: signal.Signals = signal.SIGTERM,
        account: tuple[int, int] = _OWN_ACCOUNT,
        folder: Path | str = "/",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._stop_signal = stop_signal
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - no shell
                bind_to_parent(command, death_signal=stop_signal, account=account),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                env=environment,
                # Ctrl-C must reach only the parent, which stops this process gracefully.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None

    async def wait_until_ready(
        self, is_ready: Callable[[], bool], name: str, *, deadline: float, seconds: float
    ) -> None:
        """Wait until ``is_ready``, which is called in a thread, returns True.

        ``deadline``: a `time.monotonic` time. ``seconds`` is only for the error message.

        Raises:
            ComponentError: the process exited, or the deadline has passed.
        """
        while time.monotonic() < deadline:
            if not self.is_running:
                raise ComponentError(f"{name} exited immediately")
            if await asyncio.to_thread(is_ready):
                return
            await asyncio.sleep(_POLL_SECONDS)
        raise ComponentError(f"{name} did not respond within {seconds:.0f} s")

    async def stop(self, seconds: float) -> None:
        """Shut the process down, and kill it after a timeout."""
        self._process.send_signal(self._stop_signal)
        try:
            await asyncio.to_thread(self._process.wait, seconds)
        except subprocess.TimeoutExpired:
            await self.kill()

    async def kill(self) -> None:
        """Kill the process immediately with SIGKILL, to simulate a crash."""
        self._process.kill()
        await asyncio.to_thread(self._process.wait)
