"""The log folded into read models, as far as a command wants."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from nats.aio.client import Client

from events.integrity import LogDamage
from infra.bus.event_log import JetStreamLog, open_log
from projections.read_models import ReadModels
from reconciler.cli.progress import progress_bar
from reconciler.sdk.log_replay import LogReplay, closing, losses, replayed_to, stored_models
from reconciler.sdk.moments import Moment, When, moment

MAX_EVENTS = 300_000
"""A longer log is read from where the stored rows end, unless all of it is asked for."""


async def log_of(nc: Client) -> JetStreamLog:
    """Open the log; raises ``NotFoundOnBusError`` where there is none."""
    return await open_log(nc)


@asynccontextmanager
async def replay_from_start(nc: Client) -> AsyncGenerator[LogReplay]:
    """Replay all of the log; nothing is read yet.

    Damage includes what the log has lost, as the stored rows remember it.
    """
    log = await log_of(nc)
    replay = LogReplay(log)
    replay.damage = await losses(nc, log)
    async with closing(replay):
        yield replay


@asynccontextmanager
async def replay_for_checks(nc: Client, *, full: bool) -> AsyncGenerator[LogReplay]:
    """Replay all of the log, or from the stored rows on where that is too much.

    Damage includes what the log has lost, as the stored rows remember it.
    """
    log = await log_of(nc)
    stored = await stored_models(nc, log)
    replay = LogReplay(log, stored)
    if full or await log.last_position() <= MAX_EVENTS:
        remembered = replay.damage
        replay = LogReplay(log)
        replay.damage = remembered
    async with closing(replay):
        yield replay


async def current_models(nc: Client) -> ReadModels:
    """Return all read models as of now, whether or not a projector runs."""
    log = await log_of(nc)
    async with closing(LogReplay(log, await stored_models(nc, log))) as replay:
        await replay.go_on()
        return replay.models


class Stood(NamedTuple):
    """How things stood: at which moment, and all read models as of it."""

    moment: Moment
    models: ReadModels
    damage: Sequence[LogDamage]


async def models_as_of(nc: Client, when: When, tokens: str) -> Stood:
    """Return the read models of the resources that a pattern matches, as of a moment.

    Raises ``NoSuchMomentError``.
    """
    await log_of(nc)
    at = await moment(nc, when)
    with progress_bar("reading the log", at.position) as progress:
        async with replayed_to(nc, at.position, tokens=tokens, progress=progress) as replay:
            return Stood(at, replay.models, replay.damage)
