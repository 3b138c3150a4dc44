"""A listing completes or raises, and contains only objects in the scope."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from events.external import ExternalObject
from events.provider_config import Scope
from reconciler.errors import NotDoneError, UnreadableObjectsError
from reconciler.provider.listing import Page, Turns, Unreadable, all_pages


def build_objects(*names: str) -> list[ExternalObject]:
    return [ExternalObject(name=name, fields={}, labels={"n": name}) for name in names]


async def test_pages_are_read_until_a_page_has_no_token() -> None:
    pages: dict[str, Page[ExternalObject]] = {
        "": Page(build_objects("a"), "t1"),
        "t1": Page([], "t2"),
        "t2": Page(build_objects("b"), ""),
    }

    async def fetch(token: str) -> Page[ExternalObject]:
        return pages[token]

    assert [page async for page in all_pages(Scope(), fetch)] == [
        build_objects("a"),
        [],
        build_objects("b"),
    ]


async def test_objects_outside_of_the_scope_are_left_out() -> None:
    async def fetch(_token: str) -> Page[ExternalObject]:
        return Page(build_objects("ours-1", "theirs", "ours-2"), None)

    scope = Scope(prefix="ours", labels={"n": "ours-2"})
    assert [page async for page in all_pages(scope, fetch)] == [build_objects("ours-2")]


async def test_a_listing_whose_token_repeats_fails() -> None:
    async def fetch(_token: str) -> Page[ExternalObject]:
        return Page(build_objects("a"), "again")

    with pytest.raises(NotDoneError):
        assert [page async for page in all_pages(Scope(), fetch)]


def test_an_object_that_cannot_be_converted_does_not_hide_others() -> None:
    unreadable = Unreadable()

    def convert_item(name: str, seconds: float) -> datetime | None:
        return unreadable.convert_or_record(
            lambda: datetime.fromtimestamp(seconds, UTC), lambda: (name, f"uid-{name}")
        )

    assert [
        convert_item("a", 1) is None,
        convert_item("b", 1e300) is None,
        convert_item("c", 2) is None,
    ] == [
        False,
        True,
        False,
    ]
    with pytest.raises(UnreadableObjectsError, match="'b': OverflowError") as raised:
        unreadable.check()
    assert list(raised.value.objects) == [("b", "uid-b")]
    Unreadable().check()


async def test_a_long_turn_is_followed_by_a_pause_of_the_same_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    times = iter((0.0, 0.005, 0.011, 0.011, 0.013, 0.311, 0.611))

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("reconciler.provider.listing.time.monotonic", lambda: next(times))
    monkeypatch.setattr("reconciler.provider.listing.asyncio.sleep", sleep)
    turns = Turns()
    for _ in range(4):
        await turns.pause()
    assert pauses == [0, pytest.approx(0.3)]
