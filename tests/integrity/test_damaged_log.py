"""Damage to the log is detected, reported with its position, held, and repaired."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from events.log import SpecDeclared
from events.names import ResourceKey
from events.subjects import log as log_subject
from infra.bus.streams import LOG
from infra.jetstream.connection import api_request
from infra.jetstream.errors import IncompatibleStreamError
from infra.jetstream.publish import publish
from infra.jetstream.reads import stream_state
from reconciler.roles.decider import decider
from reconciler.roles.projector import scrubber
from tests.integrity.operator import Operator, list_blocks
from tests.scenarios.harness import World, api_config, shape

CONFIG = ResourceKey("system", "ProviderConfig", "default")
NAMES = ("foo", "bar", "baz")


async def _create_history(world: World) -> None:
    """Create a log in which each of three resources was declared twice."""
    await world.start_reconciler()
    await world.configure(api_config(world.human.url))
    for color in ("Red", "Blue"):
        for name in NAMES:
            await world.declare(name, color=color)
            await world.until_outcome(name, "Converged", generation=1 if color == "Red" else 2)
    await world.until_settled()
    await world.stop_reconciler()


async def _stop_server(world: World) -> None:
    await world.server.stop()


async def _start_server(world: World) -> None:
    await world.start_nats()

    async def is_connected() -> bool:
        return world.nc.is_connected

    await world.until(is_connected, "reconnected")


def _flip_byte(world: World, event_id: str) -> None:
    """Change a byte in the middle of one event, on the disk."""
    (block,) = list_blocks(world.server.data_dir, LOG)
    content = bytearray(block.read_bytes())
    position = content.index(f'"id":"{event_id}"'.encode())
    content[position + 8] ^= 0xFF
    block.write_bytes(content)


async def _outcomes(world: World, operator: Operator) -> dict[str, tuple[str, str]]:
    rows = (await operator.run_ok(world.server.url, "get", "Shape", "-o", "json")).json
    return {
        row["metadata"]["name"]: (row["status"]["outcome"], row["status"]["reason"]) for row in rows
    }


async def _read_damage(world: World, operator: Operator) -> Sequence[dict[str, str]]:
    result = await operator.run(world.server.url, "replay", "-o", "json")
    assert result.status == 1
    return result.json["integrity"]["damage"]


async def _expect_held(world: World, operator: Operator, names: Sequence[str]) -> None:
    """Check that only the named resources are held, and that doctor reports them."""
    url = world.server.url

    async def are_held() -> bool:
        outcomes = await _outcomes(world, operator)
        return all(outcomes[name] == ("Held", "LogDamaged") for name in names)

    await world.until(are_held, f"{names} shown as held")
    finding = await operator.diagnose(url, "log")
    assert finding["status"] == "fail"
    for name in names:
        assert f"default/Shape/{name}" in finding["details"] or len(names) > 2
        description = (await operator.run_ok(url, "describe", f"Shape/{name}", "-o", "json")).json
        assert (description["status"]["outcome"], description["status"]["reason"]) == (
            "Held",
            "LogDamaged",
        )
    for name in set(NAMES) - set(names):
        await world.declare(name, color="Green")
        await world.until_outcome(name, "Converged", generation=3)


async def test_a_changed_byte_holds_one_resource_and_the_newest_backup_repairs_it(
    bare_world: World, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decider, "_FIRST_DELAY_SECONDS", 0.05)
    world, url = bare_world, bare_world.server.url
    await _create_history(world)
    await operator.run_ok(url, "backup", "sound")
    await world.start_reconciler()
    await world.declare("foo", color="Yellow")  # after the backup: must not be lost
    await world.until_outcome("foo", "Converged", generation=3)
    await world.until_settled()
    await world.stop_reconciler()
    await _stop_server(world)
    _flip_byte(world, "default/Shape/foo@3")
    await _start_server(world)

    damage_entries = await _read_damage(world, operator)
    assert {each.get("resource", "") for each in damage_entries} == {"", "default/Shape/foo"}
    assert all("expected" in each for each in damage_entries)

    await world.start_reconciler()
    await _expect_held(world, operator, ["foo"])
    effects = await world.human.effects("foo")
    await world.declare("foo", color="Black")

    async def has_dead_letter() -> bool:
        return bool(await world.dead_letters())

    await world.until(has_dead_letter, "the declaration is kept as a dead letter")
    (letter,) = await world.dead_letters()
    assert letter.stage == "decision"
    assert (
        "the resource is held because its log is damaged: default/Shape/foo, position"
        in letter.reason
    )
    assert await world.human.effects("foo") == effects, "a held resource has no effects"
    await world.stop_reconciler()

    refused = await operator.run(url, "restore", "sound")
    assert refused.status == 1
    assert f"use --replace {world.log.log_id}" in refused.err
    repaired = await operator.run_ok(
        url, "restore", "sound", "--replace", world.log.log_id, "-o", "json"
    )
    assert repaired.json["lost"] == 0
    assert repaired.json["continued"] > 0
    assert repaired.json["damage"] == []
    await world.start_reconciler()
    await world.until_outcome("foo", "Converged", generation=4)
    assert (await world.human.get("foo"))["color"] == "Black", "the intake had kept it"
    assert set((await _outcomes(world, operator)).values()) == {("Converged", "AsDeclared")}
    assert (await operator.diagnose(url, "log"))["status"] == "ok"
    assert await world.human.effects("foo") == ["POST", "PUT", "PUT", "PUT"]


async def test_a_deletion_in_a_log_in_use_is_detected_soon(
    bare_world: World, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows report Converged until the scrubber, which reads the log when events are missing."""
    monkeypatch.setattr(scrubber, "CHECK_SECONDS", 0.5)
    monkeypatch.setattr(scrubber, "FIRST_DELAY_SECONDS", 3_600.0)
    world = bare_world
    await _allow_deletions(world)
    await _create_history(world)
    second = (await world.client.history(shape("foo")))[1].position
    await world.start_reconciler()
    await world.until_settled()
    await api_request(world.nc, f"STREAM.MSG.DELETE.{LOG}", {"seq": second})
    await _expect_held(world, operator, ["foo"])


async def _allow_deletions(world: World) -> None:
    """Recreate the empty log without its protection, as only an administrator can."""
    info = await api_request(world.nc, f"STREAM.INFO.{LOG}", {})
    await api_request(world.nc, f"STREAM.DELETE.{LOG}", {})
    await api_request(world.nc, f"STREAM.CREATE.{LOG}", info["config"] | {"deny_delete": False})


async def test_a_truncated_log_holds_the_resources_that_lost_events(
    bare_world: World, operator: Operator
) -> None:
    world = bare_world
    await _create_history(world)
    await operator.run_ok(world.server.url, "backup", "sound")
    last = await world.log_position()
    await _stop_server(world)
    (block,) = list_blocks(world.server.data_dir, LOG)
    content = block.read_bytes()
    block.write_bytes(content[: content.index(b'"id":"default/Shape/baz@6"')])
    block.with_name("index.db").unlink()  # without it, the server accepts the shorter log
    await _start_server(world)
    assert (await stream_state(world.nc, LOG)).last_seq < last

    verified = await operator.run(world.server.url, "replay", "--verify", "-o", "json")
    assert verified.status == 1
    await world.start_reconciler()
    await _expect_held(world, operator, ["baz"])
    await world.restart_reconciler()
    await _expect_still_held(world, operator)
    await world.stop_reconciler()
    await operator.run_ok(world.server.url, "restore", "sound", "--replace", world.log.log_id)
    await world.start_reconciler()

    async def has_converged() -> bool:  # unchanged, or as declared while it was held
        return (await _outcomes(world, operator))["baz"] == ("Converged", "AsDeclared")

    await world.until(has_converged, "baz converges")
    await world.until_outcome("foo", "Converged", generation=3)
    assert (await operator.diagnose(world.server.url, "log"))["status"] == "ok"


async def test_a_damaged_newest_event_does_not_hide_other_resources(
    bare_world: World, operator: Operator
) -> None:
    """The server omits the messages that would follow it."""
    world = bare_world
    await _create_history(world)
    keys = [shape(name) for name in NAMES]
    before = await world.log.newest_positions(keys)
    newest = (await world.history("foo"))[-1]
    await _stop_server(world)
    _flip_byte(world, newest.id)
    await _start_server(world)

    after = await world.log.newest_positions(keys)
    assert after == {**before, shape("foo"): before[shape("foo")] - 1}
    loaded = await world.log.load(keys)
    assert {key: each.last_position for key, each in loaded.items()} == after
    await world.start_reconciler()
    await world.declare("foo", color="Yellow")
    await _expect_held(world, operator, ["foo"])


async def test_an_older_configuration_does_not_replace_an_unreadable_one(
    bare_world: World, operator: Operator
) -> None:
    """The scope was exclusive at first and then shared; the second event is lost."""
    world, url = bare_world, bare_world.server.url
    await world.start_reconciler()
    await world.configure(api_config(world.human.url, exclusive=True))
    await world.configure(api_config(world.human.url))
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")
    await world.human.create("theirs")
    await world.until_outcome("theirs", "Unowned")
    await world.until_settled()
    _, second = [each for each in await world.history(CONFIG) if type(each.data) is SpecDeclared]
    await operator.run_ok(url, "backup", "sound")
    await world.stop_reconciler()
    await _stop_server(world)
    _flip_byte(world, second.id)
    await _start_server(world)

    await world.start_reconciler()
    await world.declare("bar")
    await world.until_outcome("bar", "Held", reason="ProviderConfigMissing")
    await world.until_settled()
    assert await world.human.effects("theirs") == ["human POST"], "left alone"
    await world.stop_reconciler()

    await operator.run_ok(url, "restore", "sound", "--replace", world.log.log_id)
    await world.start_reconciler()
    await world.until_outcome("bar", "Converged")
    assert await world.human.effects("theirs") == ["human POST"], "left alone"


async def _expect_still_held(world: World, operator: Operator) -> None:
    """Check that a new process also holds it, even though the log is longer again."""
    await world.declare("baz", color="Green")
    await world.declare("bar", color="Yellow")
    await world.until_outcome("bar", "Converged", generation=4)
    assert (await _outcomes(world, operator))["baz"] == ("Held", "LogDamaged")
    assert (await world.human.get("baz"))["color"] == "Blue"


async def test_a_log_that_lost_its_beginning_stops_roles_until_it_is_restored(
    bare_world: World, operator: Operator
) -> None:
    world = bare_world
    await _create_history(world)
    await operator.run_ok(world.server.url, "backup", "sound")
    await _stop_server(world)
    for block in list_blocks(world.server.data_dir, LOG):
        block.unlink()
    await _start_server(world)
    assert "Missing" in {each["problem"] for each in await _read_damage(world, operator)}
    with pytest.raises(IncompatibleStreamError, match="begins at position"):
        await world.start_reconciler()
    assert (await operator.diagnose(world.server.url, "log beginning"))["status"] == "fail"
    await operator.run_ok(world.server.url, "restore", "sound", "--replace", world.log.log_id)
    await world.start_reconciler()
    await world.until_observed_again()
    assert set((await _outcomes(world, operator)).values()) == {("Converged", "AsDeclared")}
    for name in NAMES:
        assert await world.human.effects(name) == ["POST", "PUT"]


GARBAGE = {
    "is not an event": (log_subject(shape("foo"), "fact"), b"hello"),
    "has a subject of its own": ("log.default.Shape.foo.fact.more", b"hello"),
    "is from a newer release": (
        log_subject(shape("foo"), "fact"),
        b'{"id":"default/Shape/foo@7","source":"reconciler","type":"reconciler.resource.Teleported",'
        b'"subject":"default/Shape/foo","time":"2027-01-01T00:00:00Z","resourceversion":7,'
        b'"data":{"event":"Teleported","to":"Mars"},"specversion":"1.0"}',
    ),
}


@pytest.mark.parametrize("what", GARBAGE)
async def test_garbage_in_a_history_holds_only_that_resource(
    bare_world: World, operator: Operator, what: str
) -> None:
    world = bare_world
    await _create_history(world)
    await world.start_reconciler()
    subject, payload = GARBAGE[what]
    await publish(world.nc, subject, payload)
    await _expect_held(world, operator, ["foo"])
    await world.restart_reconciler()
    outcomes = await _outcomes(world, operator)
    assert outcomes["foo"] == ("Held", "LogDamaged")


async def test_garbage_without_a_resource_is_reported_by_doctor_and_causes_no_hold(
    bare_world: World, operator: Operator
) -> None:
    world = bare_world
    await _create_history(world)
    await world.start_reconciler()
    await publish(world.nc, "log.lost", b"hello")
    await world.declare("foo", color="Yellow")
    await world.until_outcome("foo", "Converged", generation=3)
    finding = await operator.diagnose(world.server.url, "log")
    assert finding["status"] == "fail"
    assert "found log.lost" in finding["details"]
