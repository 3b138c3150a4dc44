"""The ``File`` kind on a real folder: contract, links, races, crashes, foreign files, secrets."""

from __future__ import annotations

import asyncio
import errno
import grp
import hashlib
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from events.external import ExternalObject
from events.manifest import Fields, InvalidManifestError
from events.provider_config import Limits, ProviderConfigSpec, Scope
from events.secret import SecretRef
from infra.providers import file_root
from infra.providers.file import (
    FILE,
    MAX_CONTENT_BYTES,
    FileProvider,
    comparable,
    name_problem,
)
from infra.providers.file_attributes import ATTRIBUTE
from infra.providers.file_root import (
    LEFTOVER_SECONDS,
    MAX_SEGMENTS,
    ROOT_MARKER,
    temporary_name,
)
from infra.providers.file_threads import MAX_CONCURRENT_CALLS
from infra.secrets import open_stores
from reconciler.errors import (
    ConfigurationError,
    ConflictError,
    NotCalledError,
    NotDoneError,
    NotFoundError,
    ProviderError,
    RefusedError,
    UnknownResultError,
)
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.contract import ProviderContract, action, listing, with_version_of
from reconciler.provider.secrets import Secrets
from reconciler.resource.difference import Wanted, differences, merge_desired

ME = pwd.getpwuid(os.geteuid()).pw_name
MY_GROUP = grp.getgrgid(os.getegid()).gr_name
PLANTED = "planted-s3cr3t-of-a-file-77b1"
PLAIN: Fields = {"content": "one\n"}
SECRET: Fields = {"content": {"$secret": "db"}, "mode": "0600"}

is_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes owners and mounts")


class TestFiles(ProviderContract):
    kind = FILE
    fields: ClassVar[Fields] = {"content": "one\n", "owner": ME, "group": MY_GROUP}
    other_fields: ClassVar[Fields] = {**fields, "content": "two\n", "mode": "0640"}
    refused_fields: ClassVar[Fields] = {"owner": "no-such-user"}

    @pytest.fixture
    def endpoint(self, root: Path) -> str:
        return root.as_uri()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    (folder / ROOT_MARKER).touch()
    return folder


@pytest.fixture
def secrets(tmp_path: Path) -> Secrets:
    stores = open_stores(tmp_path / "secrets")
    return Secrets(None, stores.by_name, key=stores.key)


@pytest.fixture
def files(root: Path, secrets: Secrets) -> FileProvider:
    return FileProvider(ProviderConfigSpec("file", root.as_uri()), secrets, CallPermit())


def create(name: str = "etc/app.ini", fields: Fields = PLAIN):
    return action("Create", name, FILE.check_fields(fields))


def update(file: ExternalObject, fields: Fields):
    return with_version_of(action("Update", file.name, FILE.check_fields(fields)), file)


async def create_file(files: FileProvider, name: str = "etc/app.ini", fields: Fields = PLAIN):
    file = (await files.create(create(name, fields))).object
    assert file is not None
    return file


async def read_file(files: FileProvider, name: str = "etc/app.ini") -> ExternalObject:
    file = await files.read(name)
    assert file is not None
    return file


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def drift(file: ExternalObject, fields: Fields) -> list[str]:
    field_differences = differences(Wanted(FILE.check_fields(fields), {}), file, FILE)
    return [each.path for each in field_differences]


# --- declarations


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"content": "a", "moed": "0644"}, "spec.moed: unknown field"),
        ({"content": "a", "mode": "0888"}, "mode"),
        ({"content": "a", "mode": 420}, "mode"),
        ({"content": "a", "owner": "a:b"}, "owner"),
        ({}, "content"),
        (
            {"content": "ä" * (MAX_CONTENT_BYTES // 2 + 1)},
            "at most 1048576 bytes",
        ),
        ({"content": {"$secret": "not a name"}}, "never the secret itself"),
    ],
)
def test_an_invalid_file_is_refused(fields: Fields, problem: str) -> None:
    with pytest.raises(InvalidManifestError, match=problem):
        FILE.check_fields(fields)


def test_two_spellings_of_a_mode_are_equal() -> None:
    assert FILE.check_fields({"content": "a"}) == {"content": "a", "mode": "0644"}
    assert FILE.check_fields({"content": "a", "mode": "644"})["mode"] == "0644"


@pytest.mark.parametrize(
    "name",
    [
        *("", "/etc/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "a\0b", "a\n", "\udc80"),
        *(
            "x" * 256,
            "x/" * MAX_SEGMENTS + "x",
            "x/" * 2000 + "x",
            temporary_name("key"),
            f"a/{ROOT_MARKER}",
        ),
    ],
)
async def test_a_name_that_is_not_a_plain_relative_path_is_refused(
    files: FileProvider, name: str
) -> None:
    assert name_problem(name)
    with pytest.raises(RefusedError):
        await files.create(create(name))
    with pytest.raises(RefusedError):
        await files.read(name)


@pytest.mark.parametrize("endpoint", ["http://host/a", "file://host/a", "file:relative", "a"])
def test_a_root_is_a_file_url(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match="file:///some/root"):
        FileProvider(ProviderConfigSpec("file", endpoint), Secrets(), CallPermit())


# --- writes and reads


async def test_a_file_is_as_declared_and_its_folders_are_created(
    files: FileProvider, root: Path
) -> None:
    umask = os.umask(0o077)
    try:
        file = await create_file(files, "etc/app/main.ini", {"content": "a = 1\n", "mode": "0664"})
    finally:
        os.umask(umask)
    path = root / "etc/app/main.ini"

    assert path.read_text() == "a = 1\n"
    assert path.stat().st_mode & 0o7777 == 0o664
    assert path.parent.stat().st_mode & 0o7777 == 0o755
    assert names_in(path.parent) == ["main.ini"]
    assert file.fields["content"] == {
        "sha256": hashlib.sha256(b"a = 1\n").hexdigest(),
        "bytes": 6,
    }
    assert file.outputs == {"path": str(path), "bytes": 6}


async def test_a_deletion_removes_the_folders_that_were_created(
    files: FileProvider, root: Path
) -> None:
    (root / "etc").mkdir()
    first = await create_file(files, "etc/a/b/first")
    second = await create_file(files, "etc/a/second")
    await files.delete(with_version_of(action("Delete", first.name, {}), first))
    assert names_in(root / "etc/a") == ["second"]
    await files.delete(with_version_of(action("Delete", second.name, {}), second))
    assert names_in(root / "etc") == [], "another program created etc"
    await create_file(files, "etc/a")


async def test_a_deletion_keeps_folders_that_another_program_uses(
    files: FileProvider, root: Path
) -> None:
    for name in ("used", "changed"):
        file = await create_file(files, f"{name}/file")
        if name == "used":
            (root / name / "theirs").touch()
        else:
            (root / name).chmod(0o700)
        await files.delete(with_version_of(action("Delete", file.name, {}), file))
        assert (root / name).is_dir()


async def test_a_refused_creation_leaves_no_folder(files: FileProvider, root: Path) -> None:
    with pytest.raises(RefusedError):
        await files.create(create("a/b/file", {**PLAIN, "owner": "no-such-user"}))
    assert not (root / "a").exists()


async def test_a_folder_or_a_file_in_the_way_is_reported_until_it_is_removed(
    files: FileProvider, root: Path
) -> None:
    await create_file(files, "app/theirs")
    with pytest.raises(NotDoneError, match=r"'app' is a directory.*; declare another name") as way:
        await files.create(create("app"))
    assert "theirs" not in str(way.value)
    file = await create_file(files, "data")
    with pytest.raises(NotDoneError, match=r"'data' in the path is a file.*; declare another"):
        await files.create(create("data/mine"))
    await files.delete(with_version_of(action("Delete", file.name, {}), file))
    await files.create(create("data/mine"))


async def test_drift_in_content_and_mode_is_detected_and_repaired(
    files: FileProvider, root: Path
) -> None:
    fields = {**PLAIN, "owner": ME, "group": MY_GROUP}
    file, path = await create_file(files, fields=fields), root / "etc/app.ini"
    assert drift(file, fields) == []

    path.write_text("two\n")  # the same length: an editor that writes in place
    path.chmod(0o600)
    changed = await read_file(files)
    assert drift(changed, fields) == ["content.sha256", "mode"]
    assert (changed.uid, changed.labels) == (file.uid, file.labels)
    assert changed.version != file.version

    restored = (await files.update(update(changed, fields))).object
    assert restored is not None
    assert drift(restored, fields) == []
    assert path.read_text() == "one\n"


@is_root
async def test_owner_drift_is_detected_and_repaired(files: FileProvider, root: Path) -> None:
    fields = {**PLAIN, "owner": "0", "group": "54321"}
    file = await create_file(files, fields=fields)
    assert (file.fields["owner"], file.fields["group"]) == ("0", "54321"), "as declared"
    os.chown(root / "etc/app.ini", 12345, -1)

    changed = await read_file(files)
    assert changed.fields["owner"] == "12345"
    assert drift(changed, fields) == ["owner"]
    await files.update(update(changed, fields))
    assert (root / "etc/app.ini").stat().st_uid == 0


async def test_an_owner_that_does_not_exist_is_refused(files: FileProvider, root: Path) -> None:
    with pytest.raises(RefusedError, match="user 'no-such-user' does not exist"):
        await files.create(create(fields={**PLAIN, "owner": "no-such-user"}))
    assert not (root / "etc").exists()


async def test_fields_that_other_clients_manage_are_not_overwritten(
    files: FileProvider, root: Path
) -> None:
    """``policy.ignoreFields: [content]``, and a label that is removed on release."""
    file = await create_file(files)
    (root / "etc/app.ini").write_text("theirs\n")
    changed = await read_file(files)
    desired = Wanted(FILE.check_fields(PLAIN), {}, ignored=frozenset({"content"}))
    fields, _labels = merge_desired(desired, changed, FILE)
    write = with_version_of(action("Update", file.name, {**fields, "mode": "0640"}), changed)
    await files.update(msgspec.structs.replace(write, labels={}))

    current = await read_file(files)
    assert (root / "etc/app.ini").read_text() == "theirs\n"
    assert (current.fields["mode"], current.labels, current.uid) == ("0640", {}, file.uid)


async def test_a_listing_walks_folders_and_returns_only_regular_files(
    files: FileProvider, root: Path
) -> None:
    names = ["a", "b/c", "b/d/e", "bb/f"]
    for name in names:
        await create_file(files, name)
    os.mkfifo(root / "pipe")
    (root / "loop").symlink_to(root)
    (root / "link").symlink_to(root / "a")
    (root / os.fsdecode(b"no-text-\xff")).touch()

    assert sorted(existing.name for existing in await listing(files, Scope(), page_size=2)) == names
    objects = await listing(files, Scope(prefix="b/"), page_size=1)
    assert sorted(existing.name for existing in objects) == ["b/c", "b/d/e"]
    assert await files.read("pipe") is None
    assert await files.read("b") is None
    assert await files.read("a/below") is None


async def test_a_file_in_the_deepest_folder_is_listed_and_deeper_folders_are_not_entered(
    files: FileProvider, root: Path
) -> None:
    folder = "/".join(["x"] * (MAX_SEGMENTS - 1))
    await create_file(files, f"{folder}/f")
    (root / folder / "x").mkdir()
    (root / folder / "x" / "f").touch()
    assert [each.name for each in await listing(files, Scope(), page_size=9)] == [f"{folder}/f"]


async def test_the_cost_of_a_listing_is_linear_in_the_number_of_folders(
    files: FileProvider, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chains, depth = 10, MAX_SEGMENTS - 1
    for number in range(chains):
        (root / f"a{number}" / "/".join(["x"] * (depth - 1))).mkdir(parents=True)
    opened = 0

    def count(*args: Any, original: Any = os.open, **options: Any) -> int:
        nonlocal opened
        opened += 1
        return original(*args, **options)

    monkeypatch.setattr(os, "open", count)
    assert await listing(files, Scope(), page_size=9) == []
    assert opened < 2 * chains * depth


async def test_a_listing_fails_if_a_folder_is_replaced_while_it_runs(
    files: FileProvider, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of the new folder exist, but the listing may have read the old folder."""
    await create_file(files, "etc/sub/f")
    shutil.copytree(root / "etc", tmp_path / "new")
    read_folder = (root / "etc/sub").stat()

    def replace_during_scan(folder: int, original: Any = os.scandir) -> Any:
        if os.path.samestat(os.fstat(folder), read_folder) and not (tmp_path / "old").exists():
            (root / "etc").rename(tmp_path / "old")
            (tmp_path / "new").rename(root / "etc")
            (tmp_path / "old/sub/f").unlink()
        return original(folder)

    monkeypatch.setattr(os, "scandir", replace_during_scan)
    with pytest.raises(NotDoneError, match="'etc' was replaced during a listing"):
        await listing(files, Scope(), page_size=9)
    assert [each.name for each in await listing(files, Scope(), page_size=9)] == ["etc/sub/f"]


async def test_a_large_foreign_file_is_returned_without_reading_its_content(
    files: FileProvider, root: Path
) -> None:
    with (root / "large").open("wb") as large:
        large.truncate(MAX_CONTENT_BYTES + 1)
    assert (await read_file(files, "large")).fields["content"] == {"bytes": MAX_CONTENT_BYTES + 1}


def keep_content(file: ExternalObject, fields: Fields):
    """Return an update that keeps the content, as for a file that other programs write."""
    kept = {**update(file, {"content": "x", **fields}).fields, "content": file.fields["content"]}
    return msgspec.structs.replace(update(file, PLAIN), fields=kept)


async def create_large_file(files: FileProvider, root: Path, size: int) -> ExternalObject:
    with (root / "large").open("wb") as large:
        large.truncate(size)
    return await read_file(files, "large")


@pytest.mark.parametrize("size", [MAX_CONTENT_BYTES + 1, 2**40])
async def test_large_content_that_is_kept_is_not_copied(
    files: FileProvider, root: Path, size: int
) -> None:
    file = await create_large_file(files, root, size)
    write, started_at = keep_content(file, {"mode": "0600"}), time.monotonic()
    effect = await files.update(write)
    assert time.monotonic() - started_at < 5
    assert effect.object is not None
    assert (effect.object.fields["mode"], effect.object.uid) == ("0600", file.uid)
    assert effect.object.written_by == write.idempotency_key
    status = (root / "large").stat()
    assert status.st_size == size
    assert status.st_blocks < 100, "a copy would have no holes"
    assert (await files.update(write)).replayed


async def test_a_large_file_that_cannot_be_changed_keeps_its_mark(
    files: FileProvider, root: Path
) -> None:
    file = await create_large_file(files, root, MAX_CONTENT_BYTES + 1)
    with pytest.raises(RefusedError, match="no-such-user"):
        await files.update(keep_content(file, {"owner": "no-such-user"}))
    assert os.listxattr(root / "large") == []
    (root / "other").hardlink_to(root / "large")
    file = await read_file(files, "large")
    with pytest.raises(RefusedError, match="remove the other hard links"):
        await files.update(keep_content(file, {"mode": "0600"}))
    assert (root / "large").stat().st_mode == (root / "other").stat().st_mode
    assert stat.S_IMODE((root / "large").stat().st_mode) != 0o600


async def test_content_that_grows_during_the_copy_is_not_copied_further(
    files: FileProvider, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = await create_file(files)
    kept = keep_content(file, {"mode": "0600"})
    original_read = os.pread

    def grow_and_read(source: int, count: int, offset: int) -> bytes:
        os.truncate(root / file.name, offset + 2 * count)
        return original_read(source, count, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", grow_and_read)
        with pytest.raises(ProviderError):
            await files.update(kept)
    assert (root / file.name).stat().st_size < 4 * MAX_CONTENT_BYTES


# --- links out of the root


async def test_links_are_not_followed(files: FileProvider, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "app.ini").write_text("theirs\n")
    (root / "etc").symlink_to(outside)
    (root / "here").symlink_to(outside / "app.ini")
    file = ExternalObject("etc/app.ini", {}, "uid")

    for call in (
        files.create(create()),
        files.create(create("etc/new")),
        files.update(update(file, PLAIN)),
        files.delete(with_version_of(action("Delete", file.name, {}), file)),
        files.read("etc/app.ini"),
    ):
        with pytest.raises(RefusedError, match="'etc' in the path is a symbolic link"):
            await call
    with pytest.raises(RefusedError, match="neither follows nor replaces"):
        await files.create(create("here"))
    assert (await files.delete(action("Delete", "here", {}))).absent
    assert (outside / "app.ini").read_text() == "theirs\n"
    assert names_in(outside) == ["app.ini"]
    assert (root / "here").is_symlink()


async def test_a_folder_replaced_with_a_link_during_a_call_is_not_followed(
    files: FileProvider, root: Path, tmp_path: Path
) -> None:
    """Another process replaces the folder with a link, as fast as it can."""
    outside, aside = tmp_path / "outside", tmp_path / "aside"
    outside.mkdir()
    (root / "etc").mkdir()
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            shutil.rmtree(aside, ignore_errors=True)
            with suppress(OSError):  # a call may have created the folder in the meantime
                (root / "etc").rename(aside)
                (root / "etc").symlink_to(outside)
                (root / "etc").unlink()

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for number in range(300):
            with suppress(ProviderError):
                file = await create_file(files, f"etc/f{number}")
                await files.update(update(file, {"content": "two"}))
                await files.delete(with_version_of(action("Delete", file.name, {}), file))
    finally:
        stop.set()
        swapper.join()
    assert names_in(outside) == []


# --- one effect per key


CRASHING_PROGRAM = """
import asyncio, os, sys
from pathlib import Path
import msgspec
from events.log import Action
from events.provider_config import ProviderConfigSpec
from infra.providers.file import FileProvider
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.secrets import Secrets

endpoint, step, when, written = sys.argv[1:]
real = getattr(os, step)
def crash(*args, **options):
    if when == "after":
        real(*args, **options)
    os._exit(9)
setattr(os, step, crash)
action = msgspec.json.decode(written, type=Action)
files = FileProvider(ProviderConfigSpec("file", endpoint), Secrets(), CallPermit())
asyncio.run(files.create(action) if action.operation == "Create" else files.update(action))
"""

STEPS = [
    (step, when)
    for step in ("write", "setxattr", "fchmod", "fsync", "link", "unlink", "rename")
    for when in ("before", "after")
]


def crash_at(root: Path, step: str, when: str, written: Any) -> int:
    encoded = msgspec.json.encode(written).decode()
    command = [sys.executable, "-c", CRASHING_PROGRAM, root.as_uri(), step, when, encoded]
    return subprocess.run(command, check=False, timeout=60).returncode


@pytest.mark.parametrize(("step", "when"), STEPS)
async def test_a_create_retried_after_a_crash_has_one_effect(
    files: FileProvider, root: Path, step: str, when: str
) -> None:
    (root / "etc").mkdir()
    write = create()
    assert crash_at(root, step, when, write) == (0 if step == "rename" else 9)
    remaining_files = await listing(files, Scope())
    assert [existing.name for existing in remaining_files] in ([], ["etc/app.ini"]), (
        "no partial file is listed"
    )
    repeated = await files.create(write)

    assert repeated.replayed == bool(remaining_files)
    assert repeated.object == await files.read("etc/app.ini")
    assert (root / "etc/app.ini").read_text() == "one\n"
    assert names_in(root / "etc") == ["app.ini"], "the leftovers of the crash are removed"


@pytest.mark.parametrize(("step", "when"), STEPS)
async def test_an_update_retried_after_a_crash_has_one_effect(
    files: FileProvider, root: Path, step: str, when: str
) -> None:
    file = await create_file(files)
    write = update(file, {"content": "two\n"})
    crash_at(root, step, when, write)
    assert (root / "etc/app.ini").read_text() in ("one\n", "two\n")
    repeated = (await files.update(write)).object

    assert repeated == await files.read("etc/app.ini")
    assert repeated is not None
    assert repeated.uid == file.uid
    assert (root / "etc/app.ini").read_text() == "two\n"
    assert names_in(root / "etc") == ["app.ini"]


async def test_an_abandoned_temporary_file_is_removed_once_it_is_old(
    files: FileProvider, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "etc").mkdir()
    crash_at(root, "link", "before", create())
    leftover = root / "etc" / names_in(root / "etc")[0]
    assert leftover.name.startswith(file_root.OWN_PREFIX)
    assert await listing(files, Scope()) == []
    assert leftover.exists()

    later = time.time() + LEFTOVER_SECONDS + 1
    monkeypatch.setattr(file_root.time, "time", lambda: later)
    assert await listing(files, Scope()) == []
    assert not leftover.exists()
    assert (root / ROOT_MARKER).exists()


async def test_a_running_call_with_the_same_key_is_not_disturbed(
    files: FileProvider, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, reached, release = create(), threading.Event(), threading.Event()
    real = os.link

    def slow(*args: Any, **options: Any) -> None:
        reached.set()
        release.wait(10)
        real(*args, **options)

    monkeypatch.setattr(os, "link", slow)
    first = asyncio.create_task(files.create(write))
    await asyncio.to_thread(reached.wait, 10)
    with pytest.raises(NotDoneError, match="still running") as busy:
        await files.create(write)
    assert busy.value.status == 409  # an error about one file, so no breaker opens
    release.set()
    assert (await first).object == await files.read("etc/app.ini")


async def test_one_of_several_concurrent_creations_wins_and_the_others_conflict(
    files: FileProvider, root: Path
) -> None:
    for number in range(30):
        writes = [create(f"etc/f{number}", {"content": str(each)}) for each in range(4)]
        results = await asyncio.gather(*map(files.create, writes), return_exceptions=True)
        (winner,) = [each for each in results if not isinstance(each, BaseException)]
        for result in results:
            if isinstance(result, BaseException):
                assert isinstance(result, ConflictError)
                assert result.obstacle is not None
                assert winner.object is not None
                assert result.obstacle.uid == winner.object.uid


async def test_a_change_while_a_file_is_being_replaced_is_not_lost(
    files: FileProvider, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, path, real = await create_file(files), root / "etc/app.ini", os.fchmod

    def change_content_first(*args: Any) -> None:
        path.write_text("theirs\n")
        real(*args)

    monkeypatch.setattr(os, "fchmod", change_content_first)
    with pytest.raises(ConflictError) as caught:
        await files.update(update(file, {"content": "two\n"}))
    monkeypatch.undo()
    assert caught.value.obstacle == await files.read("etc/app.ini")
    assert path.read_text() == "theirs\n"
    assert names_in(root / "etc") == ["app.ini"]


# --- foreign files


async def test_a_foreign_file_is_neither_replaced_nor_deleted(
    files: FileProvider, root: Path
) -> None:
    own_file, path = await create_file(files), root / "etc/app.ini"
    path.unlink()
    path.write_text("theirs\n")
    foreign_file = await read_file(files)
    assert foreign_file.uid not in {None, own_file.uid}
    assert (foreign_file.labels, foreign_file.written_by) == ({}, None)

    for call in (
        files.create(create()),
        files.update(update(own_file, PLAIN)),
        files.delete(with_version_of(action("Delete", own_file.name, {}), own_file)),
    ):
        with pytest.raises(ConflictError) as caught:
            await call
        assert caught.value.obstacle == foreign_file
    assert path.read_text() == "theirs\n"


async def test_a_foreign_file_keeps_its_uid_when_it_is_adopted(
    files: FileProvider, root: Path
) -> None:
    (root / "app.ini").write_text("theirs\n")
    foreign_file = await read_file(files, "app.ini")
    assert drift(foreign_file, PLAIN) == ["content.bytes", "content.sha256"]
    own_file = (await files.update(update(foreign_file, PLAIN))).object

    assert own_file is not None
    assert own_file.uid == foreign_file.uid
    assert own_file.labels
    updated = (await files.update(update(own_file, {"content": "two\n"}))).object
    assert updated is not None
    assert updated.uid == foreign_file.uid


async def test_each_new_file_with_the_same_name_has_its_own_uid(
    files: FileProvider, root: Path
) -> None:
    uids: set[str | None] = set()
    for _ in range(20):  # the inode number is usually the same
        (root / "a").write_text("same")
        uids.add((await read_file(files, "a")).uid)
        (root / "a").unlink()
    assert len(uids) == 20


@pytest.mark.parametrize("garbage", [b"", b"{", b"[]", b'{"uid": 1}', b"\xff"])
async def test_a_file_with_an_invalid_mark_is_foreign(
    files: FileProvider, root: Path, garbage: bytes
) -> None:
    await create_file(files)
    os.setxattr(root / "etc/app.ini", ATTRIBUTE, garbage)
    file = await read_file(files)
    assert (file.labels, file.written_by) == ({}, None)


# --- secrets


async def test_a_secret_is_in_its_file_and_nowhere_else(
    files: FileProvider, root: Path, secrets: Secrets
) -> None:
    reference = await secrets.store(SecretRef("db"), PLANTED, "default")
    fields = {**SECRET, "content": msgspec.to_builtins(reference)}
    file, path = await create_file(files, fields=fields), root / "etc/app.ini"
    assert path.read_text() == PLANTED
    assert file.fields["content"] == {"secret": reference.digest}
    assert file.outputs == {"path": str(path)}, "not even its length"
    assert drift(file, fields) == []
    assert PLANTED.encode() not in os.getxattr(path, ATTRIBUTE)

    rotated = await secrets.store(SecretRef("db"), f"{PLANTED}-2", "default")
    expected = {**SECRET, "content": msgspec.to_builtins(rotated)}
    assert drift(file, expected) == ["content.secret"]
    to_write, _labels = merge_desired(Wanted(FILE.check_fields(expected), {}), file, FILE)
    write = with_version_of(action("Update", file.name, to_write), file)
    renewed = (await files.update(write)).object
    assert renewed is not None
    assert path.read_text() == f"{PLANTED}-2"
    assert drift(renewed, expected) == []

    representations = [
        repr(each) for each in (file, renewed, write, *await listing(files, Scope()), files)
    ]
    with pytest.raises(ConflictError) as conflict:
        await files.create(create(fields=fields))
    representations += [repr(conflict.value), "".join(traceback.format_exception(conflict.value))]
    assert not [each for each in representations if PLANTED in each]
    plain_digest = hashlib.sha256(PLANTED.encode()).hexdigest()
    assert not [each for each in representations if plain_digest in each], (
        "no plain digest against which to test guesses"
    )


@pytest.mark.parametrize("step", ["write", "setxattr", "fchmod", "fsync", "link"])
async def test_no_error_contains_a_secret(
    files: FileProvider, secrets: Secrets, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    await secrets.store(SecretRef("db"), PLANTED, "default")

    def full(*_args: Any, **_options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(ProviderError) as caught:
        await files.create(create(fields=SECRET))
    assert PLANTED not in "".join(traceback.format_exception(caught.value))


async def test_a_secret_file_that_lost_its_mark_is_not_shown_with_a_plain_digest(
    files: FileProvider, root: Path, secrets: Secrets
) -> None:
    reference = await secrets.store(SecretRef("db"), PLANTED, "default")
    path = root / "etc/app.ini"
    for mode in ("0600", "0640", "0400"):
        file = await create_file(files, fields={**SECRET, "mode": mode})
        os.removexattr(path, ATTRIBUTE)
        stripped = await read_file(files)
        assert stripped.fields["content"] == {"secret": reference.digest}
        assert stripped.uid != file.uid
        path.unlink()


async def test_a_private_file_with_plain_content_is_as_declared(files: FileProvider) -> None:
    fields = {**PLAIN, "mode": "0600"}
    assert drift(await create_file(files, fields=fields), fields) == []


async def test_a_missing_secret_is_reported(files: FileProvider, root: Path) -> None:
    with pytest.raises(ConfigurationError, match="namespace 'default' is missing from store"):
        await files.create(create(fields=SECRET))
    assert names_in(root) == [ROOT_MARKER]


def test_content_is_compared_by_digest() -> None:
    plain = comparable({"content": "a", "mode": "0644"})
    assert plain["content"] == {"sha256": hashlib.sha256(b"a").hexdigest(), "bytes": 1}
    assert comparable(plain) == plain
    assert comparable({"content": {"$secret": "a", "digest": "d"}}) == {"content": {"secret": "d"}}


# --- disk errors


@pytest.mark.parametrize("exists", [False, True])
async def test_a_missing_or_empty_root_does_not_prove_absence(
    files: FileProvider, root: Path, exists: bool
) -> None:
    file = await create_file(files, "app.ini")
    aside = move_aside(root)
    if exists:
        make_folder(root)  # the empty mount point
    for call in (
        lambda: files.read("app.ini"),
        lambda: listing(files, Scope()),
        lambda: files.create(create("other")),
        lambda: files.delete(with_version_of(action("Delete", file.name, {}), file)),
    ):
        with pytest.raises(NotDoneError, match="check that its disk is mounted"):
            await call()
    remount(aside, root)
    assert await files.read("app.ini") == file


def move_aside(root: Path) -> Path:
    return root.rename(root.with_name("aside"))


def make_folder(root: Path) -> None:
    root.mkdir()


@contextmanager
def mounted_at(path: Path, *arguments: str) -> Generator[None]:
    process = subprocess.run(["mount", *arguments, path], capture_output=True, check=False)
    if process.returncode != 0:
        pytest.skip(f"cannot mount: {process.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", path], check=True)


@is_root
@pytest.mark.parametrize("source", ["same file", "foreign file", "directory"])
async def test_a_mount_over_a_file_is_reported_and_the_hidden_file_stays(
    files: FileProvider, root: Path, tmp_path: Path, source: str
) -> None:
    file = await create_file(files, "app.ini")
    path, mounted = root / "app.ini", tmp_path / "mounted"
    mounted.write_text("mounted\n")
    if source == "directory":  # the file system was mounted while the file was missing
        path.unlink()
        path.mkdir()
    command = {
        "same file": ["--bind", str(path)],
        "foreign file": ["--bind", str(mounted)],
        "directory": ["-t", "tmpfs", "none"],
    }[source]
    with mounted_at(path, *command):
        before = path.read_text() if path.is_file() else ""
        delete = with_version_of(action("Delete", "app.ini", {}), file)
        for call in (
            files.create(create("app.ini")),
            files.update(update(file, {"content": "two\n"})),
            files.delete(delete),
        ):
            with pytest.raises(NotDoneError, match=r"'app\.ini' is a mount point"):
                await call
        assert (path.read_text() if path.is_file() else "") == before
    assert names_in(root) == [ROOT_MARKER, "app.ini"], "no temporary file is left"
    if source != "directory":
        await files.update(update(file, {"content": "two\n"}))
        assert path.read_text() == "two\n"


@is_root
async def test_a_file_in_a_mounted_directory_is_written(files: FileProvider, root: Path) -> None:
    (root / "data").mkdir()
    with mounted_at(root / "data", "-t", "tmpfs", "none"):
        file = await create_file(files, "data/app.ini")
        await files.update(update(file, {"content": "two\n"}))
        assert (root / "data/app.ini").read_text() == "two\n"


def remount(aside: Path, root: Path) -> None:
    assert not root.exists() or names_in(root) == [], "nothing was written below the mount point"
    aside.rename(root)


async def test_a_root_stays_valid_after_its_last_file_is_deleted(
    files: FileProvider, root: Path
) -> None:
    (root / ROOT_MARKER).unlink()
    (root / "theirs").touch()
    file = await create_file(files, "app.ini")
    (root / "theirs").unlink()
    await files.delete(with_version_of(action("Delete", file.name, {}), file))
    assert await listing(files, Scope()) == []


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (errno.ENOSPC, NotDoneError),
        (errno.EDQUOT, NotDoneError),
        (errno.EIO, UnknownResultError),
        (errno.EROFS, RefusedError),
        (errno.EACCES, RefusedError),
        (errno.ENOTUNIQ, UnknownResultError),
    ],
)
async def test_each_disk_error_has_its_class(
    files: FileProvider,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    expected: type[ProviderError],
) -> None:
    def fail(*_args: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(expected, match=os.strerror(code)):
        await files.create(create())
    assert not (root / "etc").exists(), "no partial file is left"


async def test_a_published_file_that_may_not_be_durable_has_an_unknown_result(
    files: FileProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, write = os.fsync, create("app.ini")

    def fail(file: int) -> None:
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(errno.EIO, "Input/output error")
        real(file)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UnknownResultError):
        await files.create(write)
    monkeypatch.undo()
    assert (await files.create(write)).replayed


async def test_a_call_does_not_wait_for_a_hanging_disk(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(request_timeout_seconds=0.05)
    files = FileProvider(
        ProviderConfigSpec("file", root.as_uri(), limits=limits), Secrets(), CallPermit()
    )
    release = threading.Event()

    def hanging(*_args: Any) -> int:
        release.wait(10)
        return 1

    monkeypatch.setattr(os, "write", hanging)
    with pytest.raises(UnknownResultError, match="did not respond before the timeout"):
        await files.create(create())
    release.set()


async def test_a_call_without_a_free_thread_is_not_executed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows nothing about the health of the filesystem, and is never executed."""
    limits = Limits(request_timeout_seconds=0.2)
    files = FileProvider(
        ProviderConfigSpec("file", root.as_uri(), limits=limits), Secrets(), CallPermit()
    )
    release = threading.Event()
    original_write = os.write

    def hanging(*arguments: Any) -> int:
        release.wait(10)
        return original_write(*arguments)

    monkeypatch.setattr(os, "write", hanging)
    calls = [files.create(create(f"f{number}")) for number in range(MAX_CONCURRENT_CALLS + 2)]
    results = await asyncio.gather(*calls, files.read("other"), return_exceptions=True)
    release.set()
    classes = [type(each) for each in results]
    assert classes == [UnknownResultError] * MAX_CONCURRENT_CALLS + [NotCalledError] * 3
    assert "8 calls to the filesystem of" in str(results[-1])
    assert await files.read("other") is None
    assert await files.read(f"f{MAX_CONCURRENT_CALLS}") is None


@is_root
def test_a_file_that_may_not_be_read_still_exists() -> None:
    """An observer without permission reports the file without its content, and not as absent."""
    code = (
        "import asyncio, os, sys\n"
        "from events.provider_config import ProviderConfigSpec\n"
        "from infra.providers.file import FileProvider\n"
        "from reconciler.provider.secrets import Secrets\n"
        "from reconciler.provider.call_permit import CallPermit\n"
        "os.setuid(65534)\n"
        "files = FileProvider(ProviderConfigSpec('file', sys.argv[1]), Secrets(), CallPermit())\n"
        "file = asyncio.run(files.read('app.ini'))\n"
        "print(file.uid, file.fields['mode'], file.fields['content'])\n"
    )
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to other users
        Path(folder).chmod(0o755)
        path = Path(folder) / "app.ini"
        path.write_text(PLANTED)
        path.chmod(0o600)
        command = [sys.executable, "-c", code, Path(folder).as_uri()]
        process = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert process.stdout == f"None 0600 {{'bytes': {len(PLANTED)}}}\n"


# --- a filesystem without extended attributes


@pytest.fixture(params=["patched", pytest.param("ramfs", marks=is_root)])
def bare_root(
    request: pytest.FixtureRequest, root: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A root without extended attributes: patched, or a ramfs if that can be mounted."""
    if request.param == "patched":

        def unsupported(*_args: Any) -> bytes:
            raise OSError(errno.ENOTSUP, "Operation not supported")

        monkeypatch.setattr(os, "setxattr", unsupported)
        monkeypatch.setattr(os, "getxattr", unsupported)
        yield root
        return
    process = subprocess.run(
        ["mount", "-t", "ramfs", "none", root], capture_output=True, check=False
    )
    if process.returncode:
        pytest.skip(f"ramfs cannot be mounted: {process.stderr.decode().strip()}")
    try:
        (root / ROOT_MARKER).touch()
        yield root
    finally:
        subprocess.run(["umount", root], check=True)


async def test_without_attributes_the_name_is_the_identity(
    bare_root: Path, files: FileProvider
) -> None:
    file = await create_file(files)
    assert (file.uid, file.labels, file.written_by) == (None, {}, None)
    assert drift(file, PLAIN) == []
    with pytest.raises(ConflictError) as caught:
        await files.create(create(fields={"content": "two\n"}))
    assert caught.value.obstacle == file

    current = (await files.update(update(file, {"content": "two\n"}))).object
    assert current is not None
    assert current.version != file.version
    with pytest.raises(ConflictError):
        await files.update(update(file, PLAIN))
    with pytest.raises(NotFoundError):
        await files.update(update(ExternalObject("other", {}), PLAIN))
    assert not (
        await files.delete(with_version_of(action("Delete", file.name, {}), current))
    ).absent
    assert await files.read(file.name) is None


async def test_without_attributes_no_secret_is_written(
    bare_root: Path, files: FileProvider, secrets: Secrets
) -> None:
    await secrets.store(SecretRef("db"), PLANTED, "default")
    with pytest.raises(RefusedError, match="not support extended attributes") as caught:
        await files.create(create(fields=SECRET))
    assert PLANTED not in "".join(traceback.format_exception(caught.value))
    assert names_in(bare_root / "etc") == []


async def test_without_attributes_a_file_that_was_just_published_is_still_recognized(
    bare_root: Path, files: FileProvider
) -> None:
    write = create("app.ini")
    temporary = bare_root / temporary_name(write.idempotency_key)
    temporary.write_text("one\n")
    os.link(temporary, bare_root / "app.ini")  # and then the worker died
    assert (await files.create(write)).replayed
    assert not temporary.exists()
