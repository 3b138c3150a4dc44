"""Mounts in the mount namespace of this process, and the processes that use them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import Final, NamedTuple

_MOUNTINFO: Final = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(rb"\\([0-7]{3})")
_MAX_NAMED_USERS: Final = 5


class Mount(NamedTuple):
    """One line of mountinfo; ``device`` is major:minor."""

    mount_id: int
    device: str
    mount_path: str
    filesystem: str
    source: str
    is_read_only: bool


def mounts() -> list[Mount]:
    """Return all mounts in order. Of two mounts at the same path, the later one is visible."""
    return [_mount(line) for line in _MOUNTINFO.read_bytes().splitlines()]


def mount_at(mount_path: str, all_mounts: list[Mount]) -> Mount | None:
    """Return the visible mount at a path."""
    return next((each for each in reversed(all_mounts) if each.mount_path == mount_path), None)


def mounts_below(mount_path: str, all_mounts: list[Mount]) -> list[Mount]:
    """Return the mounts below a path."""
    return [each for each in all_mounts if each.mount_path.startswith(f"{mount_path}/")]


def _mount(line: bytes) -> Mount:
    fields = line.split(b" ")
    dash = fields.index(b"-", 6)
    filesystem, source, options = fields[dash + 1 : dash + 4]
    # After an error, ext4 becomes read-only, and only its own options show this.
    read_only = {b"ro", b"emergency_ro"} & {*fields[5].split(b","), *options.split(b",")}
    return Mount(
        int(fields[0]),
        fields[2].decode(),
        _text(fields[4]),
        filesystem.decode(),
        _text(source),
        bool(read_only),
    )


def _text(field: bytes) -> str:
    return os.fsdecode(_ESCAPED.sub(lambda match: bytes([int(match[1], 8)]), field))


def describe_users(mount_path: str, all_mounts: list[Mount]) -> str:
    """Describe the users of a mount: processes, and mounts below it."""
    users = [f"a mount at {each.mount_path}" for each in mounts_below(mount_path, all_mounts)]
    users += (f"{name} (pid {pid})" for pid, name in _processes_using(mount_path))
    user_list = ", ".join(users[:_MAX_NAMED_USERS])
    remainder = f" and {len(users) - _MAX_NAMED_USERS} more" if users[_MAX_NAMED_USERS:] else ""
    return f"{user_list}{remainder}" or "a process that the worker cannot see"


def _processes_using(mount_path: str) -> Generator[tuple[int, str]]:
    for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        with contextlib.suppress(OSError):  # it has exited, or reading it is not permitted
            if _uses(process, mount_path):
                yield int(process.name), (process / "comm").read_text().strip()


def _uses(process: Path, mount_path: str) -> bool:
    """Return whether a process uses a file or directory in a mount. Does not follow links."""
    links = [process / each for each in ("cwd", "root", "exe")]
    with contextlib.suppress(OSError):
        links += (process / "fd").iterdir()
    for link in links:
        with contextlib.suppress(OSError):
            if f"{os.readlink(link)}/".startswith(f"{mount_path}/"):  # noqa: PTH115 - text, not a path
                return True
    with contextlib.suppress(OSError):
        return f" {mount_path}/" in (process / "maps").read_text(errors="replace")
    return False
