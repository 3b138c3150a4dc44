"""Exit statuses, which scripts may rely on."""

from enum import IntEnum


class Exit(IntEnum):
    """An exit status of the process."""

    OK = 0
    FAILED = 1
    USAGE = 2
    DIFFERENT = (
        2  # as in `terraform plan -detailed-exitcode`; these commands report errors as FAILED
    )
    TIMEOUT = 3
    INTERRUPTED = 130
