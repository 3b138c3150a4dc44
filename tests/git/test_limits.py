"""Small repositories that unpack to large data cause errors that name the limit."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import struct
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.providers.git import packs, reader_process
from infra.providers.git.heads import remove_variable_parts, stable_message
from infra.providers.git.problems import GitError
from infra.providers.git.reader import MAX_MEMORY_BYTES, MAX_MESSAGE_CHARACTERS
from infra.providers.git.reader_process import Failure, Reply, Request, read_source
from tests.git.repositories import Repository
from tests.host_access import EVERYTHING
from tests.hostile_server import (
    MIB,
    Answer,
    hostile_server,
    measure_event_loop,
    measure_resident_memory,
)

GIB = 1024 * MIB
PEAK_BYTES = 256 * MIB
"""More than a reader needs for the largest allowed object, and less than a bomb."""


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "shop")


async def read(url: str, *, path: str = "", seconds: float = 60) -> Reply:
    source = {"url": url, "path": path}
    return await read_source(Request(source, "default", "", 10, seconds, EVERYTHING))


async def read_failure(url: str, *, path: str = "", seconds: float = 60) -> Failure:
    failure = (await read(url, path=path, seconds=seconds)).failure
    assert failure is not None
    return failure


@pytest.fixture
def peak_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return a function that returns the peak memory of the reader."""
    file = tmp_path / "peak"
    # Not with getrusage, which starts with the memory of the parent process.
    program = f"""
import re
from infra.providers.git.reader import main
main()
status = open("/proc/self/status").read()
open({str(file)!r}, "w").write(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1])
"""
    monkeypatch.setattr(reader_process, "_COMMAND", (sys.executable, "-I", "-c", program))
    return lambda: int(file.read_text()) * 1024


def zeros(size: int, head: bytes = b"") -> bytes:
    """Compress zeros to a thousandth of their size."""
    packer = zlib.compressobj(9)
    start = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(16 * MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    # After a full flush, a block refers to nothing before it; the checksum is never reached.
    return start + block * (size // (16 * MIB)) + packer.flush()


# --- packs from a test server


def pack_of(*objects: bytes) -> bytes:
    content = b"PACK" + struct.pack(">II", 2, len(objects)) + b"".join(objects)
    return content + hashlib.sha1(content).digest()


def pack_entry(kind: int, size: int, content: bytes, base: bytes = b"") -> bytes:
    """Build a pack entry: a header with a size, and content."""
    head = bytearray()
    first, size = size & 0x0F, size >> 4
    head.append(kind << 4 | first | (0x80 if size else 0))
    head += varint(size) if size else b""
    return bytes(head) + base + content


def varint(size: int) -> bytes:
    encoded = bytearray()
    while True:
        size, byte = size >> 7, size & 0x7F
        encoded.append(byte | (0x80 if size else 0))
        if not size:
            return bytes(encoded)


def pack_object(kind: int, content: bytes) -> bytes:
    return pack_entry(kind, len(content), zlib.compress(content))


COMMIT = b"tree " + b"1" * 40 + b"\nauthor A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n\nbomb\n"
COMMIT_ID = hashlib.sha1(b"commit %d\0" % len(COMMIT) + COMMIT).hexdigest().encode()


def line(text: bytes) -> bytes:
    return b"%04x" % (len(text) + 4) + text


def git_server(pack: bytes, repeat: bytes = b"", times: int = 0) -> Answer:
    """Serve one commit with a pack, followed by ``repeat`` this many times."""
    refs = line(b"# service=git-upload-pack\n") + b"0000"
    refs += line(COMMIT_ID + b" HEAD\0shallow ofs-delta\n")
    refs += line(COMMIT_ID + b" refs/heads/main\n") + b"0000"

    def respond(connection: socket.socket, head: bytes) -> None:
        is_post = head.startswith(b"POST")
        kind = b"result" if is_post else b"advertisement"
        start = (
            b"HTTP/1.1 200 OK\r\nConnection: close\r\n"
            b"Content-Type: application/x-git-upload-pack-%b\r\n\r\n" % kind
        )
        connection.sendall(start)
        if not is_post:
            connection.sendall(refs)
            return
        connection.sendall(line(b"shallow " + COMMIT_ID) + b"0000" + line(b"NAK\n") + pack)
        for _ in range(times):
            connection.sendall(repeat)

    return respond


BOMBS = {
    "a blob of 1 GiB": (
        pack_of(pack_object(1, COMMIT), pack_entry(3, GIB, zeros(GIB))),
        "one of its objects is 1073741824 bytes, more than the limit of 64 MiB",
    ),
    "a commit of 1 GiB": (pack_of(pack_entry(1, GIB, zeros(GIB))), "more than the limit of 64 MiB"),
    "a blob that claims to be small": (
        pack_of(pack_object(1, COMMIT), pack_entry(3, 10, zeros(GIB))),
        "its pack is damaged: decompressed data exceeds expected size",
    ),
    "a delta that expands to 1 GiB": (
        pack_of(
            pack_object(1, COMMIT),
            pack_object(3, bytes(100)),
            pack_entry(
                7,
                len(varint(100) + varint(GIB)),
                zlib.compress(varint(100) + varint(GIB)),
                hashlib.sha1(b"blob 100\0" + bytes(100)).digest(),
            ),
        ),
        "one of its objects is 1073741824 bytes, more than the limit of 64 MiB",
    ),
    "many blobs of 48 MiB": (
        pack_of(
            pack_object(1, COMMIT), *[pack_entry(3, 48 * MIB, zlib.compress(bytes(48 * MIB)))] * 12
        ),
        "exceed the limit of 512 MiB",
    ),
    "a pack with many objects": (
        b"PACK" + struct.pack(">II", 2, 2**31) + bytes(100),
        "2147483648 objects including its history, more than the limit of 200000",
    ),
    "an endless size": (
        b"PACK" + struct.pack(">II", 2, 1) + b"\xff" * 1000,
        "the size of an object is not terminated",
    ),
}


@pytest.mark.parametrize("case", BOMBS)
async def test_a_pack_is_refused_before_it_is_unpacked(case: str, peak_bytes: Callable[[], int]):
    pack, error_text = BOMBS[case]
    with hostile_server(git_server(pack)) as port:
        failure = await read_failure(f"http://127.0.0.1:{port}/shop")
    assert error_text in failure.message
    assert peak_bytes() < PEAK_BYTES


async def test_a_pack_that_is_too_large_is_not_received(peak_bytes: Callable[[], int]):
    pack = b"PACK" + struct.pack(">II", 2, 1)
    with hostile_server(git_server(pack, bytes(MIB), 1024)) as port:
        failure = await read_failure(f"http://127.0.0.1:{port}/shop")
    assert "sends more than 128 MiB for a commit" in failure.message
    assert peak_bytes() < PEAK_BYTES


async def test_endless_refs_time_out(peak_bytes: Callable[[], int]):
    refs = line(b"# service=git-upload-pack\n") + b"0000" + line(COMMIT_ID + b" HEAD\0shallow\n")
    ref_line = line(COMMIT_ID + b" refs/heads/" + b"x" * 60_000 + b"\n")

    def respond(connection: socket.socket, _head: bytes) -> None:
        connection.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/x-git-upload-pack-advertisement\r\n\r\n"
        )
        connection.sendall(refs)
        for number in range(100_000):
            connection.sendall(ref_line[:-10] + b"%08x\n" % number + ref_line[-1:])

    with hostile_server(respond) as port:
        async with measure_event_loop() as loop:
            failure = await read_failure(f"http://127.0.0.1:{port}/shop", seconds=10)
    assert "no result within 10 s" in failure.message or "256 MiB of memory" in failure.message
    assert peak_bytes() < PEAK_BYTES
    assert loop.blocked_seconds < 1.5


# --- repositories on disk


def commit_blob(repository: Repository, packed_blob: bytes) -> None:
    """Commit a blob whose file has the given content."""
    sha = "ab" * 20
    folder = repository.folder / ".git/objects/ab"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / sha[2:]).write_bytes(packed_blob)
    entries = f"100644 blob {sha}\ta.yaml\n"
    tree = repository.git("mktree", "--missing", stdin=entries).strip()
    commit = repository.git("commit-tree", tree, "-m", "bomb").strip()
    repository.git("update-ref", "refs/heads/main", commit)


@pytest.mark.parametrize("stated_size", [GIB, 10])
async def test_a_loose_object_exhausts_only_its_reader(
    repository: Repository, stated_size: int, peak_bytes: Callable[[], int]
):
    commit_blob(repository, zeros(GIB, b"blob %d\0" % stated_size))
    failure = await read_failure(repository.url)
    assert failure.reason == "Unreachable"
    assert "MiB of memory" in failure.message or "size" in failure.message
    assert peak_bytes() < MAX_MEMORY_BYTES


def commit_tree_bomb(repository: Repository, leaf: str) -> None:
    """Commit a tree of 16 trees, each of 16 trees, and so on, with one object per level."""
    tree = leaf
    for _ in range(12):
        entries = "".join(f"040000 tree {tree}\t{name:x}\n" for name in range(16))
        tree = repository.git("mktree", "--missing", stdin=entries).strip()
    commit = repository.git("commit-tree", tree, "-m", "bomb").strip()
    repository.git("update-ref", "refs/heads/main", commit)


async def test_trees_that_share_a_tree_are_counted(repository: Repository):
    empty = repository.git("mktree").strip()
    commit_tree_bomb(repository, empty)
    failure = await read_failure(repository.url)
    assert "the repository has more than 50000 files and directories" in failure.message
    repository.write({"a.yaml": "a: 1\n"})
    repository.git("add", "--all")
    commit_tree_bomb(repository, repository.git("write-tree").strip())
    failure = await read_failure(repository.url)
    assert "more than 5000 files" in failure.message


async def test_a_slow_document_times_out(repository: Repository):
    values = "a: [" + "[]," * 190_000 + "]\n---\n"
    repository.write({"a.yaml": values * 20})
    repository.commit()
    started_at = time.monotonic()
    async with measure_event_loop() as loop:
        failure = await read_failure(repository.url, seconds=4)
    assert "no result within 4 s" in failure.message
    assert time.monotonic() - started_at < 30
    assert loop.blocked_seconds < 1.5


async def test_manifests_that_grow_by_aliases_exceed_the_limit(repository: Repository):
    head = "apiVersion: a/v1\nkind: A\nmetadata: {name: a%d}\nspec:\n"
    text = "  a: &a " + "x" * 90_000 + "\n  b: [*a, *a, *a, *a]\n---\n"
    repository.write({"a.yaml": "".join(head % number + text for number in range(100))})
    repository.commit()
    failure = await read_failure(repository.url)
    assert "its manifests exceed the limit of 32 MiB" in failure.message


async def test_manifests_with_many_small_values_are_not_decoded_in_the_calling_process(
    repository: Repository,
):
    """Each value takes one byte of the reply, and 64 bytes once decoded."""
    head = '{"apiVersion":"a/v1","kind":"A","metadata":{"name":"a"},"spec":{"a":['
    text = head + "[]," * 100_000 + "[]]}}"
    repository.write({f"{number}.json": text for number in range(25)})
    repository.commit()
    with measure_resident_memory() as memory:
        failure = await read_failure(repository.url)
    assert "its manifests exceed the limit of 128 MiB of memory" in failure.message
    assert memory.peak_bytes < 64 * MIB


@pytest.mark.parametrize("part", ["a", "a/", "/reconciler-git-a", " at 0x", "a/reconciler-git-"])
def test_a_long_message_is_made_stable_in_linear_time(part: str):
    text = part * (1_000_000 // len(part))
    assert len(stable_message(text)) <= 2000
    assert len(remove_variable_parts(text)) <= 1_000_000  # in quadratic time, it would take hours


async def test_a_long_file_name_leads_to_a_short_message(repository: Repository):
    repository.write({"a.yaml": "a"})
    repository.commit()
    blob = repository.git("rev-parse", "HEAD:a.yaml").strip()
    name = b"a" * 1_000_000 + b"/.."
    root = repository.store("tree", b"100644 " + name + b"\0" + bytes.fromhex(blob))
    commit = repository.git("commit-tree", root, "-m", "long").strip()
    repository.git("update-ref", "refs/heads/main", commit)
    failure = await read_failure(repository.url)
    assert "is not a valid file name" in failure.message
    assert len(failure.message) <= MAX_MESSAGE_CHARACTERS


async def test_an_object_of_the_largest_size_is_read(repository: Repository):
    repository.folder.joinpath("movie").write_bytes(bytes(packs.MAX_OBJECT_BYTES))
    repository.write({"deploy/a.yaml": "kind: A\n"})
    commit = repository.commit()
    reply = await read(repository.url, path="deploy")
    assert reply.failure is None
    assert reply.commit == commit
    assert [each.file for each in reply.documents] == ["deploy/a.yaml"]


async def test_a_reader_that_does_not_exit_is_killed(monkeypatch: pytest.MonkeyPatch):
    """It simulates a reader that is stuck in a system call."""
    stuck = (sys.executable, "-c", "import time; time.sleep(60)")
    monkeypatch.setattr(reader_process, "_COMMAND", stuck)
    monkeypatch.setattr(reader_process, "_GRACE_SECONDS", 0.5)
    with pytest.raises(GitError, match="did not exit before the timeout and was killed"):
        await asyncio.wait_for(read("file:///nowhere", seconds=0.5), 20)
