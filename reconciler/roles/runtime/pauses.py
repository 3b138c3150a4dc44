"""Long work on the event loop, in slices: leases, requests and other APIs go on in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from itertools import islice
from typing import Final, TypeVar

SLICE: Final = 500  # some 10 ms of comparing, the dearest work there is for each

_T = TypeVar("_T")


async def with_pauses(items: Iterable[_T]) -> AsyncGenerator[list[_T]]:
    """Return a few hundred items at a time; what else waits runs before the next.

    ``items`` may change meanwhile only if it is a copy.
    """
    rest = iter(items)
    while some := list(islice(rest, SLICE)):
        yield some
        await asyncio.sleep(0)
