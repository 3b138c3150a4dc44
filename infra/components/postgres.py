"""A PostgreSQL server of our own, on one folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Final
from urllib.parse import quote

from infra.components import ComponentError
from infra.components.child import Child
from infra.embedded.child import ending_with_parent

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 30.0

MAX_FOLDER_BYTES: Final = 107 - len("/socket/.s.PGSQL.65535")
"""The kernel takes no longer path of a socket."""

SUPERUSER: Final = "postgres"
ACCOUNT: Final = "postgres"
"""Who runs the server where we are root: PostgreSQL refuses to run as root."""

_POLL_SECONDS: Final = 0.02
_DEBIAN: Final = Path("/usr/lib/postgresql")
_INSTALL: Final = "install Debian's postgresql, or put initdb and postgres on the PATH"
_LOG_CHARACTERS: Final = 20_000
_STATUS_LINE: Final = 7  # of postmaster.pid
_STILL_ENDING: Final = "shared memory block"

# Who gets into the socket's folder is the account itself, or root: nobody there has to prove more.
_WHO_MAY_CONNECT: Final = f"""\
local all {SUPERUSER} trust
local all all scram-sha-256
host all {SUPERUSER} all reject
host all all 127.0.0.1/32 scram-sha-256
"""


class Postgres:
    """One server whose databases are in one folder.

    Its superuser gets in by a socket in that folder, which only the account that runs the server
    (and root) can enter, and without a password; all other roles by the socket or 127.0.0.1, with
    theirs. As root it runs as the user `postgres`, who must be able to reach the folder.
    """

    def __init__(self, *options: str) -> None:
        self._settings = options
        self._child: Child | None = None
        self._folder = Path()
        self._port = 0

    @property
    def endpoint(self) -> str:
        """Where it listens, for its superuser."""
        return f"postgresql://{SUPERUSER}@{quote(str(self.socket), safe='')}:{self._port}/postgres"

    @property
    def socket(self) -> Path:
        """The folder of its socket."""
        return self._folder / "socket"

    @property
    def port(self) -> int:
        """Its port on 127.0.0.1, the same at the next start if it is free then."""
        return self._port

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._child is not None
        return self._child.pid

    @property
    def log(self) -> Path:
        """Where it logs."""
        return self._folder / "postgres.log"

    @property
    def is_running(self) -> bool:
        """Whether its process lives."""
        return self._child is not None and self._child.is_running

    async def start(self, data: Path) -> None:
        """Start it on a folder and return once it answers; raises ``ComponentError``."""
        if self.is_running:
            raise ComponentError(f"PostgreSQL is already running on {self._folder}; stop it first")
        self._folder = await asyncio.to_thread(data.resolve)
        await asyncio.to_thread(self._prepare)
        deadline = time.monotonic() + START_SECONDS
        while True:
            began = self.log.stat().st_size if self.log.exists() else 0
            self._child = self._spawn()
            try:
                await self._child.until(
                    self._answers, "the server", deadline=deadline, seconds=START_SECONDS
                )
            except BaseException as error:
                said = self._last_words(began)
                await self.kill()
                # The sessions of one that was killed end by themselves, a little later.
                is_early = time.monotonic() < deadline
                if isinstance(error, ComponentError) and _STILL_ENDING in said and is_early:
                    await asyncio.sleep(_POLL_SECONDS)
                    continue
                if isinstance(error, ComponentError):
                    raise ComponentError(f"{error}: {said} (its log is {self.log})") from None
                raise
            return

    async def stop(self) -> None:
        """End it in order, its sessions with it; kill it when that takes too long."""
        if self._child is not None:
            await self._child.stop(STOP_SECONDS)

    async def kill(self) -> None:
        """End it at once (SIGKILL), as a crash does."""
        if self._child is not None:
            await self._child.kill()

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _spawn(self) -> Child:
        settings = [
            "listen_addresses=127.0.0.1",
            f"port={self._port}",
            f"unix_socket_directories={self.socket}",
            f"hba_file={self._folder / 'pg_hba.conf'}",
            "password_encryption=scram-sha-256",
            *self._settings,
        ]
        options = [part for setting in settings for part in ("-c", setting)]
        command = [str(_program("postgres")), "-D", str(self._data), *options]
        # SIGINT is the fast end: SIGTERM would wait for all clients to go.
        return Child(command, self.log, how=signal.SIGINT, account=_account())

    # --- in a thread

    def _prepare(self) -> None:
        """Make the folder, and wait for the end of one that was there before.

        Raises ``ComponentError``.
        """
        if (why := problem()) is not None:
            raise ComponentError(why)
        if len(bytes(self._folder)) > MAX_FOLDER_BYTES:
            raise ComponentError(
                f"{self._folder}: too long for the path of the server's socket (at most 107 "
                f"bytes); use a directory of at most {MAX_FOLDER_BYTES} bytes"
            )
        try:
            self._make_folders()
        except OSError as error:
            raise ComponentError(f"{self._folder} is not usable: {error.strerror}") from error
        self._until_the_last_one_has_ended()
        self._port = self._free_port()

    def _make_folders(self) -> None:
        user, group = _account()
        self._folder.mkdir(parents=True, exist_ok=True)
        if user:
            _check_reachable(self._folder, user, group)
        for folder in (self.socket, self._folder / "new"):
            folder.mkdir(mode=0o700, exist_ok=True)
            if user:
                os.chown(folder, user, group)
        if not self._data.exists():
            self._make_cluster()
        (self._folder / "new").rmdir()
        rules = self._folder / "pg_hba.conf"
        rules.write_text(_WHO_MAY_CONNECT)
        rules.chmod(0o644)

    def _make_cluster(self) -> None:
        """Have `initdb` fill a folder, and take it over when it is complete."""
        new = self._folder / "new"
        for left in new.iterdir():  # of one that was killed
            shutil.rmtree(left)
        target = new / "data"
        options = ["--username", SUPERUSER, "--encoding=UTF8", "--locale=C.UTF-8"]
        options += ["--auth=reject", "--no-instructions", "--pgdata", str(target)]
        command = ending_with_parent([str(_program("initdb")), *options], account=_account())
        done = subprocess.run(command, capture_output=True, check=False, cwd="/")  # noqa: S603
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise ComponentError(f"initdb failed: {said[-1] if said else 'no output'}")
        target.rename(self._data)

    def _until_the_last_one_has_ended(self) -> None:
        """Wait for one that ends; a file that names a process of something else is taken away."""
        deadline = time.monotonic() + STOP_SECONDS
        while (pid := self._last_pid()) is not None:
            if not _is_about(pid, self._data):
                (self._data / "postmaster.pid").unlink(missing_ok=True)
                return
            if time.monotonic() > deadline:
                raise ComponentError(
                    f"{self._folder} is in use by another server (pid {pid}); stop that "
                    "server, or use another directory"
                )
            time.sleep(_POLL_SECONDS)

    def _last_pid(self) -> int | None:
        try:
            return int((self._data / "postmaster.pid").read_text().split("\n", 1)[0])
        except (OSError, ValueError):
            return None

    def _free_port(self) -> int:
        """Return the port of the last start if nobody has it now, else one that is free."""
        kept = self._folder / "port"
        with contextlib.suppress(OSError, ValueError):
            if _is_free(port := int(kept.read_text())):
                return port
        with socket.socket() as any_port:
            any_port.bind(("127.0.0.1", 0))
            port = int(any_port.getsockname()[1])
        kept.write_text(str(port))
        return port

    def _answers(self) -> bool:
        assert self._child is not None
        with contextlib.suppress(OSError, IndexError):
            lines = (self._data / "postmaster.pid").read_text().splitlines()
            return int(lines[0]) == self._child.pid and lines[_STATUS_LINE].strip() == "ready"
        return False

    def _last_words(self, began: int) -> str:
        """Return why it ended, as it says itself."""
        written = self.log.read_bytes()[began:].decode(errors="replace")[-_LOG_CHARACTERS:]
        lines = [line for line in written.splitlines() if "FATAL" in line or "PANIC" in line]
        return lines[-1] if lines else "no output"


def problem() -> str | None:
    """Explain why no server can be started on this machine; None if one can."""
    if sys.platform == "win32":
        return "PostgreSQL can only be started on Linux and macOS"
    for name in ("initdb", "postgres"):
        if _program(name) is None:
            return f"PostgreSQL's {name} is not installed; {_INSTALL}"
    if os.geteuid() == 0 and _account() == (0, 0):
        return f"PostgreSQL does not run as root, and the user {ACCOUNT} does not exist; add it"
    return None


def _program(name: str) -> Path | None:
    """Find a program on the PATH, or the newest of Debian's versions."""
    if (found := shutil.which(name)) is not None:
        return Path(found)
    versions = [path for path in _DEBIAN.glob(f"*/bin/{name}") if os.access(path, os.X_OK)]
    return max(versions, key=lambda path: _number(path.parents[1].name), default=None)


def _number(version: str) -> float:
    try:
        return float(version)
    except ValueError:
        return 0.0


def _account() -> tuple[int, int]:
    """Return user and group that the server runs as; zeros where that is we ourselves."""
    if sys.platform == "win32" or os.geteuid() != 0:
        return 0, 0
    import pwd  # noqa: PLC0415 - not there on Windows

    try:
        found = pwd.getpwnam(ACCOUNT)
    except KeyError:
        return 0, 0
    return found.pw_uid, found.pw_gid


def _check_reachable(folder: Path, user: int, group: int) -> None:
    for each in (folder, *folder.parents):
        found = each.stat()
        enters = stat.S_IXOTH
        if found.st_uid == user:
            enters = stat.S_IXUSR
        elif found.st_gid == group:
            enters = stat.S_IXGRP
        if not found.st_mode & enters:
            raise ComponentError(
                f"user {ACCOUNT}, which runs the server, cannot enter {each}; use another "
                f"directory, or run chmod o+x {each}"
            )


def _is_about(pid: int, folder: Path) -> bool:
    try:
        return bytes(folder) in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
