"""How much a stream still takes: without limit, or so many messages, as ``max_msgs`` does it."""

from __future__ import annotations

from infra.jetstream.errors import StreamFullError


class Room:
    """The room of one stream."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._remaining: int | None = None

    def leave(self, messages: int | None) -> None:
        """Let the stream take so many more messages; None for no limit."""
        self._remaining = messages

    def take(self, messages: int = 1) -> None:
        """Take room for all of so many messages, or for none: raises ``StreamFullError``."""
        if self._remaining is None:
            return
        if messages > self._remaining:
            raise StreamFullError(f"stream {self._stream} is full: maximum messages exceeded")
        self._remaining -= messages
