"""Waiting for outcomes: current and later ones count, and a timeout names those received."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import cast

import msgspec
import pytest

from events.intake import ReconcileRequested
from events.log import Condition, OutcomeName, PartAvailability
from events.manifest import Manifest, Metadata
from events.names import ResourceKey
from infra.bus.client_bus import JetStreamClientBus
from infra.jetstream.errors import BusDeniedError
from reconciler.ports import IntakeMessageOut
from reconciler.resource import availability
from reconciler.sdk import (
    SETTLED,
    Client,
    DeclarationRefusedError,
    InvalidNameError,
    WaitTimeoutError,
)
from reconciler.sdk import outcomes as outcomes_module
from reconciler.sdk.outcomes import UNCONFIRMED_MESSAGE, Outcome, Waiting, request_reads
from tests.sdk.conftest import shape

KEY = ResourceKey("default", "Shape", "foo")


async def test_a_current_outcome_ends_the_wait_immediately(client: Client, name: str) -> None:
    key = shape(name).key
    await client.declare(shape(name))
    first = await client.wait_for(key, generation=1)
    repeated = await client.wait_for(str(key), generation=1, timeout_seconds=2)

    assert repeated.event_id == first.event_id
    assert repeated.position == first.position > 0


async def test_the_newest_of_several_past_outcomes_ends_the_wait(client: Client, name: str) -> None:
    key = shape(name).key
    await client.declare(shape(name))
    await client.wait_for(key, generation=1)
    await client.withdraw(key)
    deleted_outcome = await client.wait_for(key, generation=2)

    repeated = await client.wait_for(key, generation=2, timeout_seconds=2)

    assert repeated == deleted_outcome
    assert repeated.outcome == "Deleted"


async def test_a_subscription_can_continue_from_a_past_outcome(client: Client, name: str) -> None:
    await client.declare(shape(name))
    await client.wait_for(shape(name).key, generation=1)
    with pytest.raises(DeclarationRefusedError):
        await client.declare(shape(name, "Mauve"))
    async with client.outcomes(name=name, after=0) as outcomes:
        reported_outcomes = [await anext(outcomes) for _ in range(2)]
    assert [each.outcome for each in reported_outcomes] == ["Converged", "Rejected"]

    past = await client.wait_for(shape(name).key, generation=1)

    assert past.position == reported_outcomes[0].position  # not the position of the later rejection
    async with client.outcomes(name=name, after=past.position) as outcomes:
        assert await anext(outcomes) == reported_outcomes[1]


async def test_a_wait_may_begin_before_the_declaration(client: Client, name: str) -> None:
    key = shape(name).key
    waiting = asyncio.ensure_future(client.wait_for(key, generation=2))
    await client.declare(shape(name))
    await client.wait_for(key, generation=1)
    await client.declare(shape(name, "Blue"))

    assert (await waiting).generation == 2


async def test_a_wait_for_many_resources_reports_progress(client: Client, name: str) -> None:
    manifests = [shape(f"{name}-{index}") for index in range(40)]
    names: list[str] = []
    await client.publish(manifests)
    outcomes = await client.wait_for_many(
        {manifest.key: 1 for manifest in manifests},
        on_outcome=lambda outcome: names.append(str(outcome.key)),
    )

    assert {outcome.outcome for outcome in outcomes.values()} == {"Converged"}
    assert set(names) == {str(manifest.key) for manifest in manifests} == {str(k) for k in outcomes}


async def test_a_timeout_names_the_outcomes_received(client: Client, name: str) -> None:
    await client.declare(shape(name))
    await client.wait_for(shape(name).key, generation=1)

    with pytest.raises(
        WaitTimeoutError,
        match=r"generation 9 did not .*; last outcome: Converged of generation",
    ):
        await client.wait_for(shape(name).key, generation=9, timeout_seconds=0.3)
    with pytest.raises(WaitTimeoutError, match=r"no outcome received.* and 2 more"):
        await client.wait_for_many(
            {f"default/Shape/{name}-{index}": 1 for index in range(5)}, timeout_seconds=0.2
        )


async def test_a_wait_for_nothing_ends_immediately(client: Client) -> None:
    assert await client.wait_for_many({}) == {}


async def test_name_is_checked(client: Client) -> None:
    with pytest.raises(InvalidNameError):
        await client.wait_for("foo", generation=1)


def outcome(name: OutcomeName, generation: int, version: int) -> Outcome:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    event_id = f"{KEY}@{version}"
    return Outcome(0, KEY, name, generation, "Because", "", (), at, event_id, version)


def test_a_newer_generation_also_ends_the_wait() -> None:
    waiting = Waiting({KEY: 2}, SETTLED)
    waiting.record(outcome("Converged", 1, 3))
    assert not waiting.is_over
    waiting.record(outcome("Converged", 3, 9))
    assert waiting.accepted[KEY].generation == 3


def test_a_late_older_outcome_does_not_end_the_wait() -> None:
    outcomes: list[Outcome] = []
    waiting = Waiting({KEY: 1}, ["Converged"], outcomes.append)
    waiting.record(outcome("Degraded", 1, 5))
    waiting.record(
        outcome("Converged", 1, 3)
    )  # from the stream, when the log has shown a newer one
    waiting.record(outcome("Degraded", 1, 5))
    assert (waiting.is_over, len(outcomes)) == (False, 1)
    waiting.record(outcome("Converged", 1, 7))
    assert waiting.is_over


def _outcome(version: int, *, ready: bool) -> Outcome:
    conditions = (
        Condition("Converged", "True", "AsDeclared"),
        Condition("Ready", "True" if ready else "False", "Ready" if ready else "Starting"),
    )
    now = datetime(2026, 11, 21, tzinfo=UTC)
    return Outcome(
        version, KEY, "Converged", 1, "AsDeclared", "", conditions, now, f"e{version}", version
    )


def test_a_wait_continues_until_the_object_is_ready() -> None:
    waiting = Waiting({KEY: 1}, SETTLED)
    waiting.record(_outcome(1, ready=False))
    assert not waiting.is_over
    assert "Converged, not ready of generation 1 (Starting)" in waiting.describe_pending()
    waiting.record(_outcome(2, ready=True))
    assert waiting.accepted[KEY].not_ready is None


def test_a_wait_may_end_when_the_object_is_as_declared_but_not_ready() -> None:
    waiting = Waiting({KEY: 1}, SETTLED, ready=False)
    waiting.record(_outcome(1, ready=False))
    assert waiting.is_over


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("Dangling", "Shape"),
        ("ProviderConfigMissing", "ProviderConfig"),
        ("UnknownKind", "KindDefinition"),
    ],
)
def test_a_hold_that_another_awaited_resource_may_end_does_not_end_the_wait(
    reason: str, kind: str
) -> None:
    held = msgspec.structs.replace(outcome("Held", 1, 3), reason=reason)
    waiting = Waiting({KEY: 1, ResourceKey("default", kind, "ending"): 1}, SETTLED)
    waiting.record(held)
    assert KEY in waiting.pending
    waiting.record(outcome("Converged", 1, 5))
    assert waiting.accepted[KEY].outcome == "Converged"


def test_a_hold_that_another_resource_may_end_is_final_once_it_has_lasted() -> None:
    held = msgspec.structs.replace(outcome("Held", 1, 3), reason="Dangling")
    waiting = Waiting({KEY: 1, ResourceKey("default", "Shape", "ending"): 1}, SETTLED)
    waiting.record(held)
    waiting.accept_lasting()
    assert KEY in waiting.pending
    waiting.accept_lasting()
    assert waiting.accepted == {KEY: held}


@pytest.mark.parametrize("reason", ["Dangling", "ProviderConfigMissing", "DeletionGuard"])
def test_a_hold_that_no_awaited_resource_can_end_is_final(reason: str) -> None:
    held = msgspec.structs.replace(outcome("Held", 1, 3), reason=reason)
    others = {} if reason == "Dangling" else {ResourceKey("default", "Shape", "ending"): 1}
    waiting = Waiting({KEY: 1, **others}, SETTLED)
    waiting.record(held)
    assert waiting.accepted == {KEY: held}


async def test_a_wait_for_a_reference_and_its_target_ends_when_both_converged(
    client: Client, name: str
) -> None:
    """The reference is held first, because its target is declared later."""
    fields = {"target": {"kind": "Shape", "name": name}}
    reference = Manifest("reconciler/v1", "ShapeRef", Metadata(f"{name}-ref"), fields)
    await client.declare(reference)
    await client.wait_for(reference.key, generation=1, outcomes=["Held"])
    await client.declare(shape(name))
    outcomes = await client.wait_for_many({reference.key: 1, shape(name).key: 1})
    assert {each.outcome for each in outcomes.values()} == {"Converged"}


async def test_a_wait_for_a_lasting_hold_ends_at_the_timeout(client: Client, name: str) -> None:
    fields = {"target": {"kind": "Shape", "name": f"{name}-missing"}}
    reference = Manifest("reconciler/v1", "ShapeRef", Metadata(f"{name}-ref"), fields)
    await client.publish([reference, shape(name)])
    outcomes = await client.wait_for_many({reference.key: 1, shape(name).key: 1}, timeout_seconds=4)
    assert outcomes[reference.key].reason == "Dangling"


# --- objects that may stop being ready by themselves


def _momentary(version: int, *, available: bool = False, ready: bool = True) -> Outcome:
    known = PartAvailability(since=datetime.now(UTC), available=available)
    return msgspec.structs.replace(_outcome(version, ready=ready), availability=known)


def test_an_object_that_has_not_stayed_ready_does_not_end_the_wait() -> None:
    waiting = Waiting({KEY: 1}, SETTLED)
    waiting.record(_momentary(1))
    assert (waiting.is_over, len(waiting.unconfirmed)) == (False, 1)
    assert "Converged, not ready" in waiting.describe_pending()
    assert UNCONFIRMED_MESSAGE in waiting.describe_pending()
    waiting.record(_momentary(2, ready=False))
    assert (waiting.is_over, waiting.unconfirmed) == (False, [])
    waiting.record(_momentary(3))
    waiting.record(_momentary(4, available=True))
    assert waiting.is_over


def test_an_object_of_an_older_generation_is_not_read() -> None:
    waiting = Waiting({KEY: 2}, SETTLED)
    waiting.record(_momentary(1))
    assert waiting.unconfirmed == []


def test_a_wait_without_readiness_ends_with_an_object_that_is_ready_for_a_moment() -> None:
    waiting = Waiting({KEY: 1}, SETTLED, ready=False)
    waiting.record(_momentary(1))
    assert waiting.is_over


class Store:
    """The part of a bus that stores requests, or that denies them."""

    def __init__(self, error: Exception | None = None) -> None:
        self.stored_at: list[float] = []
        self._error = error

    async def store(self, messages: Sequence[IntakeMessageOut], *, timeout_seconds: float) -> None:
        assert [(type(each.data), each.key) for each in messages] == [(ReconcileRequested, KEY)]
        assert timeout_seconds > 0
        self.stored_at.append(asyncio.get_running_loop().time())
        if self._error is not None:
            raise self._error


async def _request_until(store: Store, waiting: Waiting, is_met: Callable[[], bool]) -> float:
    """Request reads until a condition is met; return the seconds."""
    started_at = asyncio.get_running_loop().time()
    requests = asyncio.create_task(request_reads(cast("JetStreamClientBus", store), waiting))
    async with asyncio.timeout(5):
        while not is_met():
            assert not requests.done(), requests
            await asyncio.sleep(0.01)
    requests.cancel()
    return asyncio.get_running_loop().time() - started_at


@pytest.fixture
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "REPLACEMENT_READY_SECONDS", 0.5)
    monkeypatch.setattr(outcomes_module, "UNREQUESTED_SECONDS", 0.3)


@pytest.mark.usefixtures("_short_times")
async def test_a_read_is_requested_once_the_object_has_been_ready_for_long_enough() -> None:
    store, waiting = Store(), Waiting({KEY: 1}, SETTLED)
    waiting.record(_momentary(1))
    seconds = await _request_until(store, waiting, lambda: bool(store.stored_at))
    assert 0.5 <= seconds < 2.0
    assert not waiting.is_over


@pytest.mark.usefixtures("_short_times")
async def test_a_user_who_may_only_read_waits_until_the_outcome_has_lasted() -> None:
    store, waiting = Store(BusDeniedError("desired")), Waiting({KEY: 1}, SETTLED)
    waiting.record(_momentary(1))
    seconds = await _request_until(store, waiting, lambda: waiting.is_over)
    assert 0.8 <= seconds < 3.0


def test_a_confirmed_outcome_is_not_accepted_after_a_restart() -> None:
    waiting = Waiting({KEY: 1}, SETTLED)
    first = _momentary(1)
    waiting.record(first)
    waiting.record(_momentary(2))
    waiting.confirm(first)
    assert not waiting.is_over
    waiting.confirm(waiting.unconfirmed[0])
    assert waiting.is_over
