"""Fold the log into the read models that a command requires."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from nats.aio.client import Client

from events.integrity import LogDamage
from infra.bus.event_log import open_log
from projections.read_models import ReadModels
from reconciler.cli.progress import progress_bar
from reconciler.sdk.log_replay import (
    LogReplay,
    closing,
    read_losses,
    read_stored_models,
    replay_to,
)
from reconciler.sdk.moments import Moment, When, moment

MAX_EVENTS = 300_000
"""Length of the longest log that `doctor` reads in full, instead of only after the stored rows."""


@asynccontextmanager
async def replay_from_start(nc: Client) -> AsyncGenerator[LogReplay]:
    """Return a replay of the whole log that has not read any event yet.

    Its damage includes events that the log has lost, according to the stored rows.
    """
    log = await open_log(nc)
    replay = LogReplay(log)
    replay.damage = await read_losses(nc, log)
    async with closing(replay):
        yield replay


@asynccontextmanager
async def replay_for_checks(nc: Client, *, full: bool) -> AsyncGenerator[LogReplay]:
    """Return a replay of the whole log, or if it is long, of the events after the stored rows.

    Its damage includes events that the log has lost, according to the stored rows.
    """
    log = await open_log(nc)
    stored = await read_stored_models(nc, log)
    replay = LogReplay(log, stored)
    if full or await log.last_position() <= MAX_EVENTS:
        losses = replay.damage
        replay = LogReplay(log)
        replay.damage = losses
    async with closing(replay):
        yield replay


async def current_models(nc: Client) -> ReadModels:
    """Return the current read models, whether or not a projector is running."""
    log = await open_log(nc)
    async with closing(LogReplay(log, await read_stored_models(nc, log))) as replay:
        await replay.advance()
        return replay.models


class PastModels(NamedTuple):
    """The read models as of a moment."""

    moment: Moment
    models: ReadModels
    damage: Sequence[LogDamage]


async def models_as_of(nc: Client, when: When, tokens: str) -> PastModels:
    """Return the read models of matching resources, as of a moment.

    Raises:
        PositionNotFoundError: the log does not contain the moment.
    """
    await open_log(nc)
    at = await moment(nc, when)
    with progress_bar("reading the log", at.position) as progress:
        async with replay_to(nc, at.position, tokens=tokens, progress=progress) as replay:
            return PastModels(at, replay.models, replay.damage)
