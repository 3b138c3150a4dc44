"""Logs of this process on standard error: formatted on a terminal, JSON elsewhere.

Log lines and tracebacks contain no secrets that this process has read.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, Literal

import structlog
from structlog.typing import EventDict

from reconciler.cli.output import escape_lines, escape_text
from reconciler.process_secrets import PROCESS_SECRETS

_LINES = ("exception", "stack")
LogLevel = Literal["debug", "info", "warning", "error"]


def configure_logs(level: LogLevel) -> None:
    """Send the logs of this process and its libraries to standard error."""
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.StackInfoRenderer(),
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            # Omits local variables, which may contain secrets.
            structlog.processors.format_exc_info,
            _hide_secrets,
            *_renderers(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(level=number, handlers=[_ToStructlog()], force=True)
    for library in ("httpx", "httpcore", "asyncio"):
        logging.getLogger(library).setLevel(max(number, logging.WARNING))


def _hide_secrets(_logger: object, _method: str, line: EventDict) -> EventDict:
    return PROCESS_SECRETS.hide_in(line, line.keys())


def _renderers() -> tuple[Any, ...]:
    if sys.stderr.isatty():
        renderer = structlog.dev.ConsoleRenderer(
            colors="NO_COLOR" not in os.environ,
            exception_formatter=structlog.dev.plain_traceback,
        )
        return (_escape, renderer)
    return (structlog.processors.JSONRenderer(),)


def _escape(_logger: object, _method: str, line: EventDict) -> EventDict:
    """Escape text that could forge lines on a terminal; tracebacks keep their line breaks."""
    for name, value in line.items():
        if isinstance(value, str):
            line[name] = (escape_lines if name in _LINES else escape_text)(value)
    return line


class _ToStructlog(logging.Handler):
    """Forwards the records of the standard library's logging."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(
            record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info
        )
