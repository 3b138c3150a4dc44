"""Reads for the recorders: an aggregate's events, and pages of the whole log."""

from collections.abc import Iterable, Sequence
from typing import Final

from eventsourcing.persistence import InternalError, Notification, StoredEvent
from nats.aio.client import Client

from infra.eventstore.heads import NOTHING, HeadCache
from infra.eventstore.layout import EventLayout
from infra.jetstream.reads import StoredMessage, last_for_subjects, read_subject

_MIN_PAGE: Final = 500  # with topics most of a page may be dropped: fewer round trips


def pick(
    events: Iterable[StoredEvent],
    *,
    gt: int | None,
    lte: int | None,
    desc: bool,
    limit: int | None,
) -> list[StoredEvent]:
    """Choose from one aggregate's events, by version."""
    chosen = [
        event
        for event in events
        if (gt is None or event.originator_version > gt)
        and (lte is None or event.originator_version <= lte)
    ]
    chosen.sort(key=lambda event: event.originator_version, reverse=desc)
    return chosen[:limit]


async def last_event(nc: Client, layout: EventLayout, sequence: str) -> StoredMessage | None:
    """Read the last message of one aggregate, or None."""
    found = await last_for_subjects(nc, layout.stream, [sequence])
    return max(found, key=lambda message: message.seq, default=None)


async def history(
    nc: Client, layout: EventLayout, heads: HeadCache, sequence: str, gt: int | None
) -> list[StoredEvent]:
    """Read one aggregate's events; those up to `gt` are left out where their place is known.

    Raises:
        InternalError: a version is missing where the layout allows no gap: the log lost an event.
    """
    after = NOTHING
    head = heads.get(sequence)
    if head and head.version is not None and gt is not None and gt >= head.version:
        after = head
    messages = await read_subject(nc, layout.stream, sequence, start_seq=after.seq + 1)
    events = [layout.decode(message) for message in messages]
    if layout.gapless:
        _check_no_hole(events, after.version or 0)
    return events


def _check_no_hole(events: Iterable[StoredEvent], last: int) -> None:
    for event in events:
        last += 1
        if event.originator_version != last:
            raise InternalError(
                f"the log has a hole: {event.originator_id} has version "
                f"{event.originator_version} where {last} belongs; restore it before going on"
            )


async def notifications(
    nc: Client,
    layout: EventLayout,
    *,
    start: int,
    limit: int,
    stop: int | None,
    topics: Sequence[str],
) -> list[Notification]:
    """Read a page of the log, from `start` to `stop`, both included."""
    found: list[Notification] = []
    page_size = max(limit, _MIN_PAGE) if topics else limit
    while len(found) < limit:
        page = await read_subject(
            nc, layout.stream, layout.events_filter, start_seq=start, limit=page_size
        )
        found += to_notifications(layout, page, stop=stop, topics=topics)
        if len(page) < page_size or (stop is not None and page[-1].seq >= stop):
            break
        start = page[-1].seq + 1
    return found[:limit]


def to_notifications(
    layout: EventLayout,
    messages: Iterable[StoredMessage],
    *,
    stop: int | None = None,
    topics: Sequence[str] = (),
) -> list[Notification]:
    """Read messages as notifications, those of the topics if any are given."""
    return [
        Notification(
            id=message.seq,
            originator_id=event.originator_id,
            originator_version=event.originator_version,
            topic=event.topic,
            state=event.state,
        )
        for message in messages
        if stop is None or message.seq <= stop
        for event in (layout.decode(message),)
        if not topics or event.topic in topics
    ]
