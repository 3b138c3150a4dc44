"""Memory for the responses of one API: limits per response, for concurrent calls, and per listing.

The caller of a provider uses a share. The API client takes the memory for each response from it
before the response is decoded. The caller releases all of it when the call ends.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
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

    def take(self, size: int) -> None:
        """Count a response. Raises ``MemoryLimitError``."""
        self._used += size
        if self._used > self._max_bytes:
            raise MemoryLimitError(
                f"{self._subject} exceed the limit of {self._max_bytes // _MIB} MiB of memory"
            )

    def release(self, size: int) -> None:
        """Return the memory of responses."""
        self._used -= size


class Share:
    """The part of a budget that one call or one listing has taken.

    Within this context, API clients take memory from the share.
    """

    __slots__ = ("_budget", "_token", "_used")

    def __init__(self, budget: ResponseBudget) -> None:
        self._budget = budget
        self._used = 0
        self._token: Token[Share | None] | None = None

    def __enter__(self) -> None:
        """Make this the share of the current task."""
        self._token = _SHARE.set(self)

    def __exit__(self, *_error: object) -> None:
        """Restore the previous share. The memory stays in use until ``release``."""
        assert self._token is not None
        _SHARE.reset(self._token)

    def take(self, size: int) -> None:
        """Take memory for a response. Raises ``MemoryLimitError``."""
        self._used += size
        self._budget.take(size)

    def release(self) -> None:
        """Return all memory to the budget."""
        self._budget.release(self._used)
        self._used = 0


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
