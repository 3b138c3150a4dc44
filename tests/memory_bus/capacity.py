"""How many more messages a stream accepts: any number, or a fixed number, as with ``max_msgs``."""

from __future__ import annotations

from infra.jetstream.errors import StreamFullError


class Capacity:
    """The remaining capacity of one stream."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._remaining: int | None = None

    def set_remaining(self, messages: int | None) -> None:
        """Let the stream accept this many more messages; None for no limit."""
        self._remaining = messages

    def reserve(self, messages: int = 1) -> None:
        """Reserve capacity for the messages; raises ``StreamFullError`` if they do not all fit."""
        if self._remaining is None:
            return
        if messages > self._remaining:
            raise StreamFullError(f"stream {self._stream} is full: maximum messages exceeded")
        self._remaining -= messages
