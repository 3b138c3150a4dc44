"""Loop devices: which there are, of which file each is, its size, and its end.

Which there are, the kernel's sysfs says. Whether one is of a certain file, only the device itself
does: a path may be of another mount namespace, or of a file that had it before. So devices whose
file has the right name are asked, and no others: an open device is one that cannot be detached.
Everything here blocks.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from infra.providers.disks.programs import not_permitted, waiting
from reconciler.errors import ConfigurationError

if sys.platform != "win32":
    import fcntl

_SYSFS: Final = Path("/sys/block")
_DELETED: Final = " (deleted)"
_GONE: Final = frozenset({errno.ENXIO, errno.ENODEV, errno.ENOENT})

_GET_STATUS: Final = 0x4C05  # LOOP_GET_STATUS64
_SET_CAPACITY: Final = 0x4C07
_CLEAR: Final = 0x4C01  # LOOP_CLR_FD
_STATUS_BYTES: Final = 232

_MAX_LOOKS: Final = 50
_LOOK_SECONDS: Final = 0.02
"""So long whoever just looks at a device may have it open: an observer, udev."""


class Loop(NamedTuple):
    """A loop device that has a file; ``number`` as mounts name it, ``backing`` as the kernel."""

    path: str
    number: str
    backing: str

    @property
    def is_deleted(self) -> bool:
        """Whether its file has no name any more: what is written to it is nowhere else."""
        return self.backing.endswith(_DELETED)

    @property
    def file(self) -> str:
        """The path of its file, or the last one that it had."""
        return self.backing.removesuffix(_DELETED)

    @property
    def file_name(self) -> str:
        """The name of its file, which is the same in every mount namespace."""
        return self.file.rpartition("/")[2]


def loops() -> list[Loop]:
    """Return all loop devices that have a file."""
    found: list[Loop] = []
    for backing in _SYSFS.glob("loop*/loop/backing_file"):
        folder = backing.parents[1]
        try:
            # A newline within the name stays; only the one that the kernel adds goes.
            file = os.fsdecode(backing.read_bytes()).removesuffix("\n")
            number = (folder / "dev").read_text().strip()
        except OSError as error:
            if error.errno not in _GONE:
                raise
            continue  # detached meanwhile
        if file:
            found.append(Loop(f"/dev/{folder.name}", number, file))
    return sorted(found)


def attached_of(found: os.stat_result, name: str, among: list[Loop]) -> tuple[Loop, ...]:
    """Return the loop devices of a file, of which the name is known, too."""
    return tuple(each for each in among if each.file_name == name and is_of(each, found))


def is_of(loop: Loop, found: os.stat_result) -> bool:
    """Return whether a loop device is of a file."""
    try:
        with opened(loop.path) as device:
            return _has(device, found)
    except OSError as error:
        if error.errno in _GONE:
            return False
        raise


def _has(device: int, found: os.stat_result) -> bool:
    try:
        status = fcntl.ioctl(device, _GET_STATUS, bytes(_STATUS_BYTES))
    except OSError as error:
        if error.errno in _GONE:
            return False
        raise
    return struct.unpack_from("=QQ", status) == (found.st_dev, found.st_ino)


@contextmanager
def opened_loop(loop: Loop, found: os.stat_result) -> Generator[int | None]:
    """Open a loop device to read it; None if it is not of this file any more."""
    with opened(loop.path) as device:
        yield device if _has(device, found) else None


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
                f"{path} does not exist; the worker and the observer require the host's /dev "
                "and its loop devices"
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


@contextmanager
def _claimed(loop: Loop) -> Generator[int]:
    """Open a device that nobody else has claimed; others may just look what is on it."""
    with ExitStack() as closing:
        for last in (*[False] * _MAX_LOOKS, True):
            try:
                device = closing.enter_context(opened(loop.path, os.O_RDWR | os.O_EXCL))
            except OSError as error:
                if error.errno != errno.EBUSY or last:
                    raise
                time.sleep(_LOOK_SECONDS)  # a thread of its own
            else:
                yield device
                return


def detach(loop: Loop, found: os.stat_result) -> None:
    """Detach a loop device of a file that nobody has mounted, in any mount namespace.

    Raises ``NotDoneError`` while one has. The kernel would accept it and detach later, when
    nobody looks any more; so the device is claimed first, as a mount claims it.
    """
    try:
        with _claimed(loop) as device:
            if not _has(device, found):
                return  # another's by now
            fcntl.ioctl(device, _CLEAR, 0)
    except OSError as error:
        if error.errno in _GONE:
            return
        if error.errno == errno.EBUSY:
            raise waiting(
                f"{loop.path} is in use, possibly mounted in another mount namespace (a "
                "container); Reconciler detaches it when it is no longer in use"
            ) from None
        raise
    for _ in range(_MAX_LOOKS):
        if loop not in loops():
            return
        time.sleep(_LOOK_SECONDS)  # a thread of its own
    raise waiting(
        f"another process has {loop.path} open; Reconciler detaches it after it is closed"
    )
