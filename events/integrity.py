"""The integrity of the log: gapless versions, and a running digest for each shape.

Every event of a shape is stored with the digest of all events of that shape up to it: a hash over
the digest before, and the event's bytes as they are stored. It is a header and no part of the
event, so that upcasting and added fields do not touch it (ADR 0010). A hash chain, as of Haber and
Stornetta, "How to Time-Stamp a Digital Document" (1991); it finds what disks, servers and mistakes
do, and is no signature.

Shapes whose first events were stored by a release without digests are verified by their versions,
and from the first digest on by both.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Literal, NamedTuple

import msgspec

from events.envelope import InvalidMessageError, decode_log
from events.log import LogEvent, log_class
from events.names import InvalidNameError, ShapeKey
from events.subjects import parse_log

DIGEST_HEADER = "Reconciler-Digest"
"""Header of every event: the digest of its shape's history up to it."""

_DIGEST_BYTES = 16
_SHOWN_CHARACTERS = 160

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
written by something that keeps no digests, after others have.
"""


class LogDamage(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A place where the log is not what was written.

    ``position`` is where it was found in the log, ``version`` the version of the shape that was
    expected there. ``shape`` is ``namespace/kind/name``, empty for what belongs to none.
    """

    problem: Problem
    position: int
    version: int
    expected: str
    found: str
    shape: str = ""

    def __str__(self) -> str:
        where = f"{self.shape}, " if self.shape else ""
        return f"{where}position {self.position}: expected {self.expected}, found {self.found}"


class LogDamagedError(ValueError):
    """A shape's history is damaged and must not be folded; ``damage`` says where."""

    def __init__(self, damage: LogDamage) -> None:
        super().__init__(str(damage))
        self.damage = damage


class Recorded(NamedTuple):
    """An event as the log has it: its place, its bytes, and its digest (empty for none)."""

    position: int
    subject: str
    payload: bytes
    digest: str


def next_digest(previous: str, payload: bytes) -> str:
    """Give the digest of a history that goes on with an event; ``previous`` is empty at first."""
    return blake2b(previous.encode() + payload, digest_size=_DIGEST_BYTES).hexdigest()


class ShapeChain:
    """The history of one shape, checked event by event.

    ``version`` is None as long as it is not known where the history begins: the first event is then
    taken as it is. ``digest`` is empty as long as no event had one, ``position`` 0.
    """

    __slots__ = ("digest", "position", "version")

    def __init__(self, version: int | None = 0, digest: str = "", position: int = 0) -> None:
        self.version = version
        self.digest = digest
        self.position = position

    def take(self, recorded: Recorded, shape: str) -> LogEvent:
        """Give the next event if it is the right one; raises ``LogDamagedError``, always first."""
        event = self._decoded(recorded, shape)
        self._check_place(recorded, event, shape)
        self._check_order(recorded, event, shape)
        self._check_digest(recorded, event, shape)
        self.version = event.shapeversion
        self.digest = recorded.digest
        self.position = recorded.position
        return event

    def _decoded(self, recorded: Recorded, shape: str) -> LogEvent:
        try:
            return decode_log(recorded.payload)
        except InvalidMessageError as error:
            reason = str(error)[:_SHOWN_CHARACTERS]
            raise self._damage("Unreadable", recorded, shape, reason) from None

    def _check_place(self, recorded: Recorded, event: LogEvent, shape: str) -> None:
        if event.subject != shape:
            found = f"event {event.shapeversion} of {event.subject[:_SHOWN_CHARACTERS]}"
            raise self._damage("Misplaced", recorded, shape, found)
        wanted = log_class(event.data)
        if not recorded.subject.endswith(f".{wanted}"):
            found = f"event {event.shapeversion} ({wanted}) on {recorded.subject}"
            raise self._damage("Misplaced", recorded, shape, found)

    def _check_order(self, recorded: Recorded, event: LogEvent, shape: str) -> None:
        last, version = self.version, event.shapeversion
        if last is None or version == last + 1:
            return
        if version > last + 1:
            problem: Problem = "Missing"
        elif version == last:
            problem = "Repeated"
        else:
            problem = "OutOfOrder"
        raise self._damage(problem, recorded, shape, f"event {version}")

    def _check_digest(self, recorded: Recorded, event: LogEvent, shape: str) -> None:
        if not recorded.digest:
            if self.digest:
                found = f"event {event.shapeversion} without one"
                expected = f"event {event.shapeversion} with a digest, as those before it"
                raise self._damage("Undigested", recorded, shape, found, expected)
            return
        if self.version is None and not self.digest:
            return
        digest = next_digest(self.digest, recorded.payload)
        if digest != recorded.digest:
            expected = f"event {event.shapeversion} with digest {recorded.digest}"
            raise self._damage("Changed", recorded, shape, f"bytes of digest {digest}", expected)

    def _damage(
        self, problem: Problem, recorded: Recorded, shape: str, found: str, expected: str = ""
    ) -> LogDamagedError:
        version = 0 if self.version is None else self.version + 1
        what = expected or (f"event {version}" if version else "an event")
        return LogDamagedError(LogDamage(problem, recorded.position, version, what, found, shape))


class LogChains:
    """The histories of all shapes of a log, checked in one pass; about 250 bytes a shape.

    ``from_start``: the pass begins with the log's first event; else a shape's first event that is
    seen is taken as it is. A shape whose damage was found is not looked at any further.
    """

    def __init__(self, *, from_start: bool = True) -> None:
        self.chains: dict[str, ShapeChain] = {}
        self.damage: list[LogDamage] = []
        self.undigested = 0
        self._from_start = from_start
        self._damaged: dict[str, int] = {}

    def take(self, recorded: Recorded) -> LogEvent | None:
        """Give a sound event, or None for one of a damaged shape.

        Raises ``LogDamagedError`` where damage is found, once a shape.
        """
        shape = self._shape_of(recorded)
        if shape in self._damaged:
            self._look_for_what_is_missing(recorded, shape)
            return None
        chain = self.chains.get(shape)
        if chain is None:
            chain = self.chains[shape] = ShapeChain(0 if self._from_start else None)
        try:
            event = chain.take(recorded, shape)
        except LogDamagedError as error:
            self._damaged[shape] = len(self.damage)
            self.damage.append(error.damage)
            raise
        if not recorded.digest:
            self.undigested += 1
        return event

    def _shape_of(self, recorded: Recorded) -> str:
        try:
            key = parse_log(recorded.subject)
            return str(ShapeKey.checked(key.namespace, key.kind, key.name))
        except (ValueError, InvalidNameError):
            damage = LogDamage(
                "Misplaced",
                recorded.position,
                0,
                "an event on log.<namespace>.<kind>.<name>.<class>",
                f"a message on {recorded.subject[:_SHOWN_CHARACTERS]}",
            )
            self.damage.append(damage)
            raise LogDamagedError(damage) from None

    def _look_for_what_is_missing(self, recorded: Recorded, shape: str) -> None:
        """An event that seemed to be missing and comes later was not lost, but is out of order."""
        index = self._damaged[shape]
        damage = self.damage[index]
        if damage.problem != "Missing":
            return
        try:
            event = decode_log(recorded.payload)
        except InvalidMessageError:
            return
        if event.shapeversion == damage.version and event.subject == shape:
            found = f"{damage.found} first, and event {damage.version} at {recorded.position}"
            self.damage[index] = msgspec.structs.replace(damage, problem="OutOfOrder", found=found)
