"""A folder tree that no link can escape: each segment is opened below the previous one (openat).

All functions block, and raise ``OSError`` unchanged.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import takewhile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from reconciler.errors import ConfigurationError, NotDoneError, RefusedError

if sys.platform != "win32":
    import fcntl

OWN_PREFIX = ".reconciler-"
"""Name prefix that is reserved for Reconciler's files."""

ROOT_MARKER = f"{OWN_PREFIX}root"
LEFTOVER_SECONDS = 3600.0
"""Older temporary files belong to actions that are no longer retried."""

MAX_SEGMENTS = 32
"""Limit on the segments of a file's name, because a declaration creates its missing folders."""

_MAX_FOLDERS_PER_CALL = 100
_RESERVED_SEGMENTS = frozenset({"", ".", ".."})
_MAX_SCANS = 3
_FOLDER_MODE = 0o755
_FOLDER_ATTRIBUTE = "user.reconciler.created"
"""Extended attribute of the folders that Reconciler created, which it removes once empty."""


@dataclass
class Entries:
    """Listed files, and folders to list, by their names below the root."""

    files: list[str] = field(default_factory=list[str])
    folders: list[str] = field(default_factory=list[str])


class FileRoot:
    """A folder, and everything below it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def open_parent(
        self, name: str, *, create: bool = False, marker: str = ""
    ) -> Generator[int | None]:
        """Open the folder that contains a name; None if it does not exist and ``create`` is false.

        Each created folder gets an empty file with the name ``marker``, unless it is empty. Raises
        ``NotDoneError`` if the root is missing, ``RefusedError`` if a link is in the path.
        """
        with self._folder(name.split("/")[:-1], create=create, marker=marker) as folder:
            yield folder

    def entries(self, folder_names: Sequence[str], prefix: str, *, max_files: int) -> Entries:
        """List folders, the last one first, until there are enough files.

        Return the regular files that match a prefix, and the folders that may contain more. Remove
        old temporary files that a crash left behind.
        """
        listing = Entries(folders=list(folder_names))
        with closing(_OpenPath(self._open_root())) as path:
            for _ in range(_MAX_FOLDERS_PER_CALL):
                if not listing.folders or len(listing.files) >= max_files:
                    break
                folder_name = listing.folders.pop()
                folder = path.enter(folder_name.split("/") if folder_name else [])
                if folder is not None:
                    _add_entries(listing, folder, folder_name, prefix)
        return listing

    def mark(self) -> None:
        """Mark the root, so that it is recognized even if it becomes empty."""
        with contextlib.suppress(OSError):
            os.close(os.open(self.path / ROOT_MARKER, os.O_CREAT | os.O_EXCL, 0o644))

    def remove_empty_folders(self, name: str) -> None:
        """Remove the empty folders above a name that Reconciler created.

        Keep those whose owner or mode has changed since.
        """
        segments = name.split("/")[:-1]
        while segments:
            with self._folder(segments[:-1], create=False, marker="") as parent:
                if parent is None or not _remove_folder(parent, segments.pop()):
                    return

    @contextmanager
    def _folder(self, segments: list[str], *, create: bool, marker: str) -> Generator[int | None]:
        folder: int | None = self._open_root()
        try:
            for segment in segments:
                parent, folder = folder, None
                try:
                    folder = _enter(parent, segment, create=create, marker=marker)
                finally:
                    os.close(parent)
                if folder is None:
                    break
            yield folder
        finally:
            if folder is not None:
                os.close(folder)

    def _open_root(self) -> int:
        try:
            root = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):
            raise NotDoneError(
                f"the root {self.path} is not a directory; check that its disk is mounted"
            ) from None
        # The mount point of an unmounted disk is an empty folder, which does not prove absence.
        with os.scandir(root) as scan:
            is_empty = next(scan, None) is None
        if is_empty:
            os.close(root)
            raise NotDoneError(
                f"the root {self.path} is empty; check that its disk is mounted. If it is the "
                f"right directory, create the empty file {ROOT_MARKER} there"
            )
        return root


class _OpenPath:
    """The open folders from the root to a folder, so that entering the next one is cheap."""

    def __init__(self, root: int) -> None:
        self._folders = [root]
        self._segments: list[str] = []

    def enter(self, segments: Sequence[str]) -> int | None:
        """Open a folder below the root, reusing the open folders; None if it is missing."""
        pairs = zip(self._segments, segments, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        self._leave(shared)
        for segment in segments[shared:]:
            folder = _enter(self._folders[-1], segment, create=False)
            if folder is None:
                return None
            self._folders.append(folder)
            self._segments.append(segment)
        return self._folders[-1]

    def close(self) -> None:
        """Close all folders. Raises ``NotDoneError`` if one was replaced in the meantime."""
        try:
            self._leave(0)
        finally:
            for folder in self._folders:
                os.close(folder)

    def _leave(self, depth: int) -> None:
        while len(self._segments) > depth:
            folder, segment = self._folders.pop(), self._segments.pop()
            try:
                # The files of the new folder were not listed, so they would seem to be missing.
                current = stat_of(self._folders[-1], segment)
                if current is not None and not os.path.samestat(current, os.fstat(folder)):
                    raise NotDoneError(
                        f"the directory {segment!r} was replaced during a listing", responded=True
                    )
            finally:
                os.close(folder)


def root_path(endpoint: str) -> Path:
    """Return the folder for an endpoint such as file:///srv/files.

    Raises ``ConfigurationError`` for any other endpoint.
    """
    if sys.platform != "linux":
        raise ConfigurationError("files are supported only on Linux")
    url = urlsplit(endpoint)
    path = unquote(url.path)
    if url.scheme != "file" or url.netloc not in {"", "localhost"} or not path.startswith("/"):
        raise ConfigurationError(
            "spec.endpoint: must be the root directory of the files, such as file:///some/root"
        )
    return Path(path)


def temporary_name(key: str) -> str:
    """Return the name of an action's temporary file, so that a retry finds a leftover."""
    return f"{OWN_PREFIX}{hashlib.sha256(key.encode()).hexdigest()[:32]}"


def check_segment(segment: str) -> str:
    """Return the name of a folder entry. Raises ``RefusedError`` for a path.

    System calls also accept paths, and an absolute path escapes any folder.
    """
    if segment in _RESERVED_SEGMENTS or "/" in segment or "\0" in segment:
        raise RefusedError(f"{segment!r} is not the name of a file in a directory")
    return segment


def stat_of(folder: int, segment: str) -> os.stat_result | None:
    """Read the attributes of a name, without following a link; None if it does not exist."""
    try:
        return os.stat(check_segment(segment), dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def open_file(folder: int, segment: str) -> int | None:
    """Open a regular file for reading; None if the name is not a regular file."""
    file_stat = stat_of(folder, segment)
    if file_stat is None or not stat.S_ISREG(file_stat.st_mode):
        return None  # not opened, because opening affects a device or a pipe
    try:
        file = os.open(segment, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except FileNotFoundError:
        return None
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    return None


def check_not_mounted(folder: int, segment: str) -> None:
    """Raise ``NotDoneError`` if another filesystem or file is mounted over a name.

    The mounted file hides the file in the folder, which cannot be replaced or deleted.
    """
    try:
        file = os.open(check_segment(segment), os.O_PATH | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        return
    try:
        if _mount_id(file) != _mount_id(folder):
            raise NotDoneError(
                f"{segment!r} is a mount point, and the mount hides the file; unmount it, or "
                "declare another name",
                status=HTTPStatus.CONFLICT,
            )
    finally:
        os.close(file)


def _mount_id(file: int) -> str | None:
    """Return the id of an open file's mount; None if it is unknown."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/self/fdinfo/{file}").read_text().splitlines():
            if line.startswith("mnt_id:"):
                return line
    return None


@contextmanager
def open_temporary(folder: int, segment: str) -> Generator[int]:
    """Create a temporary file that only this user may read, and remove its name at the end.

    It is locked while its call runs. Raises ``NotDoneError`` if another call uses the name.
    """
    discard(folder, segment)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        file = os.open(segment, flags, 0o600, dir_fd=folder)
    except FileExistsError:
        raise _build_running_error() from None
    try:
        _lock(file)
        # another call may have removed it as a leftover before it was locked
        if not is_named(folder, segment, file):
            raise _build_running_error()
        try:
            yield file
        finally:
            if is_named(folder, segment, file):
                os.unlink(segment, dir_fd=folder)
    finally:
        os.close(file)


def discard(folder: int, segment: str) -> None:
    """Remove a temporary file left by a crash. Raises ``NotDoneError`` if its call is running."""
    file = open_file(folder, segment)
    if file is None:
        return
    try:
        _lock(file)
        # Only the holder of the lock removes the name, so no other file can have it after this
        # check.
        if is_named(folder, segment, file):
            os.unlink(segment, dir_fd=folder)
    finally:
        os.close(file)


def is_same_file(folder: int, first: str, second: str) -> bool:
    """Return whether two names refer to the same file."""
    first_stat, second_stat = stat_of(folder, first), stat_of(folder, second)
    return (
        first_stat is not None
        and second_stat is not None
        and os.path.samestat(first_stat, second_stat)
    )


def _enter(folder: int, segment: str, *, create: bool, marker: str = "") -> int | None:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    try:
        return os.open(check_segment(segment), flags, dir_fd=folder)
    except FileNotFoundError:
        if not create:
            return None
    except NotADirectoryError:
        file_stat = stat_of(folder, segment)
        if file_stat is not None and stat.S_ISLNK(file_stat.st_mode):
            raise RefusedError(
                f"{segment!r} in the path is a symbolic link, which Reconciler does not follow"
            ) from None
        if create:
            raise NotDoneError(
                f"{segment!r} in the path is a file, not a directory; declare another name, or "
                "remove it",
                status=HTTPStatus.CONFLICT,
            ) from None
        return None
    is_new = True
    try:
        os.mkdir(segment, _FOLDER_MODE, dir_fd=folder)
    except FileExistsError:  # another call created it in the meantime
        is_new = False
    child = os.open(segment, flags, dir_fd=folder)
    if is_new:
        os.fchmod(child, _FOLDER_MODE)  # regardless of the umask
        with contextlib.suppress(OSError):  # without attributes, the folder stays
            os.setxattr(child, _FOLDER_ATTRIBUTE, b"")
        if marker:
            os.close(os.open(marker, os.O_CREAT | os.O_NOFOLLOW, 0o644, dir_fd=child))
        os.fsync(folder)
    return child


def _remove_folder(parent: int, segment: str) -> bool:
    """Remove a folder if Reconciler created it and it is empty. Return whether it was removed."""
    with contextlib.suppress(OSError):  # it has files, is a mount point, or is not marked
        folder = os.open(segment, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
        try:
            os.getxattr(folder, _FOLDER_ATTRIBUTE)
            folder_stat = os.fstat(folder)
        finally:
            os.close(folder)
        mode, owner = stat.S_IMODE(folder_stat.st_mode), folder_stat.st_uid
        if (mode, owner) == (_FOLDER_MODE, os.geteuid()):
            os.rmdir(segment, dir_fd=parent)
            return True
    return False


def _add_entries(listing: Entries, folder: int, folder_name: str, prefix: str) -> None:
    start = f"{folder_name}/" if folder_name else ""
    may_enter = start.count("/") + 1 < MAX_SEGMENTS
    for segment, is_folder in _scan(folder).items():
        name = start + segment
        if segment.startswith(OWN_PREFIX):
            _remove_old(folder, segment)
        elif is_folder:
            if may_enter and (f"{name}/".startswith(prefix) or prefix.startswith(f"{name}/")):
                listing.folders.append(name)
        elif name.startswith(prefix):
            listing.files.append(name)


def _scan(folder: int) -> dict[str, bool]:
    """Return the names in a folder, and for each, whether it is a folder.

    If the folder changes during a scan, a replaced file can be missing (btrfs, tmpfs), so another
    scan follows.
    """
    names: dict[str, bool] = {}
    for _ in range(_MAX_SCANS):
        modified_at = os.fstat(folder).st_mtime_ns
        with os.scandir(folder) as scan:
            for entry in scan:
                if entry.is_dir(follow_symlinks=False):
                    names[entry.name] = True
                elif entry.is_file(follow_symlinks=False):
                    names[entry.name] = False
        if os.fstat(folder).st_mtime_ns == modified_at:
            break
    return names


def _remove_old(folder: int, segment: str) -> None:
    file_stat = stat_of(folder, segment)
    if (
        segment == ROOT_MARKER
        or file_stat is None
        or time.time() - file_stat.st_ctime < LEFTOVER_SECONDS
    ):
        return
    with contextlib.suppress(OSError, NotDoneError):
        discard(folder, segment)


def _lock(file: int) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _build_running_error() from None


def is_named(folder: int, segment: str, file: int) -> bool:
    """Return whether an open file still has its name."""
    file_stat = stat_of(folder, segment)
    return file_stat is not None and os.path.samestat(file_stat, os.fstat(file))


def _build_running_error() -> NotDoneError:
    # A tenant can cause this at will. An error with a status does not open the breaker.
    return NotDoneError("a call with this key is still running", status=HTTPStatus.CONFLICT)
