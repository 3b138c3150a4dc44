"""A log or intake that is shorter than other streams show is reported, refused and restored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from nats.aio.client import Client

from infra.bus.event_log import JetStreamLog
from infra.bus.removals import find_intake_problem
from infra.bus.rows import JetStreamRows
from infra.bus.streams import (
    INTAKE,
    LOG,
    ROWS,
    ROWS_PREFIX,
    STATES,
    SUBJECTS,
    decider_consumers,
    find_log,
    find_log_id,
)
from infra.jetstream.connection import api_request
from infra.jetstream.errors import IncompatibleStreamError, StreamReplacedError
from infra.jetstream.publish import publish
from infra.jetstream.reads import stream_state
from infra.jetstream.topology import delete_consumer, delete_stream
from projections.read_models import (
    CHECKPOINT,
    Checkpoint,
    damage_name,
    encode_checkpoint,
    status_name,
)
from reconciler.ports import ResourceAppend
from reconciler.roles.projector.lost_events import LogTooShortError
from reconciler.wiring import initialize, run_roles
from tests.bus.histories import events, new_key, remove_metadata
from tests.integrity.operator import Operator, list_blocks
from tests.scenarios.harness import World, api_config, shape


async def _store_evidence(nc: Client, log: JetStreamLog, witness: str) -> None:
    """Store data that only a longer log can have produced."""
    if witness == "the cached states":
        await log.save_states({new_key(): (9, b"{}")})
    else:
        checkpoint = encode_checkpoint(Checkpoint(schema=1, position=9))
        await JetStreamRows(nc).save({CHECKPOINT: checkpoint}, 0)


@pytest.mark.parametrize("witness", ["the cached states", "the stored rows"])
async def test_a_log_shorter_than_its_states_or_rows_is_not_used(
    log: JetStreamLog, bus: Client, fresh_bus_url: str, operator: Operator, witness: str
) -> None:
    key = new_key()
    await log.append([ResourceAppend(key, events(key, 1, 3), 0)])
    await operator.run_ok(fresh_bus_url, "backup", "sound")
    await _store_evidence(bus, log, witness)
    message = f"expected a log that ends at position 9 or later, according to {witness}, found one"

    with pytest.raises(LogTooShortError, match=message):
        async with run_roles(bus, ["decider"]):
            pass
    for command in (("replay",), ("replay", "--verify"), ("backup", "short")):
        result = await operator.run(fresh_bus_url, *command)
        assert (result.status, message in result.out.replace("\n", " ")) == (1, True), command
    finding = await operator.diagnose(fresh_bus_url, "log")
    assert finding["status"] == "fail"
    assert message in finding["details"]
    refused = await operator.run(fresh_bus_url, "restore", "sound")
    assert refused.status == 1
    assert f"use --replace {log.log_id}" in refused.err
    assert message in refused.err
    assert (await stream_state(bus, STATES if "states" in witness else ROWS)).messages

    await operator.run_ok(fresh_bus_url, "restore", "sound", "--replace", log.log_id)
    async with run_roles(bus, ["decider"]):
        pass
    assert (await operator.diagnose(fresh_bus_url, "log"))["status"] == "ok"


async def test_no_remedy_for_a_truncated_log_removes_the_evidence(
    bare_world: World, operator: Operator
) -> None:
    world, url = bare_world, bare_world.server.url
    await world.start_reconciler()
    await world.configure(api_config(world.human.url))
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")
    await world.until_settled()
    await world.stop_reconciler()
    await world.server.stop()
    _truncate_log_before(world, "default/Shape/foo@3")
    await world.start_nats()

    for _ in range(2):  # before a role has marked the loss, and after
        for command in ("replay", "replay --verify", "replay --repair", "doctor"):
            result = await operator.run(url, *command.split())
            error_text = " ".join((result.out + result.err).split())
            assert result.status == 1, command
            assert "Keep all streams" in error_text
            assert "restore" in error_text
            for word in ("purge", "stream rm", "consumer rm", "The log is correct", "--repair"):
                assert word not in error_text, (command, error_text)
        await world.start_reconciler()
        await world.until(_is_held(operator, url), "foo is held")
        await world.stop_reconciler()


async def test_no_role_starts_if_a_deleted_resource_lost_its_newest_events(
    bare_world: World, operator: Operator
) -> None:
    """Its row was removed, so no row shows the loss. The earlier events would recreate it."""
    world, url = bare_world, bare_world.server.url
    await world.start_reconciler()
    await world.configure(api_config(world.human.url))
    await world.declare("foo")
    await world.declare("bar")
    for name in ("foo", "bar"):
        await world.until_outcome(name, "Converged")
    await world.withdraw("foo")
    await world.until_outcome("foo", "Deleted")
    newest = (await world.history("foo"))[-1]
    await world.declare("bar", color="Green")  # which loses events, too, and has a row
    await world.until_outcome("bar", "Converged", generation=2)
    await world.until_settled()
    await world.stop_reconciler()
    await world.server.stop()
    _truncate_log_before(world, newest.id)
    await world.start_nats()

    for _ in range(2):  # the second attempt fails, too
        with pytest.raises(LogTooShortError, match="Keep all streams"):
            await world.start_reconciler()
        await world.until_reconciler_ends()
    finding = await operator.diagnose(url, "log")
    assert finding["status"] == "fail"
    assert "does not start any roles" in finding["remedy"]
    assert await world.human.effects("foo") == ["POST", "DELETE"]


@pytest.mark.parametrize("changes", [0, 6], ids=["below-the-first-end", "above-the-first-end"])
async def test_no_role_starts_if_a_second_loss_includes_a_deletion(
    bare_world: World, changes: int
) -> None:
    """The first loss was accepted: neither its end nor its events explain another one."""
    world = bare_world
    await world.start_reconciler()
    await world.configure(api_config(world.human.url))
    for name in ("foo", "bar", "baz"):
        await world.declare(name)
        await world.until_outcome(name, "Converged")
    await world.until_settled()
    foo = len(await world.history("foo"))
    for generation in range(2, 5):
        await world.declare("foo", color=("Green", "Red")[generation % 2])
        await world.until_outcome("foo", "Converged", generation=generation)
    await _lose_from(world, f"{shape('foo')}@{foo + 1}")
    await world.start_reconciler()  # and holds foo
    for generation in range(2, 2 + changes):
        await world.declare("baz", color=("Green", "Red")[generation % 2])
        await world.until_outcome("baz", "Converged", generation=generation)
    bar = len(await world.history("bar"))
    await world.withdraw("bar")
    await world.until_outcome("bar", "Deleted")
    await _lose_from(world, f"{shape('bar')}@{bar + 1}")

    for _ in range(2):
        with pytest.raises(LogTooShortError, match="Keep all streams"):
            await world.start_reconciler()
        await world.until_reconciler_ends()
    assert await world.human.effects("bar") == ["POST", "DELETE"]


async def test_roles_start_if_a_second_loss_includes_only_resources_with_a_row(
    bare_world: World, operator: Operator
) -> None:
    world, url = bare_world, bare_world.server.url
    await world.start_reconciler()
    await world.configure(api_config(world.human.url))
    for name in ("foo", "bar"):
        await world.declare(name)
        await world.until_outcome(name, "Converged")
    await world.until_settled()
    for name in ("foo", "bar"):
        length = len(await world.history(name))
        await world.declare(name, color="Green")
        await world.until_outcome(name, "Converged", generation=2)
        await _lose_from(world, f"{shape(name)}@{length + 1}")
        await world.start_reconciler()

    for _ in range(2):
        await world.stop_reconciler()
        await world.start_reconciler()
    rows = (await operator.run_ok(url, "get", "Shape", "-o", "json")).json
    assert [row["status"]["reason"] for row in rows] == ["LogDamaged", "LogDamaged"]


async def _lose_from(world: World, event_id: str) -> None:
    """Stop everything once the rows are stored, and truncate the log before an event."""
    await world.until_settled()
    await world.stop_reconciler()
    await world.server.stop()
    _truncate_log_before(world, event_id)
    await world.start_nats()


def _truncate_log_before(world: World, event_id: str) -> None:
    """Truncate the log of a stopped server before an event."""
    (block,) = list_blocks(world.server.data_dir, LOG)
    content = block.read_bytes()
    block.write_bytes(content[: content.index(f'"id":"{event_id}"'.encode())])
    block.with_name("index.db").unlink()


def _is_held(operator: Operator, url: str) -> Callable[[], Awaitable[bool]]:
    async def is_held() -> bool:
        (row,) = (await operator.run_ok(url, "get", "Shape", "-o", "json")).json
        return (row["status"]["outcome"], row["status"]["reason"]) == ("Held", "LogDamaged")

    return is_held


async def _recreate_intake(world: World) -> None:
    config = (await api_request(world.nc, f"STREAM.INFO.{INTAKE}", None))["config"]
    await delete_stream(world.nc, INTAKE)
    await api_request(world.nc, f"STREAM.CREATE.{INTAKE}", config)


async def _truncate_intake(world: World) -> None:
    await world.server.stop()
    (block,) = list_blocks(world.server.data_dir, INTAKE)
    content = block.read_bytes()
    block.write_bytes(content[: len(content) // 2])
    block.with_name("index.db").unlink()
    await world.start_nats()

    async def is_connected() -> bool:
        return world.nc.is_connected

    await world.until(is_connected, "reconnected")


@pytest.mark.parametrize("damage", [_recreate_intake, _truncate_intake])
async def test_roles_and_doctor_refuse_a_shorter_intake_and_its_declarations_are_kept(
    bare_world: World, operator: Operator, damage: Callable[[World], Awaitable[None]]
) -> None:
    world, url = bare_world, bare_world.server.url
    await world.start_reconciler()
    await world.configure(api_config(world.human.url))
    for name in ("foo", "bar"):
        for color in ("Red", "Green"):
            await world.declare(name, color=color)
        await world.until_outcome(name, "Converged", generation=2)
    await world.until_settled()
    await world.stop_reconciler()
    await damage(world)
    await world.declare("foo", color="Blue")  # at a position that the log already refers to
    await world.declare("baz")
    assert await find_intake_problem(world.nc)

    with pytest.raises(StreamReplacedError, match="Do not delete anything"):
        await world.start_reconciler()
    finding = await operator.diagnose(url, "intake positions")
    assert finding["status"] == "fail"
    assert "Do not delete anything. Stop all roles" in finding["remedy"]
    await operator.run_ok(url, "backup", "now")
    restored = (await operator.run_ok(url, "restore", "now", "-o", "json")).json
    assert (restored["declarations"], restored["lost"]) == (2, 0)
    await world.start_reconciler()
    await world.until_outcome("foo", "Converged", generation=3)
    await world.until_outcome("baz", "Converged")
    assert (await world.human.get("foo"))["color"] == "Blue"
    assert (await world.human.get("bar"))["color"] == "Green"
    again = await operator.run_ok(url, "doctor", "-o", "json")
    assert "intake positions" not in {finding["check"] for finding in again.json}


async def test_a_deleted_log_is_not_replaced_by_an_empty_one(
    bare_world: World, operator: Operator
) -> None:
    world, url = bare_world, bare_world.server.url
    await world.start_reconciler()
    await world.configure(api_config(world.human.url))
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")
    await world.until_settled()
    await operator.run_ok(url, "backup", "sound")
    await world.stop_reconciler()
    await delete_stream(world.nc, LOG)

    for command in ("get", "doctor", "replay", "init", "backup new"):
        refused = await operator.run(url, *command.split())
        assert refused.status == 1, command
        assert f"stream {LOG} was deleted or recreated, but stream {ROWS} still has" in refused.err
    with pytest.raises(IncompatibleStreamError, match="Keep all streams"):
        await world.start_reconciler()
    await api_request(world.nc, f"STREAM.CREATE.{LOG}", {"name": LOG, "subjects": ["log.>"]})
    with pytest.raises(IncompatibleStreamError, match="Keep all streams"):
        await initialize(world.nc)
    await delete_stream(world.nc, LOG)

    await operator.run_ok(url, "restore", "sound")
    await world.start_reconciler()
    await world.until_observed_again()
    await world.until_outcome("foo", "Converged")
    assert await world.human.effects("foo") == ["POST"]


async def test_rows_that_differ_are_rebuilt_and_nothing_is_deleted(
    bare_world: World, operator: Operator
) -> None:
    world, url = bare_world, bare_world.server.url
    await world.start_reconciler()
    await world.configure(api_config(world.human.url))
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")
    await world.until_settled()
    await world.stop_reconciler()
    await publish(world.nc, ROWS_PREFIX + status_name(shape("foo")), b"{}")

    verified = await operator.run(url, "replay", "--verify")
    assert verified.status == 1
    assert "The log is correct, but the rows are not. Run `reconciler replay --repair" in (
        " ".join(verified.out.split())
    )
    position = (await JetStreamRows(world.nc).get([CHECKPOINT]))[CHECKPOINT]
    repaired = await operator.run_ok(url, "replay", "--repair")
    assert "The rows are marked" in repaired.out
    marked = (await JetStreamRows(world.nc).get([CHECKPOINT]))[CHECKPOINT]
    assert marked.replace(b"false", b"true") == position, "it still shows the length of the log"
    assert (await operator.run_ok(url, "get", "Shape", "foo", "-o", "json")).json
    await world.start_reconciler()
    await world.until_settled()
    await world.stop_reconciler()
    verified = await operator.run_ok(url, "replay", "--verify")
    assert "stored rows" in verified.out
    assert "incomplete" not in verified.out


async def test_an_older_row_is_not_read_and_its_drift_is_corrected(
    bare_world: World, operator: Operator
) -> None:
    """Its next event would not follow it, as if the log had lost the events in between."""
    world, url = bare_world, bare_world.server.url
    name = status_name(shape("foo"))
    await world.start_reconciler()
    await world.configure(api_config(world.human.url))
    await world.declare("foo", color="Red")
    await world.until_outcome("foo", "Converged")
    await world.stop_reconciler()
    older = (await JetStreamRows(world.nc).get([name]))[name]
    await world.start_reconciler()
    await world.declare("foo", color="Blue")
    await world.until_outcome("foo", "Converged", generation=2)
    await world.stop_reconciler()
    await publish(world.nc, ROWS_PREFIX + name, older)

    shown = (await operator.run_ok(url, "get", "Shape", "foo", "-o", "json")).json
    assert shown["status"]["generation"] == 2, shown
    assert [row.generation for row in await world.client.statuses() if row.name == "foo"] == [2]
    await world.human.update("foo", color="Green")
    await world.start_reconciler()
    await world.until_observed_again()
    assert (await world.human.get("foo"))["color"] == "Blue"
    await world.until_settled()
    await world.stop_reconciler()
    assert (await operator.diagnose(url, "stored rows"))["status"] == "ok"
    await operator.run_ok(url, "replay", "--verify")


@pytest.mark.parametrize("change", ["purged", "overwritten"])
async def test_rows_that_another_client_removed_or_overwrote_are_reported_and_rebuilt(
    bare_world: World, operator: Operator, change: str
) -> None:
    world, url = bare_world, bare_world.server.url
    await world.start_reconciler()
    await world.configure(api_config(world.human.url))
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")
    await world.until_settled()
    await world.stop_reconciler()
    if change == "purged":
        await api_request(world.nc, f"STREAM.PURGE.{ROWS}", None)
    else:
        for row in (CHECKPOINT, damage_name(shape("foo"))):
            await publish(world.nc, ROWS_PREFIX + row, b"not ours")

    for full in ((), ("--full",)):
        findings = (await operator.run(url, "doctor", *full, "--output", "json")).json
        (finding,) = [each for each in findings if each["check"] == "stored rows"]
        assert finding["status"] == "fail"
        assert "projector" in finding["remedy"]
    assert (await operator.run_ok(url, "get", "Shape", "foo", "-o", "json")).json
    await operator.run_ok(url, "backup", change)
    await world.start_reconciler()
    await world.until_settled()
    await world.stop_reconciler()
    assert (await operator.diagnose(url, "stored rows"))["status"] == "ok"
    verified = await operator.run_ok(url, "replay", "--verify")
    assert "match the rebuilt rows" in " ".join(verified.out.split())


async def test_a_log_whose_id_is_only_in_its_events_is_recovered_by_init(
    bare_world: World, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool declared all streams and consumers again, without metadata. No event is missing."""
    world, url = bare_world, bare_world.server.url
    create_log = JetStreamLog.__init__

    def create_restored_log(log: JetStreamLog, *args: Any, **kwargs: Any) -> None:
        create_log(log, *args, **kwargs)
        log.epoch = "e2.e1"  # as after two restores

    monkeypatch.setattr(JetStreamLog, "__init__", create_restored_log)
    await world.start_reconciler()
    await world.configure(api_config(world.human.url))
    await world.declare("foo")
    await world.until_outcome("foo", "Converged")
    await world.until_settled()
    log_id = await find_log_id(world.nc)
    await operator.run_ok(url, "backup", "older")
    await world.declare("bar")
    await world.until_outcome("bar", "Converged")
    await world.until_settled()
    await world.stop_reconciler()
    monkeypatch.undo()
    await remove_metadata(world.nc, SUBJECTS)
    for consumer in decider_consumers():
        await delete_consumer(world.nc, INTAKE, consumer)

    for command in ("get", "backup new", "restore older", "restore older --replace unknown"):
        refused = await operator.run(url, *command.split())
        assert refused.status == 1, command
        assert f"stream {LOG} lost its metadata" in refused.err, command
        assert "reconciler init" in refused.err, command
    await operator.run_ok(url, "init")
    identity = await find_log(world.nc)
    assert (identity.log_id, identity.epoch.partition(".")[2]) == (log_id, "e2.e1")
    await operator.run_ok(url, "backup", "new")
    await world.start_reconciler()
    await world.until_observed_again()
    await world.declare("foo", color="Green")
    await world.until_outcome("foo", "Converged", generation=2)
    await world.until_settled()
    assert await world.human.effects("bar") == ["POST"]
    await operator.run_ok(url, "replay", "--verify")
