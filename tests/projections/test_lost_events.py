"""Which losses at the end of the log the rows explain, and which prevent a role from starting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from events.names import ResourceKey
from projections.read_models import SCHEMA, Checkpoint, ReadModels, encode_checkpoint
from projections.status import StatusRow
from reconciler.roles.projector.lost_events import (
    LogTooShortError,
    NamedRows,
    find_log_losses,
    mark_log_losses,
)

FOO = ResourceKey("default", "Shape", "foo")
BAR = ResourceKey("default", "Shape", "bar")


@dataclass
class Log:
    """The end of a log: the newest position and version of each resource."""

    last: int
    newest: dict[ResourceKey, tuple[int, int]]
    state: tuple[str, int] = ("", 0)
    missing: int = 0

    async def newest_positions(self, keys: Sequence[ResourceKey]) -> Mapping[ResourceKey, int]:
        return {key: self.newest.get(key, (0, 0))[0] for key in keys}

    async def newest_versions(self, keys: Sequence[ResourceKey]) -> Mapping[ResourceKey, int]:
        return {key: self.newest.get(key, (0, 0))[1] for key in keys}

    async def last_position(self) -> int:
        return self.last

    async def missing_events(self) -> int:
        return self.missing

    async def newest_state(self) -> tuple[str, int]:
        return self.state


@dataclass
class Rows:
    """The rows of read models."""

    models: ReadModels = field(default_factory=ReadModels)

    async def checkpoint(self) -> tuple[bytes, int]:
        stored = Checkpoint(SCHEMA, self.models.losses, self.models.position)
        return encode_checkpoint(stored), 1

    async def read_matching(self, pattern: str) -> Mapping[str, bytes]:
        return {name: row for name, row in self.models.rows() if name.startswith(pattern[:-1])}


def models_at(position: int, *rows: tuple[ResourceKey, int, int]) -> ReadModels:
    """Return read models with these rows: key, and position and version of the newest event."""
    models = ReadModels()
    for key, newest, version in rows:
        row = StatusRow(key.namespace, key.kind, key.name)
        row.position, row.version = newest, version
        models.status[str(key)] = row
    models.set_checkpoint(Checkpoint(SCHEMA, position=position))
    return models


async def lost_resources(log: Log, models: ReadModels) -> list[str]:
    lost = await find_log_losses(log, cast("NamedRows", Rows(models)), models)
    return sorted(each.resource for each in lost)


async def build_log_after_loss() -> tuple[Log, ReadModels]:
    """Return a log that lost positions 7 to 9 of foo, which the roles accepted; it ends at 6."""
    models = models_at(9, (FOO, 9, 6), (BAR, 6, 3))
    log = Log(6, {FOO: (5, 3), BAR: (6, 3)}, state=(str(FOO), 9))
    await mark_log_losses(log, models)
    return log, models


async def test_an_accepted_loss_stays_accepted_as_the_log_grows() -> None:
    log, models = await build_log_after_loss()
    for _ in range(4):
        assert await lost_resources(log, models) == [str(FOO)]
        log.last += 1
        models.position = log.last


async def test_a_cached_state_of_another_resource_is_evidence_of_another_loss() -> None:
    log, models = await build_log_after_loss()
    log.state = (str(BAR), 8)
    with pytest.raises(LogTooShortError, match="8 or later, according to the cached states"):
        await lost_resources(log, models)


async def test_an_interrupted_start_accepts_the_same_loss_again() -> None:
    """The first damage was stored, but the checkpoint was not."""
    log, models = await build_log_after_loss()
    restarted = models_at(9, (FOO, 9, 6), (BAR, 6, 3))
    restarted.damage[str(FOO)] = models.damage[str(FOO)]
    assert await lost_resources(log, restarted) == [str(FOO)]


async def test_a_second_loss_is_counted_without_the_events_of_the_first() -> None:
    log, models = await build_log_after_loss()
    models.position = models.status[str(BAR)].position = 8
    models.status[str(BAR)].version = 5
    assert await lost_resources(log, models) == [str(BAR), str(FOO)]

    log, models = await build_log_after_loss()
    models.position = 8  # positions 7 and 8 belong to no row
    with pytest.raises(LogTooShortError):
        await lost_resources(log, models)


async def test_events_lost_within_the_log_do_not_explain_its_end() -> None:
    models = models_at(9, (FOO, 7, 6), (BAR, 6, 3))
    log = Log(6, {FOO: (1, 1), BAR: (6, 3)}, missing=4)
    with pytest.raises(LogTooShortError):
        await lost_resources(log, models)


async def test_an_unreadable_event_does_not_explain_other_losses() -> None:
    models = models_at(9, (FOO, 7, 6), (BAR, 6, 3))
    log = Log(6, {FOO: (5, 0), BAR: (6, 3)})
    with pytest.raises(LogTooShortError):
        await lost_resources(log, models)
