"""What an older release decided, under a subject that names no configuration, is still done."""

from __future__ import annotations

import pytest

from events.integrity import LogDamage
from events.log import log_class
from events.subjects import log
from infra.bus.streams import LOG
from infra.jetstream.reads import read_subject
from tests.scenarios.harness import World, api_config, shape

NAMES = [f"foo-{number}" for number in range(3)]


async def test_an_action_under_an_older_subject_is_handed_out_and_no_damage(
    bare_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = bare_world
    with monkeypatch.context() as older:
        older.setattr("infra.bus.event_log.log_place", log_class)
        await world.start_reconciler(("decider",))
        await world.configure(api_config(world.human.url))
        for name in NAMES:
            await world.declare(name)
        for name in NAMES:
            subject = log(shape(name), "action")
            await world.until(lambda subject=subject: read_subject(world.nc, LOG, subject), name)
        await world.stop_reconciler()

    await world.start_reconciler()
    for name in NAMES:
        await world.until_outcome(name, "Converged")
        await world.declare(name, color="Blue")
        await world.until_outcome(name, "Converged", generation=2)

    assert await world.human.effects(NAMES[0]) == ["POST", "PUT"]
    damage: list[LogDamage] = []
    async with world.log.follow(damaged=damage.append) as feed:
        while not feed.caught_up:
            await feed.next_events()
    assert damage == []
