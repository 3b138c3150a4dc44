"""Threads for calls to a filesystem, which may hang."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Final, TypeVar

from infra.providers.file_errors import to_provider_error
from reconciler.errors import NotCalledError, NotDoneError, UnknownResultError

MAX_CONCURRENT_CALLS: Final = 8

_T = TypeVar("_T")


class FileThreads:
    """Dedicated threads for one root, so that a hanging disk does not delay other work."""

    def __init__(self, path: Path, timeout_seconds: float, name: str) -> None:
        self._path = path
        self._timeout_seconds = timeout_seconds
        self._threads = ThreadPoolExecutor(MAX_CONCURRENT_CALLS, thread_name_prefix=name)

    async def run(self, function: Callable[[], _T], *, writes: bool = False) -> _T:
        """Run a blocking function in a thread.

        Raises ``NotCalledError`` if no thread was free before the timeout, because that proves
        nothing about the filesystem. Otherwise, raises the error for a hanging filesystem.
        """
        claim = Lock()  # acquired once: by the thread, or by the timeout that abandons the call

        def call() -> _T:
            if not claim.acquire(blocking=False):
                raise TimeoutError
            return function()

        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await loop.run_in_executor(self._threads, call)
        except TimeoutError:
            if claim.acquire(blocking=False):
                raise NotCalledError(
                    f"not called: {MAX_CONCURRENT_CALLS} calls to the filesystem of {self._path} "
                    "are in progress; this one will be retried",
                    retry_after_seconds=self._timeout_seconds,
                ) from None
            timeout_class = UnknownResultError if writes else NotDoneError
            raise timeout_class(
                f"the filesystem of {self._path} did not respond before the timeout"
            ) from None
        except OSError as error:
            raise to_provider_error(error, writes=writes) from None

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(wait=False)
