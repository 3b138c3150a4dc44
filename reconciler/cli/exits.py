"""Exit statuses, which scripts may rely on."""

from enum import IntEnum


class Exit(IntEnum):
    """Exit status of the process."""

    OK = 0
    FAILED = 1
    USAGE = 2
    DIFFERENT = 2  # no error: as of `terraform plan -detailed-exitcode`; errors are FAILED then
    TIMEOUT = 3
    INTERRUPTED = 130
