"""Apply a ``HostGuard`` to the connections of urllib3 and of libraries that use it."""

from __future__ import annotations

import socket
from functools import partial

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from infra.providers.host_guard import HostGuard


def guard_pools(manager: PoolManager, guard: HostGuard) -> None:
    """Restrict a manager to addresses that a guard permits, including after redirects."""

    class GuardedHttp(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            return _connect(self, guard)

    class GuardedHttps(HTTPSConnection):
        def _new_conn(self) -> socket.socket:
            return _connect(self, guard)

    class Http(HTTPConnectionPool):
        ConnectionCls = GuardedHttp  # pyright: ignore[reportAssignmentType] - as urllib3 documents

    class Https(HTTPSConnectionPool):
        ConnectionCls = GuardedHttps  # pyright: ignore[reportAssignmentType] - as above

    classes: dict[str, type[HTTPConnectionPool]] = {"http": Http, "https": Https}
    manager.pool_classes_by_scheme = classes


def _connect(connection: HTTPConnection, guard: HostGuard) -> socket.socket:
    timeout = connection.timeout
    connect = partial(guard.connect, connection.host, connection.port or 0)
    try:
        return connect(timeout if isinstance(timeout, int | float) else None)
    except TimeoutError as error:
        raise ConnectTimeoutError(connection, f"{connection.host}: timeout") from error
    except OSError as error:
        raise NewConnectionError(connection, str(error)) from error
