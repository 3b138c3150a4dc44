"""Files that users name are written completely or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from infra.named_files import write_atomically


def test_a_full_disk_does_not_damage_the_existing_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_with_full_disk(_file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    plan = tmp_path / "today.plan"
    write_atomically(plan, b"earlier")
    monkeypatch.setattr(os, "fsync", fail_with_full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(plan, b"later")
    assert plan.read_bytes() == b"earlier"
    assert list(tmp_path.iterdir()) == [plan]


def test_a_symbolic_link_is_kept_and_a_device_is_written_directly(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("today.plan")
    write_atomically(link, b"content")
    assert link.is_symlink()
    assert (tmp_path / "today.plan").read_bytes() == b"content"
    write_atomically(Path("/dev/null"), b"content")
    assert not Path("/dev/null").is_file()


def test_concurrent_writers_do_not_mix_their_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, sync = tmp_path / "today.plan", os.fsync

    def write_concurrently(file: int) -> None:
        monkeypatch.setattr(os, "fsync", sync)
        write_atomically(plan, b"another, longer content")
        sync(file)

    monkeypatch.setattr(os, "fsync", write_concurrently)
    write_atomically(plan, b"content")
    assert plan.read_bytes() == b"content"
    assert list(tmp_path.iterdir()) == [plan]
