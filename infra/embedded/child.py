"""Processes that end with the process that started them, even if it is killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

# Runs before the program in the same process: asks the kernel to end the process with its parent,
# even by SIGKILL, then executes the program. `getppid` covers a parent that died in between. The
# user is changed first, because the kernel discards this setting when the user changes.
_DIE_WITH_PARENT: Final = (
    "import ctypes, os, sys\n"
    "parent, how, user, group = map(int, sys.argv[1:5])\n"
    "libc = ctypes.CDLL(None)\n"
    "if user: os.setgroups([]), os.setgid(group), os.setuid(user)\n"
    "libc.prctl(1, how)\n"  # 1 is PR_SET_PDEATHSIG
    "if os.getppid() != parent: sys.exit(1)\n"
    "os.execv(sys.argv[5], sys.argv[5:])\n"
)


def ending_with_parent(
    command: Sequence[str],
    *,
    how: signal.Signals = signal.SIGTERM,
    account: tuple[int, int] = (0, 0),
) -> list[str]:
    """Return the command for a program, by its path, that gets a signal when this process ends.

    `account`: user and group of the program, or zeros for those of this process. On Linux the
    signal follows the starting thread, not the process: use a thread that lives long enough.
    """
    if sys.platform != "linux":
        return list(command)
    begin = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT]
    return [*begin, *map(str, (os.getpid(), int(how), *account)), *command]
