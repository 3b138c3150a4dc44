"""The inputs that differ between runs: clocks, jitter and random ids."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final

_utc_now: Final = partial(datetime.now, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The wall clock, a monotonic clock and CPU time (seconds), jitter in [0, 1), and new ids."""

    now: Callable[[], datetime] = _utc_now
    clock: Callable[[], float] = time.monotonic
    cpu_time: Callable[[], float] = time.thread_time
    jitter: Callable[[], float] = random.random
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex


REAL: Final = Runtime()
