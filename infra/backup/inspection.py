"""Read a whole backup before anything is written, to determine its content and damage."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

import msgspec

from events.integrity import LogChains, LogDamage
from events.log import LogEvent
from infra.backup.backup import to_recorded
from infra.backup.file import Backup, SavedMessage

Progress = Callable[[int], object]
"""Called with the number of processed bytes or events."""


class LogSummary:
    """The state of a log after the events added so far: chains, and each resource's newest cause.

    A cause is the intake position of a processed message. Declarations at later positions are not
    in the log. ``times``: when the server stored each resource's newest event, in nanoseconds.
    """

    def __init__(self) -> None:
        self.damage: list[LogDamage] = []
        self.chains = LogChains(self.damage.append)
        self.causes: dict[str, int] = {}
        self.times: dict[str, int] = {}
        self.events = 0
        self._content = blake2b(digest_size=16)

    @property
    def content(self) -> str:
        """A digest over the subjects, bodies and digests of all events, in order."""
        return self._content.hexdigest()

    @property
    def newest_cause(self) -> int:
        """The newest intake position in the log."""
        return max(self.causes.values(), default=0)

    def add(self, saved: SavedMessage) -> None:
        """Add the next event."""
        self.events += 1
        self._content.update(content_of(saved))
        event = self.chains.verify_next(to_recorded(saved))
        if event is not None:
            self._record_cause(event, saved.time_ns)

    def _record_cause(self, event: LogEvent, time_ns: int) -> None:
        """Record the newest cause and the time of an event's resource."""
        known = self.causes.get(event.subject, 0)
        self.causes[event.subject] = max(known, event.causationposition)
        self.times[event.subject] = time_ns

    def includes(self, declaration: SavedMessage, *, is_behind: bool) -> bool:
        """Return whether the log contains the result of processing a declaration.

        ``is_behind``: whether the intake ended before the log's causes, because it had lost its
        newest messages, or had been recreated and reused positions. If so, the times are compared
        as well.
        """
        resource = "/".join(declaration.subject.split(".")[3:6])
        if declaration.position > self.causes.get(resource, 0):
            return False
        return not is_behind or declaration.time_ns <= self.times[resource]


def content_of(saved: SavedMessage) -> bytes:
    """Return the content that must be equal in two copies of an event."""
    event = to_recorded(saved)
    return msgspec.msgpack.encode((event.subject, event.payload, event.digest))


def inspect(backup: Backup, progress: Progress) -> LogSummary:
    """Read a whole backup; raises ``BackupFileError`` and ``OSError``."""
    summary = LogSummary()
    for messages in backup.events():
        for saved in messages:
            summary.add(saved)
        progress(backup.bytes_read)
    assert backup.footer is not None
    summary.chains.end(backup.footer.position)
    return summary
