"""The ``File`` kind: content, mode and owner of a file below the root of its ``ProviderConfig``.

An extended attribute stores what a file cannot: labels, uid, the key of the last write, and whether
the content is a secret. Content is reported only as a digest, which is keyed if the content is or
may be a secret.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from itertools import islice
from typing import Annotated, Final, NamedTuple, TypeVar, cast

import msgspec

from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields, InvalidManifestError
from events.provider_config import ProviderConfigSpec, Scope
from events.secret import SecretRef
from infra.providers.file_attributes import (
    Mark,
    inode_uid,
    mark_of,
    owner_of,
    restore_mark_on_error,
    set_owner,
    version_of,
    write_mark,
)
from infra.providers.file_errors import mark_unknown_result, sync_folder
from infra.providers.file_root import (
    MAX_SEGMENTS,
    OWN_PREFIX,
    FileRoot,
    check_not_mounted,
    discard,
    is_same_file,
    open_file,
    open_temporary,
    root_path,
    stat_of,
    temporary_name,
)
from infra.providers.file_threads import FileThreads
from reconciler.errors import (
    ConflictError,
    NotDoneError,
    NotFoundError,
    ProviderError,
    RefusedError,
)
from reconciler.provider import Capabilities, Effect
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.host_access import HostUse
from reconciler.provider.kind import Kind
from reconciler.provider.secrets import Secrets

MAX_CONTENT_BYTES: Final = 1024 * 1024
MAX_PAGE_SIZE = 100
"""Files that one call reads, each up to ``MAX_CONTENT_BYTES``."""

_TOO_LARGE: Final = f"spec.content: must be at most {MAX_CONTENT_BYTES} bytes of UTF-8"
_QUOTED_CHARACTERS: Final = 80
_MAX_NAME_BYTES = 2048
_MAX_SEGMENT_BYTES = 255

_T = TypeVar("_T")
_ValueName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}(?!\n)$")]
_PLACEHOLDER = re.compile(r"\$\{([^{}]*+)\}")  # excludes "{", so that matching takes linear time
_Account = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@-]{0,255}(?!\n)$")]


class FileFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file with its content, mode and owner."""

    content: Annotated[
        str | SecretRef,
        msgspec.Meta(
            description="Text of at most 1 MiB as UTF-8, or a reference to a secret: "
            "{$secret: NAME}."
        ),
    ]
    values: Annotated[
        dict[_ValueName, str | int | float | bool],
        msgspec.Meta(
            description="Values that replace ${NAME} in plain content. Each can be a reference."
        ),
    ] = {}
    mode: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^[0-7]{3,4}(?!\n)$",
            description="Permissions: 3 or 4 octal digits, in quotes.",
        ),
    ] = "0644"
    owner: Annotated[
        _Account | None,
        msgspec.Meta(
            description="User name or number. Default: the worker's account for a new file. "
            "If you omit it, Reconciler keeps later changes by other programs."
        ),
    ] = None
    group: Annotated[
        _Account | None,
        msgspec.Meta(
            description="Group name or number. Default: the worker's group for a new file. "
            "If you omit it, Reconciler keeps later changes by other programs."
        ),
    ] = None


class FileOutputs(msgspec.Struct, frozen=True):
    """The path of a file, and its size unless that would reveal the length of a secret."""

    path: Annotated[str, msgspec.Meta(description="Path of the file.")]
    bytes: Annotated[
        int | None, msgspec.Meta(description="Size in bytes. Not shown if the content is a secret.")
    ] = None


class _Content(NamedTuple):
    """The content to write. If ``data`` is None, the file keeps its content."""

    data: bytes | None
    is_secret: bool


def normalize(fields: Fields) -> Fields:
    """Return a file's fields in canonical form: values filled in, and a four-digit mode.

    Raises ``InvalidManifestError`` if the content is too large or refers to a missing value.
    """
    content, mode = fields.get("content"), fields.get("mode", "0644")
    if values := fields.get("values"):
        content = _fill_in_values(content, values)
    if isinstance(content, str) and len(content.encode()) > MAX_CONTENT_BYTES:
        raise InvalidManifestError(_TOO_LARGE)
    present = {name: value for name, value in fields.items() if value is not None}
    present.pop("values", None)
    if content is not None:
        present["content"] = content
    return {**present, "mode": str(mode).zfill(4)}


def _fill_in_values(content: object, values: Mapping[str, object]) -> str:
    if not isinstance(content, str):
        raise InvalidManifestError("spec.values: allowed only if spec.content is a string")
    pieces = _PLACEHOLDER.split(content)  # text, name, text, ..., text
    strings = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
    }
    names = Counter(pieces[1::2])
    if unknown := names.keys() - strings.keys():
        raise InvalidManifestError(
            f"spec.content: ${{{min(unknown)[:_QUOTED_CHARACTERS]}}} is not in spec.values; use "
            "one of " + ", ".join(sorted(strings)[:_QUOTED_CHARACTERS])
        )
    size = sum(map(len, pieces[::2])) + sum(len(strings[name]) * names[name] for name in names)
    if size > MAX_CONTENT_BYTES:  # before building the string, which could exhaust memory
        raise InvalidManifestError(_TOO_LARGE)
    pieces[1::2] = [strings[name] for name in pieces[1::2]]
    return "".join(pieces)


def comparable(fields: Fields) -> Fields:
    """Return the fields with a digest instead of the content, as the provider reports files."""
    content = fields.get("content")
    if isinstance(content, str):
        return {**fields, "content": _digest(content.encode())}
    if isinstance(content, dict) and "$secret" in content:
        return {**fields, "content": {"secret": cast("Fields", content).get("digest", "")}}
    return fields


def name_problem(name: str) -> str | None:
    """Describe what is wrong with a file's name below the root; None if it is valid."""
    segments = name.split("/")
    if not name.isprintable() or len(name.encode()) > _MAX_NAME_BYTES:
        return f"use printable characters, at most {_MAX_NAME_BYTES} bytes"
    if len(segments) > MAX_SEGMENTS:
        return f"use at most {MAX_SEGMENTS} segments, separated by /"
    if any(len(segment.encode()) > _MAX_SEGMENT_BYTES for segment in segments):
        return f"use at most {_MAX_SEGMENT_BYTES} bytes between slashes"
    if any(segment in {"", ".", ".."} for segment in segments):
        return (
            "use a path below the root, such as etc/app.ini: no leading or trailing /, no //, and "
            "no . or .. segment"
        )
    if any(segment.startswith(OWN_PREFIX) for segment in segments):
        return f"names that start with {OWN_PREFIX} are reserved for Reconciler"
    return None


class FileProvider:
    """Reads and writes files below a root."""

    def __init__(self, config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> None:
        self._root = FileRoot(root_path(config.endpoint))
        self._secrets = secrets
        self._permit = permit
        self._threads = FileThreads(self._root.path, config.limits.request_timeout_seconds, "files")

    async def create(self, action: Action) -> Effect:
        """Create a file, or return the one that an earlier attempt of this action created."""
        content = await self._content(action)
        return await self._call(lambda: self._create(action, content), writes=True)

    async def update(self, action: Action) -> Effect:
        """Replace the file if it still has the action's uid and version."""
        content = await self._content(action)
        return await self._call(lambda: self._update(action, content), writes=True)

    async def delete(self, action: Action) -> Effect:
        """Delete the file if it still has the action's uid, whatever its version.

        Also remove the empty folders above it that Reconciler created.
        """
        return await self._call(lambda: self._delete(action), writes=True)

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        """Read one file."""
        del uid  # names are unique
        return await self._call(lambda: self._read(external_name))

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        """List the files in a scope, folder by folder. Links are neither followed nor listed."""
        size = min(page_size, MAX_PAGE_SIZE)
        prefix, folders, names = scope.prefix or "", [""], list[str]()
        while folders or names:
            while folders and len(names) < size:
                count = size - len(names)
                entries = await self._call(
                    lambda folders=folders, count=count: self._root.entries(
                        folders, prefix, max_files=count
                    )
                )
                folders = entries.folders
                names += [name for name in entries.files if name_problem(name) is None]
            page, names = names[:size], names[size:]
            objects = await self._call(lambda page=page: [self._read(name) for name in page])
            yield [each for each in objects if each and scope.has(each.name, each.labels)]

    async def close(self) -> None:
        """Stop the threads."""
        self._threads.close()

    async def _call(self, function: Callable[[], _T], *, writes: bool = False) -> _T:
        await self._permit.before_request()
        return await self._threads.run(function, writes=writes)

    async def _content(self, action: Action) -> _Content:
        """Return the content that the action writes. With a digest, the file keeps its content."""
        if (problem := name_problem(action.external_name)) is not None:
            raise RefusedError(f"invalid name {action.external_name!r}: {problem}")
        content = action.fields["content"]
        if isinstance(content, str):
            return _Content(content.encode(), is_secret=False)
        if "$secret" not in content:
            return _Content(None, is_secret="secret" in content)
        value = await self._secrets.value(msgspec.convert(content, SecretRef), action.namespace)
        if len(value.encode()) > MAX_CONTENT_BYTES:
            raise RefusedError(f"secret {content['$secret']!r} is too large for a file")
        return _Content(value.encode(), is_secret=True)

    # --- called in a thread

    def _read(self, name: str) -> ExternalObject | None:
        with self._folder_of(name) as (folder, segment):
            if folder is None:
                return None
            try:
                return self._find(folder, name)
            except PermissionError:  # it exists, but its uid cannot be read
                file_stat = stat_of(folder, segment)
                if file_stat is None:
                    return None
                fields = _shown_fields(file_stat, {"bytes": file_stat.st_size}, None)
                return ExternalObject(name, fields, None, version_of(file_stat))

    def _create(self, action: Action, content: _Content) -> Effect:
        try:
            return self._create_file(action, content)
        except (OSError, ProviderError):
            self._remove_empty_folders(action.external_name)
            raise

    def _create_file(self, action: Action, content: _Content) -> Effect:
        with self._folder_of(action.external_name, create=True) as (folder, segment):
            assert folder is not None
            self._root.mark()
            check_not_mounted(folder, segment)
            leftover = temporary_name(action.idempotency_key)
            is_published = is_same_file(folder, leftover, segment)
            discard(folder, leftover)
            existing = self._find(folder, action.external_name)
            if existing is not None and (is_published or _is_written_by(existing, action)):
                return Effect(existing, replayed=True)
            if existing is None:
                # Another client may create the file now, but publishing never replaces a file.
                with contextlib.suppress(FileExistsError):
                    return Effect(self._write(folder, action, content, None))
                existing = self._find(folder, action.external_name)
            file_stat = stat_of(folder, segment)
            if existing is None and file_stat is not None and stat.S_ISDIR(file_stat.st_mode):
                raise NotDoneError(
                    f"{action.external_name!r} is a directory, which Reconciler does not replace; "
                    "declare another name, or remove the directory",
                    status=HTTPStatus.CONFLICT,
                )
            if existing is None and _is_not_regular_file(file_stat):
                raise RefusedError(
                    f"{action.external_name!r} is a link or a device, not a file; Reconciler "
                    "neither follows nor replaces it"
                )
            raise ConflictError(f"{action.external_name!r} already exists", obstacle=existing)

    def _update(self, action: Action, content: _Content) -> Effect:
        with self._folder_of(action.external_name) as (folder, segment):
            if folder is not None:
                check_not_mounted(folder, segment)
            existing = None if folder is None else self._find(folder, action.external_name)
            if folder is None or existing is None:
                raise NotFoundError(f"file {action.external_name!r} does not exist")
            if _is_written_by(existing, action):
                return Effect(existing, replayed=True)
            _check(existing, action)
            if action.version not in (None, existing.version):
                raise _build_changed_error(existing)
            return Effect(self._write(folder, action, content, existing))

    def _delete(self, action: Action) -> Effect:
        effect = self._delete_file(action)
        self._remove_empty_folders(action.external_name)
        return effect

    def _remove_empty_folders(self, name: str) -> None:
        """Remove empty folders. A failure does not matter, because the call has its result."""
        with contextlib.suppress(OSError, ProviderError):
            self._root.remove_empty_folders(name)

    def _delete_file(self, action: Action) -> Effect:
        with self._folder_of(action.external_name) as (folder, segment):
            if folder is not None:
                check_not_mounted(folder, segment)
            existing = None if folder is None else self._find(folder, action.external_name)
            if folder is None or existing is None:
                return Effect(None, absent=True)
            _check(existing, action)
            os.unlink(segment, dir_fd=folder)
            sync_folder(folder)
            return Effect(None)

    def _write(
        self, folder: int, action: Action, content: _Content, existing: ExternalObject | None
    ) -> ExternalObject:
        """Write the whole file under a temporary name, and publish it in one step."""
        name, segment = action.external_name, action.external_name.rpartition("/")[2]
        if existing is not None and content.data is None:
            changed = self._change_large(folder, action, content, existing)
            if changed is not None:
                return changed
        temporary_file = temporary_name(action.idempotency_key)
        with open_temporary(folder, temporary_file) as file:
            _fill(file, content.data, folder, segment)
            _mark(file, action, content, existing)
            set_owner(file, action.fields.get("owner"), action.fields.get("group"))
            # after the owner, because changing it clears mode bits
            os.fchmod(file, int(action.fields["mode"], 8))
            os.fsync(file)
            if existing is None:
                try:
                    os.link(
                        temporary_file,
                        segment,
                        src_dir_fd=folder,
                        dst_dir_fd=folder,
                        follow_symlinks=False,
                    )
                except PermissionError:
                    raise RefusedError(
                        f"{name!r}: this filesystem does not support hard links, which creating a "
                        "file requires; use another filesystem"
                    ) from None
                with mark_unknown_result():
                    os.unlink(temporary_file, dir_fd=folder)
            else:
                current = stat_of(folder, segment)
                if current is None or version_of(current) != existing.version:
                    raise _build_changed_error(self._find(folder, name))
                os.rename(temporary_file, segment, src_dir_fd=folder, dst_dir_fd=folder)
            sync_folder(folder)
            with mark_unknown_result():
                return self._read_object(file, name)

    def _change_large(
        self, folder: int, action: Action, content: _Content, existing: ExternalObject
    ) -> ExternalObject | None:
        """Change the attributes of a file that is too large to copy; None if it is not.

        After a crash, the file has the action's mark, so a retry reports its attributes as they
        are.
        """
        name = action.external_name
        file = open_file(folder, name.rpartition("/")[2])
        if file is None:
            raise NotDoneError(f"{name!r} was deleted in the meantime")
        try:
            file_stat = os.fstat(file)
            if file_stat.st_size <= MAX_CONTENT_BYTES:
                return None
            if file_stat.st_nlink > 1:
                raise RefusedError(
                    f"{name!r} is larger than {MAX_CONTENT_BYTES} bytes, and also has another "
                    "name; remove the other hard links"
                )
            if version_of(file_stat) != existing.version:
                raise _build_changed_error(self._read_object(file, name))
            with restore_mark_on_error(file):
                _mark(file, action, content, existing)
                set_owner(file, action.fields.get("owner"), action.fields.get("group"))
                os.fchmod(file, int(action.fields["mode"], 8))
            with mark_unknown_result():
                os.fsync(file)
                return self._read_object(file, name)
        finally:
            os.close(file)

    def _find(self, folder: int, name: str) -> ExternalObject | None:
        file = open_file(folder, name.rpartition("/")[2])
        if file is None:
            return None
        try:
            return self._read_object(file, name)
        finally:
            os.close(file)

    def _read_object(self, file: int, name: str) -> ExternalObject:
        file_stat = os.fstat(file)  # before the content, so that a later change has a new version
        mark, has_attributes = mark_of(file)
        # Another client may have removed the mark. Content that not every user may read may be a
        # secret.
        is_secret = not file_stat.st_mode & stat.S_IROTH if mark is None else mark.secret
        outputs: Fields = {"path": str(self._root.path / name)}
        if not is_secret:
            outputs["bytes"] = file_stat.st_size
        return ExternalObject(
            name=name,
            fields=_shown_fields(file_stat, self._read_content(file, file_stat, is_secret), mark),
            uid=mark.uid if mark else inode_uid(file, file_stat) if has_attributes else None,
            version=version_of(file_stat),
            labels={} if mark is None else mark.labels,
            written_by=None if mark is None else mark.key,
            outputs=outputs,
        )

    def _read_content(self, file: int, file_stat: os.stat_result, is_secret: bool) -> Fields:
        if file_stat.st_size > MAX_CONTENT_BYTES:
            return {"bytes": file_stat.st_size}  # a value that cannot be declared
        data = b"".join(islice(_chunks(file), 2))  # bounded, because the file may be growing
        if is_secret:
            return {"secret": self._secrets.digest(data.decode(errors="backslashreplace"))}
        return _digest(data)

    @contextmanager
    def _folder_of(self, name: str, *, create: bool = False) -> Generator[tuple[int | None, str]]:
        problem = name_problem(name)
        if problem is not None:
            raise RefusedError(f"invalid name {name!r}: {problem}")
        with self._root.open_parent(name, create=create) as folder:
            yield folder, name.rpartition("/")[2]


def _digest(data: bytes) -> Fields:
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


def _chunks(file: int) -> Generator[bytes]:
    offset = 0
    while chunk := os.pread(file, MAX_CONTENT_BYTES, offset):
        yield chunk
        offset += len(chunk)


def _fill(file: int, data: bytes | None, folder: int, segment: str) -> None:
    if data is not None:
        _write_all(file, data)
        return
    # Copy the existing content. Its version is compared before the file is replaced.
    source = open_file(folder, segment)
    if source is None:
        raise NotDoneError(f"{segment!r} was deleted in the meantime")
    try:
        _check_kept_size(os.fstat(source).st_size, segment)
        copied = 0
        for chunk in _chunks(source):
            copied += len(chunk)
            _check_kept_size(copied, segment)  # the file may be growing
            _write_all(file, chunk)
    finally:
        os.close(source)


def _check_kept_size(size: int, segment: str) -> None:
    """Raise ``ConflictError`` for a file that has grown too large to copy."""
    if size > MAX_CONTENT_BYTES:
        raise ConflictError(f"{segment!r} was changed by another program")


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _mark(file: int, action: Action, content: _Content, existing: ExternalObject | None) -> None:
    """Write the mark.

    Raises ``RefusedError`` for secret content on a filesystem without extended attributes.
    """
    new_uid = f"file-{hashlib.sha256(action.idempotency_key.encode()).hexdigest()[:32]}"
    mark = Mark(
        uid=(existing and existing.uid) or action.uid or new_uid,
        key=action.idempotency_key,
        labels=action.labels,
        secret=content.is_secret,
        owner=action.fields.get("owner", ""),
        group=action.fields.get("group", ""),
    )
    if not write_mark(file, mark) and content.is_secret:
        raise RefusedError(
            "this filesystem does not support extended attributes, which mark secret content; use "
            "another filesystem for files with secrets"
        )


def _shown_fields(file_stat: os.stat_result, content: Fields, mark: Mark | None) -> Fields:
    owner, group = owner_of(file_stat, mark)
    mode = f"{stat.S_IMODE(file_stat.st_mode):04o}"
    return {"content": content, "mode": mode, "owner": owner, "group": group}


def _is_written_by(existing: ExternalObject, action: Action) -> bool:
    return existing.written_by == action.idempotency_key


def _is_not_regular_file(file_stat: os.stat_result | None) -> bool:
    return file_stat is not None and not stat.S_ISREG(file_stat.st_mode)


def _check(existing: ExternalObject, action: Action) -> None:
    """Raise ``ConflictError`` if another file has the name.

    Without extended attributes, uids are not compared.
    """
    if None not in (action.uid, existing.uid) and action.uid != existing.uid:
        raise ConflictError(
            (
                f"{existing.name!r} was replaced by another file: its uid is {existing.uid}, not "
                f"{action.uid}"
            ),
            obstacle=existing,
        )


def _build_changed_error(existing: ExternalObject | None) -> ProviderError:
    if existing is None:
        return NotFoundError("the file was deleted during the write")
    return ConflictError(f"{existing.name!r} has changed since it was read", obstacle=existing)


def find_host_uses(fields: Fields) -> Sequence[HostUse]:
    """Return the accounts and special modes that a file uses (ADR 0060)."""
    owner, group = fields.get("owner"), fields.get("group")
    host_uses: list[HostUse] = []
    if owner or group:
        value = f"{owner or ''}:{group}" if group else str(owner)
        host_uses.append(
            HostUse("spec.owner" if owner else "spec.group", "users", value, "omit it")
        )
    mode = str(fields.get("mode", "0644")).rjust(4, "0")
    if not mode.startswith("0"):
        host_uses.append(HostUse("spec.mode", "modes", mode, "use one that starts with 0"))
    return host_uses


FILE = Kind(
    name="File",
    api_version="files/v1",
    provider="file",
    schema=FileFields,
    capabilities=Capabilities(
        idempotency_keys=False,
        deterministic_names=True,
        labels=True,
        conditional_writes=True,
        path_names=True,
    ),
    connect=FileProvider,
    normalize=normalize,
    comparable=comparable,
    name_problem=name_problem,
    outputs=FileOutputs,
    find_host_uses=find_host_uses,
)
"""The ``File`` kind."""
