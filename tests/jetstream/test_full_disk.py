"""Whether a server is restarted after a full disk depends on the problem that it reports."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from infra.embedded import full_disk
from infra.embedded.full_disk import FullDiskWatch
from infra.embedded.server import EmbeddedServer


class Server:
    """A server that reports a given problem."""

    def __init__(self, folder: Path, problem: str) -> None:
        self.data_dir = folder
        self._problem = problem

    async def problem(self) -> str:
        return self._problem


@pytest.mark.parametrize(
    ("problem", "is_stuck"),
    [
        ("stream 'INTAKE': write x.blk: no space left on device", True),
        ("stream 'INTAKE': disk quota exceeded", True),
        ("JetStream not enabled (10076)", True),
        ("stream 'INTAKE' could not be recovered", False),
        ("", False),
    ],
)
@pytest.mark.parametrize("has_room", [True, False])
async def test_a_server_is_restarted_once_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str, is_stuck: bool, has_room: bool
) -> None:
    monkeypatch.setattr(full_disk, "ROOM_BYTES", 0 if has_room else 2**62)
    watch = FullDiskWatch(cast("EmbeddedServer", Server(tmp_path, problem)))
    assert await watch.needs_restart() == (is_stuck and has_room)
