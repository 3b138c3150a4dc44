"""Listings of streams, and of a stream's consumers, page by page.

If a page is so large that the response exceeds the limit, its names are read first, and then each
object separately, so that large objects do not hide others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from infra.providers.jetstream.api import JetStreamApi, ListingTooLargeError
from reconciler.errors import NotDoneError
from reconciler.provider.listing import LISTING_CHANGED, Unreadable

MAX_CONCURRENT_READS: Final = 8
"""Number of objects to read at a time. Each can be 1 MiB."""


class _NamedObject(Protocol):
    @property
    def native_name(self) -> str: ...


_N = TypeVar("_N", bound=_NamedObject)


class _Objects(msgspec.Struct, Generic[_N], frozen=True):
    """A page of STREAM.LIST or CONSUMER.LIST."""

    total: int
    streams: list[_N] | None = None
    consumers: list[_N] | None = None
    missing: list[str] | None = None
    offline: dict[str, str] | None = None


class _Names(msgspec.Struct, frozen=True):
    """A page of STREAM.NAMES or CONSUMER.NAMES."""

    total: int
    streams: list[str] | None = None
    consumers: list[str] | None = None


class _Page(NamedTuple, Generic[_N]):
    total: int
    names: Sequence[str]
    objects: Sequence[_N]


async def list_details(
    api: JetStreamApi,
    kind: Literal["STREAM", "CONSUMER"],
    object_type: type[_N],
    unreadable: Unreadable,
    *,
    stream: str = "",
    to_name: Callable[[str], str | None] = str,
) -> AsyncIterator[list[_N]]:
    """List all streams, or the consumers of ``stream``; nothing if it does not exist.

    Adds unreadable objects to ``unreadable``, if ``to_name`` returns an external name for them.
    Pages overlap by one object: a deletion between two pages moves later objects forward, so one of
    them may be on neither page. The listing then proves only that the listed objects exist.
    """
    last, offset, listed = "", 0, set[str]()
    while True:
        try:
            page = await _objects(api, kind, object_type, stream, offset)
        except ListingTooLargeError:
            page = await _objects_by_name(
                api, kind, object_type, stream, offset, unreadable=unreadable, to_name=to_name
            )
        if page is None:
            return
        if not _overlaps(page.names, last):
            unreadable.add(None, None, LISTING_CHANGED)
        yield [each for each in page.objects if each.native_name not in listed]
        listed.update(page.names)
        offset += len(page.names)
        if offset >= page.total or not page.names:
            return
        last, offset = page.names[-1], offset - 1


async def _objects(
    api: JetStreamApi, kind: str, object_type: type[_N], stream: str, offset: int
) -> _Page[_N] | None:
    page = await api.query(
        _request_subject(kind, "LIST", stream), _Objects[object_type], {"offset": offset}
    )
    if page is None and stream:
        return None  # the stream was deleted with its consumers
    if page is None or page.missing or page.offline:
        description = f"consumers of {stream}" if stream else "streams"
        raise NotDoneError(
            f"the listing of {description} is incomplete, because some have no leader",
            responded=True,
        )
    objects = page.streams or page.consumers or []
    return _Page(page.total, [each.native_name for each in objects], objects)


async def _objects_by_name(
    api: JetStreamApi,
    kind: str,
    object_type: type[_N],
    stream: str,
    offset: int,
    *,
    unreadable: Unreadable,
    to_name: Callable[[str], str | None],
) -> _Page[_N] | None:
    page = await api.query(_request_subject(kind, "NAMES", stream), _Names, {"offset": offset})
    if page is None:
        return None
    names, slots = page.streams or page.consumers or [], asyncio.Semaphore(MAX_CONCURRENT_READS)

    async def read(name: str) -> _N | None:
        async with slots:
            try:
                return await api.query(_request_subject(kind, "INFO", stream, name), object_type)
            except ListingTooLargeError as error:
                if (external_name := to_name(name)) is not None:
                    unreadable.add(external_name, None, error.message)
                return None

    replies = await asyncio.gather(*map(read, names))
    return _Page(page.total, names, [each for each in replies if each is not None])


async def consumer_names(api: JetStreamApi, stream: str) -> list[str]:
    """Return the names of a stream's consumers."""
    all_names: list[str] = []
    while True:
        offset = max(0, len(all_names) - 1)
        page = await api.query(f"CONSUMER.NAMES.{stream}", _Names, {"offset": offset})
        if page is None:
            return []
        names = page.consumers or []
        if not _overlaps(names, all_names[-1] if all_names else ""):
            raise NotDoneError(LISTING_CHANGED, responded=True)
        all_names += names[1:] if all_names else names
        if len(all_names) >= page.total or not names:
            return all_names


def _overlaps(names: Sequence[str], last: str) -> bool:
    return not last or names[:1] == [last]


def _request_subject(*tokens: str) -> str:
    return ".".join(each for each in tokens if each)
