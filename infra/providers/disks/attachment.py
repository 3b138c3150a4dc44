"""The kind ``Attachment``: a disk that is attached and mounted, as a resource of its own.

What is known of one is in a small file beside the mount points. The mount itself can carry nothing:
an attribute of its folder is hidden under it, one of the image would be the disk's, and neither the
loop device nor the mount outlives the machine's end. The file does, so what was mounted before a
restart is mended, and is no stranger's.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec

from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec, Scope
from infra.providers.conflicts import check_uid
from infra.providers.disks import loops
from infra.providers.disks.disk import HINT_OF_LOST
from infra.providers.disks.folder import (
    ATTACHMENT_SUFFIX,
    ATTACHMENTS,
    IMAGE_SUFFIX,
    MOUNTS,
    DiskFolder,
    checked_name,
    locked,
    name_problem,
    place_of,
    segment_of,
)
from infra.providers.disks.images import Image, image_of
from infra.providers.disks.loops import Loop
from infra.providers.disks.mounts import Mount, mount_at, mounts, users_of
from infra.providers.disks.programs import REFUSED, Ended, proc_path, refused, run, waiting
from infra.providers.disks.superblock import FILESYSTEM
from infra.providers.file_errors import settle
from infra.providers.file_root import opened_file, stat_of, temporary, temporary_name
from reconciler.errors import (
    ConflictError,
    NotFoundError,
    NothingDoneError,
    PermanentError,
    ReconcilerError,
    TransientError,
    UnknownResultError,
)
from reconciler.provider import Capabilities, Effect
from reconciler.provider.kind import READY, Kind, Readiness
from reconciler.provider.secrets import Secrets

IMAGE_DELETED: Final = "ImageDeleted"
MAX_MARK_BYTES: Final = 64 * 1024

_T = TypeVar("_T")
_WAITS: Final = HTTPStatus.CONFLICT
_OPTIONS: Final = "nodev,nosuid,errors=remount-ro"
"""Who writes into a disk must not get devices or another user's rights out of it."""


class AttachmentFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The fields of an ``Attachment``'s spec."""

    disk: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}(?!\n)$")],
        msgspec.Meta(description="The disk, as {$ref: Disk/NAME, field: name}, or its name."),
    ]
    read_only: Annotated[
        bool, msgspec.Meta(description="Whether nothing can be written to it.")
    ] = False
    mounted: Annotated[
        bool, msgspec.Meta(description="Whether it is mounted now; false detaches the disk.")
    ] = True


class AttachmentOutputs(msgspec.Struct, frozen=True):
    """Where a disk is mounted, by which device, and whether its image is lost."""

    path: str
    device: str = ""
    alarm: str = ""


class AttachmentMark(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What the file of an attachment says."""

    uid: str
    key: str
    disk: str
    read_only: bool
    mounted: bool
    labels: dict[str, str] = {}


_mark_decoder = msgspec.json.Decoder(AttachmentMark)
_encoder = msgspec.json.Encoder(order="deterministic")


def normalize(fields: Fields) -> Fields:
    """Return an attachment's fields their canonical form: all of them."""
    return {"readOnly": False, "mounted": True, **fields}


def ready(fields: Fields, thing: ExternalObject) -> Readiness:
    """Say whether the disk can be used; one without an image is lost with the next restart."""
    if thing.outputs.get("alarm") == IMAGE_DELETED:
        hint = HINT_OF_LOST.format(device=thing.outputs.get("device", "its device"))
        return Readiness(
            False, IMAGE_DELETED, f"the image was deleted while it is attached: {hint}"
        )
    if not fields.get("mounted", True):
        return Readiness(False, "Detached", "mounted is false")
    return READY


class _Machine(NamedTuple):
    """What the kernel has: read once for a listing."""

    loops: list[Loop]
    mounts: list[Mount]

    def loop_of(self, mount: Mount | None) -> Loop | None:
        if mount is None:
            return None
        return next((each for each in self.loops if each.number == mount.device), None)

    def places_of(self, loop: Loop) -> list[str]:
        return [each.place for each in self.mounts if each.device == loop.number]


class _Attachment(NamedTuple):
    """An attachment as it was found: what is known of it, and what is seen at its place."""

    name: str
    place: str
    mark: AttachmentMark | None
    mount: Mount | None
    loop: Loop | None  # of the mount, or of a disk that is attached and not mounted there
    is_mounted: bool  # and it is this disk
    disk: str

    @property
    def is_lost(self) -> bool:
        return self.loop is not None and self.loop.is_deleted

    @property
    def is_foreign(self) -> bool:
        """Whether something else is at its place."""
        return self.mount is not None and not self.is_mounted

    def shown(self) -> ExternalObject:
        mark, mount = self.mark, self.mount
        if mark is None:
            assert mount is not None
            uid, is_read_only, is_mounted = f"mount-{mount.mount_id}", mount.is_read_only, True
        else:
            uid, is_mounted = mark.uid, self.is_mounted
            is_read_only = mount.is_read_only if self.is_mounted and mount else mark.read_only
            if not mark.mounted and self.loop is not None:
                is_mounted = True  # it shall be detached, and is not yet
        fields: Fields = {"disk": self.disk, "readOnly": is_read_only, "mounted": is_mounted}
        outputs: Fields = {"path": self.place}
        if self.is_mounted and self.loop is not None:
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


class AttachmentsProvider:
    """Attaches and mounts disks, and never takes one away under use."""

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets) -> None:
        del secrets  # a folder has no login
        self._folder = DiskFolder(config)

    async def create(self, action: Action) -> Effect:
        """Write down the attachment, then attach and mount; our own earlier attempt goes on."""
        _check(action)
        has_begun = await self._step(lambda: self._begin(action))
        if has_begun and (done := await self._step(lambda: self._done(action))) is not None:
            return Effect(done, replayed=True)
        if action.fields["mounted"]:
            await self._step(lambda: self._attach(action))
            await self._step(lambda: self._mount(action))
        done = await self._step(lambda: self._done(action))
        if done is None:
            raise UnknownResultError("what was made is not as it was by now")
        return Effect(done)

    async def update(self, action: Action) -> Effect:
        """Mount, unmount, or change how it is mounted, if it is still the action's."""
        _check(action)
        found = await self._step(lambda: self._check_update(action))
        if isinstance(found, Effect):
            return found
        wanted = action.fields
        if found.mark is not None and found.mark.mounted != wanted["mounted"]:
            await self._step(lambda: self._intend(action))
        if not wanted["mounted"]:
            await self._step(lambda: self._unmount(action))
            await self._step(lambda: self._detach(action))
        elif not found.is_mounted:
            await self._step(lambda: self._attach(action))
            await self._step(lambda: self._mount(action))
        elif found.shown().fields["readOnly"] != wanted["readOnly"]:
            await self._step(lambda: self._remount(action))
        return await self._step(lambda: self._mark_again(action))

    async def delete(self, action: Action) -> Effect:
        """Unmount and detach what is still the action's, when nobody uses it any more."""
        _check(action)
        found = await self._step(lambda: self._check_delete(action))
        if found is None:
            return Effect(None, absent=True)
        await self._step(lambda: self._unmount(action))
        await self._step(lambda: self._detach(action))
        await self._step(lambda: self._forget(action))
        return Effect(None)

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        """Read one attachment, or what else is mounted at its place."""
        del uid  # names are unique
        checked_name(external_name)
        found = await self._folder.step(lambda: self._found(external_name))
        return None if found is None else found.shown()

    def pages(self, scope: Scope, *, page_size: int) -> AsyncIterator[Sequence[ExternalObject]]:
        """List the attachments of a scope, and what else is mounted at such places."""
        return self._folder.pages(scope, page_size, self._names, self._listed)

    async def readings(self, external_name: str) -> Fields | None:
        """Read how full a mounted disk is."""
        checked_name(external_name)
        return await self._folder.step(lambda: self._space(external_name))

    async def close(self) -> None:
        """Let the threads end."""
        self._folder.close()

    async def _step(self, function: Callable[[], _T]) -> _T:
        return await self._folder.step(function, writes=True)

    # --- in a thread: creation

    def _begin(self, action: Action) -> bool:
        """Write down what shall be mounted; return whether that was done before.

        What can be refused is refused here, before anything is done.
        """
        name, disk = action.external_name, action.fields["disk"]
        with self._disk(disk) as file:
            found = self._found(name)
            if found is not None:
                if found.mark is None or found.mark.key != action.idempotency_key:
                    raise _taken(found)
                return True
            try:
                _check_usable(disk, file)
                self._check_free(name, disk, file)
            except TransientError as error:
                raise NothingDoneError(error.message, status=_WAITS) from None
            made = f"attachment-{hashlib.sha256(action.idempotency_key.encode()).hexdigest()[:32]}"
            self._folder.root.mark()
            self._write(name, _mark(action, made), is_new=True)
        return False

    def _check_free(self, name: str, disk: str, file: int | None) -> None:
        """Raise ``TransientError`` if another has the disk, or there are files at the place."""
        for other in self._folder.names(ATTACHMENTS, ATTACHMENT_SUFFIX, ""):
            mark = self._read_mark(other)
            if other != name and mark is not None and mark.disk == disk:
                raise waiting(
                    f"disk {disk!r} is taken by attachment {other!r}: it is attached here when"
                    " that is gone"
                )
        machine = _machine()
        for loop in () if file is None else image_of(file, disk, machine.loops).attached:
            if places := machine.places_of(loop):
                raise waiting(
                    f"disk {disk!r} is mounted at {', '.join(places)}, by somebody else: it is"
                    " attached here when it is unmounted there"
                )
        with self._mount_point(name) as point:
            if point is not None and os.listdir(point):  # noqa: PTH208 - an open folder
                raise waiting(
                    f"{self._place(name)} has files, which a mount would hide: move them away"
                )

    def _attach(self, action: Action) -> None:
        """Give the disk a loop device; one that it has is taken, so it never has two."""
        disk = action.fields["disk"]
        with self._disk(disk) as file:
            image = _check_usable(disk, file)
            assert file is not None
            if not image.attached:
                ended = self._run(
                    file, "losetup", "--nooverlap", "--show", "-f", "--", proc_path(file)
                )
                if ended.code != 0:
                    raise refused(ended, f"disk {disk!r} cannot be attached")

    def _mount(self, action: Action) -> None:
        name, disk = action.external_name, action.fields["disk"]
        with self._disk(disk) as file:
            image = _check_usable(disk, file)
            assert file is not None
            found = self._found(name)
            if found is None or not image.attached:
                raise UnknownResultError(f"what was attached of disk {disk!r} is there no more")
            if found.is_mounted:
                return
            _check_not_foreign(found)
            with self._mount_point(name, make=True) as point:
                assert point is not None
                if os.listdir(point):  # noqa: PTH208 - an open folder
                    raise waiting(f"{found.place} has files, which a mount would hide: move them")
                ended = run(
                    "mount",
                    *("-c", "-t", FILESYSTEM, "-o", _options(action)),
                    *("--", image.attached[0].path, proc_path(point)),
                    timeout_seconds=self._folder.timeout_seconds,
                    files=(file, point),
                )
                if ended.code != 0:
                    raise _not_mounted(refused(ended, f"disk {disk!r} at {found.place}"), found)

    def _done(self, action: Action) -> ExternalObject | None:
        """Return the attachment if it is as the action wants it."""
        found = self._found(action.external_name)
        shown = None if found is None else found.shown()
        return shown if shown is not None and shown.fields == action.fields else None

    # --- in a thread: change and deletion

    def _check_update(self, action: Action) -> _Attachment | Effect:
        name = action.external_name
        found = self._found(name)
        if found is None:
            raise NotFoundError(f"attachment {name!r} is not there")
        shown = found.shown()
        if shown.written_by == action.idempotency_key and shown.fields == action.fields:
            return Effect(shown, replayed=True)
        check_uid(shown, action)
        if action.version not in (None, shown.version):
            raise ConflictError(f"attachment {name!r} was changed meanwhile", obstacle=shown)
        if action.fields["disk"] != found.disk:
            raise PermanentError(
                f"attachment {name!r} is of disk {found.disk!r}: another disk is another attachment"
            )
        if found.mark is None and not found.is_mounted:
            raise PermanentError(
                f"{found.place} has a mount of something else ({shown.fields['disk']}), which is"
                " neither taken over nor unmounted"
            )
        _check_not_lost(found)
        _check_not_foreign(found)
        return found

    def _intend(self, action: Action) -> None:
        """Write down first whether it shall be mounted: so a crash leaves a difference to see."""
        name = action.external_name
        mark = self._read_mark(name)
        if mark is None:
            raise NotFoundError(f"attachment {name!r} is not there")
        changed = msgspec.structs.replace(mark, mounted=action.fields["mounted"])
        self._write(name, changed, is_new=False)

    def _remount(self, action: Action) -> None:
        found = self._found(action.external_name)
        if found is None or not found.is_mounted:
            raise UnknownResultError("the disk is not mounted any more")
        options = f"remount,{_options(action)}"
        ended = self._run(None, "mount", "-c", "-o", options, "--", found.place)
        if ended.code != 0:
            raise self._busy_or(ended, found, "it is changed when that ends")

    def _mark_again(self, action: Action) -> Effect:
        name = action.external_name
        found = self._found(name)
        if found is None:
            raise NotFoundError(f"attachment {name!r} is not there")
        check_uid(found.shown(), action)
        uid = found.shown().uid or ""
        self._write(name, _mark(action, uid), is_new=found.mark is None)
        again = self._found(name)
        if again is None:
            raise UnknownResultError("the attachment was changed and is gone again")
        return Effect(again.shown())

    def _check_delete(self, action: Action) -> _Attachment | None:
        found = self._found(action.external_name)
        if found is None:
            return None
        check_uid(found.shown(), action)
        if found.mark is None:
            raise PermanentError(
                f"{found.place} was mounted by somebody else: it is never unmounted here"
            )
        _check_not_lost(found)
        return found

    def _unmount(self, action: Action) -> None:
        found = self._found(action.external_name)
        if found is None or found.mark is None or not found.is_mounted:
            if found is not None and found.is_foreign:
                self._check_nothing_beneath(found)
            return
        check_uid(found.shown(), action)
        _check_not_lost(found)
        assert found.loop is not None
        machine = _machine()
        others = [each for each in machine.places_of(found.loop) if each != found.place]
        if others:
            raise waiting(
                f"{found.loop.path} is mounted at {', '.join(others)} too: {found.place} is"
                " unmounted when that is"
            )
        ended = self._run(None, "umount", "-c", "--", found.place)
        if ended.code != 0 and mount_at(found.place, mounts()) is not None:
            raise self._busy_or(ended, found, "it is unmounted when that ends")

    def _check_nothing_beneath(self, found: _Attachment) -> None:
        """Raise ``TransientError`` if somebody mounted something over our own mount."""
        machine = _machine()
        for mount in machine.mounts:
            loop = machine.loop_of(mount)
            if mount.place == found.place and loop and self._is_of(loop, found.disk):
                _check_not_foreign(found)

    def _detach(self, action: Action) -> None:
        found = self._found(action.external_name)
        if found is None or found.mark is None:
            return
        disk = found.mark.disk
        with self._disk(disk) as file:
            if file is None:
                return
            machine = _machine()
            image = image_of(file, disk, machine.loops)
            for loop in image.attached:
                if places := machine.places_of(loop):
                    raise waiting(
                        f"disk {disk!r} ({loop.path}) is mounted at {', '.join(places)}, by"
                        " somebody else: it is detached when it is unmounted there"
                    )
                loops.detach(loop, image.found)

    def _forget(self, action: Action) -> None:
        """Remove the mount point, if it is an empty folder, and then what is known of it."""
        name = action.external_name
        with self._folder.root.folder_of(f"{MOUNTS}/{name}") as folder:
            if folder is not None:
                with suppress(OSError):  # files, or a mount, of somebody else: they stay
                    os.rmdir(name, dir_fd=folder)
        with self._folder.root.folder_of(f"{ATTACHMENTS}/{name}") as folder:
            if folder is not None:
                with suppress(FileNotFoundError):
                    os.unlink(f"{name}{ATTACHMENT_SUFFIX}", dir_fd=folder)
                settle(folder)

    def _busy_or(self, ended: Ended, found: _Attachment, until: str) -> Exception:
        if "busy" in ended.words.lower():
            users = users_of(found.place, mounts())
            return waiting(f"{found.place} is in use by {users}: {until}")
        return refused(ended, found.place)

    def _run(self, file: int | None, program: str, *arguments: str) -> Ended:
        files = () if file is None else (file,)
        return run(program, *arguments, timeout_seconds=self._folder.timeout_seconds, files=files)

    # --- in a thread: what is there

    def _found(self, name: str, machine: _Machine | None = None) -> _Attachment | None:
        mark, now = self._read_mark(name), machine or _machine()
        place = self._place(name)
        mount = mount_at(place, now.mounts)
        if mark is None and mount is None:
            return None
        loop = now.loop_of(mount)
        if mark is None:
            disk = None if loop is None else self._disk_of(loop)
            seen = disk or (mount.source if mount else "")
            return _Attachment(name, place, None, mount, loop, disk is not None, seen)
        if loop is not None and self._is_of(loop, mark.disk):
            return _Attachment(name, place, mark, mount, loop, True, mark.disk)
        attached = next((each for each in now.loops if self._is_of(each, mark.disk)), None)
        return _Attachment(name, place, mark, mount, attached, False, mark.disk)

    def _disk_of(self, loop: Loop) -> str | None:
        """Return the disk of this folder that a loop device is of."""
        name = loop.file_name.removesuffix(IMAGE_SUFFIX)
        return name if name_problem(name) is None and self._is_of(loop, name) else None

    def _is_of(self, loop: Loop, disk: str) -> bool:
        """Return whether a loop device is of a disk, or of the image that it had until now."""
        with self._folder.image_folder() as folder:
            if folder is None:
                return False
            segment = segment_of(disk)
            if loop.file_name != segment:
                return False
            if loop.is_deleted:
                return loop.file == f"{place_of(folder)}/{segment}"
            found = stat_of(folder, segment)
            return found is not None and stat.S_ISREG(found.st_mode) and loops.is_of(loop, found)

    def _names(self, prefix: str) -> list[str]:
        marked = self._folder.names(ATTACHMENTS, ATTACHMENT_SUFFIX, prefix)
        with self._folder.root.folder_of(f"{MOUNTS}/") as folder:
            if folder is None:
                return marked
            start = f"{place_of(folder)}/"
        seen = [
            each.place.removeprefix(start)
            for each in mounts()
            if each.place.startswith(start + prefix)
        ]
        return list({*marked, *(each for each in seen if name_problem(each) is None)})

    def _listed(self, names: list[str]) -> list[ExternalObject]:
        machine = _machine()
        found = (self._found(name, machine) for name in names)
        return [each.shown() for each in found if each is not None]

    def _space(self, name: str) -> Fields | None:
        found = self._found(name)
        if found is None or not found.is_mounted:
            return None
        space = os.statvfs(found.place)
        size = space.f_frsize
        return {
            "totalBytes": space.f_blocks * size,
            "usedBytes": (space.f_blocks - space.f_bfree) * size,
            "freeBytes": space.f_bavail * size,
        }

    def _place(self, name: str) -> str:
        """Return the path of a mount point as mounts name it."""
        with self._folder.root.folder_of(f"{MOUNTS}/{name}") as folder:
            return (
                str(self._folder.root.path / MOUNTS / name)
                if folder is None
                else (f"{place_of(folder)}/{name}")
            )

    @contextmanager
    def _mount_point(self, name: str, *, make: bool = False) -> Generator[int | None]:
        """Open the folder to mount at; raises ``PermanentError`` if it is none."""
        with self._folder.root.folder_of(f"{MOUNTS}/{name}/", make=make) as folder:
            if folder is None and (make or self._is_there(name)):
                raise PermanentError(f"{self._place(name)} is no folder: nothing is mounted there")
            yield folder

    def _is_there(self, name: str) -> bool:
        with self._folder.root.folder_of(f"{MOUNTS}/{name}") as folder:
            return folder is not None and stat_of(folder, name) is not None

    @contextmanager
    def _disk(self, disk: str) -> Generator[int | None]:
        """Open and lock a disk's image, so that it is neither deleted nor resized meanwhile."""
        with self._folder.image_folder() as folder:
            if folder is None:
                yield None
                return
            with locked(folder, segment_of(disk), f"disk {disk!r}") as file:
                yield file

    def _read_mark(self, name: str) -> AttachmentMark | None:
        with self._folder.root.folder_of(f"{ATTACHMENTS}/{name}") as folder:
            segment = f"{name}{ATTACHMENT_SUFFIX}"
            file = None if folder is None else opened_file(folder, segment)
            if file is None:
                return None
            try:
                return _mark_decoder.decode(os.read(file, MAX_MARK_BYTES))
            except msgspec.DecodeError as error:
                raise TransientError(
                    f"{ATTACHMENTS}/{segment} cannot be read ({error}): mend it, or move it away"
                ) from None
            finally:
                os.close(file)

    def _write(self, name: str, mark: AttachmentMark, *, is_new: bool) -> None:
        """Write the file of an attachment whole, in the place of an older one only if that is."""
        segment = f"{name}{ATTACHMENT_SUFFIX}"
        with self._folder.root.folder_of(f"{ATTACHMENTS}/{name}", make=True) as folder:
            assert folder is not None
            beside = temporary_name(f"{mark.key} {name}")
            with temporary(folder, beside) as file:
                os.write(file, _encoder.encode(mark))
                os.fsync(file)
                if is_new:
                    os.link(
                        beside, segment, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False
                    )
                else:
                    os.rename(beside, segment, src_dir_fd=folder, dst_dir_fd=folder)
                settle(folder)


def _check(action: Action) -> None:
    checked_name(action.external_name)


def _mark(action: Action, uid: str) -> AttachmentMark:
    fields = action.fields
    return AttachmentMark(
        uid=uid,
        key=action.idempotency_key,
        disk=fields["disk"],
        read_only=fields["readOnly"],
        mounted=fields["mounted"],
        labels=action.labels,
    )


def _options(action: Action) -> str:
    return f"{'ro' if action.fields['readOnly'] else 'rw'},{_OPTIONS}"


def _machine() -> _Machine:
    return _Machine(loops.loops(), mounts())


def _check_usable(disk: str, file: int | None) -> Image:
    """Return a disk that can be mounted; raises ``TransientError`` if there is none."""
    if file is None:
        raise waiting(f"disk {disk!r} is not there, perhaps not yet")
    image = image_of(file, disk)
    if image.mark is None:
        raise waiting(
            f"disk {disk!r} was made by somebody else: what is in it is not mounted before a Disk"
            " has adopted it"
        )
    if image.superblock is None or image.superblock.filesystem != FILESYSTEM:
        raise waiting(f"disk {disk!r} has no filesystem {FILESYSTEM} any more")
    return image


def _check_not_lost(found: _Attachment) -> None:
    if found.is_lost and found.loop is not None:
        hint = HINT_OF_LOST.format(device=found.loop.path)
        raise waiting(f"the image of disk {found.disk!r} was deleted while it is attached: {hint}")


def _check_not_foreign(found: _Attachment) -> None:
    if found.is_foreign and found.mount is not None:
        raise waiting(
            f"{found.place} has a mount of something else ({found.mount.source}): unmount that,"
            " nobody else does"
        )


def _not_mounted(error: ReconcilerError, found: _Attachment) -> ReconcilerError:
    """Return why a disk is not mounted: without anything to wait for, what is there is a half."""
    if not isinstance(error, TransientError) or error.status != REFUSED:
        return error
    return PermanentError(
        f"{error}: its filesystem may be damaged: check it with e2fsck, and declare it again",
        obstacle=found.shown(),
    )


def _taken(found: _Attachment) -> ConflictError:
    what = "is there already" if found.mark else f"has a mount of somebody else at {found.place}"
    return ConflictError(f"attachment {found.name!r} {what}", obstacle=found.shown())


ATTACHMENT = Kind(
    name="Attachment",
    api_version="disks/v1",
    provider="disks",
    schema=AttachmentFields,
    capabilities=Capabilities(
        idempotency_keys=False, deterministic_names=True, labels=True, conditional_writes=True
    ),
    connect=AttachmentsProvider,
    normalize=normalize,
    name_problem=name_problem,
    outputs=AttachmentOutputs,
    ready=ready,
    immutable=frozenset({"disk"}),
)
"""The kind ``Attachment``."""
