"""Following outcomes: none is lost after subscribing, and durable streams keep their position."""

import asyncio

import pytest

from infra.jetstream.errors import IncompatibleStreamError
from reconciler.sdk import Client, InvalidNameError, Outcome, PositionNotFoundError, connect
from tests.sdk.conftest import Stack, shape


async def collect(client: Client, count: int, name: str, after: int | None = None) -> list[Outcome]:
    existing_outcomes: list[Outcome] = []
    async with client.outcomes(name=name, after=after) as outcomes:
        async for outcome in outcomes:
            existing_outcomes.append(outcome)
            if len(existing_outcomes) == count:
                break
    return existing_outcomes


async def converge(client: Client, name: str, color: str = "Red") -> Outcome:
    reply = await client.declare(shape(name, color))
    return await client.wait_for(shape(name).key, generation=reply.generation)


async def test_subscription_exists_when_the_block_is_entered(client: Client, name: str) -> None:
    async with client.outcomes(kind="Shape", name=name) as outcomes:
        await converge(client, name)
        outcome = await anext(outcomes)

    assert (str(outcome.key), outcome.outcome) == (f"default/Shape/{name}", "Converged")
    assert outcome.position > 0
    assert outcome.event_id.startswith(f"default/Shape/{name}@")
    assert {condition.type for condition in outcome.conditions} >= {"Converged", "Ready"}


async def test_loop_needs_no_block(client: Client, name: str) -> None:
    await converge(client, name)
    async for outcome in client.outcomes(name=name, after=0):
        assert outcome.generation == 1
        break


async def test_after_a_position_only_newer_outcomes_are_returned(client: Client, name: str) -> None:
    await converge(client, name)
    first = (await collect(client, 1, name, after=0))[0]
    await converge(client, name, "Blue")

    assert [outcome.generation for outcome in await collect(client, 2, name, after=0)] == [1, 2]
    assert [each.generation for each in await collect(client, 1, name, after=first.position)] == [2]


async def test_rejection_is_an_outcome_too(client: Client, name: str) -> None:
    async with client.outcomes(name=name) as outcomes:
        await client.publish([shape(name, color="Mauve")])
        outcome = await anext(outcomes)

    assert (outcome.outcome, outcome.reason, outcome.version) == ("Rejected", "Invalid", 0)
    assert (outcome.generation, outcome.actor) == (0, "test")


async def reject(client: Client, name: str) -> Outcome:
    async with client.outcomes(name=name) as outcomes:
        await client.publish([shape(name, color="Mauve")])
        return await anext(outcomes)


async def test_a_subscriber_that_continues_from_a_rejection_misses_nothing(
    client: Client, name: str
) -> None:
    first = await converge(client, name)
    async with client.outcomes(name=name, after=0) as outcomes:
        assert (await anext(outcomes)).position == first.position
        await client.publish([shape(name, color="Mauve")])
        rejected = await anext(outcomes)
    assert (rejected.outcome, rejected.position) == ("Rejected", first.position)
    await converge(client, name, "Blue")

    later = await collect(client, 2, name, after=rejected.position)
    assert {each.outcome for each in later} == {"Rejected", "Converged"}
    assert max(each.generation for each in later) == 2


async def test_past_outcomes_are_returned_in_chronological_order(client: Client, name: str) -> None:
    """A subscriber that stops anywhere has therefore received all earlier rejections."""
    for color in ("Red", "Green", "Blue"):
        await reject(client, name)
        await converge(client, name, color)

    outcome_names = [each.outcome for each in await collect(client, 6, name, after=0)]
    assert outcome_names == ["Rejected", "Converged"] * 3


async def test_overtaken_rejections_are_returned_again(client: Client, name: str) -> None:
    """A rejection may be delivered after an outcome that was stored later."""
    first = await converge(client, name)
    rejected = await reject(client, name)
    second = await converge(client, name, "Blue")

    async with client.outcomes(name=name, after=second.position) as outcomes:
        redelivered = await anext(outcomes)
    assert (redelivered.event_id, redelivered.position) == (rejected.event_id, second.position)
    assert first.position < second.position


async def test_a_position_after_the_end_of_the_log_is_refused(client: Client) -> None:
    with pytest.raises(PositionNotFoundError, match=r"after the end of the log at position \d+"):
        async with client.outcomes(after=10**9):
            pass


async def test_a_durable_stream_also_keeps_its_position_in_the_rejections(
    client: Client, name: str
) -> None:
    async with client.outcomes(name=name, durable=name):
        pass
    await reject(client, name)
    await converge(client, name)

    names: list[str] = []
    for _ in range(2):  # each opening processes one
        async with client.outcomes(name=name, durable=name) as outcomes:
            names.append((await anext(outcomes)).outcome)
            await outcomes.ack()
    assert sorted(names) == ["Converged", "Rejected"]


async def test_a_durable_stream_continues_at_its_position(
    stack: Stack, client: Client, name: str
) -> None:
    colors = ["Red", "Green", "Blue"]
    for color in colors:
        await converge(client, name, color)

    async with client.outcomes(name=name, after=0, durable=name) as outcomes:
        assert (await anext(outcomes)).generation == 1
        assert (
            await anext(outcomes)
        ).generation == 2  # not processed, because nothing is requested after it
    async with (
        connect(stack.bus_url, source="other") as other_client,
        other_client.outcomes(name=name, durable=name) as outcomes,
    ):
        assert (await anext(outcomes)).generation == 2
        await outcomes.ack()
    async with client.outcomes(name=name, durable=name) as outcomes:
        assert (await anext(outcomes)).generation == 3


async def test_a_new_durable_stream_starts_when_it_is_first_opened(
    client: Client, name: str
) -> None:
    await converge(client, name)
    async with client.outcomes(name=name, durable=name):
        pass
    await converge(client, name, "Blue")
    async with client.outcomes(name=name, durable=name) as outcomes:
        assert (await anext(outcomes)).generation == 2


async def test_a_durable_name_that_is_used_for_other_outcomes_is_refused(
    client: Client, name: str
) -> None:
    async with client.outcomes(name=name, durable=name):
        pass
    with pytest.raises(IncompatibleStreamError, match=f"{name}.*another name"):
        async with client.outcomes(name="other", durable=name):
            pass


async def test_pattern_is_checked(client: Client) -> None:
    for bad in ("a.b", ">", ""):
        with pytest.raises(InvalidNameError):
            client.outcomes(name=bad)
        with pytest.raises(InvalidNameError):
            client.outcomes(durable=bad)


async def test_closing_a_client_closes_its_streams(stack: Stack, name: str) -> None:
    async with connect(stack.bus_url, source="test") as client:
        stream = client.outcomes(name=name)
        reading = asyncio.ensure_future(anext(stream))
        await converge(client, name)
        assert (await reading).generation == 1
    assert not stream.is_open
