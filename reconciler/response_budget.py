"""Memory for the responses of one API: limits per response, for concurrent calls, and per listing.

The caller of a provider opens a share. The API client takes the memory for each response from it
before the response is decoded. The share returns all of it when the call ends.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_MIB: Final = 1024 * 1024

MAX_RESPONSE_BYTES: Final = 128 * _MIB
"""Maximum decoded size of a response, such as 32 MiB of JSON with values of 20 characters."""

MAX_CALLS_BYTES: Final = 2 * MAX_RESPONSE_BYTES
"""Limit for all responses that the calls of one API use at the same time."""

MAX_LISTING_BYTES: Final = 4 * MAX_RESPONSE_BYTES
"""Limit for all pages of a listing: about 100,000 objects of 1 KiB, all in memory."""

_VALUE_BYTES: Final = 64
"""Memory of a Python value in addition to its text: 56 for an empty list and 8 for its slot."""

_NON_VALUE: Final = bytes(set(range(256)) - set(b",[{"))


class MemoryLimitError(ValueError):
    """A response requires more memory than a limit allows. The message names the limit."""


class ResponseBudget:
    """Memory that several responses may use together. ``subject`` names them in errors."""

    def __init__(self, subject: str, max_bytes: int) -> None:
        self._subject = subject
        self._max_bytes = max_bytes
        self._used = 0

    @contextmanager
    def share(self) -> Generator[Share]:
        """Open a share, which returns its memory at the end."""
        share = Share(self)
        try:
            yield share
        finally:
            self._used -= share.used

    def take(self, size: int) -> None:
        """Count a response. Raises ``MemoryLimitError``."""
        self._used += size
        if self._used > self._max_bytes:
            raise MemoryLimitError(
                f"{self._subject} exceed the limit of {self._max_bytes // _MIB} MiB of memory"
            )


class Share:
    """The part of a budget that one call or one listing has taken."""

    def __init__(self, budget: ResponseBudget) -> None:
        self.used = 0
        self._budget = budget

    def take(self, size: int) -> None:
        """Take memory for a response. Raises ``MemoryLimitError``."""
        self.used += size
        self._budget.take(size)

    @contextmanager
    def in_use(self) -> Generator[None]:
        """Make API clients take memory from this share."""
        token = _SHARE.set(self)
        try:
            yield
        finally:
            _SHARE.reset(token)


_SHARE: ContextVar[Share | None] = ContextVar("response_share", default=None)


def take_memory(content: bytes) -> None:
    """Take the memory for decoding JSON from the share of this call, if it has one.

    A client awaits its response, then calls this, then decodes. Raises ``MemoryLimitError``.
    """
    size = decoded_bytes(content)
    if size > MAX_RESPONSE_BYTES:
        raise MemoryLimitError(
            f"its JSON exceeds the limit of {MAX_RESPONSE_BYTES // _MIB} MiB of memory"
        )
    share = _SHARE.get()
    if share is not None:
        share.take(size)


def decoded_bytes(content: bytes) -> int:
    """Estimate the memory of decoded JSON.

    It counts the characters that begin a value: ``,``, ``[`` and ``{``.
    """
    return len(content) + _VALUE_BYTES * len(content.translate(None, _NON_VALUE))
