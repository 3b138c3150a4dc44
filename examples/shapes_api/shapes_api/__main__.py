"""The command line: `python -m shapes_api --port 8080 --data ./example-api`."""

import argparse
import contextlib
import logging
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, Never

from starlette.types import ASGIApp

from shapes_api.app import create_app, latency
from shapes_api.database import DataFolderError, open_database
from shapes_api.server import HttpProtocol, ListenError, listen, serve

PROGRAM: Final = "example-api"
MAX_PORT: Final = 65535

Build = Callable[[sqlite3.Connection, float], ASGIApp]
"""Builds the application for a database; the number is the latency in seconds."""


class _OneLineParser(argparse.ArgumentParser):
    def error(self, message: str) -> Never:
        self.exit(2, f"{PROGRAM}: {message} (--help lists the options)\n")


def main(
    arguments: list[str] | None = None,
    build: Build = lambda database, seconds: create_app(database, latency(seconds)),
    http: HttpProtocol = "auto",
) -> int:
    """Serve until a signal to stop; return the exit status."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    if options.access_log:
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    try:
        with contextlib.closing(open_database(options.data)) as database:
            serve(
                build(database, options.latency_ms / 1000),
                listen(options.host, options.port),
                access_log=options.access_log,
                exit_with_stdin=options.exit_with_stdin,
                http=http,
            )
    except (DataFolderError, ListenError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _OneLineParser(
        prog=PROGRAM, description="An example API for trying out Reconciler.", allow_abbrev=False
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument(
        "--port",
        type=_port,
        default=0,
        help="port to listen on; 0, the default, selects a free port",
    )
    parser.add_argument("--data", type=Path, required=True, help="directory of the database")
    parser.add_argument(
        "--latency-ms",
        type=_milliseconds,
        default=0.0,
        help="delay of each request to /shapes, in milliseconds",
    )
    parser.add_argument("--access-log", action="store_true", help="log each request on stderr")
    parser.add_argument(
        "--exit-with-stdin", action="store_true", help="exit when standard input ends"
    )
    return parser


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; use 0 to {MAX_PORT}")
    return int(text)


def _milliseconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < float("inf"):
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of milliseconds")


if __name__ == "__main__":
    sys.exit(main())
