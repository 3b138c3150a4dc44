"""`reconciler run`: run one role in its own process."""

from __future__ import annotations

import asyncio

import structlog

from infra.jetstream.connection import redact_url
from reconciler.cli.connection import (
    DEFAULT_BUS_OPTIONS,
    DEFAULT_LOG_OPTIONS,
    BusOptions,
    LogOptions,
    run_async,
)
from reconciler.cli.process_logs import configure_logs
from reconciler.cli.signals import run_until_stopped
from reconciler.provider.lazy import check_extra
from reconciler.wiring import Role, open_connection, run_roles


def run(
    role: Role,
    /,
    *,
    bus: BusOptions = DEFAULT_BUS_OPTIONS,
    logs: LogOptions = DEFAULT_LOG_OPTIONS,
) -> int:
    """Run one role until Ctrl-C or SIGTERM.

    The decider determines the next action of each resource, the worker calls
    the external APIs, the observer lists their objects, and the projector
    maintains the read models. You can run several processes of each role. The
    streams must exist: create them with `reconciler init`.

    For example:

        reconciler run decider
        reconciler run worker --credentials worker.creds

    Parameters
    ----------
    role
        The role to run.
    """
    check_extra("server", "`reconciler run`")
    configure_logs(logs.log_level)
    url = bus.url

    async def work() -> None:
        async with open_connection(url, access=bus.access) as nc, run_roles(nc, (role,)):
            structlog.get_logger().info("role is running", role=role, bus=redact_url(url))
            await asyncio.Event().wait()

    return run_async(run_until_stopped(work()))
