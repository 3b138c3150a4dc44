"""What ``take_turn`` decides with: commands, and everything that is neither command nor state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

import msgspec

from events.intake import IntakeData
from events.log import ShapeEvent
from events.manifest import ProviderConfigSpec
from events.names import ShapeKey
from reconciler.kinds import Kind
from reconciler.shape.owner_label import owner
from reconciler.shape.state import ShapeState

Record = Callable[[ShapeEvent], ShapeState]
"""Records an event in the turn and gives the state after it."""


class Command(msgspec.Struct, frozen=True):
    """One intake message for a shape: where it stands, who sent it, what it says.

    ``first_position`` is where a message of its source and id stood first, as far as the intake
    goes back; None if nobody has looked. ``stored_at`` is when the bus got it, by its clock.
    """

    position: int
    message_id: str
    actor: str
    data: IntakeData
    first_position: int | None = None
    stored_at: datetime | None = None


class Context(msgspec.Struct, frozen=True):
    """The inputs of a decision that are not in the shape's own log.

    ``jitter`` is in [0, 1). ``kind`` is None when no such kind is registered here; ``config`` is
    None when the ``ProviderConfig`` that the shape names is not declared. ``configs`` gives any of
    them by name: a declaration may change which one a shape uses. ``epoch`` names the log's last
    restoration, empty if there was none. ``providers`` are those of the registered kinds, each
    with its kinds, None where that is not known. ``missing_hint`` says what to do about a missing
    kind or provider: it is asked for the words of a refusal only, which is no event.
    """

    key: ShapeKey
    now: datetime
    jitter: float
    log_id: str
    kind: Kind | None
    configs: dict[str, ProviderConfigSpec]
    epoch: str = ""
    providers: Mapping[str, tuple[str, ...]] | None = None
    missing_hint: Callable[[datetime], str] = lambda _now: "install it where the roles run"

    @property
    def owner(self) -> str:
        """The owner label's value for this shape."""
        return owner(self.log_id, self.key)
