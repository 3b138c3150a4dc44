"""HTTP servers for http-01 challenges, which serve each token's response during its validation."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, cast

from infra.providers.certificates.delivery import find_enclosing_folder
from infra.providers.certificates.issuer import address_of
from infra.providers.certificates.store import (
    PUBLIC_MODE,
    CertificateRecord,
    Store,
    read_file,
    write_file,
)
from infra.providers.file_root import FileRoot, stat_of
from reconciler.errors import NotDoneError, RefusedError

PATH: Final = "/.well-known/acme-challenge/"

MAX_CONNECTIONS: Final = 64
"""Limit on connections: any client may connect, and each uses a file descriptor and a thread. Above
this limit, the oldest connection is closed."""

CONNECTION_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.02

_Address = tuple[str, int]


class _Server(ThreadingHTTPServer):
    """A server for the responses to current tokens."""

    daemon_threads = True

    def __init__(self, address: _Address) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.responses: dict[str, str] = {}
        self._open: dict[socket.socket, float] = {}
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Respond in a thread. If there are too many connections, close the oldest one."""
        while len(self._open) >= MAX_CONNECTIONS:
            oldest = next(iter(list(self._open)), request)
            self._open.pop(oldest, None)
            _end(oldest)
        self._open[request] = time.monotonic() + CONNECTION_SECONDS
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close expired connections, regardless of what they have sent."""
        now = time.monotonic()
        for request, until in list(self._open.items()):
            if until <= now:
                _end(request)

    def server_close(self) -> None:
        """Close all connections, because the challenge is over."""
        super().server_close()
        for request in list(self._open):
            _end(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing, because any client may connect."""


class _Handler(BaseHTTPRequestHandler):
    """Responds only to requests for current tokens."""

    timeout = CONNECTION_SECONDS

    def do_GET(self) -> None:
        responses = cast("_Server", self.server).responses
        response = responses.get(self.path.removeprefix(PATH))
        if response is None or not self.path.startswith(PATH):
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        body = response.encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's
        """Log nothing, because any client may connect."""


def _end(request: socket.socket) -> None:
    """Close a connection, so that its thread ends."""
    with contextlib.suppress(OSError):  # it is already closed
        request.shutdown(socket.SHUT_RDWR)


_lock = threading.Lock()
_servers: dict[_Address, _Server] = {}
"""Servers by address, which all providers and orders of a process share."""


def add_response(listen: str, token: str, response: str) -> None:
    """Serve the response for a token. The first token starts the server. Raises ``OSError``."""
    address = _address(listen)
    with _lock:
        server = _servers.get(address)
        if server is None:
            server = _start_server(address)
            _servers[address] = server
            thread = threading.Thread(
                target=server.serve_forever, args=(_POLL_SECONDS,), name="http-01", daemon=True
            )
            thread.start()
        server.responses[token] = response


def remove_response(listen: str, token: str) -> None:
    """Stop serving a token. The server stops with the last token."""
    address = _address(listen)
    with _lock:
        server = _servers.get(address)
        if server is None:
            return
        server.responses.pop(token, None)
        if server.responses:
            return
        del _servers[address]
        server.shutdown()
        server.server_close()


def write_response(root: FileRoot, path: str, token: str, response: str) -> None:
    """Write a response for an external web server.

    Raises ``RefusedError`` if the directory contains a different file with the token's name, or
    belongs to a certificate.
    """
    if find_enclosing_folder(root, f"{path}/x") is not None:
        raise RefusedError(
            f"directory {path!r} is, or is within, the directory of a certificate; set "
            "http01.folder to a separate directory",
            status=424,
        )
    target, store = f"{path}/{token}/", Store(root, "certificates", CertificateRecord)
    for name in store.names():
        record = store.read(name)
        # A file there would prevent the delivery to the directory while that one is lost.
        if record is not None and any(f"{each}/".startswith(target) for each in record.folders):
            raise RefusedError(
                f"{path}/{token} is the directory of a certificate; set http01.folder to a "
                "separate directory",
                status=424,
            )
    with root.open_parent(f"{path}/x", create=True) as folder:
        assert folder is not None
        if stat_of(folder, token) is not None and read_file(folder, token) != response.encode():
            raise RefusedError(
                f"{path}/{token} already exists, and Reconciler did not create it; set "
                "http01.folder to a separate directory",
                status=424,
            )
        write_file(folder, token, response.encode(), PUBLIC_MODE)


def unlink_response(root: FileRoot, path: str, token: str, response: str) -> None:
    """Remove a response, but not a different file with the token's name."""
    with root.open_parent(f"{path}/x") as folder:
        if folder is not None and read_file(folder, token) == response.encode():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(token, dir_fd=folder)


def _start_server(address: _Address) -> _Server:
    try:
        return _Server(address)
    except OSError as error:
        if error.errno not in {errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL}:
            raise
        raise NotDoneError(
            f"http-01: cannot listen on {address[0]} port {address[1]}: {error.strerror}",
            status=424,
        ) from None


def _address(listen: str) -> _Address:
    address = address_of(listen)
    assert address is not None, "already validated by the kind"
    return address
