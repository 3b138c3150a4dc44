"""The secrets of this process, which its logs, errors and observations must not contain."""

from __future__ import annotations

import time
from typing import Final

from reconciler.secrecy import Secrecy

PROCESS_SECRETS: Final = Secrecy(clock=time.monotonic)
"""Every secret that this process has read from a store, and every credential of an API."""
