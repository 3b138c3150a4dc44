"""Read the pages of a listing, in one of four styles. A listing that changes is incomplete.

With offsets or page numbers, a deletion between two pages shifts all later objects, so one of them
may be on neither page. To detect this, an offset begins one item earlier, and a numbered page is
read again after the next one. Only a listing that did not shift proves absence.

A page that does not match is read again, because a shift may be reversed. A few such reads are
allowed. After that, the listing continues and proves only that the listed objects exist. Searching
the pages for the last object would not be enough: an update may move an object to an earlier page.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple
from typing import Protocol as Interface
from urllib.parse import urljoin, urlsplit

from events.external import ExternalObject
from events.rest_definition import Paging
from infra.providers.responses import Response, build_unusable_error
from infra.providers.rest.expressions import ExpressionError
from infra.providers.rest.json_paths import MISSING, Finder
from infra.providers.rest.protocol import Protocol
from reconciler.provider.listing import Page

_LINK = re.compile(r"<([^<>]*)>((?:[^,\"]|\"[^\"]*\")*)")
_NEXT = re.compile(r";\s*rel\s*=\s*(?:next\b|\"(?:[^\"]*\s)?next[\s\"])", re.IGNORECASE)

MAX_REPEATED_READS = 10
"""Number of pages that one listing reads again because they do not match the previous one."""

_Query = list[tuple[str, str]]
ConvertItems = Callable[[Sequence[Any]], Awaitable[Sequence[ExternalObject]]]
"""Converts the items of a page to objects, and omits other kinds."""


class PageContent(NamedTuple):
    """A page: the response, its JSON, and its items unchanged."""

    response: Response
    content: Any
    items: list[Any]


class Fetch(Interface):
    """Fetches a page, at a given path or with additional query parameters."""

    def __call__(
        self, path: str | None, query: Sequence[tuple[str, str]]
    ) -> Awaitable[PageContent]:
        """Fetch the page. Raises ``ProviderError``."""
        ...


class Pages:
    """Reads a listing page by page. It calls ``report_change`` if the listing proves no absence."""

    def __init__(
        self,
        protocol: Protocol,
        fetch: Fetch,
        convert_items: ConvertItems,
        page_size: int,
        report_change: Callable[[], None],
    ) -> None:
        assert protocol.rest.list is not None
        assert protocol.list is not None
        self._path = protocol.list.path({})
        self._paging = protocol.rest.list.paging
        self._fetch = fetch
        self._convert_items = convert_items
        self._token_at: Finder | None = None
        self._size: _Query = []
        self._report_change = report_change
        self._repeated_reads = 0
        self._has_changed = False
        self._last_items: list[Any] = []
        if self._paging is not None:
            if self._paging.by == "Token":
                self._token_at = Finder(self._paging.at, "", "answer")
            if self._paging.size is not None:
                size = max(2, min(page_size, self._paging.max_size))  # includes the overlap
                self._size = [(self._paging.size, str(size))]

    async def fetch(self, token: str) -> Page[ExternalObject]:
        """Fetch the page for a token; an empty token means the first page."""
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

    async def _page(self, content: PageContent, next_token: str | None) -> Page[ExternalObject]:
        return Page(await self._convert_items(content.items), next_token)

    async def _by_token(self, paging: Paging, token: str) -> Page[ExternalObject]:
        assert self._token_at is not None
        content = await self._fetch_with_parameter(paging, token or None)
        try:
            next_token = self._token_at.find(content.content)
        except ExpressionError as error:
            raise build_unusable_error(content.response, str(error)) from None
        if next_token is MISSING or next_token is None:
            return await self._page(content, None)
        if not isinstance(next_token, str | int) or isinstance(next_token, bool):
            raise build_unusable_error(content.response, f"the value at {paging.at} is not a token")
        return await self._page(content, str(next_token))

    async def _by_link(self, token: str) -> Page[ExternalObject]:
        path = f"{self._path}?{token}" if token else None
        content = await self._fetch(path, self._size)
        return await self._page(content, _next_query(content.response))

    async def _by_offset(
        self, paging: Paging, token: str, *, is_repeated: bool = False
    ) -> Page[ExternalObject]:
        offset = int(token or 0)
        previous = self._last_items
        content = await self._fetch_with_parameter(paging, str(offset - len(previous)))
        while content.items[: len(previous)] != previous:
            if not self._may_read_again():
                offset, previous = offset - len(previous), []
                break
            content = await self._fetch_with_parameter(paging, str(offset - len(previous)))
        new_items = content.items[len(previous) :]
        # This is the end, or an API with one item per page. A changed listing needs no proof.
        if previous and not new_items and not self._has_changed:
            content = await self._fetch_with_parameter(paging, str(offset))
            if content.items and not is_repeated:  # an object may have been added in the meantime
                return await self._by_offset(paging, token, is_repeated=True)
            if content.items:
                message = (
                    "a page has one object, but paging by offset requires pages of two or more"
                )
                raise build_unusable_error(content.response, message)
        self._last_items = new_items[-1:]
        page = PageContent(content.response, content.content, new_items)
        next_offset = str(offset + len(new_items))
        has_next = bool(new_items) and next_offset != token  # the same if one object is left
        return await self._page(page, next_offset if has_next else None)

    async def _by_number(self, paging: Paging, token: str) -> Page[ExternalObject]:
        number = int(token or paging.first)
        content = await self._fetch_with_parameter(paging, str(number))
        while not await self._is_confirmed(paging, number):
            # The page is valid only between two equal reads of the previous one, because a shift
            # may be reversed.
            while self._may_read_again() and not await self._is_confirmed(paging, number):
                pass
            content = await self._fetch_with_parameter(paging, str(number))
        self._last_items = content.items
        return await self._page(content, str(number + 1) if content.items else None)

    async def _is_confirmed(self, paging: Paging, number: int) -> bool:
        """Return whether the page before a numbered one is the same as before, or need not be."""
        if self._has_changed or not self._last_items:
            return True
        previous = await self._fetch_with_parameter(paging, str(number - 1))
        return previous.items == self._last_items

    def _may_read_again(self) -> bool:
        """Return whether to read a changed page again. If not, report the change once."""
        if self._has_changed:
            return False
        self._repeated_reads += 1
        if self._repeated_reads > MAX_REPEATED_READS:
            self._has_changed = True
            self._report_change()
        return not self._has_changed

    async def _fetch_with_parameter(self, paging: Paging, value: str | None) -> PageContent:
        assert paging.parameter is not None
        parameters = [] if value is None else [(paging.parameter, value)]
        return await self._fetch(None, [*self._size, *parameters])


def _next_query(response: Response) -> str | None:
    """Return the query of the next page. The link's host is ignored in favor of the endpoint's."""
    header = response.headers.get("Link", "")
    for link, parameters in _LINK.findall(header):
        if _NEXT.search(parameters):
            try:
                current, target = urlsplit(response.url), urlsplit(urljoin(response.url, link))
            except ValueError as error:
                raise build_unusable_error(
                    response, f"its Link header is invalid: {error}"
                ) from None
            if target.path != current.path or not target.query:
                raise build_unusable_error(
                    response, f"the next page is at a different path, {target.path[:200]!r}"
                )
            return target.query
    # otherwise the listing would end early but seem complete
    if re.search(r"\bnext\b", _LINK.sub("", header)):
        raise build_unusable_error(response, f"its Link header is invalid: {header[:200]!r}")
    return None
