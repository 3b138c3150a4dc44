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
_MAX_USERS_NAMED: Final = 5


class Mount(NamedTuple):
    """One line of mountinfo; ``device`` is major:minor."""

    mount_id: int
    device: str
    place: str
    filesystem: str
    source: str
    is_read_only: bool


def mounts() -> list[Mount]:
    """Return all mounts, in their order. Of two at one place, the later one is visible."""
    return [_mount(line) for line in _MOUNTINFO.read_bytes().splitlines()]


def mount_at(place: str, all_mounts: list[Mount]) -> Mount | None:
    """Return the visible mount at a place."""
    return next((each for each in reversed(all_mounts) if each.place == place), None)


def mounts_below(place: str, all_mounts: list[Mount]) -> list[Mount]:
    """Return the mounts below a place."""
    return [each for each in all_mounts if each.place.startswith(f"{place}/")]


def _mount(line: bytes) -> Mount:
    fields = line.split(b" ")
    dash = fields.index(b"-", 6)
    filesystem, source, options = fields[dash + 1 : dash + 4]
    # After an error, ext4 removes the permission to write, and only its own options show that.
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


def users_of(place: str, all_mounts: list[Mount]) -> str:
    """Return the users of a mount: processes, and mounts below it."""
    users = [f"a mount at {each.place}" for each in mounts_below(place, all_mounts)]
    users += (f"{name} (pid {pid})" for pid, name in _processes_at(place))
    user_list = ", ".join(users[:_MAX_USERS_NAMED])
    remainder = f" and {len(users) - _MAX_USERS_NAMED} more" if users[_MAX_USERS_NAMED:] else ""
    return f"{user_list}{remainder}" or "a process that is not visible from here"


def _processes_at(place: str) -> Generator[tuple[int, str]]:
    for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        with contextlib.suppress(OSError):  # it has ended, or may not be read
            if _is_at(process, place):
                yield int(process.name), (process / "comm").read_text().strip()


def _is_at(process: Path, place: str) -> bool:
    """Return whether a process has files or its directory there. Links are read, not followed."""
    links = [process / each for each in ("cwd", "root", "exe")]
    with contextlib.suppress(OSError):
        links += (process / "fd").iterdir()
    for link in links:
        with contextlib.suppress(OSError):
            if f"{os.readlink(link)}/".startswith(f"{place}/"):  # noqa: PTH115 - text, no path
                return True
    with contextlib.suppress(OSError):
        return f" {place}/" in (process / "maps").read_text(errors="replace")
    return False
