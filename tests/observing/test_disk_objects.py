"""Disks and attachments through the whole loop: documented examples, kept data, use, and drift."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from events.intake import Approved, Withdrawn
from events.log import DriftDetected
from events.manifest import Manifest, Metadata
from events.names import ResourceKey
from events.provider_config import Limits
from infra.providers.disks.attachment import ATTACHMENT
from infra.providers.disks.disk import DISK
from reconciler.provider.kind import KindRegistry
from tests.disks import MIB, remaining_mounts, run
from tests.scenarios.harness import World, api_config, every

pytestmark = pytest.mark.disks

PAGES = Path(__file__).parents[2] / "docs" / "kinds"


def examples(page: str, root: Path) -> list[Manifest]:
    """Return a page's applied manifests."""
    text = (PAGES / page).read_text()
    (block,) = re.findall(r"<!-- applied by [^\n]*-->\n```yaml\n(.*?)```", text, re.DOTALL)
    documents = yaml.safe_load_all(block.replace("file:///srv/disks", root.as_uri()))
    return [msgspec.convert(each, Manifest) for each in documents]


def disk(name: str = "data", size: int = 8 * MIB, **spec: Any) -> Manifest:
    config = {"providerConfigRef": {"name": "disks"}}
    return Manifest("disks/v1", "Disk", Metadata(name), {**config, "sizeBytes": size, **spec})


def attachment(name: str = "data", **spec: Any) -> Manifest:
    config = {"providerConfigRef": {"name": "disks"}}
    fields = {**config, "disk": {"$ref": f"Disk/{name}", "field": "name"}, **spec}
    return Manifest("disks/v1", "Attachment", Metadata(name), fields)


@pytest.fixture
async def with_disks(bare_world: World, disk_root: Path) -> World:
    """Start a reconciler of disks with frequent listings."""
    bare_world.kinds = KindRegistry([DISK, ATTACHMENT])
    await bare_world.start_reconciler()
    limits = Limits(request_timeout_seconds=30)
    config = api_config(disk_root.as_uri(), provider="disks", resync=0.2, limits=limits)
    await bare_world.configure(config, name="disks")
    return bare_world


async def wait_until_converged(world: World, key: ResourceKey, generation: int = 1) -> None:
    outcome = await world.client.wait_for(key, generation=generation, timeout_seconds=30)
    assert outcome.outcome == "Converged", outcome


async def test_the_documented_disks_are_applied(with_disks: World, disk_root: Path) -> None:
    config, manifest = examples("disk.md", disk_root)
    (attached,) = examples("attachment.md", disk_root)
    assert config.spec["endpoint"] == disk_root.as_uri()
    await with_disks.declare_all([attached, manifest])  # in any order
    await wait_until_converged(with_disks, attached.key)

    mount_point = disk_root / "mounts/orders-data"
    assert run("findmnt", "-n", "-o", "LABEL", mount_point) == "orders"
    (mount_point / "file").write_text("data")
    log = repr(await with_disks.history(attached.key))
    assert str(mount_point) in log


async def test_a_kept_disk_has_its_data_when_it_is_declared_again(
    with_disks: World, disk_root: Path
) -> None:
    kept_manifest = disk(policy={"deletion": "Orphan"})
    image, mount_point = disk_root / "images/data.img", disk_root / "mounts/data"
    await with_disks.declare_all([kept_manifest, attachment()])
    await wait_until_converged(with_disks, attachment().key)
    (mount_point / "precious").write_text("kept")
    uuid = run("blkid", "-p", "-o", "value", "-s", "UUID", image)

    for each in (attachment(), kept_manifest):
        await with_disks.publish(each.key, Withdrawn())
    await with_disks.until_outcome(attachment().key, "Deleted")
    await with_disks.until_outcome(kept_manifest.key, "Released")
    assert remaining_mounts(disk_root) == ([], [])
    assert image.exists()

    adopting_disk = disk(policy={"deletion": "Orphan", "adoption": "Adopt"})
    await with_disks.declare_all([adopting_disk, attachment()])
    await wait_until_converged(with_disks, adopting_disk.key, 3)
    await wait_until_converged(with_disks, attachment().key, 3)
    assert (mount_point / "precious").read_text() == "kept"
    assert run("blkid", "-p", "-o", "value", "-s", "UUID", image) == uuid


async def test_a_deletion_waits_for_approval_then_for_the_attachment_then_for_its_user(
    with_disks: World, disk_root: Path
) -> None:
    image, mount_point = disk_root / "images/data.img", disk_root / "mounts/data"
    attached = attachment(
        disk="data"
    )  # referenced by name only, so nothing but the disk itself can keep it
    await with_disks.declare_all([disk(), attached])
    await wait_until_converged(with_disks, attached.key)

    await with_disks.publish(disk().key, Withdrawn())
    held = await with_disks.until_outcome(disk().key, "Held", reason="DataLoss")
    assert "all data of disk data" in held.message
    await with_disks.publish(disk().key, Approved("DataLoss"), "approval")
    waiting = await with_disks.until_outcome(disk().key, "Degraded")
    assert (
        f"mounted at {mount_point}; Reconciler deletes it after it is detached" in waiting.message
    )

    user = subprocess.Popen(["cat"], stdin=subprocess.PIPE, cwd=mount_point)  # noqa: ASYNC220
    try:
        await with_disks.publish(attached.key, Withdrawn())
        busy = await with_disks.until_outcome(attached.key, "Degraded")
        assert f"{mount_point} is in use by cat (pid {user.pid})" in busy.message
        assert (len(remaining_mounts(disk_root)[0]), image.exists()) == (1, True)
    finally:
        user.kill()
        user.communicate()
    await with_disks.until_outcome(attached.key, "Deleted")
    await with_disks.until_outcome(disk().key, "Deleted")
    assert remaining_mounts(disk_root) == ([], [])
    assert not image.exists()


async def test_an_unmounted_disk_is_mounted_again_and_grows_but_never_shrinks(
    with_disks: World, disk_root: Path
) -> None:
    mount_point = disk_root / "mounts/data"
    await with_disks.declare_all([disk(), attachment()])
    await wait_until_converged(with_disks, attachment().key)
    (mount_point / "file").write_text("data")
    await asyncio.to_thread(run, "umount", mount_point)

    async def is_mounted() -> bool:
        return (mount_point / "file").exists()

    await with_disks.until(is_mounted, "the disk is mounted again")
    await with_disks.until_settled()
    drifts = every(DriftDetected, await with_disks.facts(attachment().key))
    assert [each.path for each in drifts[-1].differences] == ["mounted"]

    await with_disks.declare_all([attachment(mounted=False), disk(size=16 * MIB)])
    await with_disks.until_outcome(disk().key, "Converged", generation=2)
    await with_disks.declare_all([attachment()])
    await wait_until_converged(with_disks, attachment().key, 3)
    space = await asyncio.to_thread(run, "df", "--output=size", "-B1M", mount_point)
    assert int(space.split()[-1]) > 10
    assert (mount_point / "file").read_text() == "data"

    await with_disks.declare_all([disk(size=8 * MIB)])
    failed = await with_disks.until_outcome(disk().key, "Failed", generation=3)
    assert "is 16777216 bytes long and never shrinks" in failed.message


async def test_another_disk_is_mounted_at_the_path_once_the_first_is_unused(
    with_disks: World, disk_root: Path
) -> None:
    mount_point, key = disk_root / "mounts/data", attachment().key
    await with_disks.declare_all([disk("first"), disk("second"), attachment(disk="first")])
    await wait_until_converged(with_disks, key)
    (mount_point / "file").write_text("first")
    user = subprocess.Popen(["cat"], stdin=subprocess.PIPE, cwd=mount_point)  # noqa: ASYNC220
    try:
        await with_disks.declare_all([attachment(disk="second")])
        busy = await with_disks.until_outcome(key, "Degraded", generation=2)
        assert f"in use by cat (pid {user.pid})" in busy.message
        assert (mount_point / "file").read_text() == "first"
    finally:
        user.kill()
        user.communicate()
    await wait_until_converged(with_disks, key, 2)
    assert not (mount_point / "file").exists()
    assert [Path(each.backing).name for each in remaining_mounts(disk_root)[1]] == ["second.img"]


async def test_a_disk_without_space_is_replaced_when_a_smaller_one_is_declared(
    with_disks: World, disk_root: Path
) -> None:
    await with_disks.declare_all([disk(size=1 << 50)])
    waiting = await with_disks.until_outcome(disk().key, "Degraded")
    assert "more bytes are required, but" in waiting.message
    await with_disks.declare_all([disk()])
    await wait_until_converged(with_disks, disk().key, 2)
    assert [each.name for each in (disk_root / "images").iterdir()] == ["data.img"]


async def test_a_vanished_image_is_not_replaced_by_an_empty_disk(
    with_disks: World, disk_root: Path
) -> None:
    image, renamed = disk_root / "images/data.img", disk_root / "images/old.img"
    await with_disks.declare_all([disk()])
    await wait_until_converged(with_disks, disk().key)

    await asyncio.to_thread(image.rename, renamed)
    held = await with_disks.until_outcome(disk().key, "Held", reason="DataMissing")
    assert "with all data of disk data, has been missing since" in held.message

    async def is_found() -> bool:  # by the next listing
        outcomes = await with_disks.outcomes(disk().key)
        return "a Disk with its uid is now named 'old'; rename it back" in outcomes[-1].message

    await with_disks.until(is_found, "the renamed image is found")
    await asyncio.to_thread(renamed.rename, image)
    await with_disks.until_outcome(disk().key, "Converged")

    await asyncio.to_thread(image.unlink)
    await with_disks.until_outcome(disk().key, "Held", reason="DataMissing")
    await with_disks.until_observed_again(4)
    assert not image.exists()
    await with_disks.publish(disk().key, Withdrawn())
    await with_disks.until_outcome(disk().key, "Deleted")
    assert not image.exists()


async def test_a_deleted_image_is_rescued_from_its_device_and_adopted(
    with_disks: World, disk_root: Path
) -> None:
    image, rescued = disk_root / "images/data.img", disk_root / "rescued.img"
    file = disk_root / "mounts/data/file"
    await with_disks.declare_all([disk(), attachment()])
    await wait_until_converged(with_disks, attachment().key)
    file.write_text("data")
    image.unlink()
    await with_disks.until_outcome(disk().key, "Held", reason="DataMissing")

    async def is_alarm_shown() -> bool:
        waiting = await with_disks.until_outcome(attachment().key, "Waiting")
        return "ImageDeleted" in waiting.message

    await with_disks.until(is_alarm_shown, "the wait does not hide the alarm")
    (device,) = (each.path for each in remaining_mounts(disk_root)[1])

    await asyncio.to_thread(run, "umount", file.parent)
    await asyncio.to_thread(run, "dd", f"if={device}", f"of={rescued}", "bs=1M")
    await with_disks.declare_all([disk(policy={"adoption": "Adopt"})])
    await asyncio.to_thread(rescued.rename, image)
    await asyncio.to_thread(run, "losetup", "-d", device)

    async def is_named() -> bool:
        held = await with_disks.until_outcome(disk().key, "Held", reason="DataMissing")
        return "now has the name 'data'" in held.message

    await with_disks.until(is_named, "the message names the copy")
    await with_disks.publish(disk().key, Approved("DataMissing"), "approval")

    async def has_its_data() -> bool:
        return file.exists() and file.read_text() == "data"

    await with_disks.until(has_its_data, "the rescued image is mounted")
    await with_disks.until_outcome(disk().key, "Converged")
