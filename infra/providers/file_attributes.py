"""File attributes: mark, owner, uid and version.

All functions block, and raise ``OSError`` unchanged.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import msgspec

from infra.providers.responses import UNDECODABLE
from reconciler.errors import RefusedError, UnknownResultError

if sys.platform != "win32":
    import fcntl
    import grp
    import pwd

ATTRIBUTE: Final = "user.reconciler"
MAX_ATTRIBUTE_BYTES: Final = 3500
"""ext4 stores all attributes of a file in one block, which other clients may also use."""

_GET_INODE_GENERATION: Final = 0x8008_7601  # FS_IOC_GETVERSION


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """Content of a file's extended attribute; ``owner`` and ``group`` are as declared."""

    uid: str
    key: str
    labels: dict[str, str] = {}
    secret: bool = False
    owner: str = ""
    group: str = ""


_mark_decoder = msgspec.json.Decoder(Mark)
_encoder = msgspec.json.Encoder()


def mark_of(file: int) -> tuple[Mark | None, bool]:
    """Return a file's mark, and whether the filesystem can store one."""
    try:
        return _mark_decoder.decode(os.getxattr(file, ATTRIBUTE)), True
    except UNDECODABLE:
        return None, True
    except OSError as error:
        if error.errno not in {errno.ENODATA, errno.ENOTSUP}:
            raise
        return None, error.errno == errno.ENODATA


def write_mark(file: int, mark: Mark) -> bool:
    """Write a file's mark; return False if the filesystem has no support for it."""
    encoded = _encoder.encode(mark)
    if len(encoded) > MAX_ATTRIBUTE_BYTES:
        raise RefusedError(
            f"the labels exceed the limit of {MAX_ATTRIBUTE_BYTES} bytes; declare fewer or shorter "
            "ones"
        )
    try:
        os.setxattr(file, ATTRIBUTE, encoded)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        return False
    return True


@contextmanager
def restore_mark_on_error(file: int) -> Generator[None]:
    """Restore a file's mark after an error, so that nothing has changed.

    Raises ``UnknownResultError`` if that fails.
    """
    previous: bytes | None = None
    with contextlib.suppress(OSError):  # no mark, or no extended attributes
        previous = os.getxattr(file, ATTRIBUTE)
    try:
        yield
    except (OSError, RefusedError) as error:
        try:
            if previous is not None:
                os.setxattr(file, ATTRIBUTE, previous)
            else:
                os.removexattr(file, ATTRIBUTE)
        except OSError as failure:
            if failure.errno not in {errno.ENODATA, errno.ENOTSUP}:
                raise UnknownResultError(f"partly done: {error}") from None
        raise


def inode_uid(file: int, file_stat: os.stat_result) -> str:
    """Return a uid for an unmarked file. It contains the generation, because inodes are reused."""
    generation = bytes(8)
    with contextlib.suppress(OSError):  # not every filesystem has generations
        generation = fcntl.ioctl(file, _GET_INODE_GENERATION, generation)
    return f"inode-{file_stat.st_ino}-{struct.unpack('=q', generation)[0]}"


def version_of(file_stat: os.stat_result) -> str:
    """Return a version that changes whenever any client changes the content or the attributes."""
    return f"{file_stat.st_mtime_ns}-{file_stat.st_ctime_ns}-{file_stat.st_ino}-{file_stat.st_size}"


def owner_of(file_stat: os.stat_result, mark: Mark | None) -> tuple[str, str]:
    """Return owner and group, as declared if they still match: root may be declared as 0."""
    owner, group = (mark.owner, mark.group) if mark else ("", "")
    return (
        owner if owner and _user_id(owner) == file_stat.st_uid else _user(file_stat.st_uid),
        group if group and _group_id(group) == file_stat.st_gid else _group(file_stat.st_gid),
    )


def _user_id(name: str) -> int | None:
    try:
        return int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def _group_id(name: str) -> int | None:
    try:
        return int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def set_owner(file: int, owner: str | None, group: str | None) -> None:
    """Set owner and group if they are declared and different. Raises ``RefusedError``."""
    file_stat = os.fstat(file)
    user_id = file_stat.st_uid if owner is None else _user_id(owner)
    group_id = file_stat.st_gid if group is None else _group_id(group)
    if user_id is None or group_id is None:
        problem = f"user {owner!r}" if user_id is None else f"group {group!r}"
        raise RefusedError(f"{problem} does not exist")
    if (user_id, group_id) == (file_stat.st_uid, file_stat.st_gid):
        return
    try:
        os.fchown(file, user_id, group_id)
    except PermissionError:
        raise RefusedError(
            f"owner {owner!r} and group {group!r}: permission denied; run the worker as root, "
            "or with CAP_CHOWN and CAP_FOWNER"
        ) from None
