"""Start, stop and kill a `nats-server` process on a data directory."""

import asyncio
import fcntl
import http.client
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from infra.embedded.binary import find_server_binary
from infra.embedded.child import bind_to_parent
from infra.jetstream.errors import BusError

DEFAULT_MAX_PAYLOAD_BYTES: Final = 8 * 1024 * 1024
START_TIMEOUT_SECONDS: Final = 60.0  # a server recovers a large store before it opens the port
STOP_TIMEOUT_SECONDS: Final = 30.0
LOG_LIMIT_BYTES: Final = 16 * 1024 * 1024
LOG_FILES_KEPT: Final = 3
MAX_BUFFERED_MESSAGES: Final = 4_000
"""Maximum number of messages that wait for storage in a stream; more are rejected (10167).

Without this limit, a client that does not await acknowledgements can delay all other clients'
messages by minutes. It allows four atomic batches of the maximum size.
"""

_MEMORY_DIVISOR: Final = 4
_MIN_MEMORY_LIMIT: Final = 512 * 1024 * 1024
_CONTAINER_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")  # "max" means no limit

_POLL_SECONDS: Final = 0.005  # interval between checks while a server starts
_CONNECT_SECONDS: Final = 2.0
_HEALTH_SECONDS: Final = 5.0


class EmbeddedServerError(BusError):
    """The embedded server could not be started. The message is one line with the reason."""


class _Health(msgspec.Struct):
    """The response of the monitoring endpoint `/healthz`. `error` is empty if healthy."""

    error: str = ""


class _Ports(msgspec.Struct):
    """The file to which a server writes its addresses."""

    nats: list[str]
    monitoring: list[str] = msgspec.field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class _Settings:
    """Settings to start the server with, except the port and directory."""

    http_port: int | None
    sync_always: bool
    max_payload: int
    extra_config: str


class EmbeddedServer:
    """A `nats-server` with JetStream on 127.0.0.1, with its data in one directory.

    The directory can be reused after `stop` and after `kill`, by this object or another one. On
    Linux, the server is killed when the thread that started it exits, so start it from the main
    thread, or from one that lives as long as the server is needed.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._data_dir = Path()
        self._monitoring_url = ""
        self._settings: _Settings | None = None

    @property
    def data_dir(self) -> Path:
        """The directory used for the last start."""
        return self._data_dir

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._started_process().pid

    @property
    def port(self) -> int:
        """The port used for the last start. Pass it to the next, so that clients can reconnect."""
        return self._port

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"nats://127.0.0.1:{self._port}"

    @property
    def monitoring_url(self) -> str:
        """URL of the monitoring endpoint; empty if there is none."""
        return self._monitoring_url

    @property
    def is_running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    async def start(
        self,
        data_dir: Path,
        *,
        port: int = 0,
        http_port: int | None = None,
        sync_always: bool = True,
        max_payload: int = DEFAULT_MAX_PAYLOAD_BYTES,
        extra_config: str = "",
    ) -> str:
        """Start the server, and return its URL once it responds.

        Args:
            data_dir: directory of the store, the configuration, the log and the lock; created if
                missing.
            port: port for clients; 0 for a free one.
            http_port: port of the monitoring endpoint; 0 for a free one, None for no endpoint.
            sync_always: fsync before each acknowledgement (without it, a power failure loses
                messages).
            max_payload: maximum size of a message, in bytes.
            extra_config: lines to add to the server's configuration file.

        Raises:
            EmbeddedServerError: the directory or the port is in use, or the server does not start.
        """
        if self.is_running:
            raise EmbeddedServerError(
                f"this server is already running on {self.url}; stop it first"
            )
        folder = await asyncio.to_thread(data_dir.resolve)
        settings = _Settings(http_port, sync_always, max_payload, extra_config)
        self._process = _spawn(folder, _configuration(folder, port, settings))
        self._data_dir, self._settings = folder, settings
        try:
            self._port, self._monitoring_url = await _wait_until_ready(self._process, folder)
        except BaseException:
            await self.kill()
            raise
        return self.url

    async def restart(self) -> None:
        """Stop the server, and start it with the same settings, ports and data.

        Raises:
            EmbeddedServerError: the server cannot be started again.
        """
        settings = self._settings
        if settings is None:
            raise EmbeddedServerError("this server was not started; call start() first")
        monitoring = self._monitoring_url
        await self.stop()
        await self.start(
            self._data_dir,
            port=self._port,
            http_port=int(monitoring.rsplit(":", 1)[1]) if monitoring else None,
            sync_always=settings.sync_always,
            max_payload=settings.max_payload,
            extra_config=settings.extra_config,
        )

    async def problem(self) -> str:
        """Return the server's health problem, or "" if healthy, unmonitored or unreachable."""
        if not self._monitoring_url:
            return ""
        return await asyncio.to_thread(_problem, f"{self._monitoring_url}/healthz")

    def pause(self) -> None:
        """Suspend the server (SIGSTOP), to simulate a machine that hangs."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a suspended server (SIGCONT), with its state unchanged."""
        os.kill(self.pid, signal.SIGCONT)

    async def stop(self) -> None:
        """Shut the server down (SIGTERM), and kill it after 30 seconds."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        self._process.send_signal(signal.SIGCONT)  # a suspended process does not handle SIGTERM
        try:
            await asyncio.to_thread(self._process.wait, STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            await self.kill()

    async def kill(self) -> None:
        """Kill the server immediately with SIGKILL, to simulate a crash."""
        if self._process is None:
            return
        self._process.kill()
        await asyncio.to_thread(self._process.wait)

    def _started_process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise EmbeddedServerError("this server was not started; call start() first")
        return self._process


def _problem(health_url: str) -> str:
    """Return the problem that the monitoring endpoint reports, or "".

    It uses the standard library, because importing HTTPX takes 0.3 s of CPU time, and a client
    takes 26 ms and 0.8 MB.
    """
    without_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with without_proxy.open(health_url, timeout=_HEALTH_SECONDS) as response:
            content = response.read()
    except urllib.error.HTTPError as error:  # the response from an unhealthy server
        content = error.read()
    except (OSError, http.client.HTTPException):
        return ""
    try:
        return msgspec.json.decode(content, type=_Health).error
    except msgspec.DecodeError:
        return ""


def _configuration(folder: Path, port: int, settings: _Settings) -> str:
    """Return the content of the configuration file. Its format accepts JSON strings."""
    lines = [
        f"listen: {json.dumps(f'127.0.0.1:{port or -1}')}",
        f"ports_file_dir: {json.dumps(str(folder))}",
        f"log_file: {json.dumps(str(folder / 'nats.log'))}",
        f"logfile_size_limit: {LOG_LIMIT_BYTES}",
        f"logfile_max_num: {LOG_FILES_KEPT}",
        f"max_payload: {settings.max_payload}",
        f"max_pending: {max(64 * 1024 * 1024, 4 * settings.max_payload)}",
        f"jetstream {{ store_dir: {json.dumps(str(folder))}"
        + (", sync_interval: always" if settings.sync_always else "")
        + f", max_buffered_msgs: {MAX_BUFFERED_MESSAGES} }}",
    ]
    if settings.http_port is not None:
        lines.append(f"http: {json.dumps(f'127.0.0.1:{settings.http_port or -1}')}")
    return "\n".join([*lines, settings.extra_config, ""])


def _spawn(folder: Path, settings: str) -> subprocess.Popen[bytes]:
    """Start the process, which holds the directory's lock while it runs.

    The lock is an inherited open file, so it lasts as long as the server, even if this process
    ends. A second server cannot open a store that an orphan still writes to. Nothing in the
    directory is changed before the lock is acquired.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "nats.lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise EmbeddedServerError(
                f"data directory {folder} is in use by another server; stop that server, or "
                "use another directory"
            ) from error
        for stale in folder.glob("*.ports"):
            stale.unlink(missing_ok=True)
        config = folder / "nats.conf"
        config.write_text(settings)
        with (folder / "nats.stderr").open("wb") as stderr:
            return subprocess.Popen(  # noqa: S603 - our own binary, no shell
                _command(config),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                pass_fds=(lock.fileno(),),
                env={"GOMEMLIMIT": str(memory_limit()), **os.environ},
                # Ctrl-C must reach only the parent, which stops the server gracefully.
                start_new_session=True,
            )


def memory_limit(memory: int | None = None) -> int:
    """Return the server's soft memory limit in bytes, for its garbage collector.

    `memory`: the available memory; by default that of this machine or container. `GOMEMLIMIT` in
    the environment overrides the result.
    """
    available = _read_available_memory() if memory is None else memory
    # It must far exceed the live memory, or the collector runs constantly. Withdrawing 20,000
    # resources took 40 s of CPU time with 192 MiB, and 11 to 12 s with 512 MiB or more.
    return min(max(_MIN_MEMORY_LIMIT, available // _MEMORY_DIVISOR), available // 2)


def _read_available_memory() -> int:
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        allowed = _CONTAINER_LIMIT.read_text().strip()
    except OSError:
        return installed
    return min(installed, int(allowed)) if allowed.isdecimal() else installed


def _command(config: Path) -> list[str]:
    return bind_to_parent([str(find_server_binary()), "-c", str(config)])


async def _wait_until_ready(process: subprocess.Popen[bytes], folder: Path) -> tuple[int, str]:
    """Return the port and the monitoring URL once the server responds on the port."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    ports_file = folder / f"nats-server_{process.pid}.ports"
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise EmbeddedServerError(_read_exit_reason(folder))
        announced = _read_ports(ports_file)
        if announced is not None:
            port = int(announced.nats[0].rsplit(":", 1)[1])
            if await _responds(port):
                return port, next(iter(announced.monitoring), "")
        await asyncio.sleep(_POLL_SECONDS)
    raise EmbeddedServerError(
        f"nats-server in {folder} did not respond within {START_TIMEOUT_SECONDS:.0f} s; see "
        f"{folder / 'nats.log'}"
    )


def _read_ports(ports_file: Path) -> _Ports | None:
    """Return the addresses that the server has written, or None if it has not yet done so."""
    try:
        return msgspec.json.decode(ports_file.read_bytes(), type=_Ports)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


async def _responds(port: int) -> bool:
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            greeting = await reader.readline()
            writer.close()
    except (OSError, TimeoutError):
        return False
    return greeting.startswith(b"INFO ")


def _read_exit_reason(folder: Path) -> str:
    """Return the server's last error message, as one line."""
    log_text = ""
    for name in ("nats.log", "nats.stderr"):
        path = folder / name
        if path.is_file():
            log_text += path.read_text(errors="replace")[-20_000:]
    errors = [line for line in log_text.splitlines() if "[FTL]" in line or "[ERR]" in line]
    reason = errors[-1] if errors else (log_text.strip().splitlines() or ["no output"])[-1]
    if "address already in use" in reason:
        return f"another process is using the port ({reason.strip()}); use another port, or 0"
    return f"nats-server in {folder} exited immediately: {reason.strip()}"
