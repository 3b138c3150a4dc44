"""Check what only the server's monitoring URL reports, such as its sync interval."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from http.client import HTTPException
from typing import Final
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import msgspec

from infra.embedded.full_disk import is_full_disk_error, is_jetstream_disabled
from reconciler.cli.checks.finding import Finding, Verdict

HEALTH = "server health"
MONITORING_VARIABLE = "RECONCILER_NATS_MONITORING_URL"
_TIMEOUT_SECONDS = 5.0
_NEARLY_FULL_PERCENT = 90
_NANOSECONDS = 1_000_000_000
_FAILURES: Final = (OSError, HTTPException, ValueError, msgspec.DecodeError)


class _Config(msgspec.Struct):
    max_storage: int = 0
    sync_interval: int = 0
    sync_always: bool = False


class _Stats(msgspec.Struct):
    storage: int = 0


class _JetStream(msgspec.Struct):
    config: _Config = msgspec.field(default_factory=_Config)
    stats: _Stats = msgspec.field(default_factory=_Stats)


class _Varz(msgspec.Struct):
    jetstream: _JetStream = msgspec.field(default_factory=_JetStream)


class _Health(msgspec.Struct):
    error: str = ""


async def check_health(url: str) -> list[Finding]:
    """Read ``/healthz``, the only endpoint that reports that a stream's disk is full."""
    try:
        _status, content = await asyncio.to_thread(_read, f"{url.rstrip('/')}/healthz")
        problem = msgspec.json.decode(content, type=_Health).error
    except _FAILURES as error:
        problem = f"{url} does not respond: {_reason(error)}"
        return [
            Finding(
                HEALTH,
                "warn",
                problem,
                "Check that the server is running and that --monitoring-url is correct.",
            )
        ]
    if not problem:
        return [Finding(HEALTH, "ok", "the server reports no problems")]
    if is_full_disk_error(problem) or is_jetstream_disabled(problem):
        remedy = (
            "Free disk space, and restart this server (`reconciler up` restarts its own server). "
            "All acknowledged messages are kept."
        )
        text = f"JetStream is disabled, possibly because of a full disk: {problem}"
        if is_full_disk_error(problem):
            text = f"disk full: {problem}"
        return [Finding(HEALTH, "fail", text, remedy)]
    return [Finding(HEALTH, "fail", problem, "Read the server's log.")]


async def check_monitoring(url: str) -> list[Finding]:
    """Read the sync interval and JetStream's disk use from ``/varz``."""
    try:
        status, content = await asyncio.to_thread(_read, f"{url.rstrip('/')}/varz")
        if status != HTTPStatus.OK:
            raise HTTPException(f"status {status}")
        usage = msgspec.json.decode(content, type=_Varz).jetstream
    except _FAILURES as error:
        remedy = "Check that --monitoring-url is the server's monitoring port (http_port)."
        text = f"{url} does not respond: {_reason(error)}"
        return [Finding("sync", "warn", text, remedy)]
    return [_sync(usage.config), _disk(usage)]


def _read(url: str) -> tuple[int, bytes]:
    """Return the status and body of a response, with urllib, because it is one request."""
    if not url.startswith(("http://", "https://")):
        raise ValueError("must start with http:// or https://")
    try:
        with urlopen(url, timeout=_TIMEOUT_SECONDS) as response:  # noqa: S310 - checked above
            return response.status, response.read()
    except HTTPError as error:
        with error:
            return error.code, error.read()


def _reason(error: Exception) -> str:
    reason = error.reason if isinstance(error, URLError) else error
    return str(reason) or type(reason).__name__


def _sync(config: _Config) -> Finding:
    if config.sync_always:
        return Finding("sync", "ok", "the server syncs every write to disk (sync_interval: always)")
    seconds = config.sync_interval / _NANOSECONDS
    return Finding(
        "sync",
        "warn",
        f"the server syncs every {seconds:g} s; later writes are lost in a power failure",
        "Set sync_interval: always in the server's configuration.",
    )


def _disk(usage: _JetStream) -> Finding:
    used, limit = usage.stats.storage, usage.config.max_storage
    percent = 100 * used // limit if limit > 0 else 0
    verdict: Verdict = "warn" if percent >= _NEARLY_FULL_PERCENT else "ok"
    remedy = (
        "" if verdict == "ok" else "Increase the server's max_file_store, or use a larger disk."
    )
    text = f"{used / 1e6:.1f} MB of {limit / 1e6:.1f} MB, {percent}%"
    return Finding("server disk", verdict, text, remedy)
