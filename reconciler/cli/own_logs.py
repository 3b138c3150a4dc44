"""Logs of this program: on standard error, readable on a terminal and JSON for programs."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, Literal

import structlog

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
            *_renderers(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(level=number, handlers=[_ToStructlog()], force=True)
    for chatty in ("httpx", "httpcore", "asyncio"):
        logging.getLogger(chatty).setLevel(max(number, logging.WARNING))


def _renderers() -> list[Any]:
    if sys.stderr.isatty():
        # Plain tracebacks: the default shows all local variables, secrets too, and takes seconds.
        return [
            structlog.dev.ConsoleRenderer(
                colors="NO_COLOR" not in os.environ,
                exception_formatter=structlog.dev.plain_traceback,
            )
        ]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


class _ToStructlog(logging.Handler):
    """Hands the records of the standard library's logging on."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(
            record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info
        )
