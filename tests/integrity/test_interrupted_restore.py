"""A restore that is interrupted at any step is completed by the next one without any loss."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from nats.aio.client import Client

from events.epochs import epochs_in
from infra.backup.backup import save_log
from infra.backup.file import Backup
from infra.backup.inspection import inspect
from infra.backup.restoration import (
    RestoredLog,
    RestoreRefusedError,
    restore_log,
)
from infra.bus.event_log import JetStreamLog, open_log
from infra.bus.streams import (
    EPOCH_METADATA,
    INTAKE,
    LISTINGS,
    LOG,
    SUBJECTS,
    existing_log,
    find_log,
    saved_files,
    topology_differences,
)
from infra.embedded import EmbeddedServer
from infra.jetstream.connection import api_request, connect
from infra.jetstream.errors import IncompatibleStreamError, NotFoundOnBusError, StreamFullError
from infra.jetstream.outgoing import MESSAGE_ID
from infra.jetstream.publish import publish
from infra.jetstream.reads import read_subject, stream_state
from infra.jetstream.topology import delete_stream
from reconciler.cli.restore import plan_restore
from reconciler.failpoints import Failpoint, arm
from reconciler.ports import ResourceAppend
from reconciler.wiring import initialize
from tests.bus.histories import events, new_key, remove_metadata


@pytest.fixture
async def nc(fresh_bus_url: str) -> AsyncIterator[Client]:
    client = await connect(fresh_bus_url, name="test")
    await initialize(client)
    yield client
    await client.close()
    arm(None)


@pytest.fixture
async def log(nc: Client) -> JetStreamLog:
    return await open_log(nc)


async def restore(nc: Client, path: Path, replace: str | None) -> RestoredLog:
    backup = Backup(path)
    inspection = inspect(backup, lambda _: None)
    plan = await plan_restore(nc, backup, inspection, replace)
    return await restore_log(nc, backup, inspection, plan, lambda _: None)


async def planned_mode(nc: Client, path: Path) -> str:
    """Return what the restore command would do."""
    backup = Backup(path)
    return (await plan_restore(nc, backup, inspect(backup, lambda _: None), None)).mode


async def declare(nc: Client, name: str) -> None:
    """Store a declaration that no decider reads."""
    await publish(nc, f"rec.desired.default.Shape.{name}", b"{}", headers={MESSAGE_ID: name})


async def waiting_names(nc: Client) -> list[str]:
    """Return the names of the waiting declarations, in the order of each partition."""
    stored = await read_subject(nc, INTAKE, "in.>")
    return [message.subject.rsplit(".", 1)[1] for message in stored]


async def contents(nc: Client) -> list[tuple[int, str, bytes]]:
    return [
        (message.seq, message.subject, message.payload)
        for message in await read_subject(nc, LOG, "log.>")
    ]


async def stream_names(nc: Client) -> list[str]:
    return (await api_request(nc, "STREAM.NAMES", {})).get("streams") or []


def list_files(folder: Path) -> set[str]:
    return {str(each) for each in folder.iterdir()}


async def contents_if_usable(nc: Client) -> list[tuple[int, str, bytes]] | None:
    """Return what a role would read; ``None`` without a usable log."""
    try:
        await find_log(nc)
    except (NotFoundOnBusError, IncompatibleStreamError):
        return None
    return await contents(nc)


async def test_a_restored_log_keeps_the_epochs_of_the_backup_and_of_the_replaced_log(
    nc: Client, log: JetStreamLog, tmp_path: Path
) -> None:
    """A log that lost its metadata has a new epoch, but objects have keys from earlier ones."""
    await log.append([ResourceAppend(new_key(), events(new_key(), 1, 3), 0)])
    identity = await find_log(nc)
    await save_log(nc, tmp_path / "b", replace(identity, epoch="e2.e1"), lambda _: None)
    config = (await api_request(nc, f"STREAM.INFO.{LOG}", None))["config"]
    metadata = {**config["metadata"], EPOCH_METADATA: "e4.e3"}
    await api_request(nc, f"STREAM.UPDATE.{LOG}", {**config, "metadata": metadata})
    await log.append([ResourceAppend(new_key(), events(new_key(), 1, 3), 0)])
    restored = await restore(nc, tmp_path / "b", log.log_id)
    assert {"e1", "e2.e1", "e3", "e4.e3", (await find_log(nc)).epoch} <= {
        *epochs_in(restored.epoch)
    }


@pytest.mark.parametrize("server", ["the damaged log", "nothing"])
async def test_a_restore_interrupted_at_any_step_is_completed_by_the_next(
    nc: Client, log: JetStreamLog, tmp_path: Path, server: str
) -> None:
    """Each attempt gets one step further than the previous one, until one succeeds."""
    path = tmp_path / "b"
    first, second = new_key(), new_key()
    await log.append([ResourceAppend(first, events(first, 1, 30), 0)])
    await declare(nc, "before")
    await save_log(nc, path, await find_log(nc), lambda _: None)
    if server == "nothing":
        expected, waiting = await contents(nc), ["before"]
        await delete_stream(nc, LOG)
        await delete_stream(nc, INTAKE)
    else:
        await log.append([ResourceAppend(second, events(second, 1, 3), 0)])
        await declare(nc, "after")
        expected, waiting = await contents(nc), ["after", "before"]
    steps = 0
    while True:
        steps += 1
        arm(f"{Failpoint.RESTORE_STEP}:{steps}=error")
        try:
            restored = await restore(nc, path, log.log_id)
        except OSError:
            assert await contents_if_usable(nc) in (None, expected)
        else:
            break
    assert steps > 8
    assert sorted(await waiting_names(nc)) == waiting
    assert restored.declarations == len(waiting)
    assert await contents(nc) == expected
    assert (await find_log(nc)).log_id == log.log_id
    assert not any((await topology_differences(nc)).values())
    assert list_files(tmp_path) == {str(path), *restored.replaced}
    assert restored.replaced
    assert not any("replacing" in each for each in restored.replaced)


async def test_a_restore_interrupted_at_any_step_is_completed_after_all_metadata_was_lost(
    nc: Client, log: JetStreamLog, tmp_path: Path
) -> None:
    path, key = tmp_path / "b", new_key()
    await log.append([ResourceAppend(key, events(key, 1, 30), 0)])
    await declare(nc, "before")
    await save_log(nc, path, await find_log(nc), lambda _: None)
    expected = await contents(nc)
    interrupted = True
    steps = interrupted_with_log = 0
    while interrupted:
        steps += 1
        for stream in await stream_names(nc):
            await delete_stream(nc, stream)
        arm(f"{Failpoint.RESTORE_STEP}:{steps}=error")
        try:
            await restore(nc, path, None)
            interrupted = False
        except OSError:
            arm(None)
            streams = await stream_names(nc)
            await remove_metadata(nc, streams)
            if LOG in streams and await contents_if_usable(nc) is None:
                interrupted_with_log += 1
                for use in (open_log, initialize):
                    with pytest.raises(IncompatibleStreamError, match="being restored"):
                        await use(nc)
            await restore(nc, path, None)
        assert await contents(nc) == expected
        assert await waiting_names(nc) == ["before"]
        assert not any((await topology_differences(nc)).values())
    assert interrupted_with_log > 3


async def test_waiting_declarations_for_a_deleted_log_are_republished(
    nc: Client, log: JetStreamLog, tmp_path: Path
) -> None:
    key = new_key()
    await log.append([ResourceAppend(key, events(key, 1, 3), 0)])
    await save_log(nc, tmp_path / "b", await find_log(nc), lambda _: None)
    await declare(nc, "after")
    await delete_stream(nc, LOG)
    restored = await restore(nc, tmp_path / "b", None)
    assert await waiting_names(nc) == ["after"]
    assert restored.declarations == 1
    assert list_files(tmp_path) == {str(tmp_path / "b"), *restored.replaced}


async def test_declarations_from_another_installation_are_only_saved(
    nc: Client, log: JetStreamLog, module_bus_url: str, tmp_path: Path
) -> None:
    await save_log(nc, tmp_path / "b", await find_log(nc), lambda _: None)
    other_client = await connect(module_bus_url, name="test")
    await initialize(other_client)
    await declare(other_client, "foreign")
    await delete_stream(other_client, LOG)
    restored = await restore(other_client, tmp_path / "b", None)
    assert await waiting_names(other_client) == []
    [saved] = restored.replaced
    [waiting] = [message for block in Backup(Path(saved)).declarations() for message in block]
    assert waiting.subject.endswith("foreign")
    await other_client.close()


async def test_another_backup_does_not_complete_an_interrupted_restore(
    nc: Client, log: JetStreamLog, tmp_path: Path
) -> None:
    """It would lose the declarations that the interrupted restore saved next to its file."""
    path, newer = tmp_path / "b", tmp_path / "newer"
    first, second = new_key(), new_key()
    await log.append([ResourceAppend(first, events(first, 1, 3), 0)])
    await save_log(nc, path, await find_log(nc), lambda _: None)
    await log.append([ResourceAppend(second, events(second, 1, 3), 0)])
    await asyncio.sleep(1)  # a backup is identified by the second of its creation
    await save_log(nc, newer, await find_log(nc), lambda _: None)
    await declare(nc, "after")
    steps = 1  # after only the first one, the server is unchanged
    while True:
        steps += 1
        arm(f"{Failpoint.RESTORE_STEP}:{steps}=error")
        try:
            await restore(nc, path, log.log_id)
        except OSError:
            arm(None)
            if await contents_if_usable(nc) is None:
                with pytest.raises(RestoreRefusedError, match=r"interrupted.*(same|earlier) file"):
                    await restore(nc, newer, None)
        else:
            break
    assert steps > 8
    assert await waiting_names(nc) == ["after"]


async def test_a_restore_that_cannot_finish_is_refused_before_any_change(
    nc: Client, log: JetStreamLog, tmp_path: Path
) -> None:
    path, key = tmp_path / "b", new_key()
    await log.append([ResourceAppend(key, events(key, 1, 3), 0)])
    await save_log(nc, path, await find_log(nc), lambda _: None)
    await log.append([ResourceAppend(key, events(key, 4, 4), 3)])
    await declare(nc, "after")
    expected = await contents(nc)
    changed = {"subjects": SUBJECTS[LISTINGS], "storage": "file", "deny_delete": True}
    await delete_stream(nc, LISTINGS)
    await api_request(nc, f"STREAM.CREATE.{LISTINGS}", {"name": LISTINGS, **changed})
    with pytest.raises(IncompatibleStreamError, match="another server or account"):
        await restore(nc, path, log.log_id)
    assert await contents_if_usable(nc) == expected
    assert await waiting_names(nc) == ["after"]

    for stream in SUBJECTS:
        await delete_stream(nc, stream)
    await api_request(nc, "STREAM.CREATE.MINE", {"name": "MINE", "subjects": ["state.>"]})
    with pytest.raises(IncompatibleStreamError, match="another client's stream MINE"):
        await restore(nc, path, None)
    assert (await api_request(nc, "STREAM.NAMES", {}))["streams"] == ["MINE"]
    await delete_stream(nc, "MINE")
    await restore(nc, path, None)
    assert await contents(nc) == expected[:-1]


async def test_a_log_that_has_changed_since_the_plan_is_not_removed(
    nc: Client, log: JetStreamLog, tmp_path: Path
) -> None:
    path, first, second = tmp_path / "b", new_key(), new_key()
    await log.append([ResourceAppend(first, events(first, 1, 3), 0)])
    await save_log(nc, path, await find_log(nc), lambda _: None)
    backup = Backup(path)
    inspection = inspect(backup, lambda _: None)
    plan = await plan_restore(nc, backup, inspection, log.log_id)
    await log.append([ResourceAppend(second, events(second, 1, 3), 0)])
    expected = await contents(nc)
    with pytest.raises(RestoreRefusedError, match="another client has changed stream LOG_1"):
        await restore_log(nc, backup, inspection, plan, lambda _: None)
    assert await contents_if_usable(nc) == expected
    assert list_files(tmp_path) == {str(path)}


@pytest.mark.parametrize("saved", ["events", "declarations"])
async def test_a_repeated_restore_recovers_saved_data_after_another_restore(
    nc: Client, log: JetStreamLog, tmp_path: Path, saved: str
) -> None:
    path, copy = tmp_path / "one" / "b", tmp_path / "two" / "b"
    first, second = new_key(), new_key()
    await log.append([ResourceAppend(first, events(first, 1, 3), 0)])
    path.parent.mkdir()
    await save_log(nc, path, await find_log(nc), lambda _: None)
    copy.parent.mkdir()
    copy.write_bytes(path.read_bytes())
    if saved == "events":
        await log.append([ResourceAppend(second, events(second, 1, 3), 0)])
    else:
        await declare(nc, "after")
        await publish(nc, "log.default.Shape.foreign.fact", b"damage")
    expected = [each for each in await contents(nc) if each[2] != b"damage"]
    arm(f"{Failpoint.RESTORE_STEP}:3=error")  # when log and intake are removed
    with pytest.raises(OSError, match="failpoint"):
        await restore(nc, path, log.log_id)
    arm(None)
    await restore(nc, copy, None)
    assert await contents(nc) == expected[:3]
    assert await waiting_names(nc) == []

    assert await planned_mode(nc, path) == "continue"
    await restore(nc, path, None)
    assert await contents(nc) == expected
    assert await waiting_names(nc) == ([] if saved == "events" else ["after"])
    assert not [each for each in list_files(path.parent) if "replacing" in each]


async def test_a_copy_of_the_backup_does_not_complete_an_interrupted_restore(
    nc: Client, log: JetStreamLog, tmp_path: Path
) -> None:
    """The files that the interrupted restore saved are not next to the copy, nor next to a link."""
    path, copy, link = tmp_path / "one" / "b", tmp_path / "two" / "b", tmp_path / "two" / "link"
    first, second = new_key(), new_key()
    await log.append([ResourceAppend(first, events(first, 1, 3), 0)])
    path.parent.mkdir()
    await save_log(nc, path, await find_log(nc), lambda _: None)
    copy.parent.mkdir()
    copy.write_bytes(path.read_bytes())
    link.symlink_to(path)
    await log.append([ResourceAppend(second, events(second, 1, 3), 0)])
    await declare(nc, "after")
    expected, steps, refused = await contents(nc), 1, 0
    while True:
        steps += 1
        arm(f"{Failpoint.RESTORE_STEP}:{steps}=error")
        try:
            await restore(nc, path, log.log_id)
        except OSError:
            arm(None)
            log_exists = await existing_log(nc) is not None
            if log_exists and await contents_if_usable(nc) is None:
                for other_path in (copy, link):
                    with pytest.raises(RestoreRefusedError, match=r"not next to .*same path"):
                        await restore(nc, other_path, None)
                refused += 1
        else:
            break
    assert refused > 1
    assert await waiting_names(nc) == ["after"]
    assert await contents(nc) == expected
    metadata = (await stream_state(nc, LOG)).config["metadata"]
    assert saved_files(metadata) == []


_SMALL = """
accounts {
  SMALL { jetstream { max_file: 1G }, users: [{ user: small, password: pw }] }
  LARGER { jetstream { max_file: 4500M }, users: [{ user: larger, password: pw }] }
  NINE { jetstream { max_file: 100G, max_streams: 9 }, users: [{ user: nine, password: pw }] }
  TWELVE {
    jetstream { max_file: 100G, max_consumers: 12 }
    users: [{ user: twelve, password: pw }]
  }
  ENOUGH {
    jetstream { max_file: 100G, max_streams: 10, max_consumers: 13 }
    users: [{ user: enough, password: pw }]
  }
}
"""


async def test_a_server_with_too_little_storage_is_reported_before_the_log_is_written(
    nc: Client, log: JetStreamLog, tmp_path: Path
) -> None:
    key = new_key()
    await log.append([ResourceAppend(key, events(key, 1, 3), 0)])
    await save_log(nc, tmp_path / "b", await find_log(nc), lambda _: None)
    server = EmbeddedServer()
    await server.start(tmp_path / "nats", extra_config=_SMALL)
    for user in ("small", "larger"):
        small = await connect(f"nats://{user}:pw@127.0.0.1:{server.port}", name="test")
        with pytest.raises(StreamFullError, match=r"stream \w+ cannot be created.*reserves"):
            await restore(small, tmp_path / "b", None)
        assert await existing_log(small) is None
        await small.close()
    await server.kill()


async def test_an_account_with_too_few_streams_or_consumers_is_reported_early(
    nc: Client, log: JetStreamLog, tmp_path: Path
) -> None:
    """Two namespaces have six consumers each on the log, and the restore reads the log itself."""
    key = new_key()
    await initialize(nc, namespaces=["payments", "web"])
    await log.append([ResourceAppend(key, events(key, 1, 3), 0)])
    await save_log(nc, tmp_path / "b", await find_log(nc), lambda _: None)
    server = EmbeddedServer()
    await server.start(tmp_path / "nats", extra_config=_SMALL)
    for user, message in (
        ("nine", "max_streams is 9, but 1 stream exists and 9 more are needed; set max_streams"),
        ("twelve", "max_consumers is 12, but stream LOG_1 needs 13; set max_consumers"),
        ("enough", ""),
    ):
        other_client = await connect(f"nats://{user}:pw@127.0.0.1:{server.port}", name="test")
        await api_request(
            other_client, "STREAM.CREATE.MINE", {"name": "MINE", "subjects": ["mine"]}
        )
        if message:
            with pytest.raises(StreamFullError, match=message):
                await restore(other_client, tmp_path / "b", None)
            assert (await api_request(other_client, "STREAM.NAMES", {}))["streams"] == ["MINE"]
        else:
            await restore(other_client, tmp_path / "b", None)
            assert await contents(other_client) == await contents(nc)
        await other_client.close()
    await server.kill()
