"""Listings, which return all pages of a scope or raise an exception."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from events.excerpt import list_first, quote
from events.external import ExternalObject
from events.provider_config import Scope
from reconciler.errors import NotDoneError, UnreadableObjectsError

_TURN_SECONDS: Final = 0.01
"""Length of one turn of the event loop. One object takes 0.1 ms if its kind has expressions, and up
to a second if they iterate over long lists."""

_SMALL_BYTES: Final = 16 * 1024
"""A smaller object is converted within one turn of the event loop."""

_MAX_REASON_CHARACTERS: Final = 500

MAX_TOKEN_CHARACTERS: Final = 8192
"""Maximum length of a page token, which the client sends back in a request line."""

LISTING_CHANGED: Final = (
    "the listing changed while its pages were read, so an object may be on none of them"
)

_Item = TypeVar("_Item")


class Unreadable:
    """The objects of one listing that cannot be shown, such as one with an impossible date.

    Any client of an API may create such an object. It must not hide the objects of others.
    """

    def __init__(self) -> None:
        self._reasons: dict[tuple[str | None, str | None], str] = {}
        self._groups: dict[str, tuple[Callable[[str], bool], str]] = {}

    def convert_or_record(
        self,
        convert: Callable[[], _Item],
        identify: Callable[[], tuple[str | None, str | None] | None],
    ) -> _Item | None:
        """Return a converted object. On any failure, record the object and return None.

        ``identify`` returns the name and uid, each None if unknown, or returns None for an object
        that does not belong to the listing. If ``identify`` raises, the name is unknown.
        """
        try:
            return convert()
        except Exception as error:  # noqa: BLE001 - one object must not hide the others
            identity: tuple[str | None, str | None] | None = None, None
            with suppress(Exception):
                identity = identify()
            if identity is not None:
                self.add(*identity, f"{type(error).__name__}: {error}")
            return None

    def add(self, name: str | None, uid: str | None, reason: str) -> None:
        """Record an object that cannot be shown. An unknown name or uid is None."""
        self._reasons[name, uid] = reason[:_MAX_REASON_CHARACTERS]

    def add_group(self, description: str, has: Callable[[str], bool], reason: str) -> None:
        """Record objects with unknown names, such as those in an unreadable part of the API.

        ``has``: returns whether an object with a name would be one of them.
        """
        self._groups[description] = has, reason[:_MAX_REASON_CHARACTERS]

    @property
    def names(self) -> list[str]:
        """The known names of the objects."""
        return [name for name, _ in self._reasons if name is not None]

    @property
    def has_unknown_names(self) -> bool:
        """Whether the name of an object is unknown, so that any object may be unreadable."""
        return any(name is None for name, _ in self._reasons)

    def may_have(self, name: str) -> bool:
        """Return whether one of the objects has, or may have, a name."""
        is_one = any(each in (None, name) for each, _ in self._reasons)
        return is_one or any(has(name) for has, _ in self._groups.values())

    def check(self) -> None:
        """Raise ``UnreadableObjectsError`` after the last page if any object was recorded."""
        if self._reasons or self._groups:
            descriptions = [
                *(f"{_describe(name)}: {reason}" for (name, _), reason in self._reasons.items()),
                *(f"{group}: {reason}" for group, (_, reason) in self._groups.items()),
            ]
            raise UnreadableObjectsError(
                f"cannot read {list_first(descriptions, '; ')}",
                self._reasons.keys(),
                [has for has, _ in self._groups.values()],
            )


def _describe(name: str | None) -> str:
    return "an object without a name" if name is None else quote(name)


@dataclass(frozen=True, slots=True)
class Page(Generic[_Item]):
    """One page and the token of the next page, which is None or empty on the last page."""

    objects: Sequence[_Item]
    next: str | None


async def all_pages(
    scope: Scope, fetch: Callable[[str], Awaitable[Page[ExternalObject]]]
) -> AsyncIterator[Sequence[ExternalObject]]:
    """Fetch all pages, and keep the objects that belong to the scope.

    They are filtered even if the API does so, because an API may ignore a filter. In an exclusive
    scope, Reconciler deletes listed objects that are not declared.
    """
    async for objects in follow_pages(fetch):
        yield [each for each in objects if scope.has(each.name, each.labels)]


async def follow_pages(
    fetch: Callable[[str], Awaitable[Page[_Item]]],
) -> AsyncIterator[Sequence[_Item]]:
    """Fetch page after page, the first with an empty token.

    Raises ``NotDoneError`` if the API returns the token of the same page again.
    """
    token = ""
    while True:
        page = await fetch(token)
        yield page.objects
        if not page.next:
            return
        if len(page.next) > MAX_TOKEN_CHARACTERS:
            raise NotDoneError(
                f"the token of the next page has {len(page.next)} characters, but at most "
                f"{MAX_TOKEN_CHARACTERS} are allowed",
                responded=True,
            )
        if page.next == token:
            raise NotDoneError(
                "the API returned the same page token twice, so the listing would never end",
                responded=True,
            )
        token = page.next


async def convert_by_size(function: Callable[[], _Item], size_bytes: int) -> _Item:
    """Convert an object. A large one is converted in a thread, because it would block the loop."""
    return await asyncio.to_thread(function) if size_bytes > _SMALL_BYTES else function()


class Turns:
    """Work in short turns of the event loop, because an API may return any number of objects.

    A single object can take much longer than a turn, if expressions examine it. A pause as long as
    that turn leaves half of the time for other work.
    """

    def __init__(self) -> None:
        self._turn_start = time.monotonic()

    async def pause(self) -> None:
        """Yield to the event loop if the current turn has lasted long enough."""
        elapsed = time.monotonic() - self._turn_start
        if elapsed >= _TURN_SECONDS:
            await asyncio.sleep(elapsed if elapsed >= 2 * _TURN_SECONDS else 0)
            self._turn_start = time.monotonic()


async def convert_in_turns(
    items: Sequence[_Item], convert: Callable[[_Item], ExternalObject | None]
) -> list[ExternalObject]:
    """Convert the items of a response in short turns."""
    objects: list[ExternalObject] = []
    turns = Turns()
    for item in items:
        result = convert(item)
        if result is not None:
            objects.append(result)
        await turns.pause()
    return objects
