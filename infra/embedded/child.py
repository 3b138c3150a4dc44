"""Child processes that exit with their parent, even if it is killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

# Runs before the program in the same process: asks the kernel to end the process when its parent
# ends, even if by SIGKILL, then executes the program. The `getppid` check covers a parent that died
# before that. The user is changed first, because changing it resets this setting.
_BIND_TO_PARENT: Final = (
    "import ctypes, os, sys\n"
    "parent, death_signal, user, group = map(int, sys.argv[1:5])\n"
    "libc = ctypes.CDLL(None)\n"
    "if user: os.setgroups([]), os.setgid(group), os.setuid(user)\n"
    "libc.prctl(1, death_signal)\n"  # 1 is PR_SET_PDEATHSIG
    "if os.getppid() != parent: sys.exit(1)\n"
    "os.execv(sys.argv[5], sys.argv[5:])\n"
)


def bind_to_parent(
    command: Sequence[str],
    *,
    death_signal: signal.Signals = signal.SIGTERM,
    account: tuple[int, int] = (0, 0),
) -> list[str]:
    """Return a command that runs a program, given by path, and signals it when this process ends.

    `account`: user and group ids for the program; zeros keep those of this process. On Linux, the
    signal is sent when the thread that started the program ends, not the process, so use a thread
    that lives long enough.
    """
    if sys.platform != "linux":
        return list(command)
    prefix = [sys.executable, "-I", "-S", "-c", _BIND_TO_PARENT]
    return [*prefix, *map(str, (os.getpid(), int(death_signal), *account)), *command]
