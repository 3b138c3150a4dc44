"""The contract of a change feed, for each kind that declares ``watch``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from events.provider_config import Limits, ProviderConfigSpec
from reconciler.errors import NotDoneError, ProviderError, ThrottledError
from reconciler.provider import Provider, WatchingProvider
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.contract import action
from reconciler.provider.http_faults import Fault, Proxy, build_response
from reconciler.provider.secrets import Secrets
from tests.providers.cases import CASES, Case
from tests.providers.connect import Connect, action_on

WATCHING = [case for case in CASES if case.kind.watches]
TIMEOUT_SECONDS = 30.0

watching = pytest.mark.parametrize(
    "case", WATCHING, ids=[case.kind.name for case in WATCHING], scope="session", indirect=True
)


def feed_of(provider: Provider) -> WatchingProvider:
    assert isinstance(provider, WatchingProvider)
    return provider


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not condition():  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.01)


def test_a_kind_declares_what_its_provider_can_do(case: Case, provider: Provider) -> None:
    assert isinstance(provider, WatchingProvider) == case.kind.watches


@watching
async def test_every_kind_of_change_returns_a_new_mark(
    case: Case, provider: Provider, name: str
) -> None:
    feed = feed_of(provider)
    marks = [await feed.changes(None)]

    created_object = (await provider.create(action("Create", name, case.fields))).object
    marks.append(await feed.changes(marks[-1]))
    changed = (await provider.update(action_on("Update", created_object, case.other_fields))).object
    marks.append(await feed.changes(marks[-1]))
    await provider.delete(action_on("Delete", changed, case.other_fields))
    marks.append(await feed.changes(marks[-1]))

    assert len(set(marks)) == 4


@watching
async def test_a_waiting_call_returns_when_the_change_happens(
    case: Case, proxy: Proxy, provider: Provider, connect: Connect, name: str
) -> None:
    """The API would hold the call for longer than this test waits."""
    endpoint = proxy.url + case.endpoint_path
    feed = feed_of(connect(case.kind, endpoint, timeout_seconds=4 * TIMEOUT_SECONDS))
    mark = await feed.changes(None)
    pending_call = asyncio.create_task(feed.changes(mark))
    await until(lambda: len(proxy.requests) == 2)

    await provider.create(action("Create", name, case.fields))

    assert await asyncio.wait_for(pending_call, TIMEOUT_SECONDS / 2) != mark


@watching
async def test_without_a_change_the_same_mark_is_returned_before_the_timeout(
    case: Case, api_url: str, connect: Connect
) -> None:
    feed = feed_of(connect(case.kind, f"{api_url}{case.endpoint_path}-still", timeout_seconds=4))
    mark = await feed.changes(None)
    started_at = asyncio.get_running_loop().time()

    assert await feed.changes(mark) == mark

    assert asyncio.get_running_loop().time() - started_at > 0.5, (
        "it returned immediately: a hot loop"
    )


@watching
async def test_a_feed_does_not_take_a_connection_from_other_calls(
    case: Case, proxy: Proxy, name: str
) -> None:
    config = ProviderConfigSpec(
        case.kind.provider,
        proxy.url + case.endpoint_path,
        limits=Limits(concurrency=1, request_timeout_seconds=TIMEOUT_SECONDS),
    )
    assert case.kind.connect is not None
    provider = case.kind.connect(config, Secrets(), CallPermit())
    proxy.plan.append(Fault.HOLD_REPLY)
    pending_call = asyncio.create_task(feed_of(provider).changes(None))
    await until(lambda: not proxy.plan)  # the proxy holds the feed's request
    async with asyncio.timeout(TIMEOUT_SECONDS / 2):
        assert await provider.read(name) is None
    assert not pending_call.done()

    await provider.close()

    with pytest.raises(ProviderError):  # closing the provider also ends the feed
        await asyncio.wait_for(pending_call, TIMEOUT_SECONDS / 2)


@watching
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (build_response(429, Retry_After="7"), ThrottledError),
        (build_response(503), NotDoneError),
        (build_response(404), NotDoneError),
        (build_response(200, '{"newest": 1}'), NotDoneError),
        (build_response(200, "no JSON"), NotDoneError),
        (Fault.LOSE_REPLY, NotDoneError),
        (Fault.CUT_REPLY, NotDoneError),
        (Fault.HOLD_REPLY, NotDoneError),
    ],
    ids=str,
)
async def test_a_failing_feed_raises_the_error_and_is_called_once(
    case: Case, proxy: Proxy, connect: Connect, fault: Fault | bytes, error: type[ProviderError]
) -> None:
    feed = feed_of(connect(case.kind, proxy.url + case.endpoint_path, timeout_seconds=2))
    proxy.plan.append(fault)

    with pytest.raises(error) as raised:
        await feed.changes(None)

    assert raised.value.retry_after_seconds == (7 if error is ThrottledError else None)
    assert len(proxy.requests) == 1


def test_the_suite_has_a_feed_to_test() -> None:
    assert WATCHING
