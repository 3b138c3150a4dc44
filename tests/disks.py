"""Disks in tests: requirements of the machine, a folder of disks, and its cleanup."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from infra.providers.disks.loops import Loop, loops
from infra.providers.disks.mounts import Mount, mounts
from infra.providers.file_root import ROOT_MARKER

MIB = 1024 * 1024

_PROGRAMS = ("mkfs.ext4", "e2fsck", "resize2fs", "tune2fs", "debugfs", "losetup", "mount", "umount")
_MAX_ATTEMPTS = 250
_CAP_SYS_ADMIN, _CAP_SYS_RESOURCE = 21, 24


def problem() -> str | None:
    """Return why no disks can be created and mounted on this machine; None if they can."""
    missing = [each for each in _PROGRAMS if shutil.which(each) is None]
    if missing:
        return f"{', '.join(missing)} not installed (e2fsprogs and mount packages)"
    if os.geteuid() != 0 or not has_capability(_CAP_SYS_ADMIN):
        return "mounting needs root (CAP_SYS_ADMIN)"
    if not Path("/dev/loop-control").exists():
        return "/dev/loop-control does not exist (modprobe loop)"
    return None


def growth_problem() -> str | None:
    """Return why a mounted filesystem cannot grow on this machine; None if it can."""
    return None if has_capability(_CAP_SYS_RESOURCE) else "online growth needs CAP_SYS_RESOURCE"


def has_capability(number: int) -> bool:
    """Return whether this process has a capability."""
    lines = Path("/proc/self/status").read_text().splitlines()
    effective = next(line for line in lines if line.startswith("CapEff:"))
    return bool(int(effective.split()[1], 16) >> number & 1)


@contextmanager
def disk_folder(path: Path) -> Generator[Path]:
    """Create a folder for disks; at the end, nothing in it is mounted or attached."""
    path.mkdir()
    (path / ROOT_MARKER).touch()
    try:
        yield path
    finally:
        clean(path)
        assert remaining_mounts(path) == ([], [])


def remaining_mounts(folder: Path) -> tuple[list[Mount], list[Loop]]:
    """Return the mounts and attached devices in a folder."""
    beneath = f"{folder.resolve()}/"
    return (
        [each for each in mounts() if each.mount_path.startswith(beneath)],
        [each for each in loops() if each.backing.startswith(beneath)],
    )


def clean(folder: Path) -> None:
    """Unmount and detach everything that remains in a folder, the last mount first."""
    for _ in range(_MAX_ATTEMPTS):
        if remaining_mounts(folder) == ([], []):
            return
        _unmount_all(folder)
        time.sleep(0.02)  # a device is detached only after its last user has closed it


def _unmount_all(folder: Path) -> None:
    mounted, attached = remaining_mounts(folder)
    for mount in reversed(mounted):
        # A mount that a failed test keeps busy must not prevent the cleanup of the others.
        if subprocess.run(
            ["umount", mount.mount_path], capture_output=True, check=False
        ).returncode:
            subprocess.run(["umount", "--lazy", mount.mount_path], capture_output=True, check=False)
    for loop in reversed(attached):
        subprocess.run(["losetup", "-d", loop.path], capture_output=True, check=False)


def run(*command: str | Path) -> str:
    """Run a program outside the reconciler."""
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, f"{command}: {process.stderr}"
    return process.stdout.strip()
