"""Exit statuses, which scripts may rely on."""

from enum import IntEnum


class Exit(IntEnum):
    """What the process ends with."""

    OK = 0
    FAILED = 1
    USAGE = 2
    DIFFERENT = 2  # as diff and terraform have it: found, and no error is said
    TIMEOUT = 3
    INTERRUPTED = 130
