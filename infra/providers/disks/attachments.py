"""Attached and mounted disks: the kernel's state, and a record of each attachment.

The record is a small file next to the mount points. The mount itself cannot store it: the mount
hides an attribute of its mount point, an attribute of the image would belong to the disk, and
neither the loop device nor the mount survives a reboot. The file does, so after a reboot, the disk
is mounted again as the same attachment.

All functions block, and raise ``OSError`` unchanged.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, NamedTuple

import msgspec

from events.external import ExternalObject
from events.manifest import Fields
from infra.providers.disks import loops
from infra.providers.disks.folder import (
    ATTACHMENT_SUFFIX,
    ATTACHMENTS,
    IMAGE_SUFFIX,
    MOUNTS,
    DiskFolder,
    image_file_name,
    lock_image,
    name_problem,
    resolve_path,
)
from infra.providers.disks.images import read_uid
from infra.providers.disks.loops import Loop
from infra.providers.disks.mounts import Mount, mount_at, mounts
from infra.providers.file_errors import sync_folder
from infra.providers.file_root import open_file, open_temporary, stat_of, temporary_name
from infra.providers.responses import UNDECODABLE
from reconciler.errors import NotDoneError, RefusedError

IMAGE_DELETED: Final = "ImageDeleted"
MAX_MARK_BYTES: Final = 64 * 1024


class AttachmentMark(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The content of an attachment's file."""

    uid: str
    key: str
    disk: str
    read_only: bool
    mounted: bool
    labels: dict[str, str] = {}
    disk_uid: str = ""  # empty in a record of an earlier version


_mark_decoder = msgspec.json.Decoder(AttachmentMark)
_encoder = msgspec.json.Encoder(order="deterministic")


class KernelState(NamedTuple):
    """The kernel's loop devices and mounts, read once for a listing."""

    loops: list[Loop]
    mounts: list[Mount]

    def loop_of(self, mount: Mount | None) -> Loop | None:
        """Return the loop device of a mount."""
        if mount is None:
            return None
        return next((each for each in self.loops if each.number == mount.device), None)

    def mount_paths_of(self, loop: Loop) -> list[str]:
        """Return the mount points of a loop device in this mount namespace."""
        return [each.mount_path for each in self.mounts if each.device == loop.number]


class Attachment(NamedTuple):
    """An attachment: its record, and the mount at its mount point."""

    name: str
    mount_path: str
    mark: AttachmentMark | None
    mount: Mount | None
    loop: Loop | None  # the mount's, or the disk's if it is attached but not mounted there
    is_mounted: bool  # whether the mount is this disk
    disk: str

    @property
    def is_lost(self) -> bool:
        """Whether its image was deleted."""
        return self.loop is not None and self.loop.is_deleted

    @property
    def is_foreign(self) -> bool:
        """Whether another mount is visible at its mount point."""
        return self.mount is not None and not self.is_mounted

    def as_object(self) -> ExternalObject:
        """Return the attachment as an object, with the state of its mount."""
        mark, mount = self.mark, self.mount
        if mark is None:
            assert mount is not None
            uid, is_read_only, is_mounted = f"mount-{mount.mount_id}", mount.is_read_only, True
        else:
            uid, is_mounted = mark.uid, self.is_mounted
            is_read_only = mount.is_read_only if self.is_mounted and mount else mark.read_only
            if not mark.mounted and self.loop is not None:
                is_mounted = True  # it should be detached, but is still attached
        fields: Fields = {"disk": self.disk, "readOnly": is_read_only, "mounted": is_mounted}
        outputs: Fields = {"path": self.mount_path}
        if self.loop is not None and (self.is_mounted or self.is_lost):
            outputs["device"] = self.loop.path
        if self.is_lost:
            outputs["alarm"] = IMAGE_DELETED
        state = _encoder.encode((mark, fields, uid))
        return ExternalObject(
            name=self.name,
            fields=fields,
            uid=uid,
            version=hashlib.sha256(state).hexdigest()[:32],
            labels={} if mark is None else mark.labels,
            written_by=None if mark is None else mark.key,
            outputs=outputs,
        )


def read_kernel_state() -> KernelState:
    """Read the kernel's current loop devices and mounts."""
    return KernelState(loops.loops(), mounts())


class Attachments:
    """The attachments of a folder."""

    def __init__(self, folder: DiskFolder) -> None:
        self._folder = folder

    def find(self, name: str, kernel: KernelState | None = None) -> Attachment | None:
        """Return an attachment, or another mount at its mount point; None if there is neither."""
        mark, state = self.read_mark(name), kernel or read_kernel_state()
        mount_path = self.mount_path_of(name)
        mount = mount_at(mount_path, state.mounts)
        if mark is None and mount is None:
            return None
        loop = state.loop_of(mount)
        if mark is None:
            disk = None if loop is None else self.disk_of(loop)
            source = disk or (mount.source if mount else "")
            return Attachment(name, mount_path, None, mount, loop, disk is not None, source)
        if loop is not None and self.belongs_to(loop, mark.disk, mark.disk_uid):
            return Attachment(name, mount_path, mark, mount, loop, True, mark.disk)
        attached = next(
            (each for each in state.loops if self.belongs_to(each, mark.disk, mark.disk_uid)), None
        )
        return Attachment(name, mount_path, mark, mount, attached, False, mark.disk)

    def disk_of(self, loop: Loop) -> str | None:
        """Return the disk in this folder that a loop device belongs to; None if there is none."""
        name = loop.file_name.removesuffix(IMAGE_SUFFIX)
        return name if name_problem(name) is None and self.belongs_to(loop, name) else None

    def belongs_to(self, loop: Loop, disk: str, uid: str = "") -> bool:
        """Return whether a loop device belongs to a disk, or to its deleted image.

        ``uid``: the disk's uid. A later disk with the same name has another one.
        """
        with self._folder.image_folder() as folder:
            if folder is None:
                return False
            segment = image_file_name(disk)
            if loop.file_name != segment:
                return False
            current_uid = read_uid(folder, disk) if uid else ""
            if loop.is_deleted:
                is_replaced = uid != "" and current_uid == uid
                return not is_replaced and loop.file == f"{resolve_path(folder)}/{segment}"
            if current_uid != uid:
                return False
            file_stat = stat_of(folder, segment)
            return (
                file_stat is not None
                and stat.S_ISREG(file_stat.st_mode)
                and loops.belongs_to(loop, file_stat)
            )

    def names(self, prefix: str) -> list[str]:
        """Return the names of attachments, and of other mounts in the folder of mount points."""
        recorded = self._folder.names(ATTACHMENTS, ATTACHMENT_SUFFIX, prefix)
        with self._folder.root.open_parent(f"{MOUNTS}/") as folder:
            if folder is None:
                return recorded
            start = f"{resolve_path(folder)}/"
        mounted_names = [
            each.mount_path.removeprefix(start)
            for each in mounts()
            if each.mount_path.startswith(start + prefix)
        ]
        return list({*recorded, *(each for each in mounted_names if name_problem(each) is None)})

    def read_all(self, names: list[str]) -> list[Attachment]:
        """Return the named attachments, and read the kernel's state only once."""
        kernel = read_kernel_state()
        attachments = (self.find(name, kernel) for name in names)
        return [each for each in attachments if each is not None]

    def space(self, name: str) -> Fields | None:
        """Return a mounted disk's total, used and free bytes."""
        attachment = self.find(name)
        if attachment is None or not attachment.is_mounted:
            return None
        space = os.statvfs(attachment.mount_path)
        size = space.f_frsize
        return {
            "totalBytes": space.f_blocks * size,
            "usedBytes": (space.f_blocks - space.f_bfree) * size,
            "freeBytes": space.f_bavail * size,
        }

    def mount_path_of(self, name: str) -> str:
        """Return the path of a mount point as mountinfo shows it."""
        with self._folder.root.open_parent(f"{MOUNTS}/{name}") as folder:
            return (
                str(self._folder.root.path / MOUNTS / name)
                if folder is None
                else (f"{resolve_path(folder)}/{name}")
            )

    @contextmanager
    def mount_point(self, name: str, *, create: bool = False) -> Generator[int | None]:
        """Open a mount point. Raises ``RefusedError`` if it is not a folder."""
        with self._folder.root.open_parent(f"{MOUNTS}/{name}/", create=create) as folder:
            if folder is None and (create or self._has_entry(name)):
                raise RefusedError(f"{self.mount_path_of(name)} is not a directory; remove it")
            yield folder

    def _has_entry(self, name: str) -> bool:
        with self._folder.root.open_parent(f"{MOUNTS}/{name}") as folder:
            return folder is not None and stat_of(folder, name) is not None

    @contextmanager
    def disk(self, disk: str) -> Generator[int | None]:
        """Open and lock a disk's image, which prevents its deletion and growth."""
        with self._folder.image_folder() as folder:
            if folder is None:
                yield None
                return
            with lock_image(folder, image_file_name(disk), f"disk {disk!r}") as file:
                yield file

    def disk_uid(self, disk: str) -> str:
        """Return the uid of a disk; empty if it does not exist."""
        with self._folder.image_folder() as folder:
            return "" if folder is None else read_uid(folder, disk) or ""

    def read_mark(self, name: str) -> AttachmentMark | None:
        """Read the record of an attachment."""
        with self._folder.root.open_parent(f"{ATTACHMENTS}/{name}") as folder:
            segment = f"{name}{ATTACHMENT_SUFFIX}"
            file = None if folder is None else open_file(folder, segment)
            if file is None:
                return None
            try:
                return _mark_decoder.decode(os.read(file, MAX_MARK_BYTES))
            except UNDECODABLE as error:
                raise NotDoneError(
                    f"{ATTACHMENTS}/{segment} is unreadable ({error}); repair it, or move it "
                    "elsewhere"
                ) from None
            finally:
                os.close(file)

    def write(self, name: str, mark: AttachmentMark, *, is_new: bool) -> None:
        """Write an attachment's file atomically. Replace an existing file unless ``is_new``."""
        segment = f"{name}{ATTACHMENT_SUFFIX}"
        with self._folder.root.open_parent(f"{ATTACHMENTS}/{name}", create=True) as folder:
            assert folder is not None
            temporary_file = temporary_name(f"{mark.key} {name}")
            with open_temporary(folder, temporary_file) as file:
                os.write(file, _encoder.encode(mark))
                os.fsync(file)
                if is_new:
                    os.link(
                        temporary_file,
                        segment,
                        src_dir_fd=folder,
                        dst_dir_fd=folder,
                        follow_symlinks=False,
                    )
                else:
                    os.rename(temporary_file, segment, src_dir_fd=folder, dst_dir_fd=folder)
                sync_folder(folder)
