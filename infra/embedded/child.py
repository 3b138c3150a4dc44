"""Child processes that end with their parent, even if it is killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

# Runs before the program in the same process: asks the kernel to end the process when its parent
# ends, even by SIGKILL, then executes the program. The `getppid` check covers a parent that died
# before that. The user is changed first, because changing it resets this setting.
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
    """Return a command that runs a program, given by path, and signals it when this process ends.

    `account`: user and group ids for the program; zeros keep those of this process. On Linux, the
    signal is sent when the thread that started the program ends, not the process, so use a thread
    that lives long enough.
    """
    if sys.platform != "linux":
        return list(command)
    begin = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT]
    return [*begin, *map(str, (os.getpid(), int(how), *account)), *command]
