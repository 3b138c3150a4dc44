"""A Docker Engine of our own: dockerd on one folder, and its containerd with it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Final

from infra.components import ComponentError
from infra.components.child import Child

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 30.0

MAX_FOLDER_BYTES: Final = 107 - len("/exec/containerd/containerd-debug.sock")
"""The kernel takes no longer path of a socket, and this is the longest that dockerd makes."""

_POLL_SECONDS: Final = 0.02
_ANSWER_SECONDS: Final = 2.0
_TOOLS: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_INSTALL: Final = "install Debian's docker.io, or Docker's own packages"
_ESCAPED: Final = re.compile(rb"\\([0-7]{3})")
"""How the kernel writes what would end a word of its list of mounts."""

_LOG_CHARACTERS: Final = 20_000


class DockerEngine:
    """One dockerd whose images, containers and volumes are in one folder.

    The containers end with it when it is stopped, and when its parent is killed; after its own
    SIGKILL they run on, and the next start on the folder finds and ends them. It needs root.

    ``beside_others``: it has a bridge of its own and leaves the machine's packet filter alone, so
    that another Engine here is not disturbed; its containers then reach this machine only. None:
    if another one runs here. ``options``: of dockerd, besides ours.
    """

    def __init__(self, *options: str, beside_others: bool | None = None) -> None:
        self._more_options = options
        self._asked_beside_others = beside_others
        self._beside_others = bool(beside_others)
        self._child: Child | None = None
        self._folder = Path()

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return f"unix://{self._folder / 'docker.sock'}"

    @property
    def log(self) -> Path:
        """Where it logs."""
        return self._folder / "dockerd.log"

    @property
    def is_running(self) -> bool:
        """Whether its process lives."""
        return self._child is not None and self._child.is_running

    async def start(self, data: Path) -> None:
        """Start it on a folder and return once it answers; raises ``ComponentError``."""
        if self.is_running:
            raise ComponentError(f"this Engine is already running on {self._folder}; stop it first")
        self._folder = await asyncio.to_thread(data.resolve)
        program = _checked_machine(self._folder)
        began = await asyncio.to_thread(self._prepare)
        self._child = self._spawn(program)
        try:
            await self._child.until(
                lambda: _answers(self._folder / "docker.sock"),
                "dockerd",
                deadline=time.monotonic() + START_SECONDS,
                seconds=START_SECONDS,
            )
        except BaseException as error:
            await self.kill()
            if isinstance(error, ComponentError):
                raise ComponentError(f"{error}: {self._last_words(began)}") from None
            raise

    async def stop(self) -> None:
        """End it in order, its containers first; kill it when that takes too long."""
        if self._child is None:
            return
        await self._child.stop(STOP_SECONDS)
        await asyncio.to_thread(self._end_containerd)
        await asyncio.to_thread(self._leave_nothing)

    async def kill(self) -> None:
        """End it at once (SIGKILL), as a crash does; its containerd ends with it."""
        if self._child is None:
            return
        await self._child.kill()
        await asyncio.to_thread(self._end_containerd)

    def _spawn(self, program: str) -> Child:
        path = f"{os.environ.get('PATH', '')}:{_TOOLS}"
        command = [program, *self._options()]
        return Child(command, self.log, environment={**os.environ, "PATH": path})

    # --- in a thread

    def _prepare(self) -> int:
        """Make the folder, and wait for the end of one that was there before; how long its log is.

        Raises ``ComponentError``.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ComponentError(f"{self._folder} is not usable: {error.strerror}") from error
        deadline = time.monotonic() + STOP_SECONDS
        while (pid := _process_of(self._folder / "docker.pid", self._folder)) is not None:
            if time.monotonic() > deadline:
                raise ComponentError(
                    f"{self._folder} is in use by another dockerd (pid {pid}); stop that one, "
                    "or use another directory"
                )
            time.sleep(_POLL_SECONDS)
        self._clean_up()
        asked = self._asked_beside_others
        self._beside_others = _others_run() if asked is None else asked
        (self._folder / "docker.pid").unlink(missing_ok=True)
        (self._folder / "docker.sock").unlink(missing_ok=True)
        if self._beside_others:
            self._make_bridge()
        return self.log.stat().st_size if self.log.exists() else 0

    def _end_containerd(self) -> None:
        """Have a containerd without its dockerd end: the next dockerd would wait for it in vain."""
        root = self._folder / "exec" / "containerd"
        while (pid := _process_of(root / "containerd.pid", root)) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            time.sleep(_POLL_SECONDS)
        (root / "containerd.pid").unlink(missing_ok=True)

    def _options(self) -> list[str]:
        folder = self._folder
        options = [
            *("--host", self.endpoint),
            *("--data-root", str(folder / "data")),
            *("--exec-root", str(folder / "exec")),
            *("--pidfile", str(folder / "docker.pid")),
            "--log-level=warn",
        ]
        if self._beside_others:
            options += ["--bridge", self._bridge, "--iptables=false", "--ip-masq=false"]
        elif shutil.which("iptables", path=_TOOLS) is None:
            options += ["--iptables=false", "--ip-masq=false"]
        return [*options, *self._more_options]

    @property
    def _bridge(self) -> str:
        return f"rec{hashlib.sha256(bytes(self._folder)).hexdigest()[:8]}"

    def _make_bridge(self) -> None:
        numbers = hashlib.sha256(bytes(self._folder)).digest()
        address = f"10.{200 + numbers[0] % 50}.{numbers[1]}.1/24"
        _run("ip", "link", "add", self._bridge, "type", "bridge", may_fail=True)  # there already
        _run("ip", "address", "replace", address, "dev", self._bridge)
        _run("ip", "link", "set", self._bridge, "up")

    def _clean_up(self) -> None:
        """Take away what a dockerd that was killed leaves: its containers, and what it ran them by.

        After a reboot that is gone, too. Where it stays, a container that was about to be started
        at that moment can never be started again: "file exists".
        """
        self._end_containerd()
        runtime = self._folder / "exec"
        tasks = runtime / "containerd" / "daemon" / "io.containerd.runtime.v2.task"
        for pid_file in tasks.glob("moby/*/init.pid"):
            with contextlib.suppress(OSError, ValueError):
                pid = int(pid_file.read_text())
                if pid_file.parent.name in Path(f"/proc/{pid}/cgroup").read_text():
                    os.kill(pid, signal.SIGKILL)
        for pid in _naming(runtime):  # who looked after these containers
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _unmount_beneath(runtime)
        shutil.rmtree(runtime, ignore_errors=True)

    def _leave_nothing(self) -> None:
        """Take away what is left, and the bridge, which a start before may have made."""
        self._clean_up()
        _unmount_beneath(self._folder)
        if Path("/sys/class/net", self._bridge).exists():
            _run("ip", "link", "delete", self._bridge, may_fail=True)

    def _last_words(self, began: int) -> str:
        """Return why it ended, as it says itself in the last line of its log."""
        written = self.log.read_bytes()[began:].decode(errors="replace")[-_LOG_CHARACTERS:]
        lines = [line for line in written.splitlines() if line.strip()]
        return f"{lines[-1] if lines else 'no output'} (its log is {self.log})"


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a local socket, by the standard library: it is asked only while it starts."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_ANSWER_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_ANSWER_SECONDS)
        self.sock.connect(str(self._path))


def _answers(path: Path) -> bool:
    connection = _UnixConnection(path)
    try:
        connection.request("GET", "/_ping")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def problem() -> str | None:
    """Explain why no Engine can be started on this machine; None if one can."""
    if shutil.which("dockerd", path=f"{os.environ.get('PATH', '')}:{_TOOLS}") is None:
        return f"dockerd is not installed; {_INSTALL}"
    if os.geteuid() != 0:
        return "dockerd requires root; start it yourself, and declare a ProviderConfig for it"
    return None


def _checked_machine(folder: Path) -> str:
    if (why := problem()) is not None:
        raise ComponentError(why)
    if len(bytes(folder)) > MAX_FOLDER_BYTES:
        raise ComponentError(
            f"{folder}: too long for the paths of dockerd's sockets (at most 107 bytes); use a "
            f"directory of at most {MAX_FOLDER_BYTES} bytes"
        )
    found = shutil.which("dockerd", path=f"{os.environ.get('PATH', '')}:{_TOOLS}")
    assert found is not None
    return found


def _others_run() -> bool:
    """Return whether another dockerd runs on this machine."""
    for name in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if name.read_text().strip() == "dockerd":
                return True
    return False


def _process_of(pid_file: Path, folder: Path) -> int | None:
    """Return the process that a file names, if its command still names the folder."""
    try:
        pid = int(pid_file.read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return pid if bytes(folder) in command else None


def _naming(folder: Path) -> list[int]:
    """Return the processes whose command names a path beneath a folder."""
    found: list[int] = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"\0" + bytes(folder) + b"/" in command.read_bytes():
                found.append(int(command.parent.name))
    return found


def _unmount_beneath(folder: Path) -> None:
    """Unmount what is mounted beneath a folder, the innermost first."""
    lines = Path("/proc/self/mounts").read_bytes().splitlines()
    places = [os.fsdecode(_ESCAPED.sub(_unescaped, line.split()[1])) for line in lines]
    for place in reversed(places):
        if place.startswith(f"{folder}/"):
            _run("umount", "--lazy", place, may_fail=True)


def _unescaped(found: re.Match[bytes]) -> bytes:
    return bytes([int(found[1], 8)])


def _run(*command: str, may_fail: bool = False) -> None:
    program = shutil.which(command[0], path=_TOOLS)
    if program is None:
        raise ComponentError(f"{command[0]} is not installed; install iproute2 and mount")
    done = subprocess.run([program, *command[1:]], capture_output=True, check=False)  # noqa: S603
    if done.returncode and not may_fail:
        said = done.stderr.decode(errors="replace").strip()
        raise ComponentError(f"{' '.join(command)}: {said}")
