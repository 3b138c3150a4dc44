"""Logs of this program: on standard error, readable on a terminal and JSON for programs.

Log lines and tracebacks contain no secret that this process has read.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, Literal

import structlog
from structlog.typing import EventDict

from reconciler.process_secrets import OF_THIS_PROCESS

LogLevel = Literal["debug", "info", "warning", "error"]


def configure_logs(level: LogLevel) -> None:
    """Send the logs of this process, ours and those of libraries, to standard error."""
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.StackInfoRenderer(),
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,  # plain: no local variables, which have secrets
            _hide_secrets,
            _renderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(level=number, handlers=[_ToStructlog()], force=True)
    for chatty in ("httpx", "httpcore", "asyncio"):
        logging.getLogger(chatty).setLevel(max(number, logging.WARNING))


def _hide_secrets(_logger: object, _method: str, line: EventDict) -> EventDict:
    return OF_THIS_PROCESS.hide_in(line, line.keys())


def _renderer() -> Any:
    if sys.stderr.isatty():
        return structlog.dev.ConsoleRenderer(
            colors="NO_COLOR" not in os.environ,
            exception_formatter=structlog.dev.plain_traceback,
        )
    return structlog.processors.JSONRenderer()


class _ToStructlog(logging.Handler):
    """Hands the records of the standard library's logging on."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(
            record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info
        )
