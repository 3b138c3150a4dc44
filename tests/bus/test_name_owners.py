"""Workers ask observers on the real bus which resource owns an external name."""

from __future__ import annotations

import asyncio

import pytest
from nats.aio.client import Client

from events.subjects import NAME_OWNERS
from infra.bus.name_owners import BusNameOwners
from infra.jetstream.connection import connect
from infra.jetstream.errors import BusError
from infra.jetstream.wire import send
from reconciler.ports import ExternalName, NameSearch

FOO = ExternalName("default", "Shape", "foo", "team/Shape/foo")
BAR = ExternalName("default", "Shape", "bar", "team/Shape/bar")


def search(name: ExternalName) -> str:
    return "other/Shape/foo" if name == FOO else ""


async def start(bus: Client, search: NameSearch) -> asyncio.Task[None]:
    answering = asyncio.create_task(BusNameOwners(bus).answer(search))
    await asyncio.sleep(0)
    await bus.flush()
    return answering


async def test_any_observer_answers_in_the_order_of_the_questions(
    bus: Client, module_bus_url: str
) -> None:
    another = await connect(module_bus_url, name="another")
    running = [await start(each, search) for each in (bus, another)]
    assert await BusNameOwners(bus).find_owners([BAR, FOO]) == ["", "other/Shape/foo"]
    running[0].cancel()
    await asyncio.wait(running[:1])
    assert await BusNameOwners(bus).find_owners([FOO]) == ["other/Shape/foo"]
    running[1].cancel()
    await asyncio.wait(running)
    await another.close()


async def test_without_an_observer_no_name_has_a_known_owner(bus: Client) -> None:
    assert await BusNameOwners(bus).find_owners([FOO, BAR]) == ["", ""]


async def test_an_observer_that_does_not_answer_is_an_error(
    bus: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.bus.name_owners._SECONDS", 0.05)
    await bus.subscribe(NAME_OWNERS)  # pyright: ignore[reportUnknownMemberType]
    with pytest.raises(BusError, match="name-owners"):
        await BusNameOwners(bus).find_owners([FOO])


async def test_an_invalid_request_does_not_end_the_answers(bus: Client) -> None:
    answering = await start(bus, search)
    await send(bus, NAME_OWNERS, b"{", reply="_INBOX.nobody")
    assert await BusNameOwners(bus).find_owners([FOO]) == ["other/Shape/foo"]
    answering.cancel()
    await asyncio.wait([answering])
