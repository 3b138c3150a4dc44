"""The bytes of the log as the server has them, with digests: what damage is done to, and found in.

Verifying costs about as much as everything else, so only a log that the plan damages is kept so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from events.integrity import LogDamagedError, Recorded, ShapeChain, next_digest
from events.log import LogEvent, log_place
from events.names import ShapeKey
from events.subjects import log as log_subject
from reconciler.ports import LoadedShape
from tests.simulation.plan import DamageLog


@dataclass
class RecordedLog:
    """Every position's event, or None where it was lost, and the digest of each kept snapshot."""

    events: list[Recorded | None] = field(default_factory=list[Recorded | None])
    _of_shape: dict[ShapeKey, list[int]] = field(default_factory=dict[ShapeKey, list[int]])
    _digests: dict[ShapeKey, str] = field(default_factory=dict[ShapeKey, str])
    _snapshots: dict[ShapeKey, tuple[int, str]] = field(
        default_factory=dict[ShapeKey, tuple[int, str]]
    )

    def append(self, key: ShapeKey, event: LogEvent, payload: bytes) -> None:
        """Store an event with its digest."""
        digest = self._digests[key] = next_digest(self._digests.get(key, ""), payload)
        position = len(self.events) + 1
        subject = log_subject(key, log_place(event.data))
        self.events.append(Recorded(position, subject, payload, digest))
        self._of_shape.setdefault(key, []).append(position)

    def keep(self, snapshots: Mapping[ShapeKey, tuple[int, bytes]]) -> None:
        """Keep the digests at the positions of snapshots."""
        for key, (position, _) in snapshots.items():
            recorded = self.events[position - 1]
            if recorded is not None:
                self._snapshots[key] = position, recorded.digest

    def damage(self, key: ShapeKey, step: DamageLog) -> int:
        """Flip a byte of an event, or lose an event that is not the newest; give its position.

        What is lost at the end cannot be told from a shorter history, but by what others remember.
        """
        mine = self._of_shape.get(key, [])
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

    def loaded(self, key: ShapeKey, plain: LoadedShape) -> LoadedShape:
        """Give what was loaded as far as it is sound, and where it is not."""
        chain = ShapeChain()
        if plain.snapshot is not None:
            position, digest = self._snapshots.get(key, (0, ""))
            chain = ShapeChain(None, digest, position)
        events: list[LogEvent] = []
        try:
            for recorded in self._there(key, chain.position, plain.last_position):
                events.append(chain.take(recorded, str(key)))  # noqa: PERF401 - those before damage
        except LogDamagedError as error:
            return LoadedShape(plain.last_position, plain.snapshot, events, error.damage)
        return LoadedShape(plain.last_position, plain.snapshot, events)

    def _there(self, key: ShapeKey, after: int, last: int) -> Iterable[Recorded]:
        for position in self._of_shape.get(key, ()):
            recorded = self.events[position - 1]
            if recorded is not None and after < position <= last:
                yield recorded

    @property
    def missing(self) -> int:
        """How many positions hold no event."""
        return sum(1 for each in self.events if each is None)
