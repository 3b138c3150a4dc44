"""The bytes of the log as the server stores them, with digests, to damage them and find the damage.

Verification doubles the cost of a run, so only a log that the plan damages is recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from events.integrity import HistoryChain, LogDamagedError, RecordedEvent, next_digest
from events.log import LogEvent, log_suffix
from events.names import ResourceKey
from events.subjects import log as log_subject
from reconciler.ports import LoadedResource
from tests.memory_bus.faults import DamageLog


@dataclass
class RecordedLog:
    """The event at each position, None if it was lost, and the digest of each cached state."""

    events: list[RecordedEvent | None] = field(default_factory=list[RecordedEvent | None])
    _of_resource: dict[ResourceKey, list[int]] = field(default_factory=dict[ResourceKey, list[int]])
    _digests: dict[ResourceKey, str] = field(default_factory=dict[ResourceKey, str])
    _states: dict[ResourceKey, tuple[int, str]] = field(
        default_factory=dict[ResourceKey, tuple[int, str]]
    )

    def append(self, key: ResourceKey, event: LogEvent, payload: bytes) -> None:
        """Store an event with its digest."""
        digest = self._digests[key] = next_digest(self._digests.get(key, ""), payload)
        position = len(self.events) + 1
        subject = log_subject(key, log_suffix(event.data))
        self.events.append(RecordedEvent(position, subject, payload, digest))
        self._of_resource.setdefault(key, []).append(position)

    def keep(self, states: Mapping[ResourceKey, tuple[int, bytes]]) -> None:
        """Keep the digests at the positions of states."""
        for key, (position, _) in states.items():
            recorded = self.events[position - 1]
            if recorded is not None:
                self._states[key] = position, recorded.digest

    def damage(self, key: ResourceKey, step: DamageLog) -> int:
        """Flip a byte of an event, or lose an event that is not the newest; return its position.

        A history that lost its end looks like a shorter history.
        """
        mine = self._of_resource.get(key, [])
        if step.how == "lose":
            mine = mine[:-1]
        mine = [position for position in mine if self.events[position - 1] is not None]
        if not mine:
            return 0
        position = mine[step.index % len(mine)]
        recorded = self.events[position - 1]
        assert recorded is not None
        payload = recorded.payload
        middle = len(payload) // 2
        flipped = payload[:middle] + bytes([payload[middle] ^ 1]) + payload[middle + 1 :]
        self.events[position - 1] = (
            None if step.how == "lose" else replace(recorded, payload=flipped)
        )
        return position

    def loaded(self, key: ResourceKey, plain: LoadedResource) -> LoadedResource:
        """Return the loaded history up to the first damage, and the damage."""
        chain = HistoryChain()
        if plain.cached is not None:
            position, digest = self._states.get(key, (0, ""))
            chain = HistoryChain(None, digest, position)
        events: list[LogEvent] = []
        try:
            for recorded in self._intact_events(key, chain.position, plain.last_position):
                events.append(chain.verify_next(recorded, str(key)))  # noqa: PERF401 - those before damage
        except LogDamagedError as error:
            return LoadedResource(plain.last_position, plain.cached, events, error.damage)
        return LoadedResource(plain.last_position, plain.cached, events)

    def _intact_events(self, key: ResourceKey, after: int, last: int) -> Iterable[RecordedEvent]:
        for position in self._of_resource.get(key, ()):
            recorded = self.events[position - 1]
            if recorded is not None and after < position <= last:
                yield recorded

    @property
    def missing(self) -> int:
        """The number of lost events."""
        return sum(1 for each in self.events if each is None)
