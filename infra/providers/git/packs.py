"""Limits on the data from a repository, applied during the transfer and before unpacking."""

from __future__ import annotations

import hashlib
import mmap
import zlib
from collections.abc import Callable
from typing import BinaryIO, Final, cast

from dulwich.object_store import DiskObjectStore
from dulwich.pack import unpack_object_at

from infra.providers.git.problems import GitError

_MIB: Final = 1024 * 1024

MAX_PACK_BYTES: Final = 128 * _MIB
"""Limit on the pack of a commit and its history, which is on disk during the read."""

MAX_OBJECT_BYTES: Final = 64 * _MIB
"""Limit on an unpacked object, including objects outside the source's folder."""

MAX_UNPACKED_BYTES: Final = 512 * _MIB
"""Limit on all unpacked objects. Unpacking them one by one takes several seconds."""

MAX_OBJECTS: Final = 200_000

_HEADER_BYTES: Final = 12
_DELTA_TYPES: Final = (6, 7)
_MAX_SIZE_BYTES: Final = 10
_SIZES_BYTES: Final = 2 * _MAX_SIZE_BYTES

_AddPack = tuple[BinaryIO, Callable[[], None], Callable[[], None]]


class LimitedStore(DiskObjectStore):
    """An object store that accepts only packs within the limits."""

    def add_pack(self) -> _AddPack:
        """Return a file for a pack, and functions to accept or discard it."""
        file, commit, abort = super().add_pack()

        def check_and_commit() -> None:
            file.flush()
            if file.tell():
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                    check_pack(content)
            return commit()  # returns a pack, contrary to its annotation

        return cast("BinaryIO", _LimitedFile(file)), check_and_commit, abort


class _LimitedFile:
    """A file for a pack of limited size."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = 0

    def write(self, piece: bytes) -> int:
        """Write a piece. Raises ``GitError`` above the limit."""
        self._size += len(piece)
        if self._size > MAX_PACK_BYTES:
            raise GitError(
                "Unreachable",
                f"the repository sends more than {MAX_PACK_BYTES // _MIB} MiB for a commit",
            )
        return self._file.write(piece)


def check_pack(content: mmap.mmap | bytes) -> None:
    """Raise ``GitError`` if the stated sizes of a pack's objects exceed a limit.

    An object that is larger than stated is unpacked only up to the stated size.
    """
    count = int.from_bytes(content[_HEADER_BYTES - 4 : _HEADER_BYTES])
    if count > MAX_OBJECTS:
        raise GitError(
            "BadCommit",
            f"it has {count} objects including its history, more than the limit of {MAX_OBJECTS}",
        )
    at, total = _HEADER_BYTES, 0
    for _ in range(count):
        is_delta = content[at] >> 4 & 7 in _DELTA_TYPES
        total += _check_size(_size_at(content, at, first_bits=4)[0])
        start, at = _unpack_start(content, at)
        if is_delta:
            total += _check_size(_size_at(start, _size_at(start, 0)[1])[0])
        if total > MAX_UNPACKED_BYTES:
            raise GitError(
                "BadCommit",
                "its objects, including its history, exceed the limit of "
                f"{MAX_UNPACKED_BYTES // _MIB} MiB",
            )


def _unpack_start(content: mmap.mmap | bytes, at: int) -> tuple[bytes, int]:
    """Unpack an object. Return its start, and the position after it."""
    try:
        unpacked, end = unpack_object_at(content, at, hashlib.sha1)
        return b"".join(unpacked.decomp_chunks)[:_SIZES_BYTES], end
    except (zlib.error, AssertionError) as error:
        message = str(error)
    # Raised outside the handler, so that the error does not keep a reference to the mapped file.
    raise GitError("BadCommit", f"its pack is damaged: {message}")


def _check_size(size: int) -> int:
    if size > MAX_OBJECT_BYTES:
        raise GitError(
            "BadCommit",
            f"one of its objects is {size} bytes, more than the limit of "
            f"{MAX_OBJECT_BYTES // _MIB} MiB",
        )
    return size


def _size_at(content: mmap.mmap | bytes, at: int, *, first_bits: int = 7) -> tuple[int, int]:
    """Parse a size in a pack. Return it with the position after it."""
    size, shift = content[at] & (1 << first_bits) - 1, first_bits
    for position in range(at + 1, at + _MAX_SIZE_BYTES):
        if not content[position - 1] & 0x80:
            return size, position
        size |= (content[position] & 0x7F) << shift
        shift += 7
    raise GitError("BadCommit", "its pack is damaged: the size of an object is not terminated")
