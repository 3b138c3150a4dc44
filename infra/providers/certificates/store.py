"""Store issuers and certificates, each in a private folder below the root.

A folder has a record, which is replaced in one step. Its other files are named after their content
and written once, before a record names them. So a crash leaves the old state or the new one.
All functions block, and raise ``OSError`` unchanged.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final, Generic, Literal, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec

from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields
from infra.providers.certificates.spec import STORE, name_problem
from infra.providers.file_root import (
    FileRoot,
    check_segment,
    open_file,
    open_temporary,
    stat_of,
    temporary_name,
)
from infra.providers.responses import UNDECODABLE
from reconciler.errors import ConfigurationError, NotDoneError

RECORD_FILE: Final = "record.json"
PRIVATE_MODE: Final = 0o600
PUBLIC_MODE: Final = 0o644

_FOLDER_MODE: Final = 0o700
_MAX_FILE_BYTES: Final = 4 * 1024 * 1024
"""Limit on a record, revocation list or chain. Other clients may write to the delivered files."""

_NAME_CHARACTERS: Final = 32


class PendingOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """A requested certificate: its key, its request and its order."""

    action_key: str
    key_file: str
    request: str
    order: str = ""


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """Common fields of issuer and certificate records.

    ``key`` and ``fields`` are those of the last action that wrote the record. Without a ``uid``,
    the creation is unfinished.
    """

    uid: str = ""
    key: str = ""
    labels: dict[str, str] = {}
    fields: Fields = {}


class Revocation(msgspec.Struct, frozen=True):
    """A certificate that a private CA has revoked."""

    serial: str
    at: datetime


class IssuerRecord(Record, frozen=True, omit_defaults=True):
    """An issuer: files with its key and its certificate, or the URL of its account."""

    key_file: str = ""
    certificate_file: str = ""
    account: str = ""
    revoked: tuple[Revocation, ...] = ()


class CertificateRecord(Record, frozen=True, omit_defaults=True):
    """A certificate: files with its key, its chain and its CA.

    ``folders`` may contain its delivered files. The issuer ``limited_by`` does not accept orders
    before ``limited_until``.
    """

    key_file: str = ""
    chain_file: str = ""
    ca_file: str = ""
    folders: tuple[str, ...] = ()
    pending: PendingOrder | None = None
    limited_until: datetime | None = None
    limited_by: str = ""
    limited_why: str = ""


_R = TypeVar("_R", bound=Record)
_encoder = msgspec.json.Encoder(order="deterministic")


class Store(Generic[_R]):
    """The folders of a kind."""

    def __init__(
        self, root: FileRoot, kind: Literal["issuers", "certificates"], record_type: type[_R]
    ):
        self._root = root
        self._folder = f"{STORE}/{kind}"
        self._decoder = msgspec.json.Decoder(record_type)

    def names(self) -> list[str]:
        """List the names of all folders."""
        with self._root.open_parent(f"{self._folder}/x") as folder:
            if folder is None:
                return []
            with os.scandir(folder) as scan:
                return sorted(each.name for each in scan if name_problem(each.name) is None)

    def read(self, name: str) -> _R | None:
        """Read a record."""
        data = self.file(name, RECORD_FILE)
        try:
            return None if data is None else self._decoder.decode(data)
        except UNDECODABLE:
            path = self._root.path / self._folder / name / RECORD_FILE
            raise NotDoneError(f"{path} is unreadable; restore it from a backup") from None

    def file(self, name: str, file_name: str) -> bytes | None:
        """Read a file in a folder."""
        if not file_name:
            return None
        with self._root.open_parent(f"{self._folder}/{name}/x") as folder:
            return None if folder is None else read_file(folder, file_name)

    def is_exposed(self, name: str, file_name: str) -> bool:
        """Return whether other accounts may read or write a file in a folder."""
        if not file_name:
            return False
        with self._root.open_parent(f"{self._folder}/{name}/x") as folder:
            file_stat = None if folder is None else stat_of(folder, file_name)
        return file_stat is not None and is_exposed(file_stat, PRIVATE_MODE)

    def protect(self, name: str, file_name: str) -> None:
        """Replace a file that other accounts may read: another name or an open file may remain."""
        data = self.file(name, file_name) if self.is_exposed(name, file_name) else None
        if data is not None:
            self.put_as(name, file_name, data)

    def write(self, name: str, record: _R) -> None:
        """Replace a record."""
        with self._open_or_create(name) as folder:
            write_file(folder, RECORD_FILE, _encoder.encode(record), PRIVATE_MODE)

    def put(self, name: str, data: bytes, suffix: str) -> str:
        """Write a file that is named after its content, and return the name."""
        file_name = f"{hashlib.sha256(data).hexdigest()[:_NAME_CHARACTERS]}.{suffix}"
        with self._open_or_create(name) as folder:
            if read_file(folder, file_name) != data:
                write_file(folder, file_name, data, PRIVATE_MODE)
        return file_name

    def put_as(self, name: str, file_name: str, data: bytes) -> None:
        """Replace a file that other programs read by its name."""
        with self._open_or_create(name) as folder:
            write_file(folder, file_name, data, PRIVATE_MODE)

    def keep_only(self, name: str, file_names: set[str]) -> None:
        """Remove all other files except the record."""
        with self._root.open_parent(f"{self._folder}/{name}/x") as folder:
            if folder is None:
                return
            for each in os.listdir(folder):  # noqa: PTH208 - beneath an open folder
                if each not in {RECORD_FILE, *file_names}:
                    os.unlink(each, dir_fd=folder)

    def remove(self, name: str) -> None:
        """Remove a folder, starting with its record."""
        with self._root.open_parent(f"{self._folder}/{name}/x") as folder:
            if folder is None:
                return
            for each in sorted(os.listdir(folder), key=lambda each: each != RECORD_FILE):  # noqa: PTH208
                os.unlink(each, dir_fd=folder)
        with self._root.open_parent(f"{self._folder}/{name}") as parent:
            if parent is not None:
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(name, dir_fd=parent)
                os.fsync(parent)

    def lock(self, name: str) -> int:
        """Lock a folder until the returned file is closed, or the process ends.

        Raises ``NotDoneError`` if another call has the lock.
        """
        with self._open_or_create(name) as folder:
            return self._lock_open_folder(name, folder)

    def lock_existing(self, name: str) -> int | None:
        """Lock a folder if it exists."""
        with self._root.open_parent(f"{self._folder}/{name}/x") as folder:
            return None if folder is None else self._lock_open_folder(name, folder)

    def _lock_open_folder(self, name: str, folder: int) -> int:
        lock_file = os.dup(folder)
        if not self._acquire_lock(name, lock_file):
            os.close(lock_file)
            raise NotDoneError(f"another call is using {name!r}", status=409)
        return lock_file

    def _acquire_lock(self, name: str, lock_file: int) -> bool:
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        # the folder may have been removed before it was locked
        with self._root.open_parent(f"{self._folder}/{name}/x") as current:
            return current is not None and os.path.samestat(os.fstat(current), os.fstat(lock_file))

    @contextmanager
    def _open_or_create(self, name: str) -> Generator[int]:
        with self._root.open_parent(f"{STORE}/x", create=True) as store:
            assert store is not None
            os.fchmod(store, _FOLDER_MODE)
        with self._root.open_parent(f"{self._folder}/{name}/x", create=True) as folder:
            assert folder is not None
            yield folder


def root_of(endpoint: str) -> FileRoot:
    """Return the root that a ``ProviderConfig`` names."""
    url = urlsplit(endpoint)
    path = unquote(url.path)
    if url.scheme != "file" or url.netloc not in {"", "localhost"} or not path.startswith("/"):
        raise ConfigurationError(
            "spec.endpoint: must be the root directory of the certificates, such as "
            "file:///some/root; declare an Issuer for the CA"
        )
    return FileRoot(Path(path))


def version_of(record: Record, *files: str) -> str:
    """Return a digest of a record, without work in progress."""
    content = (record.uid, record.key, record.labels, record.fields, files)
    return hashlib.sha256(_encoder.encode(content)).hexdigest()[:_NAME_CHARACTERS]


def uid_of(kind: str, action: Action, existing: ExternalObject | None) -> str:
    """Return the uid of the object that an action writes: the existing uid, or a new one."""
    if existing is not None and existing.uid is not None:
        return existing.uid
    digest = hashlib.sha256(action.idempotency_key.encode()).hexdigest()
    return f"{kind}-{digest[:_NAME_CHARACTERS]}"


def is_exposed(file_stat: os.stat_result, mode: int) -> bool:
    """Return whether a file has wider permissions than its mode. Stricter ones are allowed."""
    return bool(stat.S_IMODE(file_stat.st_mode) & ~mode)


def read_file(folder: int, segment: str) -> bytes | None:
    """Read a regular file; None if it does not exist, or is too long."""
    descriptor = open_file(folder, segment)
    if descriptor is None:
        return None
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(_MAX_FILE_BYTES + 1)
    return content if len(content) <= _MAX_FILE_BYTES else None


def write_file(folder: int, segment: str, data: bytes, mode: int) -> None:
    """Replace a file in one step, and sync it to disk."""
    temporary_file = temporary_name(check_segment(segment))
    with open_temporary(folder, temporary_file) as file:
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
        os.fchmod(file, mode)
        os.fsync(file)
        os.rename(temporary_file, segment, src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)
