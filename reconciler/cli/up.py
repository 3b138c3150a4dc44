"""`reconciler up`: run all servers and roles on this machine, in one process."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter
from nats.aio.client import Client

from events.provider_config import MAX_SECONDS, MIN_SECONDS
from infra.jetstream.access import Access
from infra.jetstream.errors import (
    BusUnavailableError,
    IncompatibleStreamError,
    LogFormatError,
    StreamReplacedError,
)
from reconciler.cli.components import parse_components
from reconciler.cli.connection import (
    DATA_DIRECTORY,
    DEFAULT_BUS_OPTIONS,
    DEFAULT_LOG_OPTIONS,
    SECRETS_DIRECTORY,
    UP_FILE,
    BusOptions,
    LogOptions,
    run_async,
)
from reconciler.cli.errors import CommandError, UsageError
from reconciler.cli.exits import Exit
from reconciler.cli.local_configs import ConfigChange, declare_config, plan_config_change
from reconciler.cli.main import START_TIME
from reconciler.cli.options import Integer, NamedPath, check_replicas
from reconciler.cli.output import print_json_line
from reconciler.cli.process_logs import configure_logs
from reconciler.cli.signals import run_until_stopped
from reconciler.cli.stack import Stack, StackError, StackOptions, start_stack, write_up_file
from reconciler.provider.lazy import check_extra
from reconciler.roles.projector.lost_events import LogTooShortError
from reconciler.wiring import ROLES, Role, initialize, open_connection, run_roles, secrets_folder

_REPAIRABLE_ERRORS = (IncompatibleStreamError, StreamReplacedError, LogTooShortError)
_REPAIR_HINT = (
    "To run these commands on the embedded server, start it without roles: `reconciler up --roles "
    "none --no-api`"
)
_CONNECT_TIMEOUT_SECONDS = 15.0
_MAX_LATENCY_MS = 3_600_000
_FAILURE_DETECTION_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The options of an `up` command."""

    stack: StackOptions
    roles: tuple[Role, ...]
    replicas: int | None
    access: Access
    resync: float | None
    output: Literal["table", "json"]

    @property
    def secrets(self) -> Path:
        """The directory of the secret store ``files``."""
        return secrets_folder() or self.stack.data / SECRETS_DIRECTORY


class Ready(msgspec.Struct, frozen=True, rename="camel"):
    """The line that reports readiness to programs."""

    nats_url: str
    api_url: str | None
    roles: tuple[str, ...]
    ready_seconds: float
    ready: bool = True
    notes: tuple[str, ...] = ()
    components: dict[str, str] = {}


def up(
    *,
    data: NamedPath = DATA_DIRECTORY,
    port: Integer | None = None,
    api_port: Integer | None = None,
    latency_ms: float = 0,
    bus: BusOptions = DEFAULT_BUS_OPTIONS,
    replicas: Integer | None = None,
    roles: str = ",".join(ROLES),
    no_api: bool = False,
    with_: Annotated[str, Parameter(name="--with")] = "",
    resync: float | None = None,
    output: Literal["table", "json"] = "table",
    logs: LogOptions = DEFAULT_LOG_OPTIONS,
) -> int:
    """Start everything in one process: NATS server, example API, all roles.

    Commands in the same directory find this server automatically. Ctrl-C
    stops everything gracefully. All data stays in the data directory.

    With --nats-url, `up` uses that server instead of starting one. It must be
    NATS 2.14 or newer with JetStream.

    For example:

        reconciler up
        reconciler up --data /srv/reconciler --port 4333 --api-port 8181
        reconciler up --nats-url nats://n1:4222,nats://n2:4222 --no-api
        reconciler up --roles none        only the servers
        reconciler up --with docker       also a Docker Engine
        reconciler up --output json       one line of JSON when ready

    Parameters
    ----------
    data
        Directory for all stored data. `up` creates it if it is missing.
    port
        Port of the NATS server. Default: 4222, or a free port if 4222 is in use. Later starts use
        the same port. 0: a free port.
    api_port
        Port of the example API. Default: 8080, or a free port if 8080 is in use. Later starts use
        the same port. 0: a free port.
    latency_ms
        Minimum duration of each request to the example API, in milliseconds.
    replicas
        Number of replicas per stream: 1, or 3 or 5 in a cluster. Default: that of the existing
        streams, or 1.
    roles
        Roles to run here, separated by commas, or none.
    no_api
        Do not start the example API, and do not declare its ProviderConfig.
    with_
        More systems to start, separated by commas: docker, postgres, caddy, certificates (an ACME
        CA), jetstream (for streams on this NATS server) or composition (for composed kinds). `up`
        declares a ProviderConfig of the same name for each. Its spec.allow permits the access to
        this machine that the examples need. The last two do not start a system and have
        no data directory.
    resync
        Seconds between listings of the APIs that do not report changes: the example API,
        PostgreSQL and certificates. Default: the value in the ProviderConfig, initially 30.
    output
        Output when ready: a banner, or one line of JSON.
    """
    check_extra("server", "`reconciler up`")
    configure_logs(logs.log_level)
    if resync is not None and not MIN_SECONDS <= resync <= MAX_SECONDS:
        limits = f"{MIN_SECONDS} to {MAX_SECONDS}"
        raise UsageError(f"--resync {resync:g}: must be {limits} seconds")
    if not 0 <= latency_ms <= _MAX_LATENCY_MS:
        raise UsageError(f"--latency-ms {latency_ms:g}: must be 0 to {_MAX_LATENCY_MS}")
    check_replicas(replicas)
    options = UpOptions(
        StackOptions(
            data, port, api_port, latency_ms, bus.nats_url, not no_api, parse_components(with_)
        ),
        parse_roles(roles),
        replicas,
        bus.access,
        resync,
        output,
    )

    async def start() -> Exit:
        return await run_until_stopped(_start_and_serve(options))

    return run_async(start())


def parse_roles(text: str) -> tuple[Role, ...]:
    """Parse roles such as `decider,worker`; `none` means no roles."""
    names = [name.strip() for name in text.split(",") if name.strip() not in ("", "none")]
    for name in names:
        if name not in ROLES:
            raise UsageError(f"--roles: {name!r} is not a role; use {', '.join(ROLES)}, or none")
    return tuple(role for role in ROLES if role in names)


async def _start_and_serve(options: UpOptions) -> None:
    async with start_stack(options.stack) as stack:
        try:
            await _serve_while_running(_serve(options, stack), stack)
        except Exception as error:
            if isinstance(
                error, BusUnavailableError
            ):  # the connection may close before the server exits
                with contextlib.suppress(TimeoutError, StackError):
                    async with asyncio.timeout(_FAILURE_DETECTION_SECONDS):
                        await stack.watch()
            if stack.failure is not None:
                raise stack.failure from None  # it caused the other errors
            raise
        finally:
            (options.stack.data / UP_FILE).unlink(missing_ok=True)


async def _serve(options: UpOptions, stack: Stack) -> None:
    async with (
        open_connection(
            stack.nats_url, access=options.access, timeout_seconds=_CONNECT_TIMEOUT_SECONDS
        ) as nc,
        contextlib.AsyncExitStack() as exits,
    ):
        try:
            await _start_roles(options, stack, nc, exits)
        except LogFormatError:
            raise
        except _REPAIRABLE_ERRORS as error:
            if options.roles:
                raise CommandError(f"{error}. {_REPAIR_HINT}") from error
            # The commands that repair the data require this server.
            stack.notes.append(str(error))
        write_up_file(stack)
        _print_ready(options, stack)
        stack.is_serving = True
        await asyncio.Event().wait()  # until cancelation


async def _start_roles(
    options: UpOptions, stack: Stack, nc: Client, exits: contextlib.AsyncExitStack
) -> None:
    await initialize(nc, replicas=options.replicas)
    changes = await _correct_configs(options, stack, nc)
    parts = await exits.enter_async_context(run_roles(nc, options.roles, secrets=options.secrets))
    for change in changes:
        await declare_config(parts, change, wait="decider" in options.roles)


async def _serve_while_running(serving: Coroutine[Any, Any, None], stack: Stack) -> None:
    """Serve until NATS exits unexpectedly, even while the roles start; restart other servers."""
    tasks = [asyncio.ensure_future(each) for each in (serving, stack.watch(), *stack.supervise())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _correct_configs(options: UpOptions, stack: Stack, nc: Client) -> list[ConfigChange]:
    """Correct existing configurations before the roles use them; return the other changes."""
    changes: list[ConfigChange] = []
    for api in stack.local_apis:
        resync = options.resync if api.min_resync_seconds is None else None
        changes.append(await plan_config_change(nc, api, resync))
    stack.notes += [change.note for change in changes if change.note]
    corrections = [change for change in changes if change.is_correction]
    if not corrections or "decider" not in options.roles:
        return changes
    async with run_roles(nc, ("decider",), secrets=options.secrets) as parts:
        for change in corrections:
            await declare_config(parts, change, wait=True)
    return [change for change in changes if not change.is_correction]


def _print_ready(options: UpOptions, stack: Stack) -> None:
    seconds = round(time.monotonic() - START_TIME, 3)
    if options.output == "json":
        notes = tuple(stack.notes)
        endpoints = {name: each.endpoint for name, each in stack.components.items()}
        print_json_line(
            Ready(
                stack.display_url,
                stack.api_url,
                options.roles,
                seconds,
                notes=notes,
                components=endpoints,
            )
        )
    else:
        from reconciler.cli.banner import print_banner  # noqa: PLC0415 - only for the banner

        print_banner(stack, options.roles, seconds)
