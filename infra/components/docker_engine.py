"""A separate Docker Engine: dockerd in its own directory, with its own containerd."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

from infra.components import ComponentError
from infra.components.child import Child
from infra.components.local_server import LocalServer, get_local, max_folder_bytes

STOP_SECONDS: Final = 30.0

MAX_FOLDER_BYTES: Final = max_folder_bytes("/exec/containerd/containerd-debug.sock")

_POLL_SECONDS: Final = 0.02
_TOOLS: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_INSTALL: Final = "install Debian's docker.io, or Docker's own packages"
_ESCAPED: Final = re.compile(rb"\\([0-7]{3})")
"""The kernel's octal escapes for separators in its list of mounts."""


class DockerEngine(LocalServer):
    """One dockerd, with its images, containers and volumes in one directory.

    The containers stop when dockerd is stopped, or when its parent is killed. If dockerd is killed,
    they keep running until its next start with the directory kills them. It requires root.

    ``isolated``: use a separate bridge, and do not change the machine's packet filter, so that
    another Engine is not affected. The containers then reach only this machine. If None, this
    depends on whether another one is running. ``options``: additional dockerd options.
    """

    name = "this Engine"
    program = "dockerd"
    log_name = "dockerd.log"
    start_seconds = 60.0
    stop_seconds = STOP_SECONDS
    max_folder_bytes = MAX_FOLDER_BYTES

    def __init__(self, *options: str, isolated: bool | None = None) -> None:
        super().__init__()
        self._more_options = options
        self._requested_isolation = isolated
        self._isolated = bool(isolated)

    @property
    def endpoint(self) -> str:
        """The address of its API."""
        return f"unix://{self._folder / 'docker.sock'}"

    async def stop(self) -> None:
        """Stop the containers and then dockerd, and kill it after a timeout."""
        if self._children:
            await super().stop()
            await asyncio.to_thread(self._end_containerd)
            await asyncio.to_thread(self._remove_all)

    async def kill(self) -> None:
        """Kill dockerd and its containerd immediately with SIGKILL, to simulate a crash."""
        if self._children:
            await super().kill()
            await asyncio.to_thread(self._end_containerd)

    def _spawn(self) -> list[Child]:
        program = _program()
        assert program is not None
        path = f"{os.environ.get('PATH', '')}:{_TOOLS}"
        command = [program, *self._options()]
        return [Child(command, self.log, environment={**os.environ, "PATH": path})]

    # --- called in a thread

    def _problem(self) -> str | None:
        return problem()

    def _prepare(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        pid_file = self._folder / "docker.pid"
        self._wait_for_end(lambda: _process_of(pid_file, self._folder), STOP_SECONDS)
        self._clean_up()
        requested = self._requested_isolation
        self._isolated = _is_another_running() if requested is None else requested
        pid_file.unlink(missing_ok=True)
        (self._folder / "docker.sock").unlink(missing_ok=True)
        if self._isolated:
            self._create_bridge()

    def _is_ready(self) -> bool:
        return get_local(self._folder / "docker.sock", "/_ping") is not None

    def _end_containerd(self) -> None:
        """Kill a containerd that outlived its dockerd; otherwise the next dockerd would hang."""
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
        if self._isolated:
            options += ["--bridge", self._bridge, "--iptables=false", "--ip-masq=false"]
        elif shutil.which("iptables", path=_TOOLS) is None:
            options += ["--iptables=false", "--ip-masq=false"]
        return [*options, *self._more_options]

    @property
    def _bridge(self) -> str:
        return f"rec{hashlib.sha256(bytes(self._folder)).hexdigest()[:8]}"

    def _create_bridge(self) -> None:
        numbers = hashlib.sha256(bytes(self._folder)).digest()
        address = f"10.{200 + numbers[0] % 50}.{numbers[1]}.1/24"
        # The bridge may already exist.
        _run("ip", "link", "add", self._bridge, "type", "bridge", may_fail=True)
        _run("ip", "address", "replace", address, "dev", self._bridge)
        _run("ip", "link", "set", self._bridge, "up")

    def _clean_up(self) -> None:
        """Remove what a killed dockerd left behind: its containers and their runtime state.

        A reboot would do the same. With the old state, a container that was being started can never
        be started again ("file exists").
        """
        self._end_containerd()
        runtime = self._folder / "exec"
        tasks = runtime / "containerd" / "daemon" / "io.containerd.runtime.v2.task"
        for pid_file in tasks.glob("moby/*/init.pid"):
            with contextlib.suppress(OSError, ValueError):
                pid = int(pid_file.read_text())
                if pid_file.parent.name in Path(f"/proc/{pid}/cgroup").read_text():
                    os.kill(pid, signal.SIGKILL)
        for pid in _processes_in(runtime):  # the shims of these containers
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _unmount_beneath(runtime)
        shutil.rmtree(runtime, ignore_errors=True)

    def _remove_all(self) -> None:
        """Remove all remaining state, including the bridge, if there is one."""
        self._clean_up()
        _unmount_beneath(self._folder)
        if Path("/sys/class/net", self._bridge).exists():
            _run("ip", "link", "delete", self._bridge, may_fail=True)


def problem() -> str | None:
    """Return the reason no Engine can be started on this machine, or None if one can."""
    if _program() is None:
        return f"dockerd is not installed; {_INSTALL}"
    if os.geteuid() != 0:
        return "dockerd requires root; start it yourself, and declare a ProviderConfig for it"
    return None


def _program() -> str | None:
    return shutil.which("dockerd", path=f"{os.environ.get('PATH', '')}:{_TOOLS}")


def _is_another_running() -> bool:
    """Return whether another dockerd is running on this machine."""
    for name in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if name.read_text().strip() == "dockerd":
                return True
    return False


def _process_of(pid_file: Path, folder: Path) -> int | None:
    """Return the process id in a pid file, if its command line still contains the directory."""
    try:
        pid = int(pid_file.read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return pid if bytes(folder) in command else None


def _processes_in(folder: Path) -> list[int]:
    """Return the ids of processes whose command lines contain a path in a directory."""
    pids: list[int] = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"\0" + bytes(folder) + b"/" in command.read_bytes():
                pids.append(int(command.parent.name))
    return pids


def _unmount_beneath(folder: Path) -> None:
    """Unmount everything in a directory, innermost mounts first."""
    lines = Path("/proc/self/mounts").read_bytes().splitlines()
    mount_points = [os.fsdecode(_ESCAPED.sub(_unescaped, line.split()[1])) for line in lines]
    for mount_point in reversed(mount_points):
        if mount_point.startswith(f"{folder}/"):
            _run("umount", "--lazy", mount_point, may_fail=True)


def _unescaped(match: re.Match[bytes]) -> bytes:
    return bytes([int(match[1], 8)])


def _run(*command: str, may_fail: bool = False) -> None:
    program = shutil.which(command[0], path=_TOOLS)
    if program is None:
        raise ComponentError(f"{command[0]} is not installed; install iproute2 and mount")
    completed = subprocess.run([program, *command[1:]], capture_output=True, check=False)  # noqa: S603
    if completed.returncode and not may_fail:
        error_text = completed.stderr.decode(errors="replace").strip()
        raise ComponentError(f"{' '.join(command)}: {error_text}")
