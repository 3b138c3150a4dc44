"""Pages of a listing, by one of four styles; raises if the collection moves during the listing.

In styles that count items, a deletion moves all later items forward, and an object may be on no
page. So consecutive pages are compared: an offset begins one item earlier, and a numbered page is
read again after the next one. Only a listing that did not move proves absence.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple
from typing import Protocol as Interface
from urllib.parse import urljoin, urlsplit

from events.external import ExternalObject
from events.rest_definition import Paging
from infra.providers.answers import Answer, unusable
from infra.providers.rest.expressions import ExpressionError
from infra.providers.rest.places import MISSING, Finder
from infra.providers.rest.protocol import Protocol
from reconciler.errors import NotDoneError
from reconciler.provider.listing import Page

_LINK = re.compile(r"<([^<>]*)>((?:[^,\"]|\"[^\"]*\")*)")
_NEXT = re.compile(r";\s*rel\s*=\s*(?:next\b|\"(?:[^\"]*\s)?next[\s\"])", re.IGNORECASE)

_Query = list[tuple[str, str]]
ObjectsOf = Callable[[Sequence[Any]], Awaitable[Sequence[ExternalObject]]]
"""Returns the objects of the kind among the items of a page."""


class Listed(NamedTuple):
    """One page: the response, its JSON, and its raw items."""

    answer: Answer
    content: Any
    items: list[Any]


class Fetch(Interface):
    """Fetches one page, from another path or with additional parameters."""

    def __call__(self, path: str | None, query: Sequence[tuple[str, str]]) -> Awaitable[Listed]:
        """Return the page; raises ``ProviderError``."""
        ...


class Pages:
    """Fetches one listing page by page."""

    def __init__(
        self, protocol: Protocol, fetch: Fetch, objects_of: ObjectsOf, page_size: int
    ) -> None:
        assert protocol.rest.list is not None
        assert protocol.list is not None
        self._path = protocol.list.path({})
        self._paging = protocol.rest.list.paging
        self._fetch = fetch
        self._objects_of = objects_of
        self._token_at: Finder | None = None
        self._size: _Query = []
        self._last: list[Any] = []
        if self._paging is not None:
            if self._paging.by == "Token":
                self._token_at = Finder(self._paging.at, "", "answer")
            if self._paging.size is not None:
                # at least two, because consecutive pages overlap by one
                size = max(2, min(page_size, self._paging.max_size))
                self._size = [(self._paging.size, str(size))]

    async def fetch(self, token: str) -> Page[ExternalObject]:
        """Return the page of a token; the empty token is the first page."""
        paging = self._paging
        if paging is None:
            return await self._page(await self._fetch(None, ()), None)
        match paging.by:
            case "Token":
                return await self._by_token(paging, token)
            case "Link":
                return await self._by_link(token)
            case "Offset":
                return await self._by_offset(paging, token)
            case "Page":
                return await self._by_number(paging, token)

    async def _page(self, listed: Listed, following: str | None) -> Page[ExternalObject]:
        return Page(await self._objects_of(listed.items), following)

    async def _by_token(self, paging: Paging, token: str) -> Page[ExternalObject]:
        assert self._token_at is not None
        listed = await self._more(paging, token or None)
        try:
            following = self._token_at.find(listed.content)
        except ExpressionError as error:
            raise unusable(listed.answer, str(error)) from None
        if following is MISSING or following is None:
            return await self._page(listed, None)
        if not isinstance(following, str | int) or isinstance(following, bool):
            raise unusable(listed.answer, f"the value at {paging.at} is not a token")
        return await self._page(listed, str(following))

    async def _by_link(self, token: str) -> Page[ExternalObject]:
        path = f"{self._path}?{token}" if token else None
        listed = await self._fetch(path, self._size)
        return await self._page(listed, _next_query(listed.answer))

    async def _by_offset(self, paging: Paging, token: str) -> Page[ExternalObject]:
        begin = int(token or 0)
        before = self._last
        listed = await self._more(paging, str(begin - len(before)))
        if listed.items[: len(before)] != before:
            raise _moved()
        behind = listed.items[len(before) :]
        if before and not behind:  # the end, or an API that returns one item per page
            listed = await self._more(paging, str(begin))
            if listed.items:
                what = "a page has one object, but paging by offset requires pages of two or more"
                raise unusable(listed.answer, what)
        self._last = behind[-1:]
        page = Listed(listed.answer, listed.content, behind)
        return await self._page(page, str(begin + len(behind)) if behind else None)

    async def _by_number(self, paging: Paging, token: str) -> Page[ExternalObject]:
        number = int(token or paging.first)
        listed = await self._more(paging, str(number))
        if self._last and (await self._more(paging, str(number - 1))).items != self._last:
            raise _moved()
        self._last = listed.items
        return await self._page(listed, str(number + 1) if listed.items else None)

    async def _more(self, paging: Paging, value: str | None) -> Listed:
        assert paging.parameter is not None
        more = [] if value is None else [(paging.parameter, value)]
        return await self._fetch(None, [*self._size, *more])


def _moved() -> NotDoneError:
    return NotDoneError("the listing changed while its pages were read, so it is ignored")


def _next_query(answer: Answer) -> str | None:
    """Return the query of the ``next`` link; its host is ignored, so no other host is called."""
    header = answer.headers.get("Link", "")
    for link, parameters in _LINK.findall(header):
        if _NEXT.search(parameters):
            try:
                own, there = urlsplit(answer.url), urlsplit(urljoin(answer.url, link))
            except ValueError as error:
                raise unusable(answer, f"its header Link is invalid: {error}") from None
            if there.path != own.path or not there.query:
                raise unusable(answer, f"the next page is at another path, {there.path[:200]!r}")
            return there.query
    # otherwise the listing would end early and count as complete
    if re.search(r"\bnext\b", _LINK.sub("", header)):
        raise unusable(answer, f"its header Link is invalid: {header[:200]!r}")
    return None
