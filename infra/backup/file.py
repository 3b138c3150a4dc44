r"""The backup file: blocks of messages, each with a digest over all preceding content.

::

    reconciler-backup 1\n        the file type, and the version of its format
    H  header                     the identity of the log, and the stream's configuration
    D  declarations ...           the declarations in the intake that await a decision
    E  events ...                 every event, with its subject, time, headers and position
    F  footer                     the message counts, and the log position of the backup

A block has a kind (one byte), a length, a digest, and its content: MessagePack, compressed with
zlib. Each digest includes the previous one, so the footer's digest covers the whole file. A file
that is truncated, modified, joined from two files, or continues after its footer is rejected.
"""

from __future__ import annotations

import os
import secrets
import struct
import zlib
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import msgspec

from infra.bus.streams import LogIdentity
from infra.jetstream.reads import StoredMessage
from reconciler.errors import ReconcilerError

MAGIC: Final = b"reconciler-backup 1\n"
MAX_BLOCK_MESSAGES: Final = 1_000
MAX_BLOCK_BYTES: Final = 4 * 1024 * 1024

_MAX_PACKED_BYTES: Final = 256 * 1024 * 1024
_DIGEST_BYTES: Final = 16
_COMPRESSION_LEVEL: Final = 3
_BLOCK_HEAD: Final = struct.Struct(f">cI{_DIGEST_BYTES}s")

Kind = Literal[b"H", b"D", b"E", b"F"]


PARTIAL: Final = ".partial"
"""Suffix of a file that is being written."""


class BackupFileError(ReconcilerError):
    """A file is not usable as a backup, or cannot be written. The message contains the reason."""


class SavedMessage(msgspec.Struct, frozen=True, array_like=True):
    """A stream message: position, subject, time in nanoseconds, headers and body."""

    position: int
    subject: str
    time_ns: int
    headers: dict[str, str] | None
    payload: bytes


class Header(msgspec.Struct, frozen=True, rename="camel"):
    """The log's identity, the backup's time, the stream's configuration, and the intake's end.

    ``services``: the namespaces whose services have consumers of the log.
    """

    identity: LogIdentity
    made_at: datetime
    config: dict[str, Any]
    services: list[str] = []
    intake_position: int = 0


class Footer(msgspec.Struct, frozen=True, rename="camel"):
    """The message counts of a backup, and the log's last position at that time."""

    events: int
    declarations: int
    position: int


_encoder = msgspec.msgpack.Encoder()
_saved = msgspec.msgpack.Decoder(list[SavedMessage])


class BackupWriter:
    """Writes a backup block by block. Create it with ``new_backup``."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = b""
        self._kind: Kind = b"E"
        self._pending: list[SavedMessage] = []
        self._pending_bytes = 0
        self._counts: dict[bytes, int] = {b"D": 0, b"E": 0}
        file.write(MAGIC)

    def begin(self, header: Header) -> None:
        """Write the header, before any message."""
        self._write(b"H", _encoder.encode(header))

    def add(self, kind: Literal[b"D", b"E"], messages: Iterable[StoredMessage]) -> None:
        """Write messages of one kind. Write declarations before events."""
        if kind != self._kind:
            self._flush()
            self._kind = kind
        for message in messages:
            headers = dict(message.headers) if message.headers else None
            self._pending.append(
                SavedMessage(
                    message.seq, message.subject, message.time_ns, headers, message.payload
                )
            )
            self._pending_bytes += len(message.payload)
            is_full = len(self._pending) >= MAX_BLOCK_MESSAGES
            if is_full or self._pending_bytes >= MAX_BLOCK_BYTES:
                self._flush()

    def finish(self, position: int) -> Footer:
        """Write the remaining messages and the footer."""
        self._flush()
        footer = Footer(self._counts[b"E"], self._counts[b"D"], position)
        self._write(b"F", _encoder.encode(footer))
        return footer

    def _flush(self) -> None:
        if self._pending:
            self._write(self._kind, _encoder.encode(self._pending))
            self._counts[self._kind] += len(self._pending)
            self._pending, self._pending_bytes = [], 0

    def _write(self, kind: Kind, content: bytes) -> None:
        compressed = zlib.compress(content, _COMPRESSION_LEVEL)
        self._digest = _next_digest(self._digest, kind, compressed)
        self._file.write(_BLOCK_HEAD.pack(kind, len(compressed), self._digest))
        self._file.write(compressed)


@contextmanager
def new_backup(path: Path) -> Generator[BackupWriter]:
    """Yield a writer for a backup, which is renamed to its path only once complete and synced.

    Raises:
        BackupFileError: the file exists, its directory does not exist, or the disk is full.
    """
    _check_new(path)
    if not path.parent.is_dir():
        raise BackupFileError(f"{path}: the directory {path.parent} does not exist; create it")
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PARTIAL}")
    try:
        with partial.open("xb") as file:
            yield BackupWriter(file)
            file.flush()
            os.fsync(file.fileno())
        _check_new(path)  # another backup may have created this file
        partial.replace(path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.strerror:  # for example, a full disk
            raise BackupFileError(f"cannot write {path}: {error.strerror}") from error
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # so that the new name survives a power failure
    finally:
        os.close(folder)


def _check_new(path: Path) -> None:
    if path.exists():
        raise BackupFileError(f"{path} already exists; use another name, or remove it")


class Backup:
    """A file to read as a backup. Every read verifies the digests."""

    def __init__(self, path: Path) -> None:
        """Read the header; raises ``BackupFileError`` and ``OSError``."""
        self.path = path
        self.size = path.stat().st_size
        self.bytes_read = 0
        self.footer: Footer | None = None
        with self.path.open("rb") as file:
            self._check_magic(file)
            kind, content = self._block(file, b"")[:2]
        if kind != b"H":
            raise self._build_error("it does not start with a header")
        self.header = self._decode_struct(content, Header)

    def declarations(self) -> Generator[Sequence[SavedMessage]]:
        """Yield the unprocessed declarations, in blocks; raises ``BackupFileError``."""
        return self._read_kind(b"D")

    def events(self) -> Generator[Sequence[SavedMessage]]:
        """Yield every event, in blocks; raises ``BackupFileError``."""
        return self._read_kind(b"E")

    def _read_kind(self, wanted_kind: Kind) -> Generator[Sequence[SavedMessage]]:
        counts: dict[bytes, int] = {b"D": 0, b"E": 0}
        with self.path.open("rb") as file:
            self._check_magic(file)
            digest = b""
            while True:
                kind, content, digest = self._block(file, digest)
                self.bytes_read = file.tell()
                if kind == b"F":
                    break
                if kind in counts:
                    messages = self._messages(content)
                    counts[kind] += len(messages)
                    if kind == wanted_kind:
                        yield messages
            footer = self._decode_struct(content, Footer)
            if file.read(1) or (footer.events, footer.declarations) != (counts[b"E"], counts[b"D"]):
                raise self._build_error("its content does not match its footer")
            self.footer = footer

    def _block(self, file: BinaryIO, previous_digest: bytes) -> tuple[bytes, bytes, bytes]:
        head = file.read(_BLOCK_HEAD.size)
        if len(head) < _BLOCK_HEAD.size:
            raise self._build_error("it is truncated")
        kind, length, digest = _BLOCK_HEAD.unpack(head)
        if length > _MAX_PACKED_BYTES:
            raise self._build_error(f"it was modified near byte {file.tell()}")
        compressed = file.read(length)
        if len(compressed) < length:
            raise self._build_error("it is truncated")
        if _next_digest(previous_digest, kind, compressed) != digest:
            raise self._build_error(
                f"it was modified within the {length} bytes before byte {file.tell()}"
            )
        try:
            return kind, zlib.decompress(compressed), digest
        except zlib.error as error:
            raise self._build_error(str(error)) from None

    def _messages(self, content: bytes) -> list[SavedMessage]:
        try:
            return _saved.decode(content)
        except msgspec.DecodeError as error:
            raise self._build_error(str(error)) from None

    def _decode_struct(self, content: bytes, struct_class: type[Any]) -> Any:
        try:
            return msgspec.msgpack.decode(content, type=struct_class)
        except msgspec.DecodeError as error:
            raise self._build_error(str(error)) from None

    def _check_magic(self, file: BinaryIO) -> None:
        magic = file.read(len(MAGIC))
        if magic == MAGIC:
            return
        name = MAGIC.split(b" ")[0]
        if magic.startswith(name):
            version = magic[len(name) :].split(b"\n")[0].decode(errors="replace").strip()
            raise self._build_error(f"it has format {version}, but this release reads format 1")
        raise self._build_error("it is not a Reconciler backup")

    def _build_error(self, reason: str) -> BackupFileError:
        return BackupFileError(f"{self.path} is not usable as a backup: {reason}")


def _next_digest(previous_digest: bytes, kind: bytes, compressed: bytes) -> bytes:
    digest = blake2b(previous_digest + kind, digest_size=_DIGEST_BYTES)
    digest.update(compressed)
    return digest.digest()
