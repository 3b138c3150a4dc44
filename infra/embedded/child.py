"""Processes that end with the one that started them, even when that is killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

# Run before the program in the same process: asks the kernel to end it when its parent ends, even
# by SIGKILL, then becomes the program. `getppid` covers a parent that died in between. Another user
# is taken on before: the kernel forgets what it was asked when the user changes.
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

    `account`: user and group that it runs as; zeros are our own. On Linux it is the thread that
    counts: start it from one that lives as long as it is needed.
    """
    if sys.platform != "linux":
        return list(command)
    begin = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT]
    return [*begin, *map(str, (os.getpid(), int(how), *account)), *command]
