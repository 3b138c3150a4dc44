"""A backup is consistent, complete and verified; an invalid one is refused in one line."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from nats.aio.client import Client

from events.log import Action
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec
from events.subjects import log_filter
from infra.backup.file import MAGIC, Backup, BackupFileError, Header, new_backup
from infra.bus.event_log import JetStreamLog, open_log
from infra.bus.streams import INTAKE, LOG, LogIdentity, ensure_worker_consumer, find_log
from infra.embedded import EmbeddedServer
from infra.jetstream.connection import connect
from infra.jetstream.publish import publish
from infra.jetstream.pull import PullReader
from infra.jetstream.reads import StoredMessage, read_subject, stream_state
from reconciler.ports import ResourceAppend
from reconciler.roles.runtime.configurations import Configurations
from tests.accounts import Accounts
from tests.bus.histories import events, new_key
from tests.bus.test_decider import Bus, decider, declaration, read_actions
from tests.integrity.operator import Operator


async def _fill(log: JetStreamLog, shapes: int = 20, length: int = 8) -> None:
    await log.append(
        [
            ResourceAppend(key, events(key, 1, length), 0)
            for key in (new_key() for _ in range(shapes))
        ]
    )


async def _contents(nc: Client) -> list[tuple[int, str, bytes, str | None]]:
    return [_content(message) for message in await read_subject(nc, LOG, "log.>")]


def _content(message: StoredMessage) -> tuple[int, str, bytes, str | None]:
    return (
        message.seq,
        message.subject,
        message.payload,
        (message.headers or {}).get("Reconciler-Digest"),
    )


@pytest.fixture
def empty_url(nats_server: EmbeddedServer, accounts: Accounts) -> str:
    """The URL of an empty bus."""
    return accounts.next_url(nats_server)


async def test_every_event_is_restored_at_its_position_with_its_digest(
    log: JetStreamLog,
    bus: Client,
    fresh_bus_url: str,
    empty_url: str,
    operator: Operator,
) -> None:
    await _fill(log)
    saved = (await operator.run_ok(fresh_bus_url, "backup", "b", "-o", "json")).json
    assert (saved["events"], saved["position"], saved["damage"]) == (160, 160, [])
    assert not list(operator.folder.glob("*.partial"))
    await operator.run_ok(empty_url, "restore", "b")
    nc = await connect(empty_url, name="test")
    assert await _contents(nc) == await _contents(bus)
    assert (await find_log(nc)).log_id == log.log_id
    again = await operator.run_ok(empty_url, "restore", "b")
    assert "already complete" in again.out
    await nc.close()


async def test_an_existing_file_is_not_overwritten(
    log: JetStreamLog, fresh_bus_url: str, operator: Operator
) -> None:
    (operator.folder / "b").write_text("precious")
    refused = await operator.run(fresh_bus_url, "backup", "b")
    assert (refused.status, (operator.folder / "b").read_text()) == (1, "precious")
    assert refused.err == "error: b already exists; use another name, or remove it\n"


def test_two_concurrent_backups_with_the_same_name_do_not_mix(tmp_path: Path) -> None:
    path, header = tmp_path / "b", Header(LogIdentity("log"), datetime.now(UTC), {})
    stored = [StoredMessage(seq, "log.a.B.c.fact", b"{}", None, 1) for seq in range(1, 100)]

    def write_slowly() -> None:
        with new_backup(path) as slow:
            slow.begin(header)
            with new_backup(path) as quick:
                quick.begin(header)
                quick.add(b"E", stored)
                quick.finish(99)
            slow.finish(0)

    with pytest.raises(BackupFileError, match="already exists"):
        write_slowly()
    assert len([message for block in Backup(path).events() for message in block]) == 99
    assert list(tmp_path.iterdir()) == [path]


async def test_a_backup_during_writes_is_a_prefix_of_the_log(
    log: JetStreamLog,
    bus: Client,
    fresh_bus_url: str,
    empty_url: str,
    operator: Operator,
) -> None:
    await _fill(log, 100)
    stop = asyncio.Event()

    async def write() -> None:
        while not stop.is_set():
            await _fill(log, 5)

    writer = asyncio.create_task(write())
    saved = (await operator.run_ok(fresh_bus_url, "backup", "b", "-o", "json")).json
    stop.set()
    await writer
    assert saved["events"] == saved["position"] >= 800
    await operator.run_ok(empty_url, "restore", "b")
    nc = await connect(empty_url, name="test")
    assert await _contents(nc) == (await _contents(bus))[: saved["events"]]
    await nc.close()


BAD: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "truncated": (lambda content: content[:-40], "it is truncated"),
    "truncated in a block": (lambda content: content[: len(content) // 2], "it is truncated"),
    "changed": (
        lambda content: (
            content[: len(content) // 2]
            + bytes([content[len(content) // 2] ^ 1])
            + content[len(content) // 2 + 1 :]
        ),
        "it was modified",
    ),
    "longer": (
        lambda content: content + b"x",
        "its content does not match its footer",
    ),
    "foreign": (lambda content: b"PK\3\4" + content, "it is not a Reconciler backup"),
    "newer": (
        lambda content: content.replace(MAGIC, b"reconciler-backup 2\n", 1),
        "it has format 2, but this release reads format 1",
    ),
    "empty": (lambda content: b"", "it is not a Reconciler backup"),
}


@pytest.mark.parametrize("what", BAD)
async def test_an_incomplete_backup_is_refused_before_anything_is_written(
    log: JetStreamLog,
    bus: Client,
    fresh_bus_url: str,
    empty_url: str,
    operator: Operator,
    what: str,
) -> None:
    await _fill(log)
    await operator.run_ok(fresh_bus_url, "backup", "b")
    corrupt, message = BAD[what]
    (operator.folder / "bad").write_bytes(corrupt((operator.folder / "b").read_bytes()))
    refused = await operator.run(empty_url, "restore", "bad")
    assert refused.status == 1
    assert refused.err.startswith("error: bad is not usable as a backup: ")
    assert message in refused.err
    assert refused.err.count("\n") == 1
    assert "no event log yet" in (await operator.run(empty_url, "get")).err


async def test_a_restore_completes_a_prefix_of_the_same_log_and_refuses_another_log(
    log: JetStreamLog,
    bus: Client,
    fresh_bus_url: str,
    empty_url: str,
    operator: Operator,
) -> None:
    await _fill(log)
    await operator.run_ok(fresh_bus_url, "backup", "early")
    await _fill(log)
    await operator.run_ok(fresh_bus_url, "backup", "late")
    await operator.run_ok(empty_url, "restore", "early")
    restore_report = (await operator.run_ok(empty_url, "restore", "late", "-o", "json")).json
    assert (restore_report["present"], restore_report["events"]) == (160, 320)
    nc = await connect(empty_url, name="test")
    assert await _contents(nc) == await _contents(bus)
    previous_identity = await find_log(nc)

    longer = await operator.run(empty_url, "restore", "early")
    assert longer.status == 1
    assert f"use --replace {log.log_id}" in longer.err
    assert await find_log(nc) == previous_identity
    wrong = await operator.run(empty_url, "restore", "early", "--replace", "another")
    assert "nothing was changed" in wrong.err
    await nc.close()


async def test_an_empty_log_with_another_name_does_not_prevent_a_restore(
    log: JetStreamLog, fresh_bus_url: str, empty_url: str, operator: Operator
) -> None:
    await _fill(log)
    await operator.run_ok(fresh_bus_url, "backup", "b")
    await operator.run_ok(empty_url, "init")
    await operator.run_ok(empty_url, "restore", "b")
    nc = await connect(empty_url, name="test")
    assert (await find_log(nc)).log_id == log.log_id
    await operator.run_ok(empty_url, "init")  # changes nothing, in particular not the log's name
    assert (await find_log(nc)).log_id == log.log_id
    await nc.close()


async def test_a_log_in_use_is_not_replaced(
    log: JetStreamLog, bus: Client, fresh_bus_url: str, operator: Operator
) -> None:
    await _fill(log)
    await operator.run_ok(fresh_bus_url, "backup", "b")
    worker = await ensure_worker_consumer(bus, "default")
    reader = PullReader(bus, LOG, worker, max_batch=1)
    waiting = asyncio.create_task(reader.next_batch())

    async def is_refused() -> bool:
        result = await operator.run(fresh_bus_url, "restore", "b", "--replace", log.log_id)
        return "stop all deciders, workers, observers" in result.err

    async with asyncio.timeout(20):
        while not await is_refused():
            pass
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await reader.close()


async def test_a_backup_of_a_damaged_log_reports_the_damage(
    log: JetStreamLog, bus: Client, fresh_bus_url: str, operator: Operator
) -> None:
    key = new_key()
    await log.append([ResourceAppend(key, events(key, 1, 3), 0)])
    await publish(bus, f"{log_filter(key)[:-2]}.fact", b"hello")
    result = await operator.run(fresh_bus_url, "backup", "b")
    assert result.status == 1
    assert f"Unreadable: {key}, position 4" in result.out
    assert (operator.folder / "b").exists()


async def test_the_new_intake_continues_with_higher_sequences(
    log: JetStreamLog, bus: Client, fresh_bus_url: str, operator: Operator
) -> None:
    await _fill(log)
    sequence_before = (await stream_state(bus, INTAKE)).last_seq
    await operator.run_ok(fresh_bus_url, "backup", "b")
    await _fill(log)
    await operator.run_ok(fresh_bus_url, "restore", "b", "--replace", log.log_id)
    assert (await stream_state(bus, INTAKE)).first_seq > max(sequence_before, 1_000_000_000_000)


async def test_a_restored_log_assigns_different_keys_to_the_same_actions(
    log: JetStreamLog, fresh_bus_url: str, tmp_path: Path, operator: Operator
) -> None:
    """The API remembers the keys of lost actions, so new actions must not reuse them."""
    await _fill(log, shapes=1)
    await operator.run_ok(fresh_bus_url, "backup", "b")
    key = new_key()
    decided = [await _decided(log, key)]
    for name in ("once", "twice"):
        empty = EmbeddedServer()
        nc = await connect(await empty.start(tmp_path / name), name="test")
        await operator.run_ok(empty.url, "restore", "b")
        decided.append(await _decided(await open_log(nc), key))
        await nc.close()
        await empty.kill()
    assert len({each.action_id for each in decided}) == 1
    assert len({each.idempotency_key for each in decided}) == 3


async def _decided(log: JetStreamLog, key: ResourceKey) -> Action:
    configurations = Configurations()
    configurations.by_name["default"] = ProviderConfigSpec("shapes", "http://127.0.0.1:1")
    await decider(log, Bus(), configurations).handle([declaration(key, 1, "Red")])
    [action] = await read_actions(log, key)
    return action


def test_a_backup_on_a_full_disk_is_reported_in_one_line_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "full.backup"

    def fail_with_full_disk(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("infra.backup.file.os.fsync", fail_with_full_disk)
    with pytest.raises(BackupFileError) as raised, new_backup(path):
        pass
    assert str(raised.value) == f"cannot write {path}: No space left on device"
    assert list(tmp_path.iterdir()) == []
