"""Read the files of a commit from the object store, without a checkout.

A checkout could write outside of its directory. Symbolic links are followed within the commit's
tree, and never on the disk.
"""

from __future__ import annotations

import io
import stat
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from dulwich.errors import NotTreeError
from dulwich.ignore import IgnoreFilter, read_ignore_patterns
from dulwich.object_store import BaseObjectStore, tree_lookup_path
from dulwich.objects import Blob, ObjectID, SubmoduleEncountered, Tree

from events.documents import SUFFIXES
from infra.providers.git.problems import GitError

MAX_FILES: Final = 5000
MAX_BYTES: Final = 16 * 1024 * 1024

MAX_ENTRIES: Final = 50_000
"""Limit on a folder's entries, including links and empty folders, because a few bytes can encode a
huge tree if its subtrees are shared."""

IGNORE_FILE: Final = ".reconcilerignore"

_MAX_LINKS: Final = 16
"""Limit on the links in one path. Linux allows 40."""

_OUTSIDE: Final = "outside of the repository"
_MAX_IGNORE_BYTES: Final = 64 * 1024
_RESERVED_NAMES: Final = frozenset({"", ".", "..", ".git"})
_NOT_FOUND: Final = (KeyError, NotTreeError, SubmoduleEncountered)


class _Entry(NamedTuple):
    mode: int
    sha: ObjectID
    path: str  # without links


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder to read: its name, and the folders whose links led to it, all without links."""

    tree: ObjectID
    name: str
    path: str
    linked_from: tuple[str, ...] = ()


class _BrokenLinkError(Exception):
    """A symbolic link without a target in the commit."""

    def __init__(self, target: str, reason: str) -> None:
        super().__init__(
            f"the symbolic link leads to {target:.200}, {reason}; correct it, or list it in "
            f"{IGNORE_FILE}"
        )


class CommitTree:
    """The files of one commit."""

    def __init__(self, store: BaseObjectStore, root: ObjectID) -> None:
        self._store = store
        self._root = root

    def files(self, path: str, *, is_rendered: bool = False) -> dict[str, bytes]:
        """Read the files in a folder, or a single file.

        Files that `.reconcilerignore` in that folder lists are skipped, unless a renderer reads
        them. Raises `GitError`.
        """
        contents: dict[str, bytes] = {}
        total = 0
        for name, sha in self.entries(path, is_rendered=is_rendered):
            contents[name] = self.read(sha)
            total += len(contents[name])
            if len(contents) > MAX_FILES or total > MAX_BYTES:
                raise GitError(
                    "BadCommit",
                    f"{path or 'the repository'} has more than {MAX_FILES} files or "
                    f"{MAX_BYTES} bytes; set spec.path to a smaller directory",
                )
        return contents

    def read(self, sha: ObjectID) -> bytes:
        """Return the content of a file."""
        blob = self._store[sha]
        return blob.data if isinstance(blob, Blob) else b""

    def is_ignored(self, name: str, path: str) -> bool:
        """Return whether `.reconcilerignore` in a folder lists a file."""
        try:
            folder = self._resolve("", path)
        except (*_NOT_FOUND, _BrokenLinkError):
            return False
        relative = PurePosixPath(name).relative_to(path or ".").as_posix()
        return stat.S_ISDIR(folder.mode) and _is_ignored(self._ignored(folder.sha), relative)

    def describe(self, name: str) -> str | None:
        """Describe the entry that has a name of an earlier commit now; None if none exists."""
        parts = PurePosixPath(name).parts
        for count in range(1, len(parts) + 1):
            try:
                mode, _ = self._lookup("/".join(parts[:count]))
            except _NOT_FOUND:
                return None
            if stat.S_ISLNK(mode):
                return "now has a symbolic link in its path, which leads to no manifest"
            if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
                return "is now in a submodule, which Reconciler does not read"
        return "now contains no manifest"

    def entries(self, path: str, *, is_rendered: bool = False) -> Iterator[tuple[str, ObjectID]]:
        """Iterate over the names and contents that `files` reads. Raises `GitError`."""
        plain = PurePosixPath(path).as_posix() if path else "."
        try:
            start = self._resolve("", plain)
        except (*_NOT_FOUND, _BrokenLinkError):
            raise GitError("BadCommit", f"the commit has no {plain!r}") from None
        if stat.S_ISREG(start.mode):
            yield plain, start.sha
            return
        if not stat.S_ISDIR(start.mode):
            raise GitError("BadCommit", f"{plain!r} is not a directory")
        prefix = "" if plain == "." else f"{plain}/"
        ignored = None if is_rendered else self._ignored(start.sha)
        folders, count = [_Folder(start.sha, "", start.path)], 0
        while folders:
            folder = folders.pop()
            for name, found, links in self._read_folder(folder, prefix, ignored):
                count += 1
                if count > MAX_ENTRIES:
                    raise GitError(
                        "BadCommit",
                        f"{path or 'the repository'} has more than {MAX_ENTRIES} files and "
                        "directories; set spec.path to a smaller directory",
                    )
                if stat.S_ISDIR(found.mode):
                    folders.append(_Folder(found.sha, f"{name}/", found.path, links))
                elif stat.S_ISREG(found.mode):
                    yield prefix + name, found.sha

    def _read_folder(
        self, folder: _Folder, prefix: str, ignored: IgnoreFilter | None
    ) -> Iterator[tuple[str, _Entry, tuple[str, ...]]]:
        """Iterate over a folder's names, their entries, and the folders whose links led there.

        Without `ignored`, a renderer reads the files, so links may be broken.
        """
        tree = self._store[folder.tree]
        for entry in tree.iteritems() if isinstance(tree, Tree) else ():
            own_name = entry.path.decode(errors="replace")
            name, links = f"{folder.name}{own_name}", folder.linked_from
            if own_name in _RESERVED_NAMES or "/" in own_name or "\0" in own_name:
                raise GitError("BadCommit", f"{(prefix + name)[:200]!r} is not a valid file name")
            found = _Entry(entry.mode or 0, entry.sha, _join(folder.path, own_name))
            is_skipped = ignored is not None and _is_ignored(
                ignored, f"{name}/" if stat.S_ISDIR(found.mode) else name
            )
            if stat.S_ISLNK(found.mode) and not is_skipped:
                links = (*links, folder.path)
                try:
                    found = self._follow(found, folder)
                except _BrokenLinkError as error:
                    if ignored is not None and is_manifest(name):
                        raise GitError("BadCommit", f"{prefix}{name}: {error}") from None
            yield name, found._replace(mode=0) if is_skipped else found, links

    def _ignored(self, folder: ObjectID) -> IgnoreFilter:
        try:
            mode, sha = tree_lookup_path(self._store.__getitem__, folder, IGNORE_FILE.encode())
        except _NOT_FOUND:
            return IgnoreFilter([])
        blob = self._store[sha]
        if not stat.S_ISREG(mode) or not isinstance(blob, Blob):
            raise GitError("BadCommit", f"{IGNORE_FILE}: it must be a file")
        if len(blob.data) > _MAX_IGNORE_BYTES:
            raise GitError(
                "BadCommit", f"{IGNORE_FILE}: it has more than {_MAX_IGNORE_BYTES} bytes"
            )
        return IgnoreFilter(read_ignore_patterns(io.BytesIO(blob.data)))

    def _follow(self, link: _Entry, folder: _Folder) -> _Entry:
        """Return the target of a link. Raises `_BrokenLinkError`."""
        target = self._target(link.sha)
        try:
            found = self._resolve(folder.path, target)
        except _NOT_FOUND:
            raise _BrokenLinkError(target, "which does not exist") from None
        containing = (folder.path, *folder.linked_from)
        if stat.S_ISDIR(found.mode) and any(_contains(found.path, each) for each in containing):
            raise _BrokenLinkError(target, "a directory that contains it")
        return found

    def _resolve(self, folder: str, path: str) -> _Entry:
        """Follow a path with links. Raises an error of `_NOT_FOUND`, or `_BrokenLinkError`."""
        done = [each for each in folder.split("/") if each]
        pending = deque(path.split("/"))
        found, links = _Entry(stat.S_IFDIR, self._root, ""), 0
        if path.startswith("/"):
            raise _BrokenLinkError(path, _OUTSIDE)
        while pending:
            part = pending.popleft()
            if part in ("", "."):
                continue
            if part == "..":
                if not done:
                    raise _BrokenLinkError(path, _OUTSIDE)
                done.pop()
                continue
            mode, sha = self._lookup("/".join([*done, part]))
            if not stat.S_ISLNK(mode):
                done.append(part)
                continue
            links += 1
            target = self._target(sha)
            if links > _MAX_LINKS or target.startswith("/"):
                reason = _OUTSIDE if links <= _MAX_LINKS else "through too many other links"
                raise _BrokenLinkError(path, reason)
            pending.extendleft(reversed(target.split("/")))
        if done:
            found = _Entry(*self._lookup("/".join(done)), "/".join(done))
        return found

    def _lookup(self, path: str) -> tuple[int, ObjectID]:
        return tree_lookup_path(self._store.__getitem__, self._root, path.encode())

    def _target(self, sha: ObjectID) -> str:
        return self.read(sha).decode(errors="replace")


def _is_ignored(ignored: IgnoreFilter, name: str) -> bool:
    return bool(ignored.is_ignored(name))


def is_manifest(name: str) -> bool:
    """Return whether the name of a file is that of a manifest."""
    return PurePosixPath(name).suffix.lower() in SUFFIXES


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _contains(folder: str, path: str) -> bool:
    return not folder or path == folder or path.startswith(f"{folder}/")
