"""Pages of a listing, by one of four styles; a listing that moves under us is none.

Where pages are counted, what is deleted meanwhile moves all that comes behind it, and an object may
be on no page. So each page is bound to the one before it: an offset begins one item earlier, and a
numbered page is read once more after the next. Absence is proved by a listing that stood still.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol as Interface
from urllib.parse import urljoin, urlsplit

from events.external import ExternalObject
from events.rest_definition import Paging
from infra.providers.answers import Answer, unusable
from infra.providers.listing import Page
from infra.providers.rest.expressions import ExpressionError
from infra.providers.rest.places import MISSING, Finder
from infra.providers.rest.protocol import Protocol
from reconciler.errors import TransientError

_LINK = re.compile(r"<([^>]*)>\s*((?:;\s*[^;,\"]+(?:=\"[^\"]*\")?)*)")
_NEXT = re.compile(r";\s*rel\s*=\s*\"?[^\"]*\bnext\b", re.IGNORECASE)

_Query = list[tuple[str, str]]
_Listed = tuple[Answer, Any, list[Any], list[ExternalObject]]


class Fetch(Interface):
    """Fetches one page: at a path of its own, or with more parameters."""

    def __call__(self, path: str | None, query: Sequence[tuple[str, str]]) -> Awaitable[_Listed]:
        """Return the answer, its content, its items, and those of them of the kind."""
        ...


class Pages:
    """One listing, page by page."""

    def __init__(self, protocol: Protocol, fetch: Fetch, page_size: int) -> None:
        assert protocol.rest.list is not None
        assert protocol.list is not None
        self._path = protocol.list.path({})
        self._paging = protocol.rest.list.paging
        self._fetch = fetch
        self._token_at: Finder | None = None
        self._size: _Query = []
        self._last: list[Any] = []
        if self._paging is not None:
            if self._paging.by == "Token":
                self._token_at = Finder(self._paging.at, "", "answer")
            if self._paging.size is not None:
                size = max(2, min(page_size, self._paging.max_size))  # an overlap is one of them
                self._size = [(self._paging.size, str(size))]

    async def fetch(self, token: str) -> Page:
        """Fetch the page of a token, the first with an empty one."""
        paging = self._paging
        if paging is None:
            return Page((await self._fetch(None, ()))[3], None)
        match paging.by:
            case "Token":
                return await self._by_token(paging, token)
            case "Link":
                return await self._by_link(token)
            case "Offset":
                return await self._by_offset(paging, token)
            case "Page":
                return await self._by_number(paging, token)

    async def _by_token(self, paging: Paging, token: str) -> Page:
        assert paging.parameter is not None
        assert self._token_at is not None
        more = [(paging.parameter, token)] if token else []
        answer, content, _, objects = await self._fetch(None, [*self._size, *more])
        try:
            following = self._token_at.find(content)
        except ExpressionError as error:
            raise unusable(answer, str(error)) from None
        if following is MISSING or following is None:
            return Page(objects, None)
        if not isinstance(following, str | int) or isinstance(following, bool):
            raise unusable(answer, f"at {paging.at} is no token")
        return Page(objects, str(following))

    async def _by_link(self, token: str) -> Page:
        path = f"{self._path}?{token}" if token else None
        answer, _, _, objects = await self._fetch(path, self._size)
        return Page(objects, _next_query(answer))

    async def _by_offset(self, paging: Paging, token: str) -> Page:
        assert paging.parameter is not None
        begin = int(token or 0)
        at = begin - bool(self._last)
        _, _, items, objects = await self._fetch(None, [*self._size, (paging.parameter, str(at))])
        if self._last:
            if items[:1] != self._last:
                raise _moved()
            if len(items) == 1:  # the end, or an API that shows one at a time
                behind = (*self._size, (paging.parameter, str(begin)))
                answer, _, items, _ = await self._fetch(None, behind)
                if items:
                    raise unusable(answer, "a page has one object: the API must show two or more")
                return Page([], None)
            self._last = items[-1:]
            return Page(objects, str(at + len(items)))
        self._last = items[-1:]
        return Page(objects, str(len(items)) if items else None)

    async def _by_number(self, paging: Paging, token: str) -> Page:
        number = int(token or paging.first)
        _, _, items, objects = await self._numbered(paging, number)
        if self._last:
            _, _, before, _ = await self._numbered(paging, number - 1)
            if before != self._last:
                raise _moved()
        self._last = items
        return Page(objects, str(number + 1) if items else None)

    async def _numbered(self, paging: Paging, number: int) -> _Listed:
        assert paging.parameter is not None
        return await self._fetch(None, [*self._size, (paging.parameter, str(number))])


def _moved() -> TransientError:
    return TransientError("the listing changed while it was read page by page: it proves nothing")


def _next_query(answer: Answer) -> str | None:
    """Return the query of the next page; whatever host the link names, only ours is asked."""
    for link, parameters in _LINK.findall(answer.headers.get("Link", "")):
        if _NEXT.search(parameters):
            own, there = urlsplit(answer.url), urlsplit(urljoin(answer.url, link))
            if there.path != own.path or not there.query:
                raise unusable(answer, f"the next page is at another path, {there.path!r}")
            return there.query
    return None
