"""Image files: their marks, their filesystems, and their reserved space.

The mark is an extended attribute of the image, so it moves with it. All functions block, and
raise ``OSError`` unchanged.
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
from infra.providers.disks import loops
from infra.providers.disks.folder import image_file_name
from infra.providers.disks.loops import Loop
from infra.providers.disks.programs import build_waiting_error, is_out_of_space
from infra.providers.disks.superblock import Superblock, read_superblock
from infra.providers.file_attributes import MAX_ATTRIBUTE_BYTES, inode_uid
from infra.providers.file_root import open_file
from infra.providers.responses import UNDECODABLE
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
    """The state of an image."""

    file_stat: os.stat_result
    mark: DiskMark | None
    superblock: Superblock | None
    attached: tuple[Loop, ...]
    uid: str

    @property
    def size_bytes(self) -> int:
        """The size to which the disk's filesystem has grown.

        If a crash kept the filesystem of a grown image from growing, it is the old size.
        """
        size, mark = self.file_stat.st_size, self.mark
        if mark is None or size < mark.size_bytes:
            return size
        is_grown = self.superblock is not None and self.superblock.size_bytes > mark.size_bytes
        return size if is_grown else mark.size_bytes

    def as_object(self, name: str, path: str) -> ExternalObject:
        """Return the image as an object."""
        block = self.superblock
        fields: Fields = {
            "sizeBytes": self.size_bytes,
            "filesystem": NO_FILESYSTEM if block is None else block.filesystem,
            "label": "" if block is None else block.label,
        }
        outputs: Fields = {"path": path, "sizeBytes": self.size_bytes}
        if block is not None:
            outputs["uuid"] = str(block.uuid)
        # Excludes times, because writes to a mounted disk change the times of its image.
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
    """Return the uuid of the filesystem that an action with this key creates."""
    return uuid5(_KEYS, key)


def read_image(folder: int, disk: str, attached: list[Loop] | None = None) -> Image | None:
    """Read the state of a disk's image; None if it does not exist."""
    file = open_file(folder, image_file_name(disk))
    if file is None:
        return None
    try:
        return read_open_image(file, disk, attached)
    finally:
        os.close(file)


def read_uid(folder: int, disk: str) -> str | None:
    """Return the uid of a disk; None if it does not exist."""
    file = open_file(folder, image_file_name(disk))
    if file is None:
        return None
    try:
        mark = _read_mark(file)
        return mark.uid if mark is not None else inode_uid(file, os.fstat(file))
    finally:
        os.close(file)


def read_open_image(file: int, disk: str, attached: list[Loop] | None = None) -> Image:
    """Read the state of an open image.

    While it is attached, read the superblock from the device.
    """
    file_stat = os.fstat(file)
    mark = _read_mark(file)
    all_loops = loops.loops() if attached is None else attached
    attached_loops = loops.attached_of(file_stat, image_file_name(disk), all_loops)
    if attached_loops:
        with loops.open_loop(attached_loops[0], file_stat) as device:
            block = read_superblock(file if device is None else device)
    else:
        block = read_superblock(file)
    uid = mark.uid if mark is not None else inode_uid(file, file_stat)
    return Image(file_stat, mark, block, attached_loops, uid)


def write_mark(file: int, mark: DiskMark) -> None:
    """Mark an image. Raises ``RefusedError`` if that is not possible."""
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


def _read_mark(file: int) -> DiskMark | None:
    try:
        return _mark_decoder.decode(os.getxattr(file, ATTRIBUTE))
    except UNDECODABLE:
        return None
    except OSError as error:
        if error.errno not in {errno.ENODATA, errno.ENOTSUP}:
            raise
        return None


# --- space


def describe_missing_space(file: int, more_bytes: int) -> str:
    """Describe the free space if it is less than ``more_bytes``; empty if it is not."""
    space = os.fstatvfs(file)
    free_bytes = space.f_bavail * space.f_frsize
    return (
        ""
        if more_bytes <= free_bytes
        else f"{more_bytes} more bytes are required, but only {free_bytes} are free"
    )


def reserve_space(file: int, size_bytes: int) -> None:
    """Set the size of an image, and reserve all of its space.

    Raises ``NotDoneError`` if there is not enough space, in which case the image is unchanged.
    """
    old_size = os.fstat(file).st_size
    try:
        os.posix_fallocate(file, old_size, size_bytes - old_size)
    except OSError as error:
        os.ftruncate(file, old_size)  # unused: no filesystem extends that far
        if is_out_of_space(error):
            raise build_waiting_error(
                f"no space left in the disk directory: {error.strerror}"
            ) from None
        if error.errno == errno.EFBIG:
            raise RefusedError(
                f"{size_bytes} bytes exceed the maximum file size of this filesystem"
            ) from None
        raise
    os.fsync(file)
