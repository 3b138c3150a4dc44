"""Processes that end with the one that started them, even when that is killed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

# Run before the program in the same process: asks the kernel to end it when its parent ends, even
# by SIGKILL, then becomes the program. `getppid` covers a parent that died in between.
_DIE_WITH_PARENT: Final = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGTERM)\n"  # 1 is PR_SET_PDEATHSIG
    "if os.getppid() != int(sys.argv[1]): sys.exit(1)\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)


def ending_with_parent(command: Sequence[str]) -> list[str]:
    """Return the command for a program, by its path, that gets SIGTERM when this process ends.

    On Linux it is the thread that counts: start it from one that lives as long as it is needed.
    """
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]
