"""Image files: their marks, their filesystems, and their reserved space.

The mark is an extended attribute of the image, so it moves with it. Everything here blocks, and
raises ``OSError`` unchanged.
"""

from __future__ import annotations

import errno
import hashlib
import os
from typing import Final, NamedTuple
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec

from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields
from infra.providers.answers import UNDECODABLE
from infra.providers.disks import loops
from infra.providers.disks.folder import segment_of
from infra.providers.disks.loops import Loop
from infra.providers.disks.programs import build_waiting_error, is_full
from infra.providers.disks.superblock import Superblock, superblock_of
from infra.providers.file_attributes import MAX_ATTRIBUTE_BYTES, uid_of_inode
from infra.providers.file_root import open_file
from reconciler.errors import RefusedError

ATTRIBUTE: Final = "user.reconciler.disk"
NO_FILESYSTEM: Final = "none"

_KEYS = uuid5(NAMESPACE_URL, "reconciler/disks")


class DiskMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of the attribute. ``size_bytes``: size at the last creation or growth."""

    uid: str
    key: str
    size_bytes: int
    labels: dict[str, str] = {}


_mark_decoder = msgspec.json.Decoder(DiskMark)
_encoder = msgspec.json.Encoder(order="deterministic")


class Image(NamedTuple):
    """An image with its state."""

    file_stat: os.stat_result
    mark: DiskMark | None
    superblock: Superblock | None
    attached: tuple[Loop, ...]
    uid: str

    @property
    def size_bytes(self) -> int:
        """The size of the disk: that of its filesystem, once this is known to be complete.

        If a crash prevented the growth of the filesystem in a grown image, the old size counts.
        """
        size, mark = self.file_stat.st_size, self.mark
        if mark is None or size < mark.size_bytes:
            return size
        is_grown = self.superblock is not None and self.superblock.size_bytes > mark.size_bytes
        return size if is_grown else mark.size_bytes

    def as_object(self, name: str, path: str) -> ExternalObject:
        """Return it as an object."""
        block = self.superblock
        fields: Fields = {
            "sizeBytes": self.size_bytes,
            "filesystem": NO_FILESYSTEM if block is None else block.filesystem,
            "label": "" if block is None else block.label,
        }
        outputs: Fields = {"path": path, "sizeBytes": self.size_bytes}
        if block is not None:
            outputs["uuid"] = str(block.uuid)
        # No times, because writes to a mounted disk change those of its image.
        state = _encoder.encode((self.mark, fields, self.file_stat.st_ino))
        return ExternalObject(
            name=name,
            fields=fields,
            uid=self.uid,
            version=hashlib.sha256(state).hexdigest()[:32],
            labels={} if self.mark is None else self.mark.labels,
            written_by=None if self.mark is None else self.mark.key,
            outputs=outputs,
        )


def filesystem_uuid(key: str) -> UUID:
    """Return the uuid of the filesystem that an action with this key makes."""
    return uuid5(_KEYS, key)


def read_image(folder: int, disk: str, attached: list[Loop] | None = None) -> Image | None:
    """Read the state of a disk's image; None if there is none."""
    file = open_file(folder, segment_of(disk))
    if file is None:
        return None
    try:
        return image_of(file, disk, attached)
    finally:
        os.close(file)


def image_of(file: int, disk: str, attached: list[Loop] | None = None) -> Image:
    """Read the state of an open image.

    While it is attached, the superblock is that of the device.
    """
    file_stat = os.fstat(file)
    mark = _mark_of(file)
    all_loops = loops.loops() if attached is None else attached
    attached_loops = loops.attached_of(file_stat, segment_of(disk), all_loops)
    if attached_loops:
        with loops.open_loop(attached_loops[0], file_stat) as device:
            block = superblock_of(file if device is None else device)
    else:
        block = superblock_of(file)
    uid = mark.uid if mark is not None else uid_of_inode(file, file_stat)
    return Image(file_stat, mark, block, attached_loops, uid)


def write_mark(file: int, mark: DiskMark) -> None:
    """Mark an image. Raises ``RefusedError`` where that is not possible."""
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
        raise RefusedError(
            "this filesystem has no extended attributes, which record the owner of a disk; use "
            "another one, such as ext4 or xfs"
        ) from None
    os.fsync(file)


def build_mark(action: Action) -> DiskMark:
    """Return the mark of a disk that an action creates."""
    return DiskMark(
        uid=f"disk-{filesystem_uuid(action.idempotency_key)}",
        key=action.idempotency_key,
        size_bytes=action.fields["sizeBytes"],
        labels=action.labels,
    )


def _mark_of(file: int) -> DiskMark | None:
    try:
        return _mark_decoder.decode(os.getxattr(file, ATTRIBUTE))
    except UNDECODABLE:
        return None
    except OSError as error:
        if error.errno not in {errno.ENODATA, errno.ENOTSUP}:
            raise
        return None


# --- space


def missing_space(file: int, more_bytes: int) -> str:
    """Describe the free space of a folder if it is less than these bytes; None otherwise."""
    space = os.fstatvfs(file)
    free_bytes = space.f_bavail * space.f_frsize
    return (
        ""
        if more_bytes <= free_bytes
        else f"{more_bytes} more bytes are required, but only {free_bytes} are free"
    )


def keep_space(file: int, size_bytes: int) -> None:
    """Set the size of an image, and reserve all of its space.

    Raises ``NotDoneError`` without space, and leaves the image unchanged.
    """
    old_size = os.fstat(file).st_size
    try:
        os.posix_fallocate(file, old_size, size_bytes - old_size)
    except OSError as error:
        os.ftruncate(file, old_size)  # unused: no filesystem extends that far
        if is_full(error):
            raise build_waiting_error(
                f"no space left in the directory of disks: {error.strerror}"
            ) from None
        if error.errno == errno.EFBIG:
            raise RefusedError(
                f"{size_bytes} bytes exceed the maximum file size of this filesystem"
            ) from None
        raise
    os.fsync(file)
