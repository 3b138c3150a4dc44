"""The ``Attachment`` kind: a disk that is attached and mounted, as a separate resource.

``attachments`` explains what is recorded, and where.
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
    read_kernel_state,
)
from infra.providers.disks.disk import DELETED_IMAGE_HINT
from infra.providers.disks.folder import (
    ATTACHMENT_SUFFIX,
    ATTACHMENTS,
    MOUNTS,
    DiskFolder,
    name_problem,
)
from infra.providers.disks.images import Image, read_open_image
from infra.providers.disks.mounts import describe_users, mount_at, mounts
from infra.providers.disks.programs import (
    REFUSED,
    ProgramResult,
    build_program_error,
    build_waiting_error,
    proc_path,
    run,
)
from infra.providers.disks.superblock import FILESYSTEM
from infra.providers.file_errors import sync_folder
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
from reconciler.provider.named_objects import ExistingObject, NamedObjects, check_uid
from reconciler.provider.secrets import Secrets
from reconciler.resource.owner_label import OWNER_LABEL, belongs_to_other_namespace, namespace_of

_T = TypeVar("_T")
_WAITING_STATUS: Final = HTTPStatus.CONFLICT
_MOUNT_OPTIONS: Final = "nodev,nosuid,errors=remount-ro"
"""A user who can write to a disk must not gain devices or another user's privileges through it."""


class AttachmentFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A disk that is mounted on the worker's machine."""

    disk: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}(?!\n)$")],
        msgspec.Meta(
            description="Disk with the same ProviderConfig and namespace: {$ref: Disk/NAME, "
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
    """A disk's mount point and device, and whether its image was deleted."""

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
    """Return the canonical form of an attachment's fields, with the defaults."""
    return {"readOnly": False, "mounted": True, **fields}


def ready(fields: Fields, observed: ExternalObject) -> Readiness:
    """Return whether the disk is usable. If its image was deleted, a restart loses the data."""
    if observed.outputs.get("alarm") == IMAGE_DELETED:
        hint = DELETED_IMAGE_HINT.format(device=observed.outputs.get("device", "its device"))
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
        self._attachments = Attachments(self._folder)

    def name_problem(self, external_name: str) -> str | None:
        """Describe why an attachment cannot have this name."""
        return name_problem(external_name)

    async def find(self, external_name: str) -> Attachment | None:
        """Read an attachment, or another mount at its mount point."""
        return await self._folder.step(lambda: self._attachments.find(external_name))

    async def create_object(self, action: Action) -> Attachment:
        """Record the attachment, then attach and mount the disk, or resume an earlier attempt."""
        is_repeated = await self._step(lambda: self._record_attachment(action))
        if is_repeated and await self._step(lambda: self._find_matching(action)) is not None:
            raise ConflictError(f"attachment {action.external_name!r} already exists")
        if action.fields["mounted"]:
            await self._step(lambda: self._attach(action))
            await self._step(lambda: self._mount(action))
        attachment = await self._step(lambda: self._find_matching(action))
        if attachment is None:
            raise UnknownResultError("the attachment was changed right after its creation")
        return attachment

    async def update_object(
        self, action: Action, existing: ExistingObject[Attachment]
    ) -> Attachment:
        """Mount, unmount or remount the disk."""
        attachment, desired = existing.native, action.fields
        _check_change(attachment, action)
        is_to_mount = desired["mounted"] and not attachment.is_mounted
        if attachment.mark is not None and (
            attachment.mark.mounted != desired["mounted"] or is_to_mount
        ):
            await self._step(lambda: self._record_intent(action))
        if not desired["mounted"]:
            await self._step(lambda: self._unmount(action))
            await self._step(lambda: self._detach(action))
        elif not attachment.is_mounted:
            await self._step(lambda: self._attach(action))
            await self._step(lambda: self._mount(action))
        elif existing.object.fields["readOnly"] != desired["readOnly"]:
            await self._step(lambda: self._remount(action))
        return await self._step(lambda: self._update_mark(action))

    async def check_replacement(self, action: Action) -> None:
        """Check that the new disk exists and can be mounted."""
        await self._step(lambda: self._check_disk(action))

    async def delete_object(self, action: Action, existing: ExistingObject[Attachment]) -> None:
        """Unmount and detach the disk when it is no longer in use."""
        if existing.native.mark is None:
            raise RefusedError(
                f"another client mounted {existing.native.mount_path}, so Reconciler never "
                "unmounts it"
            )
        _check_not_lost(existing.native)
        await self._step(lambda: self._unmount(action))
        await self._step(lambda: self._detach(action))
        await self._step(lambda: self._remove_record(action))

    def list_objects(
        self, scope: Scope, page_size: int, unreadable: Unreadable
    ) -> AsyncIterator[Sequence[Attachment]]:
        """List the attachments in a scope, and other mounts in the folder of mount points."""
        del unreadable
        return self._folder.pages(
            scope, page_size, self._attachments.names, self._attachments.read_all
        )

    async def readings(self, external_name: str) -> Fields | None:
        """Read a mounted disk's total, used and free space."""
        self.check_name(external_name)
        return await self._folder.step(lambda: self._attachments.space(external_name))

    async def close(self) -> None:
        """Stop the threads."""
        self._folder.close()

    async def _step(self, function: Callable[[], _T]) -> _T:
        return await self._folder.step(function, writes=True)

    # --- called in a thread: creation

    def _record_attachment(self, action: Action) -> bool:
        """Record the attachment. Return whether an earlier attempt did.

        Checks for every reason to refuse it before any effect.
        """
        name, disk = action.external_name, action.fields["disk"]
        with self._attachments.disk(disk) as file:
            attachment = self._attachments.find(name)
            if attachment is not None:
                if attachment.mark is None or attachment.mark.key != action.idempotency_key:
                    raise _build_name_conflict(attachment)
                return True
            try:
                image = _check_usable(action, file)
                self._check_free(action, image, file)
            except NotDoneError as error:
                raise NotDoneError(error.message, status=_WAITING_STATUS) from None
            uid = f"attachment-{hashlib.sha256(action.idempotency_key.encode()).hexdigest()[:32]}"
            self._folder.root.mark()
            self._attachments.write(name, _mark(action, uid, image.uid), is_new=True)
        return False

    def _check_disk(self, action: Action) -> None:
        with self._attachments.disk(action.fields["disk"]) as file:
            _check_usable(action, file)

    def _check_free(self, action: Action, image: Image, file: int | None) -> None:
        """Raise ``NotDoneError`` if the disk or the mount point is in use."""
        name, disk = action.external_name, action.fields["disk"]
        for other_name in self._folder.names(ATTACHMENTS, ATTACHMENT_SUFFIX, ""):
            mark = self._attachments.read_mark(other_name)
            is_same_disk = (
                mark is not None and mark.disk == disk and mark.disk_uid in ("", image.uid)
            )
            if other_name != name and mark is not None and is_same_disk:
                user = (
                    "an attachment in another namespace"
                    if belongs_to_other_namespace(mark.labels, action.namespace)
                    else f"attachment {other_name!r}"
                )
                raise build_waiting_error(
                    f"disk {disk!r} is in use by {user}; Reconciler attaches it after that "
                    "attachment is deleted"
                )
        kernel = read_kernel_state()
        for loop in () if file is None else read_open_image(file, disk, kernel.loops).attached:
            if mount_paths := kernel.mount_paths_of(loop):
                raise build_waiting_error(
                    f"disk {disk!r} is mounted at {', '.join(mount_paths)} by another client; "
                    "Reconciler attaches it after it is unmounted there"
                )
        with self._attachments.mount_point(name) as point:
            if point is not None and os.listdir(point):  # noqa: PTH208 - an open folder
                mount_path = self._attachments.mount_path_of(name)
                raise build_waiting_error(
                    f"{mount_path} contains files, which a mount would hide; move them elsewhere"
                )

    def _attach(self, action: Action) -> None:
        """Attach the disk to a loop device, unless it is attached: it must never have two."""
        disk = action.fields["disk"]
        with self._attachments.disk(disk) as file:
            image = _check_usable(action, file)
            assert file is not None
            if not image.attached:
                result = self._run(
                    file, "losetup", "--nooverlap", "--show", "-f", "--", proc_path(file)
                )
                if result.code != 0:
                    raise build_program_error(result, f"cannot attach disk {disk!r}")

    def _mount(self, action: Action) -> None:
        name, disk = action.external_name, action.fields["disk"]
        with self._attachments.disk(disk) as file:
            image = _check_usable(action, file)
            assert file is not None
            attachment = self._attachments.find(name)
            if attachment is None or not image.attached:
                raise UnknownResultError(f"disk {disk!r} was detached during the call")
            _check_same_object(attachment, action)
            if attachment.is_mounted:
                return
            _check_not_foreign(attachment)
            with self._attachments.mount_point(name, create=True) as point:
                assert point is not None
                if os.listdir(point):  # noqa: PTH208 - an open folder
                    raise build_waiting_error(
                        f"{attachment.mount_path} contains files, which a mount would hide; "
                        "move them elsewhere"
                    )
                result = run(
                    "mount",
                    *("-c", "-t", FILESYSTEM, "-o", _options(action)),
                    *("--", image.attached[0].path, proc_path(point)),
                    timeout_seconds=self._folder.timeout_seconds,
                    files=(file, point),
                )
                if result.code != 0:
                    # Another attachment may have just unmounted it, so the kernel released the
                    # device.
                    if not loops.belongs_to(image.attached[0], image.file_stat):
                        raise build_waiting_error(f"disk {disk!r} was detached during the call")
                    raise _build_mount_error(
                        build_program_error(
                            result, f"cannot mount disk {disk!r} at {attachment.mount_path}"
                        ),
                        attachment,
                    )

    def _find_matching(self, action: Action) -> Attachment | None:
        """Return the attachment if it matches the declaration."""
        attachment = self._attachments.find(action.external_name)
        if attachment is None:
            return None
        _check_same_object(attachment, action)
        return attachment if attachment.as_object().fields == action.fields else None

    # --- called in a thread: change and deletion

    def _record_intent(self, action: Action) -> None:
        """First record whether to mount the disk, so that a crash leaves a difference to detect."""
        name = action.external_name
        attachment = self._attachments.find(name)
        if attachment is None or attachment.mark is None:
            raise self.missing_error(action)
        _check_same_object(attachment, action)
        is_mounted, disk_uid = action.fields["mounted"], attachment.mark.disk_uid
        if is_mounted:  # the disk may be a later one with the same name
            with self._attachments.disk(attachment.disk) as file:
                disk_uid = _check_usable(action, file).uid
        new_mark = msgspec.structs.replace(attachment.mark, mounted=is_mounted, disk_uid=disk_uid)
        if new_mark != attachment.mark:
            self._attachments.write(name, new_mark, is_new=False)

    def _remount(self, action: Action) -> None:
        attachment = self._attachments.find(action.external_name)
        if attachment is None or not attachment.is_mounted:
            raise UnknownResultError("the disk is no longer mounted")
        _check_same_object(attachment, action)
        options = f"remount,{_options(action)}"
        result = self._run(None, "mount", "-c", "-o", options, "--", attachment.mount_path)
        if result.code != 0:
            raise self._build_busy_error(
                result, attachment, "Reconciler remounts it when it is no longer in use"
            )

    def _update_mark(self, action: Action) -> Attachment:
        name = action.external_name
        attachment = self._attachments.find(name)
        if attachment is None:
            raise self.missing_error(action)
        _check_same_object(attachment, action)
        uid = attachment.as_object().uid or ""
        if attachment.is_mounted and not attachment.is_lost:
            disk_uid = self._attachments.disk_uid(attachment.disk)
        else:
            disk_uid = "" if attachment.mark is None else attachment.mark.disk_uid
        new_mark = _mark(action, uid, disk_uid)
        self._attachments.write(name, new_mark, is_new=attachment.mark is None)
        updated = self._attachments.find(name)
        if updated is None:
            raise UnknownResultError("the attachment was changed, but no longer exists")
        return updated

    def _unmount(self, action: Action) -> None:
        attachment = self._attachments.find(action.external_name)
        if attachment is None or attachment.mark is None or not attachment.is_mounted:
            if attachment is not None and attachment.is_foreign:
                self._check_not_covered(attachment)
            return
        _check_same_object(attachment, action)
        _check_not_lost(attachment)
        assert attachment.loop is not None
        kernel = read_kernel_state()
        other_paths = [
            each for each in kernel.mount_paths_of(attachment.loop) if each != attachment.mount_path
        ]
        if other_paths:
            raise build_waiting_error(
                f"{attachment.loop.path} is also mounted at {', '.join(other_paths)}; Reconciler "
                f"unmounts {attachment.mount_path} after it is unmounted there"
            )
        result = self._run(None, "umount", "-c", "--", attachment.mount_path)
        if result.code != 0 and mount_at(attachment.mount_path, mounts()) is not None:
            raise self._build_busy_error(
                result, attachment, "Reconciler unmounts it when it is no longer in use"
            )

    def _check_not_covered(self, attachment: Attachment) -> None:
        """Raise ``NotDoneError`` if another mount covers the attachment's mount."""
        kernel = read_kernel_state()
        for mount in kernel.mounts:
            loop = kernel.loop_of(mount)
            if (
                mount.mount_path == attachment.mount_path
                and loop
                and self._attachments.belongs_to(loop, attachment.disk)
            ):
                _check_not_foreign(attachment)

    def _detach(self, action: Action) -> None:
        attachment = self._attachments.find(action.external_name)
        if attachment is None or attachment.mark is None:
            return
        _check_same_object(attachment, action)
        disk, disk_uid = attachment.mark.disk, attachment.mark.disk_uid
        with self._attachments.disk(disk) as file:
            if file is None:
                return
            kernel = read_kernel_state()
            image = read_open_image(file, disk, kernel.loops)
            if disk_uid not in ("", image.uid):
                return  # a later disk with the same name
            for loop in image.attached:
                if mount_paths := kernel.mount_paths_of(loop):
                    raise build_waiting_error(
                        f"disk {disk!r} ({loop.path}) is mounted at {', '.join(mount_paths)} by "
                        "another client; Reconciler detaches it after it is unmounted there"
                    )
                loops.detach(loop, image.file_stat)

    def _remove_record(self, action: Action) -> None:
        """Remove the mount point if it is an empty folder, then the record."""
        name = action.external_name
        attachment = self._attachments.find(name)
        if attachment is None or attachment.mark is None:
            return
        _check_same_object(attachment, action)
        with self._folder.root.open_parent(f"{MOUNTS}/{name}") as folder:
            if folder is not None:
                with suppress(OSError):  # keep other clients' files and mounts
                    os.rmdir(name, dir_fd=folder)
        with self._folder.root.open_parent(f"{ATTACHMENTS}/{name}") as folder:
            if folder is not None:
                with suppress(FileNotFoundError):
                    os.unlink(f"{name}{ATTACHMENT_SUFFIX}", dir_fd=folder)
                sync_folder(folder)

    def _build_busy_error(
        self, result: ProgramResult, attachment: Attachment, next_step: str
    ) -> ReconcilerError:
        if "busy" in result.output.lower():
            users = describe_users(attachment.mount_path, mounts())
            return build_waiting_error(f"{attachment.mount_path} is in use by {users}; {next_step}")
        return build_program_error(result, attachment.mount_path)

    def _run(self, file: int | None, program: str, *arguments: str) -> ProgramResult:
        files = () if file is None else (file,)
        return run(program, *arguments, timeout_seconds=self._folder.timeout_seconds, files=files)


def _mark(action: Action, uid: str, disk_uid: str) -> AttachmentMark:
    fields = action.fields
    return AttachmentMark(
        uid=uid,
        key=action.idempotency_key,
        disk=fields["disk"],
        read_only=fields["readOnly"],
        mounted=fields["mounted"],
        labels=action.labels,
        disk_uid=disk_uid,
    )


def _options(action: Action) -> str:
    return f"{'ro' if action.fields['readOnly'] else 'rw'},{_MOUNT_OPTIONS}"


def _check_usable(action: Action, file: int | None) -> Image:
    """Return the disk. Raises ``NotDoneError`` if it cannot be mounted.

    A disk in another namespace is reported as missing.
    """
    disk = action.fields["disk"]
    if file is None:
        raise build_waiting_error(f"disk {disk!r} does not exist yet")
    image = read_open_image(file, disk)
    if image.mark is None:
        raise build_waiting_error(
            f"another client created disk {disk!r}; it is not mounted until a Disk adopts it"
        )
    if namespace_of(image.mark.labels.get(OWNER_LABEL, "")) != action.namespace:
        raise build_waiting_error(f"disk {disk!r} does not exist yet")
    if image.superblock is None or image.superblock.filesystem != FILESYSTEM:
        raise build_waiting_error(f"disk {disk!r} no longer has an {FILESYSTEM} filesystem")
    return image


def _check_change(attachment: Attachment, action: Action) -> None:
    """Raise if the change is impossible, or must wait for another client."""
    if action.fields["disk"] != attachment.disk:
        raise RefusedError(
            f"attachment {attachment.name!r} belongs to disk {attachment.disk!r}; declare another "
            "attachment for another disk"
        )
    if attachment.mark is None and not attachment.is_mounted:
        raise RefusedError(
            f"{attachment.mount_path} has another mount ({attachment.disk}), which Reconciler "
            "neither adopts nor unmounts; unmount it"
        )
    _check_not_lost(attachment)
    _check_not_foreign(attachment)


def _check_same_object(attachment: Attachment, action: Action) -> None:
    """Raise ``ConflictError`` if another attachment has taken the name.

    Waiting for a call permit between two steps may take a long time.
    """
    check_uid(attachment.as_object(), action)
    is_own = attachment.mark is not None and attachment.mark.key == action.idempotency_key
    if action.operation == "Create" and not is_own:
        raise _build_name_conflict(attachment)


def _check_not_lost(attachment: Attachment) -> None:
    if attachment.is_lost and attachment.loop is not None:
        hint = DELETED_IMAGE_HINT.format(device=attachment.loop.path)
        raise build_waiting_error(
            f"the image of disk {attachment.disk!r} was deleted while it was attached; {hint}"
        )


def _check_not_foreign(attachment: Attachment) -> None:
    if attachment.is_foreign and attachment.mount is not None:
        raise build_waiting_error(
            f"{attachment.mount_path} has another mount ({attachment.mount.source}), which "
            "Reconciler never unmounts; unmount it"
        )


def _build_mount_error(error: ReconcilerError, attachment: Attachment) -> ReconcilerError:
    """Return the error for a failed mount. If waiting cannot help, it includes the attachment."""
    if not isinstance(error, NotDoneError) or error.status != REFUSED:
        return error
    return RefusedError(
        (
            f"{error}; its filesystem may be damaged, so check it with e2fsck, then apply the "
            "manifest with a change"
        ),
        obstacle=attachment.as_object(),
    )


def _build_name_conflict(attachment: Attachment) -> ConflictError:
    reason = (
        "already exists"
        if attachment.mark
        else f"has another client's mount at {attachment.mount_path}"
    )
    return ConflictError(
        f"attachment {attachment.name!r} {reason}", obstacle=attachment.as_object()
    )


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
    keeps_readiness=True,
    immutable=frozenset({"disk"}),
)
"""The ``Attachment`` kind."""
