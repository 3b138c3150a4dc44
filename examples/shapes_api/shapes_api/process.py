"""Start, stop and kill the API as a separate process."""

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

READY_PREFIX: Final = "listening on "
LOG_FILE_NAME: Final = "example-api.log"
START_TIMEOUT_SECONDS: Final = 30.0
STOP_TIMEOUT_SECONDS: Final = 10.0


class ExampleApiError(Exception):
    """The API could not be started, or was not started; the message is one line."""


class ExampleApi:
    """A process of the API that uses a data folder.

    It exits when the process that started it exits or is killed. The folder and the port can be
    reused after `stop` and `kill`.
    """

    module = "shapes_api"  # module to run
    folder = Path(__file__).parents[1]  # folder of that module

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._url = ""

    @property
    def pid(self) -> int:
        """The process id of the API that was started last."""
        return self._last_process().pid

    @property
    def url(self) -> str:
        """The URL of the API, without a trailing slash."""
        self._last_process()
        return self._url

    @property
    def port(self) -> int:
        """The port of the last start, which the next start can reuse."""
        return int(self.url.rsplit(":", 1)[1])

    @property
    def is_running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    async def start(self, data_dir: Path, *, port: int = 0, latency_ms: float = 0) -> str:
        """Start the API and return its URL once it is listening.

        Args:
            data_dir: folder of the database and the log; created if missing.
            port: port to listen on at 127.0.0.1; 0 selects a free port.
            latency_ms: delay of each request to /shapes.

        Raises:
            ExampleApiError: the folder or the port cannot be used.
        """
        if self.is_running:
            raise ExampleApiError(f"this API is already running on {self._url}; stop it first")
        await self.kill()  # reaps a process that exited by itself
        log = data_dir / LOG_FILE_NAME
        self._process, log_start = _spawn(self.module, self.folder, data_dir, log, port, latency_ms)
        try:
            self._url = await _wait_until_ready(self._process, log, log_start)
        except BaseException:
            await self.kill()
            raise
        return self._url

    async def stop(self) -> None:
        """Stop the API (SIGTERM), or kill it after a timeout."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(self._process.wait, STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            await self.kill()
        _close_pipes(self._process)

    async def kill(self) -> None:
        """Kill the API (SIGKILL), like a crash."""
        if self._process is None:
            return
        self._process.kill()
        await asyncio.to_thread(self._process.wait)
        _close_pipes(self._process)

    def _last_process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ExampleApiError("this API was not started; call start() first")
        return self._process


def _spawn(
    module: str, folder: Path, data_dir: Path, log: Path, port: int, latency_ms: float
) -> tuple[subprocess.Popen[bytes], int]:
    """Start the process; return it and the start of its part of the log."""
    command = [sys.executable, "-m", module, "--exit-with-stdin"]
    command += ["--data", str(data_dir.absolute())]
    command += ["--port", str(port), "--latency-ms", str(latency_ms)]
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as log_file:
            log_start = log_file.tell()
            process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,
                start_new_session=True,  # Ctrl-C must reach only the parent, which stops the API
            )
            return process, log_start
    except OSError as error:
        raise ExampleApiError(
            f"the API cannot be started with data directory {data_dir}: {error}"
        ) from error


async def _wait_until_ready(process: subprocess.Popen[bytes], log: Path, log_start: int) -> str:
    """Return the URL that the API announces."""
    assert process.stdout is not None
    # A timer kills the process, so that the reading thread always ends.
    timer = threading.Timer(START_TIMEOUT_SECONDS, process.kill)
    timer.daemon = True
    timer.start()
    try:
        line = (await asyncio.to_thread(process.stdout.readline)).decode().strip()
    finally:
        timer.cancel()
    if line.startswith(READY_PREFIX):
        return line.removeprefix(READY_PREFIX)
    await asyncio.to_thread(process.wait)
    raise ExampleApiError(f"the API did not start: {_last_log_line(log, log_start)}")


def _last_log_line(log: Path, log_start: int) -> str:
    lines = log.read_bytes()[log_start:].decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no output"


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
