"""The integrity of the log: gapless versions, and a running digest for each resource.

Every event of a resource is stored with the digest of all events of that resource up to it: a hash
over the digest before, and the event's bytes as they are stored. It is a header and no part of the
event, so that added fields do not touch it (ADR 0010). A hash chain, as of Haber and Stornetta,
"How to Time-Stamp a Digital Document" (1991); it finds what disks, servers and mistakes do, and is
no signature.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Literal

import msgspec

from events.envelope import InvalidMessageError, decode_log
from events.log import LogEvent, log_place
from events.names import InvalidNameError, ResourceKey

DIGEST_HEADER = "Reconciler-Digest"
"""Header of every event: the digest of its resource's history up to it."""

_DIGEST_BYTES = 16
_SHOWN_CHARACTERS = 160
_PLACE = 4

Problem = Literal[
    "Missing",
    "Repeated",
    "OutOfOrder",
    "Changed",
    "Unreadable",
    "Misplaced",
    "Undigested",
    "Lost",
]
"""What can be wrong with the log.

``Missing``: an event that should be there is not; ``Lost``: the newest ones are not, by what others
remember. ``Changed``: an event is not what was stored. ``Unreadable``: not an event, or one that
this release does not know. ``Misplaced``: under a subject that is not its own. ``Undigested``:
written by something that keeps no digests.
"""


class LogDamage(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A place where the log is not what was written.

    ``position`` is where it was found in the log, ``version`` the version of the resource that was
    expected there. ``resource`` is ``namespace/kind/name``, empty for what belongs to none.
    """

    problem: Problem
    position: int
    version: int
    expected: str
    found: str
    resource: str = ""

    def __str__(self) -> str:
        where = f"{self.resource}, " if self.resource else ""
        return f"{where}position {self.position}: expected {self.expected}, found {self.found}"


class LogDamagedError(ValueError):
    """A resource's history is damaged and must not be folded; ``damage`` says where."""

    def __init__(self, damage: LogDamage) -> None:
        super().__init__(str(damage))
        self.damage = damage


class Recorded(msgspec.Struct, frozen=True, gc=False):
    """An event as the log has it: its place, its bytes, and its digest, empty if it has none."""

    position: int
    subject: str
    payload: bytes
    digest: str


def next_digest(previous: str, payload: bytes) -> str:
    """Return the digest of a history that goes on with an event; ``previous`` is empty at first."""
    return blake2b(previous.encode() + payload, digest_size=_DIGEST_BYTES).hexdigest()


class HistoryChain:
    """The history of one resource, checked event by event.

    ``version`` is None as long as it is not known where the history begins: the first event is then
    taken as it is. ``digest`` is empty and ``position`` 0 as long as none was taken.
    """

    __slots__ = ("digest", "position", "version")

    def __init__(self, version: int | None = 0, digest: str = "", position: int = 0) -> None:
        self.version = version
        self.digest = digest
        self.position = position

    def take(self, recorded: Recorded, resource: str) -> LogEvent:
        """Return the next event if it is the right one; raises `LogDamagedError`, always first."""
        event = self._decoded(recorded, resource)
        if event.subject != resource or not self.try_append(recorded, event):
            self._check_place(recorded, event, resource)
            self._check_order(recorded, event, resource)
            self._check_digest(recorded, event, resource)
            self._take(recorded, event)
        return event

    def try_append(self, recorded: Recorded, event: LogEvent) -> bool:
        """Take an event of this resource if all is as it nearly always is; return whether it was.

        This is cheaper than to find out what is not right: it is most of what a replay costs.
        """
        if (
            event.resourceversion - 1 == self.version
            and recorded.subject == f"log.{event.subject.replace('/', '.')}.{log_place(event.data)}"
            and next_digest(self.digest, recorded.payload) == recorded.digest
        ):
            self._take(recorded, event)
            return True
        return False

    def _take(self, recorded: Recorded, event: LogEvent) -> None:
        self.version = event.resourceversion
        self.digest = recorded.digest
        self.position = recorded.position

    def _decoded(self, recorded: Recorded, resource: str) -> LogEvent:
        try:
            return decode_log(recorded.payload)
        except InvalidMessageError as error:
            reason = str(error)[:_SHOWN_CHARACTERS]
            raise self._damage("Unreadable", recorded, resource, reason) from None

    def _check_place(self, recorded: Recorded, event: LogEvent, resource: str) -> None:
        if event.subject != resource:
            found = f"event {event.resourceversion} of {event.subject[:_SHOWN_CHARACTERS]}"
            raise self._damage("Misplaced", recorded, resource, found)
        wanted = log_place(event.data)
        if recorded.subject.split(".", _PLACE)[-1] != wanted:
            found = f"event {event.resourceversion} ({wanted}) on {recorded.subject}"
            raise self._damage("Misplaced", recorded, resource, found)

    def _check_order(self, recorded: Recorded, event: LogEvent, resource: str) -> None:
        last, version = self.version, event.resourceversion
        if last is None or version == last + 1:
            return
        if version > last + 1:
            problem: Problem = "Missing"
        elif version == last:
            problem = "Repeated"
        else:
            problem = "OutOfOrder"
        raise self._damage(problem, recorded, resource, f"event {version}")

    def _check_digest(self, recorded: Recorded, event: LogEvent, resource: str) -> None:
        if not recorded.digest:
            found = f"event {event.resourceversion} without a digest"
            expected = f"event {event.resourceversion} with a digest"
            raise self._damage("Undigested", recorded, resource, found, expected)
        if self.version is None and not self.digest:
            return
        digest = next_digest(self.digest, recorded.payload)
        if digest != recorded.digest:
            expected = f"event {event.resourceversion} with digest {recorded.digest}"
            raise self._damage(
                "Changed", recorded, resource, f"bytes with digest {digest}", expected
            )

    def _damage(
        self, problem: Problem, recorded: Recorded, resource: str, found: str, expected: str = ""
    ) -> LogDamagedError:
        version = 0 if self.version is None else self.version + 1
        what = expected or (f"event {version}" if version else "an event")
        return LogDamagedError(
            LogDamage(problem, recorded.position, version, what, found, resource)
        )


class LogChains:
    """The histories of all resources of a log, checked in one pass; about 300 bytes a resource.

    ``after`` is the position that the pass begins behind: unless it is 0, a resource's first event
    that is seen is taken as it is. What is found is told to ``damaged``: a resource once, and it is
    not looked at any further; and positions that are missing. A log never removes anything, so a
    position that is missing is an event that was lost, even if it was the last of its resource.

    ``most``: of how many resources, at least, the end of their history is kept in mind, those of
    the newest events; twice as many at most. The next event of another one is taken as it is.
    ``is_whole`` is false for the log of some resources only: others have positions between them.
    """

    def __init__(
        self,
        damaged: Callable[[LogDamage], object],
        *,
        after: int = 0,
        most: int | None = None,
        is_whole: bool = True,
    ) -> None:
        self.chains: dict[str, HistoryChain] = {}
        self._is_whole = is_whole
        self._tell = damaged
        self._position = after
        self._begins_with: int | None = None if after else 0
        self._damaged: set[str] = set()
        self._most = most
        self._older: dict[str, HistoryChain] = {}

    def take(self, recorded: Recorded) -> LogEvent | None:
        """Return a sound event, or None for one of a damaged resource, or of none."""
        if recorded.position != self._position + 1 and self._is_whole:
            self._tell_gap(recorded.position, f"position {recorded.position} next")
        self._position = recorded.position
        try:
            event = decode_log(recorded.payload)
        except InvalidMessageError:
            return self._look_closer(recorded)
        resource = event.subject
        chain = self.chains.get(resource)
        if (
            chain is not None
            and resource not in self._damaged
            and chain.try_append(recorded, event)
        ):
            return event
        return self._look_closer(recorded)

    def _look_closer(self, recorded: Recorded) -> LogEvent | None:
        """Take the first event of a resource, or say what is wrong with one."""
        log, *key = recorded.subject.split(".", _PLACE)
        resource = "/".join(key[:3])
        chain = self.chains.get(resource) or self._chain_of(resource)
        if log != "log" or len(key) < _PLACE or chain is None:
            self._tell_misplaced(recorded)
            return None
        if resource in self._damaged:
            return None
        try:
            return chain.take(recorded, resource)
        except LogDamagedError as error:
            self._damaged.add(resource)
            self._tell(error.damage)
            return None

    def _chain_of(self, resource: str) -> HistoryChain | None:
        """Begin a resource's chain, or take one up again; None if nothing can have that name."""
        chain = self._older.pop(resource, None)
        if chain is None:
            try:
                ResourceKey.parse(resource)
            except InvalidNameError:
                return None
            chain = HistoryChain(self._begins_with)
        if self._most is not None and len(self.chains) >= self._most:
            self._older, self.chains = self.chains, {}
            self._begins_with = None  # what seems to be new may be forgotten
        self.chains[resource] = chain
        return chain

    def end(self, last_position: int) -> None:
        """Say that all events up to a position were taken: those before it must have been there."""
        if last_position > self._position and self._is_whole:
            self._tell_gap(last_position + 1, "no event")
            self._position = last_position

    def _tell_gap(self, before: int, found: str) -> None:
        first, last = self._position + 1, before - 1
        what = f"an event at position {first}"
        if last > first:
            what = f"events at positions {first} to {last}"
        self._tell(LogDamage("Missing", first, 0, what, found))

    def _tell_misplaced(self, recorded: Recorded) -> None:
        """Report it: all below a resource's subject is its history, whatever its last token."""
        expected = "a subject log.<namespace>.<kind>.<name>.<class>"
        found = recorded.subject[:_SHOWN_CHARACTERS]
        self._tell(LogDamage("Misplaced", recorded.position, 0, expected, found))
