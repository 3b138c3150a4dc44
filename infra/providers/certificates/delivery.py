"""Files that servers read: key, certificate and authority, in a folder below the root.

A folder belongs to the certificate that its marker names. Files of other clients are never
replaced. Everything here blocks, and raises ``OSError`` unchanged.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from infra.providers.certificates.checks import FileState
from infra.providers.certificates.spec import (
    CA_FILE,
    CERTIFICATE_FILE,
    COMBINED_FILE,
    KEY_FILE,
    MARKER,
)
from infra.providers.certificates.store import (
    PRIVATE_MODE,
    PUBLIC_MODE,
    read_file,
    write_file,
)
from infra.providers.file_root import FileRoot, discard, stat_of, temporary_name
from reconciler.errors import RefusedError

_FILES: Final = (KEY_FILE, COMBINED_FILE, CERTIFICATE_FILE, CA_FILE)

Naming = Callable[[str], str]
"""Returns the name of another certificate that the reader of a message may see."""


class Bundle(NamedTuple):
    """The delivered content: a key, its chain, and the authority."""

    key: bytes
    chain: bytes
    authority: bytes

    @property
    def files(self) -> Mapping[str, tuple[bytes, int]]:
        """Content and mode of each file, in the order in which they are written."""
        return {
            CA_FILE: (self.authority, PUBLIC_MODE),
            COMBINED_FILE: (self.key + self.chain, PRIVATE_MODE),
            KEY_FILE: (self.key, PRIVATE_MODE),
            CERTIFICATE_FILE: (self.chain, PUBLIC_MODE),
        }


def states_of(root: FileRoot, place: str, bundle: Bundle) -> dict[str, FileState]:
    """Compare the files in a folder with the bundle. Behind a link, every file is missing."""
    try:
        with root.folder_of(f"{place}/x") as folder:
            if folder is None:
                return dict.fromkeys(bundle.files, "Missing")
            return {
                name: _state(folder, name, data, mode)
                for name, (data, mode) in bundle.files.items()
            }
    except RefusedError:  # the delivery reports why; other certificates are listed
        return dict.fromkeys(bundle.files, "Missing")


def check_place(root: FileRoot, place: str, name: str, naming: Naming) -> None:
    """Raise ``RefusedError`` if a folder belongs to others, before anything is ordered for it."""
    with root.folder_of(f"{place}/x") as folder:
        if folder is not None and _is_ours(folder, place, name, naming):
            return  # also within a folder that another certificate has taken in the meantime
    taken = folder_around(root, place, besides=name)
    if taken is not None:
        raise _taken(*taken, naming)


def folder_around(
    root: FileRoot, place: str, *, besides: str | None = None
) -> tuple[str, str] | None:
    """Return the folder of a certificate that contains a path, and the certificate's name."""
    segments = place.split("/")
    for length in range(1, len(segments)):
        above = "/".join(segments[:length])
        with root.folder_of(f"{above}/x") as folder:
            marked = None if folder is None else read_file(folder, MARKER)
        if marked is not None and (whose := _name_in(marked)) != besides:
            return above, whose
    return None


def deliver(root: FileRoot, place: str, name: str, bundle: Bundle, naming: Naming) -> None:
    """Write the files that differ. Raises ``RefusedError`` for files of other clients."""
    check_place(root, place, name, naming)
    with root.folder_of(f"{place}/x", make=True) as folder:
        assert folder is not None
        if not _is_ours(folder, place, name, naming):
            write_file(folder, MARKER, f"{name}\n".encode(), PUBLIC_MODE)
        for file_name, (data, mode) in bundle.files.items():
            if _state(folder, file_name, data, mode) != "Delivered":
                write_file(folder, file_name, data, mode)


def withdraw(root: FileRoot, place: str, name: str) -> None:
    """Remove the files of a certificate, and its folder if nothing else is in it."""
    with root.folder_of(f"{place}/x") as folder:
        if folder is None:
            return
        marked = read_file(folder, MARKER)
        if marked is None or _name_in(marked) != name:
            return
        for file_name in (*_FILES, MARKER):
            found = stat_of(folder, file_name)
            if found is not None and stat.S_ISREG(found.st_mode):
                os.unlink(file_name, dir_fd=folder)
            discard(folder, temporary_name(file_name))  # a leftover of a crash
        is_empty = not os.listdir(folder)  # noqa: PTH208 - an open folder
    if is_empty:
        with root.folder_of(place) as outer:
            if outer is not None:
                try:
                    os.rmdir(place.rpartition("/")[2], dir_fd=outer)
                except OSError:  # another client has put something there
                    return


def _name_in(marked: bytes) -> str:
    return marked.decode(errors="replace").strip()


def _taken(place: str, whose: str, naming: Naming) -> RefusedError:
    return RefusedError(
        f"directory {place!r} contains the files of {naming(whose)}; set spec.folder to another "
        "directory"
    )


def _is_ours(folder: int, place: str, name: str, naming: Naming) -> bool:
    """Return whether a folder belongs to this certificate; False if it belongs to none.

    Raises ``RefusedError`` if it belongs to another one, or contains foreign files.
    """
    marked = read_file(folder, MARKER)
    if marked is not None:
        whose = _name_in(marked)
        if whose != name:
            raise _taken(place, whose, naming)
        return True
    for file_name in _FILES:
        if stat_of(folder, file_name) is not None:
            raise RefusedError(
                f"{place}/{file_name} already exists and Reconciler did not create it; move it "
                "away, or set spec.folder to another directory"
            )
    return False


def _state(folder: int, name: str, data: bytes, mode: int) -> FileState:
    found = stat_of(folder, name)
    if found is None:
        return "Missing"
    if not stat.S_ISREG(found.st_mode):
        return "Differs"
    if read_file(folder, name) != data:
        return "Differs"
    # An operator may restrict a mode further. A key that more users can read is repaired.
    return "Exposed" if stat.S_IMODE(found.st_mode) & ~mode else "Delivered"
