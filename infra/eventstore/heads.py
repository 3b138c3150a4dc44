"""What is known of the last message of each sequence."""

from dataclasses import dataclass
from typing import Final

MAX_HEADS: Final = 50_000  # about 400 bytes each


@dataclass(frozen=True, slots=True)
class Head:
    """The last message of a sequence: its version, and its place in the stream.

    `version` is None, and `seq` 0, where the sequence is empty. `digest` is that of the sequence
    up to it, empty where the layout keeps none.
    """

    version: int | None
    seq: int
    digest: str = ""


NOTHING: Final = Head(None, 0)


class HeadCache:
    """The newest heads that this process has seen; a guess, since others write too.

    A wrong guess costs a round trip and can do no harm: the server checks each append. Only the
    event loop's thread may use it.
    """

    def __init__(self, limit: int = MAX_HEADS) -> None:
        self._limit = limit
        self._heads: dict[str, Head] = {}

    def get(self, sequence: str) -> Head | None:
        """Return what was seen last, or None."""
        return self._heads.get(sequence)

    def put(self, sequence: str, head: Head) -> None:
        """Remember a head; the one that was not touched for longest is forgotten for it."""
        self._heads.pop(sequence, None)
        self._heads[sequence] = head
        if len(self._heads) > self._limit:
            del self._heads[next(iter(self._heads))]
