"""Integrity of the log: versions without gaps, and a hash chain for each resource.

Every event is stored with a digest of all events of its resource so far: a hash of the previous
digest and of the stored bytes of the event. The digest is a header, so it does not depend on added
fields (ADR 0010). The hash chain follows Haber and Stornetta, "How to Time-Stamp a Digital
Document" (1991). It detects errors caused by disks, servers and operators, but is not a signature.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Literal

import msgspec

from events.envelope import InvalidMessageError, decode_log
from events.log import LogEvent, log_suffix
from events.names import InvalidNameError, ResourceKey

DIGEST_HEADER = "Reconciler-Digest"
"""Header of every event: digest of the history of its resource up to this event."""

_DIGEST_BYTES = 16
_MAX_QUOTED_CHARACTERS = 160
_SUFFIX_INDEX = 4

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
"""Kinds of damage.

``Missing``: an event is missing. ``Lost``: the newest events are missing, according to other data.
``Repeated``, ``OutOfOrder``: the order is wrong. ``Changed``: the bytes of an event have
changed. ``Unreadable``: not an event, or written by another release. ``Misplaced``: stored under
the wrong subject. ``Undigested``: written without a digest.
"""


class LogDamage(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A damaged part of the log.

    ``position`` is its position in the log, and ``version`` the version that was expected there.
    ``resource`` is ``namespace/kind/name``. It is empty for a message without a resource.
    ``losses`` counts earlier losses of the log's end, after which positions are reused.
    """

    problem: Problem
    position: int
    version: int
    expected: str
    found: str
    resource: str = ""
    losses: int = 0

    def __str__(self) -> str:
        prefix = f"{self.resource}, " if self.resource else ""
        return f"{prefix}position {self.position}: expected {self.expected}, found {self.found}"


class LogDamagedError(ValueError):
    """The history of a resource is damaged and must not be folded. ``damage`` describes it."""

    def __init__(self, damage: LogDamage) -> None:
        super().__init__(str(damage))
        self.damage = damage


class RecordedEvent(msgspec.Struct, frozen=True, gc=False):
    """A stored event: its position, subject and bytes, and its digest, empty if it has none."""

    position: int
    subject: str
    payload: bytes
    digest: str


def next_digest(previous: str, payload: bytes) -> str:
    """Return the digest of a history after one more event. ``previous`` is empty for the first."""
    return blake2b(previous.encode() + payload, digest_size=_DIGEST_BYTES).hexdigest()


class HistoryChain:
    """The history of one resource, verified event by event.

    ``version`` is None if the start of the history is unknown. The first event is then accepted
    without a check. Before the first event, ``digest`` is empty and ``position`` is 0.
    """

    __slots__ = ("digest", "position", "version")

    def __init__(self, version: int | None = 0, digest: str = "", position: int = 0) -> None:
        self.version = version
        self.digest = digest
        self.position = position

    def verify_next(self, recorded: RecordedEvent, resource: str) -> LogEvent:
        """Return the next event. Raises `LogDamagedError` for the first problem."""
        event = self._decode(recorded, resource)
        self.verify_decoded(recorded, event, resource)
        return event

    def verify_decoded(self, recorded: RecordedEvent, event: LogEvent, resource: str) -> None:
        """Append a decoded event. Raises `LogDamagedError` for the first problem."""
        if event.subject != resource or not self.try_append(recorded, event):
            self._check_subject(recorded, event, resource)
            self._check_order(recorded, event, resource)
            self._check_digest(recorded, event, resource)
            self.version, self.digest = event.resourceversion, recorded.digest
            self.position = recorded.position

    def try_append(self, recorded: RecordedEvent, event: LogEvent) -> bool:
        """Append an event if it is valid, and return whether it was.

        This fast path does not search for the exact problem. It dominates the cost of a replay.
        """
        if (
            event.resourceversion - 1 == self.version
            and recorded.subject
            == f"log.{event.subject.replace('/', '.')}.{log_suffix(event.data)}"
            and next_digest(self.digest, recorded.payload) == recorded.digest
        ):
            self.version, self.digest = event.resourceversion, recorded.digest
            self.position = recorded.position
            return True
        return False

    def _decode(self, recorded: RecordedEvent, resource: str) -> LogEvent:
        try:
            return decode_log(recorded.payload)
        except InvalidMessageError as error:
            reason = str(error)[:_MAX_QUOTED_CHARACTERS]
            raise self._damage("Unreadable", recorded, resource, reason) from None

    def _check_subject(self, recorded: RecordedEvent, event: LogEvent, resource: str) -> None:
        if event.subject != resource:
            found = f"event {event.resourceversion} of {event.subject[:_MAX_QUOTED_CHARACTERS]}"
            raise self._damage("Misplaced", recorded, resource, found)
        wanted = log_suffix(event.data)
        if recorded.subject.split(".", _SUFFIX_INDEX)[-1] != wanted:
            found = f"event {event.resourceversion} ({wanted}) on {recorded.subject}"
            raise self._damage("Misplaced", recorded, resource, found)

    def _check_order(self, recorded: RecordedEvent, event: LogEvent, resource: str) -> None:
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

    def _check_digest(self, recorded: RecordedEvent, event: LogEvent, resource: str) -> None:
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
        self,
        problem: Problem,
        recorded: RecordedEvent,
        resource: str,
        found: str,
        expected: str = "",
    ) -> LogDamagedError:
        version = 0 if self.version is None else self.version + 1
        expected = expected or (f"event {version}" if version else "an event")
        return LogDamagedError(
            LogDamage(problem, recorded.position, version, expected, found, resource)
        )


class LogChains:
    """The histories of all resources in a log, verified in one pass with 300 bytes per resource.

    The pass starts after position ``after``. Unless it is 0, the first event of each resource is
    accepted without a check. ``on_damage`` receives each damaged resource once, and each missing
    position. A log never removes a message, so a missing position is a lost event, even if it was
    the last one of its resource.

    ``max_resources``: number of resources with the newest events whose chains stay in memory. Up to
    twice as many may be kept. The next event of another resource is accepted without a check.
    ``is_whole`` is false if only some resources are read, so that positions are missing.
    """

    def __init__(
        self,
        on_damage: Callable[[LogDamage], object],
        *,
        after: int = 0,
        max_resources: int | None = None,
        is_whole: bool = True,
    ) -> None:
        self.chains: dict[str, HistoryChain] = {}
        self._is_whole = is_whole
        self._report = on_damage
        self._position = after
        self._begins_with: int | None = None if after else 0
        self._damaged: set[str] = set()
        self._max_resources = max_resources
        self._older: dict[str, HistoryChain] = {}

    def verify_next(self, recorded: RecordedEvent) -> LogEvent | None:
        """Return the event if it is valid; None if its resource is damaged, or if it names none."""
        if recorded.position != self._position + 1 and self._is_whole:
            self._report_gap(recorded.position, f"position {recorded.position} next")
        self._position = recorded.position
        try:
            event = decode_log(recorded.payload)
        except InvalidMessageError:
            return self._check_unusual(recorded, None)
        resource = event.subject
        chain = self.chains.get(resource)
        if (
            chain is not None
            and resource not in self._damaged
            and chain.try_append(recorded, event)
        ):
            return event
        return self._check_unusual(recorded, event)

    def _check_unusual(self, recorded: RecordedEvent, event: LogEvent | None) -> LogEvent | None:
        """Return the first event of a resource, or report the problem with an event.

        ``event`` is None if the payload is not an event.
        """
        log, *key = recorded.subject.split(".", _SUFFIX_INDEX)
        resource = "/".join(key[:3])
        chain = self.chains.get(resource) or self._chain_of(resource)
        if log != "log" or len(key) < _SUFFIX_INDEX or chain is None:
            self._report_misplaced(recorded)
            return None
        if resource in self._damaged:
            return None
        try:
            if event is None:
                return chain.verify_next(recorded, resource)
            chain.verify_decoded(recorded, event, resource)
        except LogDamagedError as error:
            self._damaged.add(resource)
            self._report(error.damage)
            return None
        return event

    def _chain_of(self, resource: str) -> HistoryChain | None:
        """Start or continue the chain of a resource; None if the name is invalid."""
        chain = self._older.pop(resource, None)
        if chain is None:
            try:
                ResourceKey.parse(resource)
            except InvalidNameError:
                return None
            chain = HistoryChain(self._begins_with)
        if self._max_resources is not None and len(self.chains) >= self._max_resources:
            self._older, self.chains = self.chains, {}
            self._begins_with = None  # an apparently new resource may have been dropped
        self.chains[resource] = chain
        return chain

    def end(self, last_position: int) -> None:
        """Check that no event up to this position is missing, at the end of the log."""
        if last_position > self._position and self._is_whole:
            self._report_gap(last_position + 1, "no event")
            self._position = last_position

    def _report_gap(self, next_position: int, found: str) -> None:
        first, last = self._position + 1, next_position - 1
        expected = f"an event at position {first}"
        if last > first:
            expected = f"events at positions {first} to {last}"
        self._report(LogDamage("Missing", first, 0, expected, found))

    def _report_misplaced(self, recorded: RecordedEvent) -> None:
        """Report a misplaced message.

        Every message below a resource's subject belongs to its history.
        """
        expected = "a subject log.<namespace>.<kind>.<name>.<class>"
        found = recorded.subject[:_MAX_QUOTED_CHARACTERS]
        self._report(LogDamage("Misplaced", recorded.position, 0, expected, found))
