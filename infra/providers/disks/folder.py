"""A ProviderConfig's folder of images, attachments and mount points, accessed from threads.

::

    ROOT/images/NAME.img          a disk
    ROOT/attachments/NAME.json    the record of an attachment
    ROOT/mounts/NAME              its mount point
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

from events.provider_config import ProviderConfigSpec, Scope
from infra.providers.disks.programs import build_waiting_error
from infra.providers.file_root import FileRoot, is_named, root_path, stat_of
from infra.providers.file_threads import FileThreads
from reconciler.errors import RefusedError
from reconciler.provider.call_permit import CallPermit

if sys.platform != "win32":
    import fcntl

IMAGES: Final = "images"
ATTACHMENTS: Final = "attachments"
MOUNTS: Final = "mounts"
IMAGE_SUFFIX: Final = ".img"
ATTACHMENT_SUFFIX: Final = ".json"
MAX_PAGE_SIZE: Final = 100

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_T = TypeVar("_T")


def name_problem(name: str) -> str | None:
    """Describe what is wrong with the name of a disk or an attachment; None if it is valid."""
    if _NAME.fullmatch(name) is None:
        return "use at most 128 characters A-Z a-z 0-9 _ . - and start with a letter or digit"
    return None


class DiskFolder:
    """A root folder, and the threads that access it."""

    def __init__(self, config: ProviderConfigSpec, permit: CallPermit) -> None:
        self.root = FileRoot(root_path(config.endpoint))
        self._permit = permit
        self.timeout_seconds = config.limits.request_timeout_seconds
        self._threads = FileThreads(self.root.path, self.timeout_seconds, "disks")

    async def step(self, function: Callable[[], _T], *, writes: bool = False) -> _T:
        """Run one step in a thread when the permit allows it.

        Each step is atomic or can be repeated.
        """
        await self._permit.before_request()
        result = await self._threads.run(function, writes=writes)
        if writes:
            self._permit.record_write()
        return result

    async def pages(
        self,
        scope: Scope,
        page_size: int,
        names: Callable[[str], list[str]],
        read_page: Callable[[list[str]], list[_T]],
    ) -> AsyncIterator[Sequence[_T]]:
        """Read the objects whose names are in the scope, page by page."""
        in_scope = await self.step(lambda: sorted(names(scope.prefix or "")))
        size = min(page_size, MAX_PAGE_SIZE)
        for start in range(0, len(in_scope), size):
            page = in_scope[start : start + size]
            yield await self.step(lambda page=page: read_page(page))

    def close(self) -> None:
        """Stop the threads."""
        self._threads.close()

    # --- called in a thread

    def names(self, folder: str, suffix: str, prefix: str) -> list[str]:
        """Return the names of a folder's regular files. Also removes old temporary files."""
        start = f"{folder}/"
        # After a folder with at least one file, the listing does not enter its subfolders.
        files = self.root.entries([folder], start + prefix, max_files=1).files
        disk_names = [
            each.removeprefix(start).removesuffix(suffix) for each in files if each.endswith(suffix)
        ]
        return [each for each in disk_names if name_problem(each) is None]

    @contextmanager
    def image_folder(self, *, create: bool = False) -> Generator[int | None]:
        """Open the folder with the images."""
        with self.root.open_parent(f"{IMAGES}/", create=create) as folder:
            yield folder

    def path_of(self, name: str) -> str:
        """Return the path of a disk's image."""
        return str(self.root.path / IMAGES / image_file_name(name))


def image_file_name(disk: str) -> str:
    """Return the file name of a disk's image."""
    return f"{disk}{IMAGE_SUFFIX}"


def resolve_path(folder: int) -> str:
    """Return the path of an open folder as mountinfo shows it."""
    return os.readlink(f"/proc/self/fd/{folder}")  # noqa: PTH115 - text, not a path


@contextmanager
def lock_image(folder: int, segment: str, description: str) -> Generator[int | None]:
    """Open and lock an image for one step; None if it does not exist.

    A program that inherits the file keeps the lock until it exits, even if this process exits
    first. So no step touches an image that a dead worker's mkfs or resize2fs is still writing to.
    """
    file_stat = stat_of(folder, segment)
    if file_stat is None:
        yield None
        return
    if not stat.S_ISREG(file_stat.st_mode):
        raise RefusedError(
            f"{segment!r} is a link, a directory or a device, not a file; Reconciler neither "
            "follows nor replaces it"
        )
    try:
        file = os.open(segment, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        yield None
        return
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise build_waiting_error(f"another call is still using {description}") from None
        try:
            if not is_named(folder, segment, file):
                raise build_waiting_error(f"{description} was deleted or replaced during the call")
            yield file
        finally:
            # Closing is not enough, because a program that another thread is starting may inherit
            # the file.
            fcntl.flock(file, fcntl.LOCK_UN)
    finally:
        os.close(file)
