"""The main function of a process under test: runs roles on a bus until it is stopped or killed.

Also a program, for a process that needs a new interpreter: ``python -m tests.crashes.roles URL``.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from reconciler.cli.errors import report
from reconciler.cli.process_logs import configure_logs
from reconciler.cli.signals import run_until_stopped
from reconciler.failpoints import VARIABLE
from reconciler.provider.kind import KindRegistry, installed_kinds
from reconciler.wiring import ROLES, SECRETS_VARIABLE, Role, initialize, open_connection, run_roles
from tests.faulty_api.kinds import OPTION_KINDS, SEALED

READY = "roles are running"
_PARENT_DEATH_SIGNAL = 1

SECRETS = "secrets"
"""Folder of the secrets, next to the logs of the processes."""

INIT = "init"
"""Used instead of roles: create the streams, and exit."""


def run_process(url: str, roles: Sequence[Role] | str, failpoint: str, log: Path | None) -> None:
    """Run roles in this process, which ends when its parent does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if log is not None:
        _redirect_output(log)
        if (log.parent / SECRETS).exists():
            os.environ[SECRETS_VARIABLE] = str(log.parent / SECRETS)
    if failpoint:
        os.environ[VARIABLE] = failpoint
    configure_logs("info")
    try:
        uvloop.run(_initialize(url) if roles == INIT else _serve(url, roles))
    except Exception as error:  # noqa: BLE001 - as the command line does
        os._exit(report(error))


async def _initialize(url: str) -> None:
    async with open_connection(url) as nc:
        await initialize(nc)


async def _serve(url: str, roles: Sequence[str]) -> None:
    expected: list[Role] = [role for role in ROLES if role in roles]

    kinds = KindRegistry([*installed_kinds().values(), *OPTION_KINDS, SEALED])

    async def work() -> None:
        async with open_connection(url) as nc, run_roles(nc, expected, kinds=kinds):
            print(READY, file=sys.stderr, flush=True)
            await asyncio.Event().wait()

    await run_until_stopped(work())


def _redirect_output(log: Path) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)


if __name__ == "__main__":
    run_process(sys.argv[1], ROLES, "", None)
