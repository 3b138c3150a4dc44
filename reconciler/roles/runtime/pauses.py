"""Run long loops in slices, so that leases, requests and other APIs are not delayed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from itertools import islice
from typing import Final, TypeVar

SLICE_SIZE: Final = 500  # about 10 ms of comparisons, the most expensive work per item

_T = TypeVar("_T")


async def in_slices(items: Iterable[_T]) -> AsyncGenerator[list[_T]]:
    """Yield the items in slices, and let other tasks run after each one.

    ``items`` must not change during the iteration, so pass a copy.
    """
    iterator = iter(items)
    while chunk := list(islice(iterator, SLICE_SIZE)):
        yield chunk
        await asyncio.sleep(0)
