"""Loop devices: their files, their sizes, and how to detach them.

The kernel lists them in sysfs. Only the device itself shows whether it belongs to a given file,
because a path may belong to another mount namespace or to an earlier file. Only devices whose file
has the right name are opened, because an open device cannot be detached. All functions block.
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

from infra.providers.disks.programs import build_permission_error, build_waiting_error
from reconciler.errors import ConfigurationError

if sys.platform != "win32":
    import fcntl

_SYSFS: Final = Path("/sys/block")
_DELETED: Final = " (deleted)"
_DETACHED_ERRORS: Final = frozenset({errno.ENXIO, errno.ENODEV, errno.ENOENT})

_GET_STATUS: Final = 0x4C05  # LOOP_GET_STATUS64
_SET_CAPACITY: Final = 0x4C07
_CLEAR: Final = 0x4C01  # LOOP_CLR_FD
_STATUS_BYTES: Final = 232

_MAX_POLLS: Final = 50
_POLL_SECONDS: Final = 0.02
"""Interval between polls while other programs, such as udev, may have a device open to read it."""


class Loop(NamedTuple):
    """A loop device with a backing file.

    ``number`` is major:minor, as in mountinfo. ``backing`` is the file's path, as in sysfs.
    """

    path: str
    number: str
    backing: str

    @property
    def is_deleted(self) -> bool:
        """Whether its file was deleted, so that only the device still has the data."""
        return self.backing.endswith(_DELETED)

    @property
    def file(self) -> str:
        """The path of its file, or the last path if the file was deleted."""
        return self.backing.removesuffix(_DELETED)

    @property
    def file_name(self) -> str:
        """The name of its file, which is the same in every mount namespace."""
        return self.file.rpartition("/")[2]


def loops() -> list[Loop]:
    """Return all loop devices with a backing file."""
    devices: list[Loop] = []
    for backing in _SYSFS.glob("loop*/loop/backing_file"):
        folder = backing.parents[1]
        try:
            # Remove only the newline that the kernel adds. The name may contain others.
            file = os.fsdecode(backing.read_bytes()).removesuffix("\n")
            number = (folder / "dev").read_text().strip()
        except OSError as error:
            if error.errno not in _DETACHED_ERRORS:
                raise
            continue  # it has since been detached
        if file:
            devices.append(Loop(f"/dev/{folder.name}", number, file))
    return sorted(devices)


def attached_of(file_stat: os.stat_result, name: str, all_loops: list[Loop]) -> tuple[Loop, ...]:
    """Return the loop devices of a file with this name."""
    return tuple(
        each for each in all_loops if each.file_name == name and belongs_to(each, file_stat)
    )


def belongs_to(loop: Loop, file_stat: os.stat_result) -> bool:
    """Return whether a loop device belongs to a file."""
    try:
        with open_device(loop.path) as device:
            return _is_backed_by(device, file_stat)
    except OSError as error:
        if error.errno in _DETACHED_ERRORS:
            return False
        raise


def _is_backed_by(device: int, file_stat: os.stat_result) -> bool:
    try:
        status = fcntl.ioctl(device, _GET_STATUS, bytes(_STATUS_BYTES))
    except OSError as error:
        if error.errno in _DETACHED_ERRORS:
            return False
        raise
    return struct.unpack_from("=QQ", status) == (file_stat.st_dev, file_stat.st_ino)


@contextmanager
def open_loop(loop: Loop, file_stat: os.stat_result) -> Generator[int | None]:
    """Open a loop device for reading; None if it no longer belongs to this file."""
    with open_device(loop.path) as device:
        yield device if _is_backed_by(device, file_stat) else None


@contextmanager
def open_device(path: str, flags: int = os.O_RDONLY) -> Generator[int]:
    """Open a device. Raises ``ConfigurationError`` if that is not permitted."""
    try:
        device = os.open(path, flags | os.O_CLOEXEC)
    except OSError as error:
        if (refusal := build_permission_error(error, path)) is not None:
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


def update_size(path: str) -> None:
    """Make a loop device adopt the new size of its file."""
    with open_device(path, os.O_RDWR) as device:
        fcntl.ioctl(device, _SET_CAPACITY, 0)


@contextmanager
def _open_exclusively(loop: Loop) -> Generator[int]:
    """Open a device exclusively. Other programs may still read it."""
    with ExitStack() as stack:
        for last in (*[False] * _MAX_POLLS, True):
            try:
                device = stack.enter_context(open_device(loop.path, os.O_RDWR | os.O_EXCL))
            except OSError as error:
                if error.errno != errno.EBUSY or last:
                    raise
                time.sleep(_POLL_SECONDS)  # in a separate thread
            else:
                yield device
                return


def detach(loop: Loop, file_stat: os.stat_result) -> None:
    """Detach a file's loop device, unless it is mounted in some mount namespace.

    Raises ``NotDoneError`` while it is. The kernel would accept the request and detach the device
    later. So the device is claimed first, as a mount would claim it.
    """
    try:
        with _open_exclusively(loop) as device:
            if not _is_backed_by(device, file_stat):
                return  # it now belongs to another file
            fcntl.ioctl(device, _CLEAR, 0)
    except OSError as error:
        if error.errno in _DETACHED_ERRORS:
            return
        if error.errno == errno.EBUSY:
            raise build_waiting_error(
                f"{loop.path} is in use, possibly mounted in another mount namespace (a "
                "container); Reconciler detaches it when it is no longer in use"
            ) from None
        raise
    for _ in range(_MAX_POLLS):
        if loop not in loops():
            return
        time.sleep(_POLL_SECONDS)  # in a separate thread
    raise build_waiting_error(
        f"another process has {loop.path} open; Reconciler detaches it after it is closed"
    )
