"""A PostgreSQL server in its own directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from infra.components import ComponentError
from infra.components.child import Child
from infra.components.local_server import LocalServer, max_folder_bytes
from infra.components.ports import free_ports, is_free
from infra.embedded.child import bind_to_parent

STOP_SECONDS: Final = 30.0

MAX_FOLDER_BYTES: Final = max_folder_bytes("/socket/.s.PGSQL.65535")

SUPERUSER: Final = "postgres"
ACCOUNT: Final = "postgres"
"""User that runs the server if this process is root, because PostgreSQL does not run as root."""

_DEBIAN: Final = Path("/usr/lib/postgresql")
_INSTALL: Final = "install Debian's postgresql, or put initdb and postgres on the PATH"
_STATUS_LINE: Final = 7  # index in postmaster.pid
_SESSIONS_ENDING: Final = "shared memory block"
"""Part of the error message while the sessions of a killed server are still ending."""

# Only the server's account and root can enter the socket's directory, so no password is needed.
_HBA_RULES: Final = f"""\
local all {SUPERUSER} trust
local all all scram-sha-256
host all {SUPERUSER} all reject
host all all 127.0.0.1/32 scram-sha-256
"""


class Postgres(LocalServer):
    """One server, with its databases in one directory.

    The superuser connects without a password through a socket in the directory, which only the
    server's account (and root) can enter. Other roles connect with their passwords through the
    socket or 127.0.0.1. If this process is root, the server runs as the `postgres` user, which must
    be able to reach the directory.
    """

    name = "PostgreSQL"
    program = "the server"
    log_name = "postgres.log"
    start_seconds = 60.0
    stop_seconds = STOP_SECONDS
    max_folder_bytes = MAX_FOLDER_BYTES

    def __init__(self, *options: str, programs: Path | None = None) -> None:
        """Set up a server. ``programs``: directory of its programs; None for the newest ones."""
        super().__init__()
        self._programs = programs
        self._settings = options
        self._port = 0

    @property
    def endpoint(self) -> str:
        """The address for the superuser."""
        return f"postgresql://{SUPERUSER}@{quote(str(self.socket), safe='')}:{self._port}/postgres"

    @property
    def socket(self) -> Path:
        """The directory of the socket."""
        return self._folder / "socket"

    @property
    def port(self) -> int:
        """The port on 127.0.0.1, reused at the next start if it is free."""
        return self._port

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _spawn(self) -> list[Child]:
        settings = [
            "listen_addresses=127.0.0.1",
            f"port={self._port}",
            f"unix_socket_directories={self.socket}",
            f"hba_file={self._folder / 'pg_hba.conf'}",
            "password_encryption=scram-sha-256",
            *self._settings,
        ]
        options = [part for setting in settings for part in ("-c", setting)]
        command = [self._program("postgres"), "-D", str(self._data), *options]
        # SIGINT is the fast shutdown. SIGTERM would wait for all clients to disconnect.
        return [Child(command, self.log, stop_signal=signal.SIGINT, account=_account())]

    def _program(self, name: str) -> str:
        return str(_program(name) if self._programs is None else self._programs / name)

    # --- called in a thread

    def _problem(self) -> str | None:
        return problem() if self._programs is None else None

    def _prepare(self) -> None:
        self._create_folders()
        self._wait_for_end(self._find_data_process, STOP_SECONDS)
        self._port = self._free_port()

    def _create_folders(self) -> None:
        user, group = _account()
        self._folder.mkdir(parents=True, exist_ok=True)
        if user:
            _check_reachable(self._folder, user, group)
        for folder in (self.socket, self._folder / "new"):
            folder.mkdir(mode=0o700, exist_ok=True)
            if user:
                os.chown(folder, user, group)
        if not self._data.exists():
            self._create_cluster()
        (self._folder / "new").rmdir()
        rules = self._folder / "pg_hba.conf"
        rules.write_text(_HBA_RULES)
        rules.chmod(0o644)

    def _create_cluster(self) -> None:
        """Run `initdb` on a temporary directory, and rename it when it is complete."""
        new = self._folder / "new"
        for leftover in new.iterdir():  # left by a killed initdb
            shutil.rmtree(leftover)
        target = new / "data"
        options = ["--username", SUPERUSER, "--encoding=UTF8", "--locale=C.UTF-8"]
        options += ["--auth=reject", "--no-instructions", "--pgdata", str(target)]
        command = bind_to_parent([self._program("initdb"), *options], account=_account())
        completed = subprocess.run(command, capture_output=True, check=False, cwd="/")  # noqa: S603
        if completed.returncode:
            error_lines = completed.stderr.decode(errors="replace").strip().splitlines()
            raise ComponentError(
                f"initdb failed: {error_lines[-1] if error_lines else 'no output'}"
            )
        target.rename(self._data)

    def _find_data_process(self) -> int | None:
        """Return the pid of the server that uses the data. Delete another process's pid file."""
        pid = self._last_pid()
        if pid is None or _is_using(pid, self._data):
            return pid
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        return None

    def _last_pid(self) -> int | None:
        try:
            return int((self._data / "postmaster.pid").read_text().split("\n", 1)[0])
        except (OSError, ValueError):
            return None

    def _free_port(self) -> int:
        """Return the port from the last start if it is free, else another free one."""
        port_file = self._folder / "port"
        with contextlib.suppress(OSError, ValueError):
            if is_free(port := int(port_file.read_text())):
                return port
        [port] = free_ports(1)
        port_file.write_text(str(port))
        return port

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError, IndexError):
            lines = (self._data / "postmaster.pid").read_text().splitlines()
            return int(lines[0]) == self.pid and lines[_STATUS_LINE].strip() == "ready"
        return False

    def _parse_exit_reason(self, lines: Sequence[str]) -> str:
        fatal_lines = [line for line in lines if "FATAL" in line or "PANIC" in line]
        return fatal_lines[-1] if fatal_lines else "no output"

    def _is_temporary(self, reason: str) -> bool:
        return _SESSIONS_ENDING in reason


def problem() -> str | None:
    """Return the reason no server can be started on this machine, or None if one can."""
    if sys.platform == "win32":
        return "PostgreSQL can only be started on Linux and macOS"
    for name in ("initdb", "postgres"):
        if _program(name) is None:
            return f"PostgreSQL's {name} is not installed; {_INSTALL}"
    if os.geteuid() == 0 and _account() == (0, 0):
        return f"PostgreSQL does not run as root, and the {ACCOUNT} user does not exist; add it"
    return None


def _program(name: str) -> Path | None:
    """Return a program on the PATH, or from Debian's newest version."""
    if (program := shutil.which(name)) is not None:
        return Path(program)
    versions = [path for path in _DEBIAN.glob(f"*/bin/{name}") if os.access(path, os.X_OK)]
    return max(versions, key=lambda path: _number(path.parents[1].name), default=None)


def _number(version: str) -> float:
    try:
        return float(version)
    except ValueError:
        return 0.0


def _account() -> tuple[int, int]:
    """Return the server's user and group ids; zeros mean those of this process."""
    if sys.platform == "win32" or os.geteuid() != 0:
        return 0, 0
    import pwd  # noqa: PLC0415 - not available on Windows

    try:
        entry = pwd.getpwnam(ACCOUNT)
    except KeyError:
        return 0, 0
    return entry.pw_uid, entry.pw_gid


def _check_reachable(folder: Path, user: int, group: int) -> None:
    for directory in (folder, *folder.parents):
        status = directory.stat()
        required_bit = stat.S_IXOTH
        if status.st_uid == user:
            required_bit = stat.S_IXUSR
        elif status.st_gid == group:
            required_bit = stat.S_IXGRP
        if not status.st_mode & required_bit:
            raise ComponentError(
                f"user {ACCOUNT}, which runs the server, cannot enter {directory}; use another "
                f"directory, or run chmod o+x {directory}"
            )


def _is_using(pid: int, folder: Path) -> bool:
    try:
        return bytes(folder) in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
