"""Read the superblock of an ext2, ext3 or ext4 filesystem."""

from __future__ import annotations

import os
import struct
from typing import Final, NamedTuple
from uuid import UUID

FILESYSTEM: Final = "ext4"

_OFFSET = 1024
_BYTES = 1024
_MAGIC = 0xEF53
_VALID = 0x1  # state: cleanly unmounted, or completely created
_EXTENTS = 0x40  # features that ext2 and ext3 do not have
_64_BIT = 0x80
_MAX_BLOCK_BITS = 6  # above 1 KiB; ext4's maximum is 64 KiB


class Superblock(NamedTuple):
    """A filesystem's type, uuid, label and size. ``is_clean``: no change was interrupted."""

    filesystem: str
    uuid: UUID
    label: str
    size_bytes: int
    is_clean: bool


def read_superblock(file: int) -> Superblock | None:
    """Read the superblock of an open image or device; None if it contains no such filesystem.

    For a mounted filesystem, only the device has the kernel's current data.
    """
    data = os.pread(file, _BYTES, _OFFSET)
    if len(data) < _BYTES or _number("<H", data, 0x38) != _MAGIC:
        return None
    # Without the limit, a damaged superblock could yield a number with half a gigabyte of digits.
    block_bits = min(_number("<I", data, 0x18), _MAX_BLOCK_BITS)
    incompatible = _number("<I", data, 0x60)
    blocks = _number("<I", data, 0x4)
    if incompatible & _64_BIT:
        blocks |= _number("<I", data, 0x150) << 32
    return Superblock(
        filesystem=FILESYSTEM if incompatible & _EXTENTS else "ext2 or ext3",
        uuid=UUID(bytes=data[0x68:0x78]),
        label=data[0x78:0x88].rstrip(b"\0").decode(errors="replace"),
        size_bytes=blocks * (1024 << block_bits),
        is_clean=bool(_number("<H", data, 0x3A) & _VALID),
    )


def _number(layout: str, data: bytes, offset: int) -> int:
    return int(struct.unpack_from(layout, data, offset)[0])
