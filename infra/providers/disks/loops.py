"""Loop devices: which there are, of which file each is, its size, and its end.

They are asked by ioctl, since a path says little: a file is known by device and inode, under any
name and in any mount namespace. Everything here blocks.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from infra.providers.disks.programs import not_permitted, waiting
from reconciler.errors import ConfigurationError

if sys.platform != "win32":
    import fcntl

_SYSFS: Final = Path("/sys/block")
_DELETED: Final = " (deleted)"

_GET_STATUS: Final = 0x4C05  # LOOP_GET_STATUS64
_SET_CAPACITY: Final = 0x4C07
_CLEAR: Final = 0x4C01  # LOOP_CLR_FD
_STATUS_BYTES: Final = 232


class Loop(NamedTuple):
    """A loop device that has a file; ``number`` as mounts name it, ``backing`` as the kernel."""

    path: str
    number: str
    backing: str
    device: int
    inode: int

    @property
    def is_deleted(self) -> bool:
        """Whether its file has no name any more: what is written to it is nowhere else."""
        return self.backing.endswith(_DELETED)

    @property
    def name_of_file(self) -> str:
        """The path of its file, or the last one that it had."""
        return self.backing.removesuffix(_DELETED)

    def has(self, found: os.stat_result) -> bool:
        """Return whether it is of this file."""
        return (self.device, self.inode) == (found.st_dev, found.st_ino)


def loops() -> list[Loop]:
    """Return all loop devices that have a file."""
    found: list[Loop] = []
    for backing in _SYSFS.glob("loop*/loop/backing_file"):
        loop = _loop(backing)
        if loop is not None:
            found.append(loop)
    return sorted(found)


def _loop(backing: Path) -> Loop | None:
    folder = backing.parents[1]
    try:
        # A newline within the name stays; only the one that the kernel adds goes.
        file = os.fsdecode(backing.read_bytes()).removesuffix("\n")
        number = (folder / "dev").read_text().strip()
        path = f"/dev/{folder.name}"
        with opened(path) as device:
            of_device, inode = _status(device)
    except OSError as error:
        if error.errno in {errno.ENXIO, errno.ENOENT, errno.EIO} and not backing.exists():
            return None  # detached meanwhile
        raise
    return Loop(path, number, file, of_device, inode)


def _status(device: int) -> tuple[int, int]:
    """Return device and inode of what a loop device is of."""
    of_device, inode = struct.unpack_from(
        "=QQ", fcntl.ioctl(device, _GET_STATUS, bytes(_STATUS_BYTES))
    )
    return of_device, inode


@contextmanager
def opened_loop(loop: Loop) -> Generator[int]:
    """Open a loop device to read it; raises ``TransientError`` if it is of another file by now."""
    with opened(loop.path) as device:
        try:
            is_same = _status(device) == (loop.device, loop.inode)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            is_same = False
        if not is_same:
            raise waiting(f"{loop.path} was detached meanwhile")
        yield device


@contextmanager
def opened(path: str, flags: int = os.O_RDONLY) -> Generator[int]:
    """Open a device; raises ``ConfigurationError`` where that is not permitted."""
    try:
        device = os.open(path, flags | os.O_CLOEXEC)
    except OSError as error:
        if (refusal := not_permitted(error, path)) is not None:
            raise refusal from None
        if error.errno == errno.ENOENT and (_SYSFS / path.removeprefix("/dev/")).exists():
            raise ConfigurationError(
                f"{path} is not here: worker and observer need the host's /dev and its loop devices"
            ) from None
        raise
    try:
        yield device
    finally:
        os.close(device)


def take_up_size(path: str) -> None:
    """Have a loop device see that its file has grown."""
    with opened(path, os.O_RDWR) as device:
        fcntl.ioctl(device, _SET_CAPACITY, 0)


def detach(loop: Loop) -> None:
    """Detach a loop device that nobody has mounted, in any mount namespace.

    Raises ``TransientError`` while one has. The kernel would accept it and detach later, when
    nobody looks any more; so the device is claimed first, as a mount claims it.
    """
    try:
        with opened(loop.path, os.O_RDWR | os.O_EXCL) as device:
            if _status(device) != (loop.device, loop.inode):
                return  # another's by now
            fcntl.ioctl(device, _CLEAR, 0)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise waiting(
                f"{loop.path} is in use, perhaps mounted in another mount namespace (a container):"
                " it is detached when that ends"
            ) from None
        if error.errno == errno.ENXIO:
            return
        raise
    if _backing(loop).exists() and _loop(_backing(loop)) == loop:
        raise waiting(f"somebody has {loop.path} open: it is detached when that is closed")


def _backing(loop: Loop) -> Path:
    return _SYSFS / loop.path.removeprefix("/dev/") / "loop/backing_file"
