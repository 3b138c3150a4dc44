"""Deliver the files that servers read: key, certificate and CA, in a folder below the root.

A folder belongs to the certificate that its marker names. Other clients' files are never replaced.
All functions block, and raise ``OSError`` unchanged.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from infra.providers.certificates.checks import FileState
from infra.providers.certificates.spec import (
    CA_FILE,
    CERTIFICATE_FILE,
    COMBINED_FILE,
    CREATED,
    KEY_FILE,
    MARKER,
)
from infra.providers.certificates.store import (
    PRIVATE_MODE,
    PUBLIC_MODE,
    is_exposed,
    read_file,
    write_file,
)
from infra.providers.file_root import FileRoot, discard, stat_of, temporary_name
from reconciler.errors import RefusedError

_FILES: Final = (KEY_FILE, COMBINED_FILE, CERTIFICATE_FILE, CA_FILE)

DescribeOwner = Callable[[str], str]
"""Describes another certificate in a message, by name only if the reader may see it."""


class Bundle(NamedTuple):
    """The delivered content: a key, its certificate chain, and the CA's certificate."""

    key: bytes
    chain: bytes
    ca: bytes

    @property
    def files(self) -> Mapping[str, tuple[bytes, int]]:
        """Content and mode of each file, in the order in which they are written."""
        return {
            CA_FILE: (self.ca, PUBLIC_MODE),
            COMBINED_FILE: (self.key + self.chain, PRIVATE_MODE),
            KEY_FILE: (self.key, PRIVATE_MODE),
            CERTIFICATE_FILE: (self.chain, PUBLIC_MODE),
        }


def compare_files(root: FileRoot, path: str, bundle: Bundle) -> dict[str, FileState]:
    """Compare the files in a folder with the bundle. Files behind a link count as missing."""
    try:
        with root.open_parent(f"{path}/x") as folder:
            if folder is None:
                return dict.fromkeys(bundle.files, "Missing")
            return {
                name: _state(folder, name, data, mode)
                for name, (data, mode) in bundle.files.items()
            }
    except RefusedError:  # the delivery reports it; other certificates are still listed
        return dict.fromkeys(bundle.files, "Missing")


def check_folder(root: FileRoot, path: str, name: str, describe_owner: DescribeOwner) -> bool:
    """Return whether the certificate has the folder; False if no certificate seems to.

    Raise ``RefusedError`` if it has another owner, before a certificate is ordered.
    """
    with root.open_parent(f"{path}/x") as folder:
        if folder is not None and _owns_folder(folder, path, name, describe_owner):
            return True  # valid even if another certificate has since claimed an enclosing folder
    other_folder = find_enclosing_folder(root, path, except_certificate=name)
    if other_folder is not None:
        raise foreign_folder_error(*other_folder, describe_owner)
    return False


def find_enclosing_folder(
    root: FileRoot, path: str, *, except_certificate: str | None = None
) -> tuple[str, str] | None:
    """Return the certificate folder that encloses a path, and the certificate's name.

    ``except_certificate`` names a certificate whose folder is ignored.
    """
    segments = path.split("/")
    for length in range(1, len(segments)):
        ancestor = "/".join(segments[:length])
        with root.open_parent(f"{ancestor}/x") as folder:
            marker = None if folder is None else read_file(folder, MARKER)
        if marker is not None and (owner := _name_in(marker)) != except_certificate:
            return ancestor, owner
    return None


def deliver(
    root: FileRoot, path: str, name: str, bundle: Bundle, describe_owner: DescribeOwner
) -> None:
    """Write the files that differ. Raises ``RefusedError`` for other clients' files.

    Call `check_folder` first.
    """
    with root.open_parent(path, create=True, marker=CREATED):
        pass  # several certificates may share the enclosing folders
    with root.open_parent(f"{path}/x", create=True) as folder:
        assert folder is not None
        if not _owns_folder(folder, path, name, describe_owner):
            write_file(folder, MARKER, f"{name}\n".encode(), PUBLIC_MODE)
        for file_name, (data, mode) in bundle.files.items():
            if _state(folder, file_name, data, mode) != "Delivered":
                write_file(folder, file_name, data, mode)


def withdraw(root: FileRoot, path: str, name: str) -> None:
    """Remove the files of a certificate, and the folders that are then empty."""
    with root.open_parent(f"{path}/x") as folder:
        marker = None if folder is None else read_file(folder, MARKER)
        if folder is not None and (marker is None or _name_in(marker) != name):
            return
        if folder is not None:
            _remove_files(folder)
    if folder is None or _remove_empty_folder(root, path):
        _remove_created_parents(root, path)


def _remove_files(folder: int) -> None:
    for file_name in (*_FILES, MARKER):
        file_stat = stat_of(folder, file_name)
        if file_stat is not None and stat.S_ISREG(file_stat.st_mode):
            os.unlink(file_name, dir_fd=folder)
        discard(folder, temporary_name(file_name))  # left by a crash


def _remove_created_parents(root: FileRoot, path: str) -> None:
    """Remove the enclosing folders that a delivery created, and that have no other content."""
    segments = path.split("/")
    for length in range(len(segments) - 1, 0, -1):
        parent = "/".join(segments[:length])
        with root.open_parent(f"{parent}/x") as folder:
            is_created = folder is None or stat_of(folder, CREATED) is not None
        if not is_created or not _remove_empty_folder(root, parent):
            return


def _remove_empty_folder(root: FileRoot, path: str) -> bool:
    """Remove a folder that contains at most its mark. Return whether it no longer exists."""
    with root.open_parent(f"{path}/x") as folder:
        if folder is None:
            return True
        if set(os.listdir(folder)) - {CREATED}:  # noqa: PTH208 - an open folder
            return False
        with contextlib.suppress(FileNotFoundError):
            os.unlink(CREATED, dir_fd=folder)
    with root.open_parent(path) as parent:
        if parent is not None:
            try:
                os.rmdir(path.rpartition("/")[2], dir_fd=parent)
            except OSError:  # another client has put a file there
                return False
    return True


def _name_in(marker: bytes) -> str:
    return marker.decode(errors="replace").strip()


def foreign_folder_error(path: str, owner: str, describe_owner: DescribeOwner) -> RefusedError:
    """Build the error for a folder that belongs to another certificate."""
    return RefusedError(
        f"directory {path!r} contains the files of {describe_owner(owner)}; set spec.folder to "
        "another directory"
    )


def _owns_folder(folder: int, path: str, name: str, describe_owner: DescribeOwner) -> bool:
    """Return whether the certificate owns a folder; False if it has no owner yet.

    Raises ``RefusedError`` if another certificate owns it, or if it contains other clients' files.
    """
    marker = read_file(folder, MARKER)
    if marker is not None:
        owner = _name_in(marker)
        if owner != name:
            raise foreign_folder_error(path, owner, describe_owner)
        return True
    for file_name in _FILES:
        if stat_of(folder, file_name) is not None:
            raise RefusedError(
                f"{path}/{file_name} already exists and Reconciler did not create it; move it "
                "elsewhere, or set spec.folder to another directory"
            )
    return False


def _state(folder: int, name: str, data: bytes, mode: int) -> FileState:
    file_stat = stat_of(folder, name)
    if file_stat is None:
        return "Missing"
    if not stat.S_ISREG(file_stat.st_mode):
        return "Differs"
    if read_file(folder, name) != data:
        return "Differs"
    # Stricter permissions are the user's choice. Wider ones expose the key, so they are repaired.
    return "Exposed" if is_exposed(file_stat, mode) else "Delivered"
