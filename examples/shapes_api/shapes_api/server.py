"""The HTTP server: listens, prints its URL, and stops on a signal."""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final, Literal

import uvicorn
from starlette.types import ASGIApp

from shapes_api.process import READY_PREFIX

UNFINISHED_REQUESTS_SECONDS: Final = 1  # requests for changes may take a long time
BACKLOG: Final = 2048


HttpProtocol = type[asyncio.Protocol] | Literal["auto"]


class ListenError(Exception):
    """Listening on the address failed; the message gives the reason in one line."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address; port 0 selects a free one.

    Raises:
        ListenError: the port is in use, or the host is not an address of this machine.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ListenError(f"cannot listen on {host} port {port}: {error.strerror}") from error


def serve(
    app: ASGIApp,
    listener: socket.socket,
    *,
    access_log: bool,
    exit_with_stdin: bool,
    http: HttpProtocol = "auto",
) -> None:
    """Serve until SIGTERM, SIGINT or, with `exit_with_stdin`, the end of standard input."""
    config = uvicorn.Config(
        app,
        http=http,
        ws="none",
        log_config=None,
        access_log=access_log,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=UNFINISHED_REQUESTS_SECONDS,
    )
    server = _Server(config, exit_with_stdin=exit_with_stdin)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(server.serve(sockets=[listener]))


class _Server(uvicorn.Server):
    """Exits with status 0 on a signal, and prints its URL on standard output."""

    def __init__(self, config: uvicorn.Config, *, exit_with_stdin: bool) -> None:
        super().__init__(config)
        self._exit_with_stdin = exit_with_stdin

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Shut down on a signal; the base class would then raise that signal again."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and print the URL."""
        await super().startup(sockets)
        if self.should_exit:
            return
        assert sockets is not None
        if self._exit_with_stdin:
            _call_when_stdin_ends(self._end)
        print(f"{READY_PREFIX}{_url(sockets[0])}", flush=True)

    def _end(self) -> None:
        self.should_exit = True


def _call_when_stdin_ends(callback: Callable[[], None]) -> None:
    """Watch standard input in a thread: it may be a pipe, a file or a terminal."""
    loop = asyncio.get_running_loop()

    def watch() -> None:
        # Not sys.stdin: its lock, held by a waiting thread, would block the interpreter's exit.
        while os.read(0, 4096):
            pass
        loop.call_soon_threadsafe(callback)

    threading.Thread(target=watch, name="stdin", daemon=True).start()


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
