"""Files that users name: written completely or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from infra.named_files import write_atomically


def test_a_full_disk_leaves_the_earlier_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(_file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    plan = tmp_path / "today.plan"
    write_atomically(plan, b"earlier")
    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(plan, b"later")
    assert plan.read_bytes() == b"earlier"
    assert list(tmp_path.iterdir()) == [plan]


def test_a_link_stays_one_and_a_device_is_written_directly(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("today.plan")
    write_atomically(link, b"content")
    assert link.is_symlink()
    assert (tmp_path / "today.plan").read_bytes() == b"content"
    write_atomically(Path("/dev/null"), b"content")
    assert not Path("/dev/null").is_file()


def test_two_writers_of_one_file_do_not_mix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, sync = tmp_path / "today.plan", os.fsync

    def write_another(file: int) -> None:
        monkeypatch.setattr(os, "fsync", sync)
        write_atomically(plan, b"another, longer content")
        sync(file)

    monkeypatch.setattr(os, "fsync", write_another)
    write_atomically(plan, b"content")
    assert plan.read_bytes() == b"content"
    assert list(tmp_path.iterdir()) == [plan]
