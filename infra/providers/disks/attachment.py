"""The kind ``Attachment``: a disk that is attached and mounted, as a separate resource.

``attachments`` describes what it records, and why there.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Annotated, Final, TypeVar

import msgspec

from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec, Scope
from infra.providers.disks import loops
from infra.providers.disks.attachments import (
    IMAGE_DELETED,
    Attachment,
    AttachmentMark,
    Attachments,
    machine,
)
from infra.providers.disks.disk import HINT_OF_LOST
from infra.providers.disks.folder import (
    ATTACHMENT_SUFFIX,
    ATTACHMENTS,
    MOUNTS,
    DiskFolder,
    name_problem,
)
from infra.providers.disks.images import Image, image_of
from infra.providers.disks.mounts import mount_at, mounts, users_of
from infra.providers.disks.programs import REFUSED, Ended, proc_path, refused, run, waiting
from infra.providers.disks.superblock import FILESYSTEM
from infra.providers.file_errors import settle
from reconciler.errors import (
    ConflictError,
    NotDoneError,
    ReconcilerError,
    RefusedError,
    UnknownResultError,
)
from reconciler.provider import Capabilities
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.kind import READY, Kind, Readiness
from reconciler.provider.listing import Unreadable
from reconciler.provider.named_objects import Found, NamedObjects, check_uid
from reconciler.provider.secrets import Secrets
from reconciler.resource.owner_label import OWNER_LABEL, namespace_of

_T = TypeVar("_T")
_WAITS: Final = HTTPStatus.CONFLICT
_OPTIONS: Final = "nodev,nosuid,errors=remount-ro"
"""A user who can write to a disk must not get devices or another user's rights from it."""


class AttachmentFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A disk that is mounted on the worker's machine."""

    disk: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}(?!\n)$")],
        msgspec.Meta(
            description="Disk of the same ProviderConfig and namespace: {$ref: Disk/NAME, "
            "field: name}, or its name."
        ),
    ]
    read_only: Annotated[
        bool, msgspec.Meta(description="Whether the disk is mounted read-only.")
    ] = False
    mounted: Annotated[
        bool,
        msgspec.Meta(
            description="Whether the disk is mounted. false unmounts and detaches it, and "
            "keeps the declaration."
        ),
    ] = True


class AttachmentOutputs(msgspec.Struct, frozen=True):
    """Where a disk is mounted, by which device, and whether its image was deleted."""

    path: Annotated[str, msgspec.Meta(description="Mount point: ROOT/mounts/NAME.")]
    device: Annotated[
        str, msgspec.Meta(description="Loop device. It can change when the machine restarts.")
    ] = ""
    alarm: Annotated[
        str,
        msgspec.Meta(
            description="ImageDeleted, if the image was deleted while the disk was attached."
        ),
    ] = ""


def normalize(fields: Fields) -> Fields:
    """Return the canonical form of an attachment's fields: all of them."""
    return {"readOnly": False, "mounted": True, **fields}


def ready(fields: Fields, thing: ExternalObject) -> Readiness:
    """Return whether the disk can be used. Without its image, it is lost at the next restart."""
    if thing.outputs.get("alarm") == IMAGE_DELETED:
        hint = HINT_OF_LOST.format(device=thing.outputs.get("device", "its device"))
        return Readiness(
            False, IMAGE_DELETED, f"the image was deleted while it was attached; {hint}"
        )
    if not fields.get("mounted", True):
        return Readiness(False, "Detached", "the attachment is declared with mounted: false")
    return READY


class AttachmentsProvider(NamedObjects[Attachment]):
    """Attaches and mounts disks, and never detaches one that is in use."""

    noun = "attachment"

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        del secrets  # a folder has no login
        self._folder = DiskFolder(config, permit)
        self._there = Attachments(self._folder)

    def name_problem(self, external_name: str) -> str | None:
        """Describe why an attachment cannot have this name."""
        return name_problem(external_name)

    async def find(self, external_name: str) -> Attachment | None:
        """Read an attachment, or what else is mounted at its place."""
        return await self._folder.step(lambda: self._there.found(external_name))

    async def create_object(self, action: Action) -> Attachment:
        """Record the attachment, then attach and mount; an earlier attempt continues."""
        has_begun = await self._step(lambda: self._begin(action))
        if has_begun and await self._step(lambda: self._done(action)) is not None:
            raise ConflictError(f"attachment {action.external_name!r} already exists")
        if action.fields["mounted"]:
            await self._step(lambda: self._attach(action))
            await self._step(lambda: self._mount(action))
        done = await self._step(lambda: self._done(action))
        if done is None:
            raise UnknownResultError("the attachment was changed right after its creation")
        return done

    async def update_object(self, action: Action, found: Found[Attachment]) -> Attachment:
        """Mount, unmount, or change how it is mounted."""
        attachment, wanted = found.native, action.fields
        _check_change(attachment, action)
        if attachment.mark is not None and attachment.mark.mounted != wanted["mounted"]:
            await self._step(lambda: self._intend(action))
        if not wanted["mounted"]:
            await self._step(lambda: self._unmount(action))
            await self._step(lambda: self._detach(action))
        elif not attachment.is_mounted:
            await self._step(lambda: self._attach(action))
            await self._step(lambda: self._mount(action))
        elif found.object.fields["readOnly"] != wanted["readOnly"]:
            await self._step(lambda: self._remount(action))
        return await self._step(lambda: self._mark_again(action))

    async def delete_object(self, action: Action, found: Found[Attachment]) -> None:
        """Unmount and detach the disk when it is no longer in use."""
        if found.native.mark is None:
            raise RefusedError(
                f"another client mounted {found.native.place}, so Reconciler never unmounts it"
            )
        _check_not_lost(found.native)
        await self._step(lambda: self._unmount(action))
        await self._step(lambda: self._detach(action))
        await self._step(lambda: self._forget(action))

    def list_objects(
        self, scope: Scope, page_size: int, unreadable: Unreadable
    ) -> AsyncIterator[Sequence[Attachment]]:
        """List the attachments of a scope, and what else is mounted at such places."""
        del unreadable
        return self._folder.pages(scope, page_size, self._there.names, self._there.listed)

    async def readings(self, external_name: str) -> Fields | None:
        """Read how full a mounted disk is."""
        self.check_name(external_name)
        return await self._folder.step(lambda: self._there.space(external_name))

    async def close(self) -> None:
        """Stop the threads."""
        self._folder.close()

    async def _step(self, function: Callable[[], _T]) -> _T:
        return await self._folder.step(function, writes=True)

    # --- in a thread: creation

    def _begin(self, action: Action) -> bool:
        """Record what is to be mounted. Return whether an earlier attempt did that.

        Everything that can be refused is refused here, before any effect.
        """
        name, disk = action.external_name, action.fields["disk"]
        with self._there.disk(disk) as file:
            found = self._there.found(name)
            if found is not None:
                if found.mark is None or found.mark.key != action.idempotency_key:
                    raise _taken(found)
                return True
            try:
                _check_usable(action, file)
                self._check_free(name, disk, file)
            except NotDoneError as error:
                raise NotDoneError(error.message, status=_WAITS) from None
            made = f"attachment-{hashlib.sha256(action.idempotency_key.encode()).hexdigest()[:32]}"
            self._folder.root.mark()
            self._there.write(name, _mark(action, made), is_new=True)
        return False

    def _check_free(self, name: str, disk: str, file: int | None) -> None:
        """Raise ``NotDoneError`` if another attachment has the disk, or files are at the place."""
        for other in self._folder.names(ATTACHMENTS, ATTACHMENT_SUFFIX, ""):
            mark = self._there.read_mark(other)
            if other != name and mark is not None and mark.disk == disk:
                raise waiting(
                    f"disk {disk!r} is in use by attachment {other!r}; Reconciler attaches it "
                    "here after that attachment is deleted"
                )
        kernel = machine()
        for loop in () if file is None else image_of(file, disk, kernel.loops).attached:
            if places := kernel.places_of(loop):
                raise waiting(
                    f"disk {disk!r} is mounted at {', '.join(places)} by another client; "
                    "Reconciler attaches it here after it is unmounted there"
                )
        with self._there.mount_point(name) as point:
            if point is not None and os.listdir(point):  # noqa: PTH208 - an open folder
                place = self._there.place_at(name)
                raise waiting(f"{place} contains files, which a mount would hide; move them away")

    def _attach(self, action: Action) -> None:
        """Attach the disk to a loop device. An existing one is used, so that it never has two."""
        disk = action.fields["disk"]
        with self._there.disk(disk) as file:
            image = _check_usable(action, file)
            assert file is not None
            if not image.attached:
                ended = self._run(
                    file, "losetup", "--nooverlap", "--show", "-f", "--", proc_path(file)
                )
                if ended.code != 0:
                    raise refused(ended, f"attaching disk {disk!r} failed")

    def _mount(self, action: Action) -> None:
        name, disk = action.external_name, action.fields["disk"]
        with self._there.disk(disk) as file:
            image = _check_usable(action, file)
            assert file is not None
            found = self._there.found(name)
            if found is None or not image.attached:
                raise UnknownResultError(f"disk {disk!r} was detached during the call")
            _check_still(found, action)
            if found.is_mounted:
                return
            _check_not_foreign(found)
            with self._there.mount_point(name, make=True) as point:
                assert point is not None
                if os.listdir(point):  # noqa: PTH208 - an open folder
                    raise waiting(
                        f"{found.place} contains files, which a mount would hide; move them away"
                    )
                ended = run(
                    "mount",
                    *("-c", "-t", FILESYSTEM, "-o", _options(action)),
                    *("--", image.attached[0].path, proc_path(point)),
                    timeout_seconds=self._folder.timeout_seconds,
                    files=(file, point),
                )
                if ended.code != 0:
                    # Another attachment may just have unmounted it, and the kernel released the
                    # device.
                    if not loops.is_of(image.attached[0], image.found):
                        raise waiting(f"disk {disk!r} was detached during the call")
                    raise _not_mounted(
                        refused(ended, f"mounting disk {disk!r} at {found.place} failed"), found
                    )

    def _done(self, action: Action) -> Attachment | None:
        """Return the attachment if it matches the declaration."""
        found = self._there.found(action.external_name)
        if found is None:
            return None
        _check_still(found, action)
        return found if found.as_object().fields == action.fields else None

    # --- in a thread: change and deletion

    def _intend(self, action: Action) -> None:
        """Record first whether it is to be mounted. A crash then leaves a difference to detect."""
        name = action.external_name
        found = self._there.found(name)
        if found is None or found.mark is None:
            raise self.missing_error(action)
        _check_still(found, action)
        changed = msgspec.structs.replace(found.mark, mounted=action.fields["mounted"])
        self._there.write(name, changed, is_new=False)

    def _remount(self, action: Action) -> None:
        found = self._there.found(action.external_name)
        if found is None or not found.is_mounted:
            raise UnknownResultError("the disk is no longer mounted")
        _check_still(found, action)
        options = f"remount,{_options(action)}"
        ended = self._run(None, "mount", "-c", "-o", options, "--", found.place)
        if ended.code != 0:
            raise self._busy_or(ended, found, "Reconciler remounts it when it is no longer in use")

    def _mark_again(self, action: Action) -> Attachment:
        name = action.external_name
        found = self._there.found(name)
        if found is None:
            raise self.missing_error(action)
        _check_still(found, action)
        uid = found.as_object().uid or ""
        self._there.write(name, _mark(action, uid), is_new=found.mark is None)
        again = self._there.found(name)
        if again is None:
            raise UnknownResultError("the attachment was changed, but no longer exists")
        return again

    def _unmount(self, action: Action) -> None:
        found = self._there.found(action.external_name)
        if found is None or found.mark is None or not found.is_mounted:
            if found is not None and found.is_foreign:
                self._check_nothing_beneath(found)
            return
        _check_still(found, action)
        _check_not_lost(found)
        assert found.loop is not None
        kernel = machine()
        others = [each for each in kernel.places_of(found.loop) if each != found.place]
        if others:
            raise waiting(
                f"{found.loop.path} is also mounted at {', '.join(others)}; Reconciler "
                f"unmounts {found.place} after it is unmounted there"
            )
        ended = self._run(None, "umount", "-c", "--", found.place)
        if ended.code != 0 and mount_at(found.place, mounts()) is not None:
            raise self._busy_or(ended, found, "Reconciler unmounts it when it is no longer in use")

    def _check_nothing_beneath(self, found: Attachment) -> None:
        """Raise ``NotDoneError`` if another mount covers our own mount."""
        kernel = machine()
        for mount in kernel.mounts:
            loop = kernel.loop_of(mount)
            if mount.place == found.place and loop and self._there.is_of(loop, found.disk):
                _check_not_foreign(found)

    def _detach(self, action: Action) -> None:
        found = self._there.found(action.external_name)
        if found is None or found.mark is None:
            return
        _check_still(found, action)
        disk = found.mark.disk
        with self._there.disk(disk) as file:
            if file is None:
                return
            kernel = machine()
            image = image_of(file, disk, kernel.loops)
            for loop in image.attached:
                if places := kernel.places_of(loop):
                    raise waiting(
                        f"disk {disk!r} ({loop.path}) is mounted at {', '.join(places)} by "
                        "another client; Reconciler detaches it after it is unmounted there"
                    )
                loops.detach(loop, image.found)

    def _forget(self, action: Action) -> None:
        """Remove the mount point, if it is an empty folder, and then the record."""
        name = action.external_name
        found = self._there.found(name)
        if found is None or found.mark is None:
            return
        _check_still(found, action)
        with self._folder.root.folder_of(f"{MOUNTS}/{name}") as folder:
            if folder is not None:
                with suppress(OSError):  # files or mounts of other clients stay
                    os.rmdir(name, dir_fd=folder)
        with self._folder.root.folder_of(f"{ATTACHMENTS}/{name}") as folder:
            if folder is not None:
                with suppress(FileNotFoundError):
                    os.unlink(f"{name}{ATTACHMENT_SUFFIX}", dir_fd=folder)
                settle(folder)

    def _busy_or(self, ended: Ended, found: Attachment, until: str) -> ReconcilerError:
        if "busy" in ended.words.lower():
            users = users_of(found.place, mounts())
            return waiting(f"{found.place} is in use by {users}; {until}")
        return refused(ended, found.place)

    def _run(self, file: int | None, program: str, *arguments: str) -> Ended:
        files = () if file is None else (file,)
        return run(program, *arguments, timeout_seconds=self._folder.timeout_seconds, files=files)


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


def _check_usable(action: Action, file: int | None) -> Image:
    """Return a disk that can be mounted; raises ``NotDoneError`` if there is none.

    A disk of another namespace looks the same as one that does not exist.
    """
    disk = action.fields["disk"]
    if file is None:
        raise waiting(f"disk {disk!r} does not exist (yet)")
    image = image_of(file, disk)
    if image.mark is None:
        raise waiting(
            f"another client created disk {disk!r}; it is not mounted until a Disk adopts it"
        )
    if namespace_of(image.mark.labels.get(OWNER_LABEL, "")) != action.namespace:
        raise waiting(f"disk {disk!r} does not exist (yet)")
    if image.superblock is None or image.superblock.filesystem != FILESYSTEM:
        raise waiting(f"disk {disk!r} no longer has the filesystem {FILESYSTEM}")
    return image


def _check_change(found: Attachment, action: Action) -> None:
    """Raise for a change that is impossible, or must wait for another client."""
    if action.fields["disk"] != found.disk:
        raise RefusedError(
            f"attachment {found.name!r} belongs to disk {found.disk!r}; declare another "
            "attachment for another disk"
        )
    if found.mark is None and not found.is_mounted:
        raise RefusedError(
            f"{found.place} has another mount ({found.disk}), which Reconciler neither adopts nor "
            "unmounts; unmount it"
        )
    _check_not_lost(found)
    _check_not_foreign(found)


def _check_still(found: Attachment, action: Action) -> None:
    """Raise ``ConflictError`` if another attachment has the name in the meantime.

    The permit of a call may take long between two steps.
    """
    check_uid(found.as_object(), action)
    is_made_here = found.mark is not None and found.mark.key == action.idempotency_key
    if action.operation == "Create" and not is_made_here:
        raise _taken(found)


def _check_not_lost(found: Attachment) -> None:
    if found.is_lost and found.loop is not None:
        hint = HINT_OF_LOST.format(device=found.loop.path)
        raise waiting(f"the image of disk {found.disk!r} was deleted while it was attached; {hint}")


def _check_not_foreign(found: Attachment) -> None:
    if found.is_foreign and found.mount is not None:
        raise waiting(
            f"{found.place} has another mount ({found.mount.source}), which Reconciler never "
            "unmounts; unmount it"
        )


def _not_mounted(error: ReconcilerError, found: Attachment) -> ReconcilerError:
    """Return why a disk is not mounted. Without a reason to wait, the attachment is half done."""
    if not isinstance(error, NotDoneError) or error.status != REFUSED:
        return error
    return RefusedError(
        (
            f"{error}; its filesystem may be damaged, so check it with e2fsck, then apply the "
            "manifest with a change"
        ),
        obstacle=found.as_object(),
    )


def _taken(found: Attachment) -> ConflictError:
    what = "already exists" if found.mark else f"has a mount of another client at {found.place}"
    return ConflictError(f"attachment {found.name!r} {what}", obstacle=found.as_object())


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
