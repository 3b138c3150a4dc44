"""Attached and mounted disks: the state of the kernel, and a record of each attachment.

The record is a small file beside the mount points. The mount itself cannot store it: an attribute
of its folder is hidden under it, one of the image would belong to the disk, and neither the loop
device nor the mount survives a restart of the machine. The file does, so a disk that was mounted
before a restart is repaired, and still is ours.

Everything here blocks, and raises ``OSError`` unchanged.
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
from infra.providers.answers import UNDECODABLE
from infra.providers.disks import loops
from infra.providers.disks.folder import (
    ATTACHMENT_SUFFIX,
    ATTACHMENTS,
    IMAGE_SUFFIX,
    MOUNTS,
    DiskFolder,
    lock_image,
    name_problem,
    place_of,
    segment_of,
)
from infra.providers.disks.loops import Loop
from infra.providers.disks.mounts import Mount, mount_at, mounts
from infra.providers.file_errors import settle
from infra.providers.file_root import open_file, open_temporary, stat_of, temporary_name
from reconciler.errors import NotDoneError, RefusedError

IMAGE_DELETED: Final = "ImageDeleted"
MAX_MARK_BYTES: Final = 64 * 1024


class AttachmentMark(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The content of the file of an attachment."""

    uid: str
    key: str
    disk: str
    read_only: bool
    mounted: bool
    labels: dict[str, str] = {}


_mark_decoder = msgspec.json.Decoder(AttachmentMark)
_encoder = msgspec.json.Encoder(order="deterministic")


class Machine(NamedTuple):
    """The state of the kernel, read once for a listing."""

    loops: list[Loop]
    mounts: list[Mount]

    def loop_of(self, mount: Mount | None) -> Loop | None:
        """Return the loop device of a mount."""
        if mount is None:
            return None
        return next((each for each in self.loops if each.number == mount.device), None)

    def places_of(self, loop: Loop) -> list[str]:
        """Return the mount points of a loop device in this mount namespace."""
        return [each.place for each in self.mounts if each.device == loop.number]


class Attachment(NamedTuple):
    """An attachment: its record, and what is at its place."""

    name: str
    place: str
    mark: AttachmentMark | None
    mount: Mount | None
    loop: Loop | None  # of the mount, or of a disk that is attached and not mounted there
    is_mounted: bool  # and it is this disk
    disk: str

    @property
    def is_lost(self) -> bool:
        """Whether its image was deleted."""
        return self.loop is not None and self.loop.is_deleted

    @property
    def is_foreign(self) -> bool:
        """Whether something else is at its place."""
        return self.mount is not None and not self.is_mounted

    def as_object(self) -> ExternalObject:
        """Convert it, with the state of its mount."""
        mark, mount = self.mark, self.mount
        if mark is None:
            assert mount is not None
            uid, is_read_only, is_mounted = f"mount-{mount.mount_id}", mount.is_read_only, True
        else:
            uid, is_mounted = mark.uid, self.is_mounted
            is_read_only = mount.is_read_only if self.is_mounted and mount else mark.read_only
            if not mark.mounted and self.loop is not None:
                is_mounted = True  # it is to be detached, and still is attached
        fields: Fields = {"disk": self.disk, "readOnly": is_read_only, "mounted": is_mounted}
        outputs: Fields = {"path": self.place}
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


def machine() -> Machine:
    """Read the current state of the kernel."""
    return Machine(loops.loops(), mounts())


class Attachments:
    """The attachments of a folder."""

    def __init__(self, folder: DiskFolder) -> None:
        self._folder = folder

    def find(self, name: str, kernel: Machine | None = None) -> Attachment | None:
        """Return an attachment, or what else is mounted at its place; None if there is neither."""
        mark, state = self.read_mark(name), kernel or machine()
        place = self.place_at(name)
        mount = mount_at(place, state.mounts)
        if mark is None and mount is None:
            return None
        loop = state.loop_of(mount)
        if mark is None:
            disk = None if loop is None else self.disk_of(loop)
            source = disk or (mount.source if mount else "")
            return Attachment(name, place, None, mount, loop, disk is not None, source)
        if loop is not None and self.belongs_to(loop, mark.disk):
            return Attachment(name, place, mark, mount, loop, True, mark.disk)
        attached = next((each for each in state.loops if self.belongs_to(each, mark.disk)), None)
        return Attachment(name, place, mark, mount, attached, False, mark.disk)

    def disk_of(self, loop: Loop) -> str | None:
        """Return the disk of this folder to which a loop device belongs."""
        name = loop.file_name.removesuffix(IMAGE_SUFFIX)
        return name if name_problem(name) is None and self.belongs_to(loop, name) else None

    def belongs_to(self, loop: Loop, disk: str) -> bool:
        """Return whether a loop device belongs to a disk, or to its previous image."""
        with self._folder.image_folder() as folder:
            if folder is None:
                return False
            segment = segment_of(disk)
            if loop.file_name != segment:
                return False
            if loop.is_deleted:
                return loop.file == f"{place_of(folder)}/{segment}"
            file_stat = stat_of(folder, segment)
            return (
                file_stat is not None
                and stat.S_ISREG(file_stat.st_mode)
                and loops.belongs_to(loop, file_stat)
            )

    def names(self, prefix: str) -> list[str]:
        """Return the names of attachments, and of other mounts at such places."""
        recorded = self._folder.names(ATTACHMENTS, ATTACHMENT_SUFFIX, prefix)
        with self._folder.root.folder_of(f"{MOUNTS}/") as folder:
            if folder is None:
                return recorded
            start = f"{place_of(folder)}/"
        mounted_names = [
            each.place.removeprefix(start)
            for each in mounts()
            if each.place.startswith(start + prefix)
        ]
        return list({*recorded, *(each for each in mounted_names if name_problem(each) is None)})

    def read_all(self, names: list[str]) -> list[Attachment]:
        """Return attachments by their names, with one read of the kernel's devices and mounts."""
        kernel = machine()
        attachments = (self.find(name, kernel) for name in names)
        return [each for each in attachments if each is not None]

    def space(self, name: str) -> Fields | None:
        """Return how full a mounted disk is."""
        attachment = self.find(name)
        if attachment is None or not attachment.is_mounted:
            return None
        space = os.statvfs(attachment.place)
        size = space.f_frsize
        return {
            "totalBytes": space.f_blocks * size,
            "usedBytes": (space.f_blocks - space.f_bfree) * size,
            "freeBytes": space.f_bavail * size,
        }

    def place_at(self, name: str) -> str:
        """Return the path of a mount point in the form that mounts have."""
        with self._folder.root.folder_of(f"{MOUNTS}/{name}") as folder:
            return (
                str(self._folder.root.path / MOUNTS / name)
                if folder is None
                else (f"{place_of(folder)}/{name}")
            )

    @contextmanager
    def mount_point(self, name: str, *, make: bool = False) -> Generator[int | None]:
        """Open the folder to mount at. Raises ``RefusedError`` if it is not a folder."""
        with self._folder.root.folder_of(f"{MOUNTS}/{name}/", make=make) as folder:
            if folder is None and (make or self._has_entry(name)):
                raise RefusedError(f"{self.place_at(name)} is not a directory; remove it")
            yield folder

    def _has_entry(self, name: str) -> bool:
        with self._folder.root.folder_of(f"{MOUNTS}/{name}") as folder:
            return folder is not None and stat_of(folder, name) is not None

    @contextmanager
    def disk(self, disk: str) -> Generator[int | None]:
        """Open and lock a disk's image, so that it is neither deleted nor resized."""
        with self._folder.image_folder() as folder:
            if folder is None:
                yield None
                return
            with lock_image(folder, segment_of(disk), f"disk {disk!r}") as file:
                yield file

    def read_mark(self, name: str) -> AttachmentMark | None:
        """Read the record of an attachment."""
        with self._folder.root.folder_of(f"{ATTACHMENTS}/{name}") as folder:
            segment = f"{name}{ATTACHMENT_SUFFIX}"
            file = None if folder is None else open_file(folder, segment)
            if file is None:
                return None
            try:
                return _mark_decoder.decode(os.read(file, MAX_MARK_BYTES))
            except UNDECODABLE as error:
                raise NotDoneError(
                    f"{ATTACHMENTS}/{segment} is unreadable ({error}); repair it, or move it away"
                ) from None
            finally:
                os.close(file)

    def write(self, name: str, mark: AttachmentMark, *, is_new: bool) -> None:
        """Write the complete file of an attachment; replace an older one only if told so."""
        segment = f"{name}{ATTACHMENT_SUFFIX}"
        with self._folder.root.folder_of(f"{ATTACHMENTS}/{name}", make=True) as folder:
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
                settle(folder)
