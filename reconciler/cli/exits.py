"""Exit statuses, which scripts may rely on."""

from enum import IntEnum


class Exit(IntEnum):
    """What the process ends with."""

    OK = 0
    FAILED = 1
    USAGE = 2
    DIFFERENCES = 2
    TIMEOUT = 3
    INTERRUPTED = 130
