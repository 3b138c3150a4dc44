"""Only disks and attachments: growth, use, space, crashes, foreign objects, alarms."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields, InvalidManifestError
from events.provider_config import Limits, ProviderConfigSpec, Scope
from infra.providers.disks import disk as disk_module
from infra.providers.disks import programs
from infra.providers.disks.attachment import ATTACHMENT, AttachmentsProvider, ready
from infra.providers.disks.disk import DISK, DisksProvider, describe_data_loss
from infra.providers.disks.images import filesystem_uuid
from infra.providers.disks.mounts import mount_at, mounts
from infra.providers.disks.superblock import read_superblock
from infra.providers.file_root import temporary_name
from reconciler.errors import (
    ConfigurationError,
    ConflictError,
    NotDoneError,
    RefusedError,
    UnknownResultError,
)
from reconciler.provider import Effect
from reconciler.provider.call_permit import CALL_GATE, CallPermit
from reconciler.provider.contract import action, listing, with_version_of
from reconciler.provider.secrets import Secrets
from reconciler.resource.owner_label import OWNER_LABEL
from tests.disks import MIB, growth_problem, remaining_mounts, run
from tests.engines import TestEngine
from tests.providers.disk_call import Call, CallResult
from tests.providers.permit import ClosedGate

pytestmark = pytest.mark.disks

MARKER = "written-once"
OWNER = "test.default.Disk.data"
READY = "echo ready; exec cat"


class Case:
    """Both providers for one folder, with operations for tests."""

    def __init__(self, root: Path) -> None:
        self.root = root
        config = ProviderConfigSpec(
            "disks", root.as_uri(), limits=Limits(request_timeout_seconds=30)
        )
        self.disks = DisksProvider(config, Secrets(), CallPermit())
        self.attachments = AttachmentsProvider(config, Secrets(), CallPermit())

    async def close(self) -> None:
        await self.disks.close()
        await self.attachments.close()

    def image(self, name: str = "data") -> Path:
        return self.root / "images" / f"{name}.img"

    def mount_point(self, name: str = "data") -> Path:
        return self.root / "mounts" / name

    async def create_disk(
        self, name: str = "data", size: int = 8 * MIB, **spec: Any
    ) -> ExternalObject:
        disk = (await self.disks.create(new_disk(name, size, **spec))).object
        assert disk is not None
        return disk

    async def attach_disk(self, name: str = "data", **spec: Any) -> ExternalObject:
        disk = (await self.attachments.create(new_attachment(name, **spec))).object
        assert disk is not None
        return disk

    async def disk(self, name: str = "data") -> ExternalObject:
        current = await self.disks.read(name)
        assert current is not None
        return current

    async def attachment(self, name: str = "data") -> ExternalObject:
        disk = await self.attachments.read(name)
        assert disk is not None
        return disk

    async def update(self, existing: ExternalObject, **spec: Any) -> ExternalObject:
        provider = self.disks if "sizeBytes" in existing.fields else self.attachments
        update = with_version_of(
            action("Update", existing.name, {**existing.fields, **spec}), existing
        )
        if provider is self.disks:
            labels = {**update.labels, OWNER_LABEL: OWNER}
            update = msgspec.structs.replace(update, labels=labels)
        changed = (await provider.update(update)).object
        assert changed is not None
        return changed

    async def delete(self, existing: ExternalObject) -> None:
        provider = self.disks if "sizeBytes" in existing.fields else self.attachments
        await provider.delete(with_version_of(action("Delete", existing.name, {}), existing))

    def put_marker(self, name: str = "data") -> None:
        """Write a marker into an image's filesystem."""
        put_marker(self.image(name))

    def is_marked(self, name: str = "data") -> bool:
        return has_marker(self.image(name))


def new_disk(name: str = "data", size: int = 8 * MIB, **spec: Any) -> Action:
    created_action = action("Create", name, DISK.check_fields({"sizeBytes": size, **spec}))
    return msgspec.structs.replace(
        created_action, labels={**created_action.labels, OWNER_LABEL: OWNER}
    )


def new_attachment(name: str = "data", **spec: Any) -> Action:
    return action("Create", name, ATTACHMENT.check_fields({"disk": name, **spec}))


def put_marker(image: Path) -> None:
    run("debugfs", "-w", "-R", f"mkdir /{MARKER}", image)


def has_marker(image: Path) -> bool:
    return f" {MARKER}" in run("debugfs", "-R", "ls /", image)


@contextmanager
def process_using(folder: Path) -> Generator[int]:
    """Run a process with an open file in a folder; yield its pid."""
    with running_program("sh", "-c", f'exec 3>>"$0"; {READY}', str(folder / "open")) as pid:
        yield pid


@contextmanager
def running_program(*command: str) -> Generator[int]:
    """Run a program that reports when it is ready; yield its pid."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
async def case(disk_root: Path) -> AsyncIterator[Case]:
    opened = Case(disk_root)
    yield opened
    await opened.close()


# --- declarations


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "sizeBytes"),
        ({"sizeBytes": MIB}, "must be at least 8388608"),
        ({"sizeBytes": 8 * MIB + 1}, "multiple of 4096"),
        ({"sizeBytes": 8 * MIB, "label": "x" * 17}, "label"),
        ({"sizeBytes": 8 * MIB, "label": "a\n"}, "label"),
        ({"sizeBytes": 8 * MIB, "filesystem": "xfs"}, "xfs"),
        ({"sizeBytes": 8 * MIB, "size": 1}, "spec.size: unknown field"),
    ],
)
def test_an_invalid_disk_is_refused(fields: Fields, problem: str) -> None:
    with pytest.raises(InvalidManifestError, match=problem):
        DISK.check_fields(fields)


@pytest.mark.parametrize("disk", ["", "../x", "a/b", "-o", "a\n", "/dev/vda"])
def test_an_attachment_refers_to_a_disk_in_the_folder(disk: str) -> None:
    with pytest.raises(InvalidManifestError, match="disk"):
        ATTACHMENT.check_fields({"disk": disk})


# --- disks


async def test_a_disk_is_complete_allocated_and_readable_only_by_its_owner(case: Case) -> None:
    create = new_disk(label="-orders")
    disk = (await case.disks.create(create)).object
    assert disk is not None
    status = case.image().stat()

    uuid = str(filesystem_uuid(create.idempotency_key))
    assert disk.outputs == {"path": str(case.image()), "sizeBytes": 8 * MIB, "uuid": uuid}
    assert disk.fields["label"] == "-orders"
    assert (status.st_size, status.st_mode & 0o777, status.st_nlink) == (8 * MIB, 0o600, 1)
    assert status.st_blocks * 512 >= 8 * MIB, "the space is allocated"
    run("e2fsck", "-f", "-n", case.image())
    assert describe_data_loss(None, disk) == "all data of disk data"
    assert describe_data_loss(disk.fields, disk) == ""


async def test_concurrent_disks_do_not_wait_for_each_other(case: Case) -> None:
    """A started program briefly holds all open files, including the locks of other calls."""
    names = [f"disk-{number:02}" for number in range(24)]
    await asyncio.gather(*(case.create_disk(name, label=name) for name in names))
    await asyncio.gather(*(case.attach_disk(name) for name in names))
    objects = await listing(case.attachments, Scope(), page_size=5)
    assert sorted(each.name for each in objects) == names
    await asyncio.gather(*(case.delete(each) for each in objects))
    await asyncio.gather(*[case.delete(each) for each in await listing(case.disks, Scope())])
    assert remaining_mounts(case.root) == ([], [])


async def test_a_disk_grows_with_its_data_and_never_shrinks(case: Case) -> None:
    disk = await case.create_disk()
    case.put_marker()
    grown = await case.update(disk, sizeBytes=24 * MIB, label="bigger")

    assert (grown.uid, grown.outputs["uuid"]) == (disk.uid, disk.outputs["uuid"])
    assert grown.fields == {"sizeBytes": 24 * MIB, "filesystem": "ext4", "label": "bigger"}
    assert case.image().stat().st_blocks * 512 >= 24 * MIB
    assert "Block count:              6144" in run("dumpe2fs", "-h", case.image())
    run("e2fsck", "-f", "-n", case.image())
    assert case.is_marked()

    with pytest.raises(RefusedError, match="never shrinks; declare at least that size"):
        await case.update(grown, sizeBytes=16 * MIB)
    assert await case.disk() == grown
    assert case.image().stat().st_size == 24 * MIB


async def test_an_image_that_grew_without_its_filesystem_is_detected_and_repaired(
    case: Case,
) -> None:
    disk = await case.create_disk()
    os.truncate(case.image(), 16 * MIB)
    assert (await case.disk()).fields["sizeBytes"] == 8 * MIB, "an unfinished resize does not count"
    grown = await case.update(disk, sizeBytes=16 * MIB)
    assert grown.fields["sizeBytes"] == 16 * MIB
    assert "Block count:              4096" in run("dumpe2fs", "-h", case.image())


async def test_a_disk_grows_while_a_file_is_open(case: Case) -> None:
    if problem := growth_problem():
        pytest.skip(problem)  # no package provides it
    disk = await case.create_disk()
    await case.attach_disk()
    with (case.mount_point() / "open").open("w") as file:
        file.write("before")
        file.flush()
        grown = await case.update(disk, sizeBytes=32 * MIB)
        assert grown.fields["sizeBytes"] == 32 * MIB
        space = os.statvfs(case.mount_point())
        assert space.f_blocks * space.f_frsize > 20 * MIB
        file.write(" and after")
    assert (case.mount_point() / "open").read_text() == "before and after"
    await case.delete(await case.attachment())
    run("e2fsck", "-f", "-n", case.image())


async def test_a_worker_that_may_not_grow_a_mounted_disk_reports_it_and_grows_it_later(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_module, "_may_resize", lambda: False)
    disk = await case.create_disk()
    attachment = await case.attach_disk()
    with pytest.raises(NotDoneError, match="give the worker CAP_SYS_RESOURCE, or detach the disk"):
        await case.update(disk, sizeBytes=16 * MIB)
    assert case.image().stat().st_size == 8 * MIB, "nothing was started"

    await case.delete(attachment)
    assert (await case.update(disk, sizeBytes=16 * MIB)).fields["sizeBytes"] == 16 * MIB


async def test_a_resize_refused_halfway_by_the_kernel_is_completed_once_the_disk_is_detached(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    if growth_problem() is None:
        pytest.skip("the kernel refuses nothing: the process has CAP_SYS_RESOURCE")
    monkeypatch.setattr(disk_module, "_may_resize", lambda: True)
    disk = await case.create_disk()
    attachment = await case.attach_disk()
    (case.mount_point() / "file").write_text("data")
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"resize.*CAP_SYS_RESOURCE"):
            await case.update(disk, sizeBytes=16 * MIB)
        unfinished = await case.disk()
        assert (case.image().stat().st_size, unfinished) == (16 * MIB, disk), (
            "an unfinished resize does not count"
        )

    await case.delete(attachment)
    assert (await case.update(disk, sizeBytes=16 * MIB)).fields["sizeBytes"] == 16 * MIB
    run("e2fsck", "-f", "-n", case.image())
    await case.attach_disk()
    assert (case.mount_point() / "file").read_text() == "data"


async def test_a_label_is_changed_while_the_disk_is_mounted(case: Case) -> None:
    disk = await case.create_disk()
    attachment = await case.attach_disk()
    assert (await case.update(disk, label="new")).fields["label"] == "new"
    await case.delete(attachment)
    assert (await case.disk()).fields["label"] == "new"


async def test_writing_to_a_disk_does_not_change_its_version(case: Case) -> None:
    disk = await case.create_disk()
    await case.attach_disk()
    (case.mount_point() / "file").write_bytes(b"x" * MIB)
    os.sync()
    assert (await case.disk()).version == disk.version


async def test_a_disk_that_is_attached_or_mounted_is_not_deleted(case: Case) -> None:
    disk = await case.create_disk()
    attachment = await case.attach_disk()
    with pytest.raises(
        NotDoneError, match=rf"mounted at {case.mount_point()}; Reconciler deletes it after"
    ):
        await case.delete(disk)

    await case.delete(attachment)
    device = run("losetup", "--show", "-f", case.image())
    with pytest.raises(NotDoneError, match=f"is attached as {device}; Reconciler deletes it after"):
        await case.delete(disk)
    run("losetup", "-d", device)
    await case.delete(disk)
    assert not case.image().exists()


async def test_another_clients_image_is_a_conflict_until_it_is_adopted(case: Case) -> None:
    await case.create_disk("first")
    image = case.image()
    with image.open("wb") as file:
        file.truncate(8 * MIB)
    run("mkfs.ext4", "-q", "-F", image)
    case.put_marker()
    with pytest.raises(ConflictError) as caught:
        await case.create_disk()
    foreign_disk = caught.value.obstacle
    assert foreign_disk is not None
    assert (foreign_disk.labels, foreign_disk.written_by) == ({}, None)

    await case.create_disk("other")
    with pytest.raises(NotDoneError, match="another client created"):
        await case.attach_disk("data")
    own_disk = await case.update(foreign_disk, sizeBytes=16 * MIB)
    assert (own_disk.uid, own_disk.fields["sizeBytes"]) == (foreign_disk.uid, 16 * MIB)
    assert own_disk.labels["reconciler/owner"] == OWNER
    assert case.is_marked()


async def test_a_wiped_image_or_another_file_type_is_never_formatted(case: Case) -> None:
    disk = await case.create_disk()
    with case.image().open("r+b") as file:
        file.write(bytes(64 * 1024))
    wiped = await case.disk()
    assert wiped.fields["filesystem"] == "none"
    assert "filesystem" in DISK.immutable, "so it would be replaced, which requires approval"
    with pytest.raises(RefusedError, match="never formats"):
        await case.update(wiped, filesystem="ext4", label="x")
    with pytest.raises(NotDoneError, match="no longer has an ext4 filesystem"):
        await case.attach_disk()
    assert (await case.disk()).uid == disk.uid

    target = case.root / "precious"
    target.write_bytes(b"precious")
    case.image("link").symlink_to(target)
    with pytest.raises(RefusedError, match="a link, a directory or a device"):
        await case.create_disk("link")
    assert await case.disks.read("link") is None
    assert target.read_bytes() == b"precious"


# --- space


@pytest.fixture
def small_root(tmp_path: Path, disk_root: Path) -> Path:
    """A folder on its own filesystem of 64 MiB."""
    image, root = disk_root / "host.img", disk_root / "host"
    root.mkdir()
    with image.open("wb") as file:
        file.truncate(64 * MIB)
    run("mkfs.ext4", "-q", "-F", "-m", "0", image)
    run("mount", "-o", "loop", image, root)
    (root / ".reconciler-root").touch()
    return root


def fill(file: Path) -> int:
    """Write until no space is left; return the number of bytes written."""
    written_bytes = 0
    with file.open("wb", buffering=0) as out:
        try:
            while True:
                written_bytes += out.write(b"x" * 65536)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        os.fsync(out.fileno())
    return written_bytes


async def test_a_full_folder_and_a_full_disk_leave_the_others_intact(small_root: Path) -> None:
    case = Case(small_root)
    try:
        for name in ("first", "second"):
            await case.create_disk(name, 16 * MIB)
            await case.attach_disk(name)
        (case.mount_point("second") / "kept").write_text("kept")
        too_large = new_disk("third", 40 * MIB)
        with pytest.raises(NotDoneError, match="41943040 more bytes are required, but only"):
            await case.disks.create(too_large)
        assert sorted(each.name for each in (small_root / "images").iterdir()) == [
            "first.img",
            "second.img",
        ]
        with pytest.raises(NotDoneError, match="not enough space to grow"):
            await case.update(await case.disk("first"), sizeBytes=64 * MIB)
        assert (await case.disk("first")).fields["sizeBytes"] == 16 * MIB

        fill(small_root / "ballast")  # the folder is full to the last block
        assert fill(case.mount_point("first") / "all") > 9 * MIB
        assert fill(case.mount_point("second") / "all") > 9 * MIB
        os.sync()
        assert (case.mount_point("second") / "kept").read_text() == "kept"
        for name in ("first", "second"):
            await case.delete(await case.attachment(name))
            run("e2fsck", "-f", "-n", case.image(name))
    finally:
        await case.close()


# --- attachments


async def test_a_disk_is_mounted_below_the_root_with_nosuid_and_nodev(
    case: Case,
) -> None:
    await case.create_disk()
    attachment = await case.attach_disk()
    (loop,) = remaining_mounts(case.root)[1]
    mount = mount_at(str(case.mount_point()), mounts())

    assert attachment.outputs == {"path": str(case.mount_point()), "device": loop.path}
    assert mount is not None
    assert (mount.source, mount.is_read_only) == (loop.path, False)
    assert "nosuid,nodev" in run("findmnt", "-n", "-o", "OPTIONS", case.mount_point())
    readings = await case.attachments.readings("data")
    assert readings is not None
    assert readings["totalBytes"] > readings["freeBytes"] > 0
    await case.delete(attachment)
    assert remaining_mounts(case.root) == ([], [])
    assert not case.mount_point().exists()
    assert list((case.root / "attachments").iterdir()) == []


async def test_a_disk_in_use_is_not_unmounted_and_the_error_names_its_user(case: Case) -> None:
    await case.create_disk()
    attachment = await case.attach_disk()
    with process_using(case.mount_point()) as pid:
        busy = (
            f"is in use by cat \\(pid {pid}\\); Reconciler unmounts it when it is no longer in use"
        )
        with pytest.raises(NotDoneError, match=busy) as caught:
            await case.delete(attachment)
        assert caught.value.status == 409, "no sign that the API is down"
        with pytest.raises(NotDoneError, match=rf"cat \(pid {pid}\); Reconciler remounts it"):
            await case.update(attachment, readOnly=True)
        assert (await case.attachment()).fields == attachment.fields
        (case.mount_point() / "still").write_text("writable")
    await case.delete(attachment)
    assert remaining_mounts(case.root) == ([], [])


async def test_a_nested_mount_counts_as_a_user(case: Case) -> None:
    await case.create_disk()
    attachment = await case.attach_disk()
    (case.mount_point() / "inner").mkdir()
    run("mount", "-t", "tmpfs", "none", case.mount_point() / "inner")
    with pytest.raises(NotDoneError, match=f"in use by a mount at {case.mount_point()}/inner"):
        await case.delete(attachment)
    assert len(remaining_mounts(case.root)[0]) == 2


async def test_a_disk_becomes_read_only_and_writable_in_place(case: Case) -> None:
    await case.create_disk()
    attachment = await case.attach_disk()
    fixed = await case.update(attachment, readOnly=True)
    assert (fixed.uid, fixed.fields["readOnly"]) == (attachment.uid, True)
    with pytest.raises(OSError, match="Read-only"):
        (case.mount_point() / "file").touch()
    await case.update(fixed, readOnly=False)
    (case.mount_point() / "file").touch()
    run("mount", "-o", "remount,ro", case.mount_point())
    assert (await case.attachment()).fields["readOnly"], "the out-of-band change is detected"


async def test_a_machine_restart_causes_drift_but_the_attachment_stays_ours(case: Case) -> None:
    await case.create_disk()
    attachment = await case.attach_disk()
    (case.mount_point() / "kept").write_text("kept")
    run("umount", case.mount_point())
    run("losetup", "-d", attachment.outputs["device"])

    current = await case.attachment()
    assert (current.uid, current.fields["mounted"]) == (attachment.uid, False)
    repaired = await case.update(current, mounted=True)
    assert repaired.fields == attachment.fields
    assert (case.mount_point() / "kept").read_text() == "kept"


async def test_a_field_detaches_and_remounts_a_disk(case: Case) -> None:
    await case.create_disk()
    attachment = await case.attach_disk()
    detached = await case.update(attachment, mounted=False)
    assert (detached.fields["mounted"], remaining_mounts(case.root)) == (False, ([], []))
    assert not ready(detached.fields, detached).is_ready
    retried = await case.update(detached, mounted=True)
    assert (retried.uid, len(remaining_mounts(case.root)[0])) == (attachment.uid, 1)


async def test_a_disk_has_one_attachment_and_one_device(case: Case) -> None:
    await case.create_disk()
    actions = [new_attachment("a", disk="data"), new_attachment("b", disk="data")]
    results = await asyncio.gather(
        *(case.attachments.create(each) for each in actions), return_exceptions=True
    )
    (refusal,) = [each for each in results if isinstance(each, BaseException)]
    assert isinstance(refusal, NotDoneError), refusal
    mounted, attached = remaining_mounts(case.root)
    assert (len(mounted), len(attached)) == (1, 1)
    (winner,) = await listing(case.attachments, Scope())
    other_action = next(each for each in actions if each.external_name != winner.name)
    with pytest.raises(NotDoneError, match=f"is in use by attachment '{winner.name}'"):
        await case.attachments.create(other_action)


@pytest.mark.parametrize("owner", ["log.billing.Disk.data", "default", ""])
async def test_a_disk_outside_the_attachments_namespace_is_not_mounted(
    case: Case, owner: str
) -> None:
    labels = {OWNER_LABEL: owner} if owner else {}
    await case.disks.create(msgspec.structs.replace(new_disk(), labels=labels))
    for own_labels in ({OWNER_LABEL: "log.default.Attachment.data"}, labels, {}):
        attach = msgspec.structs.replace(new_attachment(), labels=own_labels)
        with pytest.raises(NotDoneError, match=r"disk 'data' does not exist yet"):
            await case.attachments.create(attach)
    assert remaining_mounts(case.root) == ([], [])
    assert await case.attachments.read("data") is None


async def test_a_later_disk_with_the_same_name_is_not_the_attached_one(case: Case) -> None:
    disk = await case.create_disk()
    detached = await case.attach_disk(mounted=False)
    await case.delete(disk)
    labels = {OWNER_LABEL: "log.billing.Disk.data"}
    await case.disks.create(msgspec.structs.replace(new_disk(), labels=labels))
    theirs = msgspec.structs.replace(
        new_attachment("theirs", disk="data"), action_id="billing/Attachment/theirs@1"
    )
    assert (await case.attachments.create(theirs)).object is not None
    assert not (await case.attachment()).fields["mounted"]
    assert "device" not in (await case.attachment()).outputs
    with pytest.raises(NotDoneError, match="does not exist yet"):
        await case.update(detached, mounted=True)
    await case.delete(detached)
    assert len(remaining_mounts(case.root)[0]) == 1
    assert (await case.attachment("theirs")).fields["mounted"]


async def test_a_message_names_no_attachment_of_another_namespace(case: Case) -> None:
    await case.create_disk()
    await case.attachments.create(
        msgspec.structs.replace(
            new_attachment("theirs", disk="data", mounted=False),
            labels={OWNER_LABEL: "log.billing.Attachment.theirs"},
        )
    )
    with pytest.raises(NotDoneError, match="by an attachment in another namespace") as caught:
        await case.attach_disk()
    assert "theirs" not in str(caught.value)


async def test_an_attachment_mounts_only_a_disk_in_its_namespace(case: Case) -> None:
    labels = {OWNER_LABEL: "log.billing.Disk.data"}
    await case.disks.create(msgspec.structs.replace(new_disk(), labels=labels))
    foreign_action = msgspec.structs.replace(
        new_attachment(), action_id="billing/Attachment/data@1"
    )
    assert foreign_action.namespace == "billing"
    effect = await case.attachments.create(foreign_action)
    assert effect.object is not None
    assert effect.object.fields["mounted"] is True


async def test_an_attachment_waits_for_a_disk_that_is_missing_or_mounted_out_of_band(
    case: Case, tmp_path: Path
) -> None:
    with pytest.raises(NotDoneError, match=r"disk .data. does not exist yet"):
        await case.attach_disk()
    await case.create_disk()
    elsewhere = case.root / "elsewhere"
    elsewhere.mkdir()
    run("mount", "-o", "loop", case.image(), elsewhere)
    with pytest.raises(NotDoneError, match=f"mounted at {elsewhere} by another client"):
        await case.attach_disk()
    assert await case.attachments.read("data") is None
    run("umount", elsewhere)
    await case.attach_disk()


async def test_a_disk_stays_mounted_until_the_attachment_can_be_replaced(case: Case) -> None:
    await case.create_disk()
    attachment = await case.attach_disk()
    deletion = action("Delete", "data", ATTACHMENT.check_fields({"disk": "dada"}))
    deletion = msgspec.structs.replace(deletion, uid=attachment.uid, purpose="Replace")
    with pytest.raises(NotDoneError, match=r"disk .dada. does not exist yet"):
        await case.attachments.delete(deletion)
    assert await case.attachment() == attachment
    await case.create_disk("dada")
    await case.attachments.delete(deletion)
    assert await case.attachments.read("data") is None


async def test_a_foreign_mount_at_the_mount_point_is_a_conflict_and_never_unmounted(
    case: Case,
) -> None:
    await case.create_disk()
    case.mount_point().mkdir(parents=True)
    run("mount", "-t", "tmpfs", "theirs", case.mount_point())
    with pytest.raises(ConflictError) as caught:
        await case.attach_disk()
    foreign_disk = caught.value.obstacle
    assert foreign_disk is not None
    assert (foreign_disk.fields["disk"], foreign_disk.labels) == ("theirs", {})
    assert await listing(case.attachments, Scope(prefix="da")) == [foreign_disk]
    for change in (case.delete(foreign_disk), case.update(foreign_disk, disk="data")):
        with pytest.raises(RefusedError):
            await change
    assert remaining_mounts(case.root)[0][0].source == "theirs"


async def test_changes_wait_for_a_mount_over_ours(case: Case) -> None:
    await case.create_disk()
    attachment = await case.attach_disk()
    run("mount", "-t", "tmpfs", "theirs", case.mount_point())
    covered = await case.attachment()
    assert (covered.uid, covered.fields["mounted"]) == (attachment.uid, False)
    for change in (case.delete(covered), case.update(covered, mounted=True)):
        with pytest.raises(NotDoneError, match=r"another mount \(theirs\)"):
            await change
    assert len(remaining_mounts(case.root)[0]) == 2


async def test_a_mount_does_not_hide_files_or_follow_links(case: Case) -> None:
    await case.create_disk()
    case.mount_point().mkdir(parents=True)
    (case.mount_point() / "file").write_text("theirs")
    with pytest.raises(NotDoneError, match="contains files, which a mount would hide"):
        await case.attach_disk()
    shutil.rmtree(case.mount_point())
    case.mount_point().symlink_to(case.root / "images")
    with pytest.raises(RefusedError, match="symbolic link"):
        await case.attach_disk()
    assert remaining_mounts(case.root) == ([], [])


async def test_files_written_while_a_disk_was_not_mounted_are_not_hidden_either(case: Case) -> None:
    await case.create_disk()
    attachment = await case.attach_disk()
    run("umount", case.mount_point())
    (case.mount_point() / "file").write_text("theirs")
    with pytest.raises(NotDoneError, match="contains files, which a mount would hide"):
        await case.update(await case.attachment(), mounted=True)
    (case.mount_point() / "file").unlink()
    assert (await case.update(await case.attachment(), mounted=True)).uid == attachment.uid


async def test_a_disk_that_is_also_mounted_elsewhere_stays_mounted_here(case: Case) -> None:
    await case.create_disk()
    attachment = await case.attach_disk()
    elsewhere = case.root / "elsewhere"
    elsewhere.mkdir()
    run("mount", attachment.outputs["device"], elsewhere)
    with pytest.raises(NotDoneError, match=f"is also mounted at {elsewhere}"):
        await case.delete(attachment)
    assert len(remaining_mounts(case.root)[0]) == 2
    run("umount", elsewhere)
    await case.delete(attachment)
    assert remaining_mounts(case.root) == ([], [])


async def test_an_image_deleted_while_attached_raises_an_alarm_and_stays_attached(
    case: Case,
) -> None:
    disk, attachment = await case.create_disk(), await case.attach_disk()
    (case.mount_point() / "only-copy").write_text("precious")
    case.image().unlink()

    lost_disk = await case.attachment()
    assert (lost_disk.outputs["alarm"], lost_disk.uid) == ("ImageDeleted", attachment.uid)
    readiness = ready(lost_disk.fields, lost_disk)
    assert (readiness.is_ready, readiness.reason) == (False, "ImageDeleted")
    assert f"dd if={attachment.outputs['device']}" in readiness.message
    for change in (
        case.delete(lost_disk),
        case.update(lost_disk, mounted=False),
        case.create_disk(),
    ):
        with pytest.raises(NotDoneError, match=r"was deleted while it (is|was) attached"):
            await change
    run("umount", case.mount_point())
    current = await case.attachment()
    with pytest.raises(NotDoneError, match="was deleted while it was attached"):
        await case.delete(current)
    (loop,) = remaining_mounts(case.root)[1]
    assert loop.is_deleted
    run("mount", loop.path, case.mount_point())
    assert (case.mount_point() / "only-copy").read_text() == "precious"
    assert await case.disks.read(disk.name) is None


async def test_a_disk_mounted_in_another_mount_namespace_is_not_detached(case: Case) -> None:
    await case.create_disk()
    attachment = await case.attach_disk()
    with running_program("unshare", "--mount", "--propagation", "private", "sh", "-c", READY):
        with pytest.raises(NotDoneError, match="possibly mounted in another mount namespace"):
            await case.delete(attachment)
        assert len(remaining_mounts(case.root)[1]) == 1
    await case.delete(await case.attachment())
    assert remaining_mounts(case.root) == ([], [])


async def test_a_detachment_waits_for_an_open_device(case: Case) -> None:
    await case.create_disk()
    attachment = await case.attach_disk()
    device = os.open(attachment.outputs["device"], os.O_RDONLY)
    with pytest.raises(NotDoneError, match="another process has /dev/loop"):
        await case.delete(attachment)
    os.close(device)
    await case.delete(await case.attachment())
    assert remaining_mounts(case.root) == ([], [])


async def test_a_damaged_filesystem_is_refused_and_its_attachment_stays_ours(case: Case) -> None:
    await case.create_disk()
    with case.image().open("r+b") as file:
        file.seek(1024 + 0x18)  # the block size
        file.write(b"\xff")
    create = new_attachment()
    with pytest.raises(RefusedError, match="check it with e2fsck") as caught:
        await case.attachments.create(create)
    unfinished = caught.value.obstacle
    assert unfinished is not None
    assert (unfinished.written_by, unfinished.fields["mounted"]) == (create.idempotency_key, False)
    await case.delete(unfinished)
    assert remaining_mounts(case.root) == ([], [])


@pytest.mark.dockerd
async def test_an_engines_volume_mounts_the_device_and_keeps_the_disk_attached(
    case: Case, engine: TestEngine, unique: str
) -> None:
    await case.create_disk()
    attachment = await case.attach_disk()
    admin, device = engine.admin, attachment.outputs["device"]
    options = {"type": "ext4", "device": device}
    try:
        admin.post("/volumes/create", {"Name": unique, "DriverOpts": options})
        mount = {"Type": "volume", "Source": unique, "Target": "/data"}
        body = {
            "Image": engine.image,
            "Cmd": ["sh", "-c", "echo from a container >/data/file; exec sleep 9999"],
            "HostConfig": {"Mounts": [mount]},
        }
        admin.post("/containers/create", body, name=unique)
        admin.post(f"/containers/{unique}/start")
        file = case.mount_point() / "file"

        async def is_written() -> bool:
            return file.exists() and file.read_text() == "from a container\n"

        await until(is_written)
        with pytest.raises(NotDoneError, match=rf"is also mounted at .*{unique}"):
            await case.delete(attachment)
    finally:
        await asyncio.to_thread(admin.remove_all, unique)
    await case.delete(attachment)
    assert remaining_mounts(case.root) == ([], [])


# --- missing programs and privileges


async def test_the_error_about_a_missing_program_names_its_package(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(programs, "_SEARCH_PATH", "/nowhere")
    with pytest.raises(ConfigurationError, match=r"mkfs.ext4 .* apt-get install e2fsprogs"):
        await case.create_disk()
    monkeypatch.undo()
    await case.create_disk()


@pytest.mark.parametrize(
    "message", ["mount: only root can do that", "must be superuser to unmount."]
)
def test_the_error_about_a_refused_program_names_the_required_capability(message: str) -> None:
    refused = programs.build_program_error(programs.ProgramResult("mount", 1, message), "disk")
    assert isinstance(refused, ConfigurationError)
    assert "CAP_SYS_ADMIN" in str(refused)


async def test_a_worker_that_may_not_mount_creates_disks_and_reports_what_it_needs(
    case: Case,
) -> None:
    drop_capability = ("setpriv", "--bounding-set", "-sys_admin")
    result = call(case, "Disk", new_disk(), wrapper=drop_capability)
    assert result is not None
    assert result.object is not None, result.error
    create = new_attachment()
    refused = call(case, "Attachment", create, wrapper=drop_capability)
    assert refused is not None
    assert refused.error.startswith("ConfigurationError")
    assert "CAP_SYS_ADMIN" in refused.error
    assert (await case.attachment()).written_by == create.idempotency_key, (
        "the next call continues with it"
    )
    assert (await case.attachments.create(create)).object == await case.attachment()


# --- delayed workers


class RunBeforeStep(ClosedGate):
    """Call gate that runs a function before one of the call's steps."""

    def __init__(self, step: int, function: Callable[[], Awaitable[None]]) -> None:
        self._remaining = step
        self._function = function

    async def wait(self, *, has_priority: bool = False) -> None:
        del has_priority
        self._remaining -= 1
        if self._remaining == 0:
            token = CALL_GATE.set(None)
            await self._function()
            CALL_GATE.reset(token)


async def run_delayed(
    step: int, function: Callable[[], Awaitable[None]], delayed_call: Awaitable[Effect]
) -> Effect | None:
    """Delay a call before one of its steps; return None if it detected that it was too late."""
    token = CALL_GATE.set(RunBeforeStep(step, function))
    try:
        with contextlib.suppress(ConflictError, UnknownResultError):
            return await delayed_call
        return None
    finally:
        CALL_GATE.reset(token)


@pytest.mark.parametrize(
    ("step", "spec"), [(2, {}), (3, {}), (4, {}), (2, {"readOnly": True}), (3, {"readOnly": True})]
)
async def test_a_delayed_worker_does_not_change_a_newer_object_with_the_name(
    case: Case, step: int, spec: Fields
) -> None:
    await case.create_disk()
    old = await case.attach_disk()

    async def recreate() -> None:
        await case.delete(old)
        await case.attach_disk()

    delayed_call = (
        case.attachments.update(
            with_version_of(action("Update", "data", {**old.fields, **spec}), old)
        )
        if spec
        else case.attachments.delete(with_version_of(action("Delete", "data", {}), old))
    )
    await run_delayed(step, recreate, delayed_call)
    existing = await case.attachment()
    assert existing.uid != old.uid
    assert (existing.fields, existing.labels) == (old.fields, old.labels)


async def test_a_delayed_creation_does_not_create_a_second_disk(case: Case) -> None:
    for step in range(2, 7):
        create = new_disk(f"disk-{step}")

        async def create_first(create: Action = create) -> None:
            await case.disks.create(create)
            put_marker(case.image(create.external_name))

        await run_delayed(step, create_first, case.disks.create(create))
        assert case.is_marked(create.external_name), f"before step {step}"


async def test_a_delayed_creation_does_not_claim_another_object(case: Case) -> None:
    await case.create_disk()

    async def recreate_disk() -> None:
        await case.delete(await case.disk("late"))
        await case.create_disk("late")

    async def recreate_attachment() -> None:
        await case.delete(await case.attachment())
        await case.attach_disk()

    assert await run_delayed(6, recreate_disk, case.disks.create(new_disk("late"))) is None
    delayed_call = case.attachments.create(new_attachment())
    assert await run_delayed(4, recreate_attachment, delayed_call) is None


# --- processes killed between any two steps


def call(
    case: Case,
    kind: str,
    written_action: Action,
    dies_before: int = 0,
    wrapper: tuple[str, ...] = (),
) -> CallResult | None:
    """Make a call in another process; return None if that was killed."""
    encoded_call = msgspec.json.encode(Call(kind, case.root.as_uri(), written_action, dies_before))
    command = [*wrapper, sys.executable, "-m", "tests.providers.disk_call"]
    process = subprocess.run(command, input=encoded_call, capture_output=True, check=False)
    if process.returncode == -9:
        return None
    assert process.returncode == 0, process.stderr.decode()
    return msgspec.json.decode(process.stdout, type=CallResult)


async def test_a_disk_creation_killed_between_any_two_steps_formats_once(case: Case) -> None:
    formatted = 0
    for step in range(1, 20):
        name = f"disk-{step:02}"
        create = new_disk(name, label=name)
        unfinished = case.root / "images" / temporary_name(create.idempotency_key)
        was_killed = call(case, "Disk", create, step) is None
        if not was_killed:
            assert step > 6, "the process was killed before every step"
            break
        image = unfinished if unfinished.exists() else case.image(name)
        if image.exists() and b"ext4" in _read_type(image):
            put_marker(image)
            formatted += 1
            is_marked = True
        else:
            is_marked = False
        assert not case.image(name).exists() or is_marked, "a disk with the final name is complete"
        retried = call(case, "Disk", create)
        assert retried is not None
        assert retried.object is not None, retried.error
        assert has_marker(case.image(name)) == is_marked, "and it is never created twice"
        assert retried.object == await case.disk(name)
        assert not unfinished.exists()
    assert formatted >= 2, "before the link, and after it"


def _read_type(image: Path) -> bytes:
    return subprocess.run(["blkid", "-p", image], capture_output=True, check=False).stdout


async def test_an_attachment_killed_between_any_two_steps_is_mounted_once(
    case: Case,
) -> None:
    for step in range(1, 20):
        name = f"disk-{step:02}"
        await case.create_disk(name)
        case.put_marker(name)
        create = new_attachment(name)
        if call(case, "Attachment", create, step) is not None:
            assert step > 4
            break
        retried = call(case, "Attachment", create)
        assert retried is not None
        assert retried.object is not None, retried.error
        assert retried.object == await case.attachment(name)
        assert (case.mount_point(name) / MARKER).is_dir()
    mounted, attached = remaining_mounts(case.root)
    assert len(mounted) == len(attached) > 4

    for step in range(1, 20):
        disk = await case.attachment(f"disk-{step:02}")
        delete = with_version_of(action("Delete", disk.name, {}), disk)
        if call(case, "Attachment", delete, step) is not None:
            assert step > 4
            break
        retried = call(case, "Attachment", delete)
        assert retried == CallResult(), retried
        assert case.is_marked(disk.name)
    mounted, attached = remaining_mounts(case.root)
    assert len(mounted) == len(attached)


async def test_a_resize_killed_between_any_two_steps_keeps_the_data(case: Case) -> None:
    for step in range(1, 20):
        disk = await case.create_disk(f"disk-{step:02}")
        case.put_marker(disk.name)
        fields = {**disk.fields, "sizeBytes": 16 * MIB, "label": "grown"}
        update = with_version_of(action("Update", disk.name, fields), disk)
        if call(case, "Disk", update, step) is not None:
            assert step > 5
            break
        retried = call(case, "Disk", update)
        assert retried is not None
        if retried.error:  # its own start changed the version: decide again
            assert retried.error.startswith("ConflictError")
            current = await case.disk(disk.name)
            retried = call(
                case, "Disk", with_version_of(action("Update", disk.name, fields), current)
            )
            assert retried is not None
        assert retried.object is not None, retried.error
        assert retried.object.fields == fields
        assert case.is_marked(disk.name)
        run("e2fsck", "-f", "-n", case.image(disk.name))


class SlowProgram:
    """A program that waits for permission before it works, and counts its runs."""

    def __init__(self, name: str, folder: Path) -> None:
        folder.mkdir()
        self._permission, self._runs = folder / "permission", folder / "runs"
        os.mkfifo(self._permission)
        real = shutil.which(name)
        script = f'echo run >>"{self._runs}"; read _ <"{self._permission}"; exec {real} "$@"'
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    @property
    def runs(self) -> int:
        return len(self._runs.read_text().splitlines()) if self._runs.exists() else 0

    async def has_started(self) -> bool:
        return self.runs > 0

    def resume(self) -> None:
        self._permission.write_text("go\n")


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], SlowProgram]:
    """Replace a real program with a slow one."""
    folder = tmp_path / "bin"
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return lambda name: SlowProgram(name, folder)


async def kill_while_running(case: Case, requested_call: Call, program: SlowProgram) -> None:
    """Make a call in another process, and kill that while a program it started is running."""
    command = [sys.executable, "-m", "tests.providers.disk_call"]
    worker = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE)
    assert worker.stdin is not None
    worker.stdin.write(msgspec.json.encode(requested_call))
    worker.stdin.close()
    await until(program.has_started)
    worker.kill()
    await worker.wait()


async def test_the_mkfs_of_a_killed_worker_is_waited_for_and_not_run_again(
    case: Case, slow: Callable[[str], SlowProgram]
) -> None:
    create, mkfs = new_disk(), slow("mkfs.ext4")
    await kill_while_running(case, Call("Disk", case.root.as_uri(), create), mkfs)
    with pytest.raises(NotDoneError, match="another call is still using disk 'data'"):
        await case.disks.create(create)
    mkfs.resume()

    async def created() -> bool:
        with contextlib.suppress(NotDoneError):
            return (await case.disks.create(create)).object is not None
        return False

    await until(created)
    assert mkfs.runs == 1
    run("e2fsck", "-f", "-n", case.image())


async def test_the_resize_of_a_killed_worker_is_waited_for_and_completes(
    case: Case, slow: Callable[[str], SlowProgram]
) -> None:
    disk, resize = await case.create_disk(), slow("resize2fs")
    case.put_marker()
    update = with_version_of(action("Update", "data", {**disk.fields, "sizeBytes": 16 * MIB}), disk)
    await kill_while_running(case, Call("Disk", case.root.as_uri(), update), resize)
    for change in (case.update(disk, sizeBytes=32 * MIB), case.delete(disk), case.attach_disk()):
        with pytest.raises(NotDoneError, match="another call is still using disk 'data'"):
            await change
    resize.resume()

    async def is_free() -> bool:
        with contextlib.suppress(NotDoneError):
            await case.attach_disk()
            return True
        return False

    await until(is_free)
    assert (case.mount_point() / MARKER).is_dir()
    assert (await case.disk()).fields["sizeBytes"] == 16 * MIB, "the resize completed"


async def test_a_resize_that_outlives_its_call_continues(
    case: Case, slow: Callable[[str], SlowProgram]
) -> None:
    disk, resize = await case.create_disk(), slow("resize2fs")
    limits = Limits(request_timeout_seconds=0.5)
    impatient = DisksProvider(
        ProviderConfigSpec("disks", case.root.as_uri(), limits=limits), Secrets(), CallPermit()
    )
    update = with_version_of(action("Update", "data", {**disk.fields, "sizeBytes": 16 * MIB}), disk)
    with pytest.raises(UnknownResultError, match="did not respond before the timeout"):
        await impatient.update(update)
    resize.resume()

    async def has_grown() -> bool:
        return (await case.disk()).fields["sizeBytes"] == 16 * MIB

    await until(has_grown)
    await impatient.close()
    assert resize.runs == 1


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(2000):
        if await condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail("the condition was not met within 20 s")


def test_a_superblock_with_an_impossible_block_size_has_a_size_that_fits_in_memory(
    tmp_path: Path,
) -> None:
    """The observer reads the images of all tenants; this one's size would be a 512 MiB number."""
    image = bytearray(4096)
    struct.pack_into("<H", image, 1024 + 0x38, 0xEF53)
    struct.pack_into("<II", image, 1024 + 0x4, 1, 0)
    struct.pack_into("<I", image, 1024 + 0x18, 0xFFFF_FFFF)
    (tmp_path / "image").write_bytes(image)
    with (tmp_path / "image").open("rb") as file:
        superblock = read_superblock(file.fileno())
    assert superblock is not None
    assert superblock.size_bytes < 2**64
