"""Listings: all pages of a scope, or an exception."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from events.external import ExternalObject
from events.provider_config import Scope
from reconciler.errors import NotDoneError

_TURN_SECONDS: Final = 0.01
"""Of one turn of the event loop. One object takes 0.1 ms if its kind has expressions, and up to a
second if these loop over long lists."""

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Page:
    """One page, and the API's token of the next one; None or empty after the last."""

    objects: Sequence[ExternalObject]
    next: str | None


async def all_pages(
    scope: Scope, fetch: Callable[[str], Awaitable[Page]]
) -> AsyncIterator[Sequence[ExternalObject]]:
    """Fetch page after page, the first with an empty token, and keep what belongs to the scope.

    Objects are checked even where the API filters by itself: in an exclusive scope what is listed
    and not declared is deleted, so a filter that an API ignores must not reach that far.
    """
    token = ""
    while True:
        page = await fetch(token)
        yield [thing for thing in page.objects if scope.has(thing.name, thing.labels)]
        if not page.next:
            return
        if page.next == token:
            raise NotDoneError(
                "the API returned the same page token twice, so the listing would never end"
            )
        token = page.next


async def in_turns(
    items: Sequence[_Item], converted: Callable[[_Item], ExternalObject | None]
) -> list[ExternalObject]:
    """Convert the items of a response in short turns: an API may send any number."""
    objects: list[ExternalObject] = []
    until = time.monotonic() + _TURN_SECONDS
    for each in items:
        found = converted(each)
        if found is not None:
            objects.append(found)
        if time.monotonic() >= until:
            await asyncio.sleep(0)
            until = time.monotonic() + _TURN_SECONDS
    return objects
