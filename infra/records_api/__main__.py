"""Start the records API: ``python -m infra.records_api --port 0 --data DIR``."""

from __future__ import annotations

import argparse
import socket
import sys
import threading
from pathlib import Path

import uvicorn

from infra.records_api.app import build_app
from infra.records_api.store import RecordStore

UNFINISHED_REQUESTS_SECONDS = 1
"""So long is waited at the end for calls that are under way: those for changes may take long."""


def main() -> None:
    """Serve until SIGTERM or SIGINT; the first line of output says where."""
    parser = argparse.ArgumentParser(prog="python -m infra.records_api", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--data", type=Path, required=True, help="folder of the records")
    parser.add_argument(
        "--exit-with-stdin", action="store_true", help="end when standard input ends"
    )
    options = parser.parse_args()
    app = build_app(RecordStore(options.data))
    listener = socket.create_server(("127.0.0.1", options.port), backlog=1024)
    sys.stdout.write(f"listening on http://127.0.0.1:{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=UNFINISHED_REQUESTS_SECONDS,
    )
    server = uvicorn.Server(config)
    if options.exit_with_stdin:
        threading.Thread(target=_end_with_stdin, args=(server,), daemon=True).start()
    server.run(sockets=[listener])


def _end_with_stdin(server: uvicorn.Server) -> None:
    """Wait for the end of standard input: the process that started this one is gone."""
    sys.stdin.buffer.read()
    server.should_exit = True


if __name__ == "__main__":
    main()
