"""The ``Disk`` kind: an image file with an ext4 filesystem, which can grow.

The image is built under a name derived from the action's key. The last step links it to the disk's
name, and replaces nothing. So an image with a disk's name is complete, and mkfs never runs on it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

import msgspec

from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec, Scope
from infra.providers.disks import images, loops
from infra.providers.disks.folder import (
    IMAGE_SUFFIX,
    IMAGES,
    DiskFolder,
    image_file_name,
    lock_image,
    name_problem,
    resolve_path,
)
from infra.providers.disks.images import (
    DiskMark,
    Image,
    filesystem_uuid,
    read_image,
    read_open_image,
)
from infra.providers.disks.mounts import Mount, mounts
from infra.providers.disks.programs import (
    ProgramResult,
    build_program_error,
    build_waiting_error,
    proc_path,
    run,
)
from infra.providers.disks.superblock import FILESYSTEM, read_superblock
from infra.providers.file_errors import mark_unknown_result, sync_folder
from infra.providers.file_root import is_same_file, temporary_name
from reconciler.errors import (
    ConflictError,
    NotDoneError,
    RefusedError,
    UnknownResultError,
)
from reconciler.provider import Capabilities
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.kind import Kind
from reconciler.provider.listing import Unreadable
from reconciler.provider.named_objects import ExistingObject, NamedObjects, check_uid
from reconciler.provider.secrets import Secrets

MIN_SIZE_BYTES: Final = 8 * 1024 * 1024
"""A smaller filesystem has no journal."""

BLOCK_BYTES: Final = 4096

_T = TypeVar("_T")
_CAP_SYS_RESOURCE: Final = 24
_FSCK_REPAIRED: Final = 1
_WAITING_STATUS: Final = HTTPStatus.CONFLICT
DELETED_IMAGE_HINT: Final = (
    "its bytes remain only in {device}, which Reconciler never detaches; copy them (dd "
    "if={device} of=FILE), then unmount and detach the device"
)


class DiskFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A disk image with a filesystem."""

    size_bytes: Annotated[
        Annotated[int, msgspec.Meta(ge=MIN_SIZE_BYTES, le=1 << 50, multiple_of=BLOCK_BYTES)],
        msgspec.Meta(
            description="Size of the image including the filesystem, in bytes: a multiple of "
            "4096. It can grow and never shrinks."
        ),
    ]
    filesystem: Annotated[
        Literal["ext4"],
        msgspec.Meta(description="Filesystem that the disk is formatted with when it is created."),
    ] = FILESYSTEM
    label: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.:-]{0,16}(?!\n)$")],
        msgspec.Meta(
            description="Label of the filesystem: at most 16 letters, digits and characters "
            "of `_.:-`."
        ),
    ] = ""


class DiskOutputs(msgspec.Struct, frozen=True):
    """The path of a disk's image, its size, and its filesystem."""

    path: Annotated[str, msgspec.Meta(description="Path of the image file.")]
    size_bytes: Annotated[int, msgspec.Meta(description="Size of the image, in bytes.")] = (
        msgspec.field(name="sizeBytes")
    )
    uuid: Annotated[str, msgspec.Meta(description="UUID of the filesystem.")] = ""


def normalize(fields: Fields) -> Fields:
    """Return the canonical form of a disk's fields, with the defaults."""
    return {"filesystem": FILESYSTEM, "label": "", **fields}


def describe_data_loss(fields: Fields | None, observed: ExternalObject) -> str:
    """Describe the data that a deletion would lose. An update loses none."""
    return f"all data of disk {observed.name}" if fields is None else ""


@dataclass(frozen=True, slots=True)
class _Disk:
    """A disk with its image."""

    name: str
    image: Image
    path: str

    def as_object(self) -> ExternalObject:
        return self.image.as_object(self.name, self.path)


class DisksProvider(NamedObjects[_Disk]):
    """Creates, grows and deletes image files."""

    noun = "disk"

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        del secrets  # a folder has no login
        self._permit = permit
        self._folder = DiskFolder(config, permit)

    def name_problem(self, external_name: str) -> str | None:
        """Describe why a disk cannot have this name."""
        return name_problem(external_name)

    async def find(self, external_name: str) -> _Disk | None:
        """Read a disk."""
        return await self._folder.step(lambda: self._read(external_name))

    async def create_object(self, action: Action) -> _Disk:
        """Build an image under a temporary name, then link it, or resume an earlier attempt."""
        await self._unfinished_step(lambda: self._create_file(action))
        await self._unfinished_step(lambda: self._mark(action))
        await self._unfinished_step(lambda: self._reserve_space(action))
        await self._unfinished_step(lambda: self._make_filesystem(action))
        await self._step(lambda: self._publish(action))
        return await self._step(lambda: self._finish(action))

    async def update_object(self, action: Action, existing: ExistingObject[_Disk]) -> _Disk:
        """Grow the disk, or change its label or labels, if it has not changed since it was read."""
        version = existing.object.version
        image = await self._folder.step(lambda: self._check_change(action, version))
        if image.size_bytes < action.fields["sizeBytes"]:
            await self._step(lambda: self._grow_image(action))
            await self._step(lambda: self._grow_filesystem(action))
        if image.superblock is None or image.superblock.label != action.fields["label"]:
            await self._step(lambda: self._relabel(action))
        return await self._step(lambda: self._update_mark(action))

    async def delete_object(self, action: Action, existing: ExistingObject[_Disk]) -> None:
        """Delete the disk unless it is attached."""
        del existing  # the step compares the uid again, under a lock
        await self._step(lambda: self._delete(action))

    def list_objects(
        self, scope: Scope, page_size: int, unreadable: Unreadable
    ) -> AsyncIterator[Sequence[_Disk]]:
        """List the disks in a scope. An unfinished image is not a disk."""
        del unreadable
        return self._folder.pages(
            scope,
            page_size,
            lambda prefix: self._folder.names(IMAGES, IMAGE_SUFFIX, prefix),
            self._read_all,
        )

    async def close(self) -> None:
        """Stop the threads."""
        self._folder.close()

    async def _step(self, function: Callable[[], _T]) -> _T:
        return await self._folder.step(function, writes=True)

    async def _unfinished_step(self, function: Callable[[], _T]) -> _T:
        """Run a step on the unfinished image, which is not a disk yet."""
        with self._permit.exclude_writes():
            return await self._step(function)

    # --- called in a thread: creation

    def _create_file(self, action: Action) -> None:
        """Create an empty file under the temporary name, unless an earlier attempt did.

        Checks for every reason to refuse it before any effect.
        """
        name, file_name = action.external_name, _temporary_name(action)
        with self._folder.image_folder(create=True) as folder:
            assert folder is not None
            self._folder.root.mark()
            image = read_image(folder, name)
            if image is not None:
                if image.mark is not None and image.mark.key == action.idempotency_key:
                    _remove_temporary_name(folder, action)
                raise _build_name_conflict(name)
            _check_not_lost(folder, name)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(file_name, flags, 0o600, dir_fd=folder)
            try:
                current_size = os.fstat(file).st_size  # zero, or the full size
                shortage = images.describe_missing_space(
                    file, action.fields["sizeBytes"] - current_size
                )
                if shortage:
                    os.unlink(file_name, dir_fd=folder)
                    raise NotDoneError(
                        f"disk {name!r}: not enough space: {shortage}", status=_WAITING_STATUS
                    )
            finally:
                os.close(file)

    def _mark(self, action: Action) -> None:
        with self._open_unfinished(action) as (_folder, file):
            images.write_mark(file, images.build_mark(action))

    def _reserve_space(self, action: Action) -> None:
        with self._open_unfinished(action) as (folder, file):
            if os.fstat(file).st_size == action.fields["sizeBytes"]:
                return
            try:
                images.reserve_space(file, action.fields["sizeBytes"])
            except NotDoneError:
                # the error reports that nothing was done
                os.unlink(_temporary_name(action), dir_fd=folder)
                raise

    def _make_filesystem(self, action: Action) -> None:
        """Create the filesystem, unless it is complete: mkfs writes the superblock last."""
        uuid = filesystem_uuid(action.idempotency_key)
        with self._open_unfinished(action) as (folder, file):
            block = read_superblock(file)
            if block is not None and block.uuid == uuid and block.is_clean:
                return
            if os.fstat(file).st_nlink != 1:
                raise RefusedError(
                    f"disk {action.external_name!r} already exists; Reconciler never formats an "
                    "existing image"
                )
            # -F: it is a file, not a device. nodiscard: a discard would free the reserved space.
            options = ["-F", "-q", "-b", str(BLOCK_BYTES), "-m", "0", "-U", str(uuid)]
            options += ["-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"]
            options += ["-L", action.fields["label"], "--", proc_path(file)]
            result = run(
                "mkfs.ext4",
                *options,
                timeout_seconds=self._folder.timeout_seconds,
                files=(file,),
            )
            if result.code != 0:
                os.unlink(_temporary_name(action), dir_fd=folder)  # no effect visible to clients
                error = build_program_error(result, f"disk {action.external_name!r}")
                raise NotDoneError(str(error), status=_WAITING_STATUS)
            os.fsync(file)

    def _publish(self, action: Action) -> None:
        name, file_name = action.external_name, _temporary_name(action)
        with self._open_unfinished(action) as (folder, _file):
            try:
                os.link(
                    file_name,
                    image_file_name(name),
                    src_dir_fd=folder,
                    dst_dir_fd=folder,
                    follow_symlinks=False,
                )
            except FileExistsError:
                if is_same_file(folder, file_name, image_file_name(name)):
                    return
                os.unlink(file_name, dir_fd=folder)
                image = read_image(folder, name)
                if image is None:
                    raise RefusedError(
                        f"{image_file_name(name)!r} is a link, a directory or a device, which "
                        "Reconciler does not replace; remove it"
                    ) from None
                raise _build_name_conflict(name) from None
            except PermissionError:
                raise RefusedError(
                    f"disk {name!r}: this filesystem has no hard links, which creating a disk "
                    "requires; use another filesystem"
                ) from None
            sync_folder(folder)

    def _finish(self, action: Action) -> _Disk:
        name = action.external_name
        with self._folder.image_folder() as folder:
            image = None if folder is None else read_image(folder, name)
            if folder is None or image is None:
                raise UnknownResultError("the disk was created, but no longer exists")
            if image.mark is None or image.mark.key != action.idempotency_key:
                raise _build_name_conflict(name)
            _remove_temporary_name(folder, action)
            return self._disk(name, image)

    @contextmanager
    def _open_unfinished(self, action: Action) -> Generator[tuple[int, int]]:
        """Open and lock the image that is being built."""
        description = f"disk {action.external_name!r}"
        with self._folder.image_folder() as folder:
            if folder is None:
                raise UnknownResultError("the image directory was deleted")
            with lock_image(folder, _temporary_name(action), description) as file:
                if file is None:
                    raise UnknownResultError(f"the unfinished image of {description} was deleted")
                yield folder, file

    # --- called in a thread: change and deletion

    def _check_change(self, action: Action, version: str | None) -> Image:
        name, desired = action.external_name, action.fields
        with self._open_own_image(action) as (_folder, file):
            image = read_open_image(file, name)
            observed = self._disk(name, image).as_object()
            if observed.version != version:
                raise ConflictError(f"disk {name!r} has changed since it was read")
            if image.superblock is None or image.superblock.filesystem != desired["filesystem"]:
                raise RefusedError(
                    f"the filesystem of disk {name!r} is {observed.fields['filesystem']}; "
                    "Reconciler never formats an existing disk"
                )
            if desired["sizeBytes"] < image.size_bytes:
                raise RefusedError(
                    f"disk {name!r} is {image.size_bytes} bytes long and never shrinks; declare at "
                    f"least that size, or declare another disk of {desired['sizeBytes']} bytes "
                    "and copy the data"
                )
            if desired["sizeBytes"] > image.size_bytes:
                shortage = images.describe_missing_space(
                    file, desired["sizeBytes"] - image.file_stat.st_size
                )
                if shortage:
                    raise build_waiting_error(
                        f"disk {name!r}: not enough space to grow: {shortage}"
                    )
                _check_can_grow(name, image, mounts())
            return image

    def _grow_image(self, action: Action) -> None:
        with self._open_own_image(action) as (_folder, file):
            if os.fstat(file).st_size < action.fields["sizeBytes"]:
                images.reserve_space(file, action.fields["sizeBytes"])

    def _grow_filesystem(self, action: Action) -> None:
        name = action.external_name
        with self._open_own_image(action) as (_folder, file):
            image = read_open_image(file, action.external_name)
            mounted = _check_can_grow(name, image, mounts())
            for loop in image.attached:
                loops.update_size(loop.path)
            path = image.attached[0].path if image.attached else proc_path(file)
            if not mounted:
                # A filesystem that was mounted must be checked before it is resized.
                result = _run(file, "e2fsck", "-f", "-p", path)
                if result.code not in (0, _FSCK_REPAIRED):
                    raise build_program_error(result, f"cannot grow disk {name!r}")
            result = _run(file, "resize2fs", path)
            if result.code != 0:
                raise build_program_error(result, f"cannot grow disk {name!r}")
            if image.mark is not None:
                size = action.fields["sizeBytes"]
                images.write_mark(file, msgspec.structs.replace(image.mark, size_bytes=size))

    def _relabel(self, action: Action) -> None:
        with self._open_own_image(action) as (_folder, file):
            attached = read_open_image(file, action.external_name).attached
            path = attached[0].path if attached else proc_path(file)
            result = _run(file, "tune2fs", "-L", action.fields["label"], path)
            if result.code != 0:
                raise build_program_error(result, f"cannot label disk {action.external_name!r}")

    def _update_mark(self, action: Action) -> _Disk:
        name = action.external_name
        with self._open_own_image(action) as (_folder, file):
            mark = DiskMark(
                uid=read_open_image(file, name).uid,
                key=action.idempotency_key,
                size_bytes=action.fields["sizeBytes"],
                labels=action.labels,
            )
            images.write_mark(file, mark)
            return self._disk(name, read_open_image(file, name))

    def _delete(self, action: Action) -> None:
        name = action.external_name
        with self._open_own_image(action) as (folder, file):
            image = read_open_image(file, name)
            if image.attached:
                raise build_waiting_error(
                    f"disk {name!r} is attached as {_describe_attachment(image, mounts())}; "
                    "Reconciler deletes it after it is detached"
                )
            os.unlink(image_file_name(name), dir_fd=folder)
            sync_folder(folder)

    @contextmanager
    def _open_own_image(self, action: Action) -> Generator[tuple[int, int]]:
        """Open and lock the disk of an action. Raises if it is missing or was replaced."""
        name = action.external_name
        with self._folder.image_folder() as folder:
            if folder is None:
                raise self.missing_error(action)
            with lock_image(folder, image_file_name(name), f"disk {name!r}") as file:
                if file is None:
                    raise self.missing_error(action)
                check_uid(self._disk(name, read_open_image(file, name)).as_object(), action)
                yield folder, file

    # --- called in a thread: reads

    def _read(self, name: str) -> _Disk | None:
        with self._folder.image_folder() as folder:
            image = None if folder is None else read_image(folder, name)
            return None if image is None else self._disk(name, image)

    def _read_all(self, names: list[str]) -> list[_Disk]:
        attached = loops.loops()
        with self._folder.image_folder() as folder:
            if folder is None:
                return []
            entries = ((name, read_image(folder, name, attached)) for name in names)
            return [self._disk(name, image) for name, image in entries if image is not None]

    def _disk(self, name: str, image: Image) -> _Disk:
        return _Disk(name, image, self._folder.path_of(name))


def _build_name_conflict(name: str) -> ConflictError:
    return ConflictError(f"disk {name!r} already exists")


def _remove_temporary_name(folder: int, action: Action) -> None:
    """Remove the image's temporary name, if it also has the disk's name."""
    if is_same_file(folder, _temporary_name(action), image_file_name(action.external_name)):
        with mark_unknown_result():
            os.unlink(_temporary_name(action), dir_fd=folder)
        sync_folder(folder)


def _run(file: int, program: str, *arguments: str) -> ProgramResult:
    """Run a program that changes a filesystem with data, even if the caller times out."""
    return run(program, *arguments, timeout_seconds=None, files=(file,))


def _temporary_name(action: Action) -> str:
    return temporary_name(action.idempotency_key)


def _check_not_lost(folder: int, name: str) -> None:
    """Raise ``NotDoneError`` while a deleted image with this name is still attached.

    A new, empty disk with the name would hide its data, which still exists.
    """
    path = f"{resolve_path(folder)}/{image_file_name(name)}"
    for loop in loops.loops():
        if loop.is_deleted and loop.file == path:
            hint = DELETED_IMAGE_HINT.format(device=loop.path)
            raise NotDoneError(
                f"the image of disk {name!r} was deleted while it was attached; {hint}",
                status=_WAITING_STATUS,
            )


def _check_can_grow(name: str, image: Image, all_mounts: list[Mount]) -> bool:
    """Return whether the disk is mounted. Raises ``NotDoneError`` if it cannot grow now."""
    numbers = {loop.number for loop in image.attached}
    mounted = [each for each in all_mounts if each.device in numbers]
    if not mounted:
        return False
    if mounted[0].is_read_only:
        raise build_waiting_error(
            f"disk {name!r} is mounted read-only at {mounted[0].mount_path}; it grows after it is "
            "mounted writable or detached"
        )
    if not _may_resize():
        raise build_waiting_error(
            f"disk {name!r} is mounted at {mounted[0].mount_path}, and the worker may not grow a "
            "mounted filesystem; give the worker CAP_SYS_RESOURCE, or detach the disk"
        )
    return True


def _may_resize() -> bool:
    """Return whether the kernel allows this process to resize a mounted filesystem."""
    status = Path("/proc/self/status").read_text()
    effective = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective.split()[1], 16) >> _CAP_SYS_RESOURCE & 1)


def _describe_attachment(image: Image, all_mounts: list[Mount]) -> str:
    devices: list[str] = []
    for loop in image.attached:
        paths = [each.mount_path for each in all_mounts if each.device == loop.number]
        devices.append(f"{loop.path}, mounted at {' and '.join(paths)}" if paths else loop.path)
    return "; ".join(devices)


DISK = Kind(
    name="Disk",
    api_version="disks/v1",
    provider="disks",
    schema=DiskFields,
    capabilities=Capabilities(
        idempotency_keys=False, deterministic_names=True, labels=True, conditional_writes=True
    ),
    connect=DisksProvider,
    normalize=normalize,
    name_problem=name_problem,
    outputs=DiskOutputs,
    immutable=frozenset({"filesystem"}),
    describe_data_loss=describe_data_loss,
)
"""The ``Disk`` kind."""
