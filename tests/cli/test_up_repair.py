"""`up` without roles, with data that a command has to repair."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from infra.backup import restoration
from infra.backup.file import Backup
from infra.backup.inspection import inspect
from infra.bus.streams import INTAKE
from infra.jetstream.connection import connect
from reconciler.cli.restore import plan_restore
from tests.cli.runner import STOP_SECONDS, Cli, InProcessCli, shape, up

DATA = "reconciler-data"
SERVER_ONLY = ("--no-api", "--roles", "none")


@pytest.fixture
def stopped(tmp_path: Path) -> Cli:
    """Run and stop `up` in a folder, and write a backup to a file named ``b``."""
    cli = Cli(tmp_path)
    with up(cli):
        InProcessCli(cli.folder).ok("apply", "-f", "-", "--wait", text=shape("foo"))
        InProcessCli(cli.folder).ok("backup", "b")
    return cli


async def interrupt_restore(url: str, path: Path) -> None:
    """Restore up to the last step, which removes the mark from the log."""

    async def stop(*_: object) -> None:
        raise InterruptedError

    nc, backup = await connect(url, name="test"), Backup(path)
    inspection = inspect(backup, lambda _: None)
    plan = await plan_restore(nc, backup, inspection, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restoration, "end_restoration", stop)
        with pytest.raises(InterruptedError):
            await restoration.restore_log(nc, backup, inspection, plan, lambda _: None)
    await nc.close()


def read_refusal(cli: Cli) -> str:
    """Return the error that `up` prints when it refuses to start roles."""
    process = cli.start("up", "--port", "0", "--api-port", "0")
    _, text = process.communicate(timeout=STOP_SECONDS)
    assert process.returncode == 1
    assert text.count("\n") == 1
    assert "start it without roles: `reconciler up --roles none --no-api`" in text
    return text


def test_an_interrupted_restore_is_repeated_on_a_server_without_roles(stopped: Cli) -> None:
    local_cli = InProcessCli(stopped.folder)
    (stopped.folder / DATA / "nats").rename(stopped.folder / "lost")
    with up(stopped, *SERVER_ONLY) as running:
        asyncio.run(interrupt_restore(running.ready["natsUrl"], stopped.folder / "b"))

    assert "its restore was interrupted" in read_refusal(stopped)
    with up(stopped, *SERVER_ONLY) as running:
        (note,) = running.ready["notes"]
        assert "run `reconciler restore` with the same file again" in note
        local_cli.ok("restore", "b")
    with up(stopped):
        assert local_cli.ok("get").rows[0][:3] == ["Shape", "foo", "Converged"]


def test_an_intake_that_lost_messages_is_repaired_on_a_server_without_roles(stopped: Cli) -> None:
    local_cli = InProcessCli(stopped.folder)
    (block,) = (stopped.folder / DATA).glob(f"nats/**/{INTAKE}/msgs/1.blk")
    block.write_bytes(block.read_bytes()[:1_000])
    block.with_name("index.db").unlink()

    assert "run `reconciler backup NAME.backup`, then `reconciler restore NAME" in read_refusal(
        stopped
    )
    with up(stopped, *SERVER_ONLY) as running:
        assert running.ready["notes"]
        local_cli.ok("backup", "now")
        local_cli.ok("restore", "now")
    with up(stopped):
        assert local_cli.ok("get").rows[0][:3] == ["Shape", "foo", "Converged"]
