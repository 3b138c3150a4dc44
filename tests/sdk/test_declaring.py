"""Declaring and withdrawing through the SDK: replies, refusals, and messages that are not sent."""

from typing import Any

import pytest

from events.envelope import MAX_MESSAGE_BYTES
from events.log import OutcomeRecorded
from reconciler.roles.decider import refusals
from reconciler.sdk import (
    Client,
    ConfigurationError,
    DeclarationRefusedError,
    InvalidManifestError,
    InvalidNameError,
    Reply,
    connect,
)
from tests.sdk.conftest import Stack, shape


async def test_declared_resource_is_accepted_and_converges(client: Client, name: str) -> None:
    reply = await client.declare(shape(name))
    outcome = await client.wait_for(f"default/Shape/{name}", generation=reply.generation)

    assert (reply.accepted, reply.reason, reply.generation) == (True, "Accepted", 1)
    assert reply.position > 0
    assert (outcome.outcome, outcome.generation) == ("Converged", 1)


async def test_manifest_may_be_a_dict(client: Client, name: str) -> None:
    manifest = {
        "apiVersion": "shapes/v1",
        "kind": "Shape",
        "metadata": {"name": name},
        "spec": {"type": "Circle", "color": "Blue"},
    }
    assert (await client.declare(manifest)).reason == "Accepted"
    assert (await client.declare(manifest)).reason == "Unchanged"


async def test_expected_generation_is_checked(client: Client, name: str) -> None:
    await client.declare(shape(name), expected_generation=0)

    with pytest.raises(DeclarationRefusedError) as refused:
        await client.declare(shape(name, "Green"), expected_generation=0)
    with pytest.raises(DeclarationRefusedError):
        await client.withdraw(f"default/Shape/{name}", expected_generation=7)

    assert refused.value.reason == "StaleGeneration"
    assert "at generation 1" in refused.value.message
    assert (await client.declare(shape(name, "Green"), expected_generation=1)).generation == 2


async def test_withdrawn_resource_is_deleted(client: Client, name: str) -> None:
    key = shape(name).key
    await client.declare(shape(name))
    await client.wait_for(key, generation=1)
    reply = await client.withdraw(key)
    outcome = await client.wait_for(key, generation=reply.generation)

    assert (outcome.outcome, outcome.generation) == ("Deleted", 2)


async def test_the_replies_to_many_declarations_are_in_order(client: Client, name: str) -> None:
    manifests = [shape(f"{name}-{index}") for index in range(40)]
    manifests[7] = shape(f"{name}-7", color="Mauve")
    replies = await client.declare_many(manifests)
    withdrawn = await client.withdraw_many([manifest.key for manifest in manifests])

    refused = replies.pop(7)
    assert isinstance(refused, DeclarationRefusedError)
    assert refused.reason == "Invalid"
    assert "Mauve" in refused.message
    assert all(isinstance(reply, Reply) and reply.generation == 1 for reply in replies)
    assert [reply.reason for reply in withdrawn if isinstance(reply, Reply)].count("Accepted") == 39


async def test_an_empty_list_of_declarations_returns_immediately(client: Client) -> None:
    assert await client.declare_many([]) == []
    assert await client.withdraw_many([]) == []
    await client.publish([])


async def test_two_thousand_declarations_get_replies(client: Client, name: str) -> None:
    """The resources are paused, so no worker is involved. The benchmarks measure the speed."""
    manifests = [shape(f"{name}-{index}", policy={"paused": True}) for index in range(2_000)]
    replies = await client.declare_many(manifests)

    assert all(isinstance(reply, Reply) for reply in replies)
    await client.withdraw_many([manifest.key for manifest in manifests])


async def test_published_resources_are_decided_without_a_reply(client: Client, name: str) -> None:
    async with client.outcomes(name=name) as outcomes:
        await client.publish([shape(name)])
        async for outcome in outcomes:
            if outcome.outcome == "Converged":
                break
    history = await client.history(f"default/Shape/{name}")
    assert isinstance(history[-1].event.data, OutcomeRecorded)


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        ({}, "apiVersion"),
        ({"apiVersion": "shapes/v1", "kind": "Shape", "metadata": {}}, "name"),
        ({"apiVersion": "v1", "kind": "Shape", "metadata": {"name": "a"}, "x": 1}, "x"),
        (shape("a", policy={"mode": "Sometimes"}), "Sometimes"),
        (shape("a", providerConfigRef={"name": "a.b"}), "a.b"),
        (shape("a", color="x" * MAX_MESSAGE_BYTES), "bytes"),
        (shape("a", size={1, 2}.__iter__()), "JSON"),
    ],
    ids=["empty", "no name", "unknown field", "policy", "reference", "too long", "not JSON"],
)
async def test_unusable_manifest_is_refused_before_anything_is_sent(
    client: Client, manifest: Any, problem: str
) -> None:
    started_at = await client.observation_time()
    with pytest.raises(InvalidManifestError, match=problem):
        await client.declare_many([shape("fine"), manifest])
    assert await client.observation_time() == started_at


@pytest.mark.parametrize("name", ["a.b", "*", "", "a b", "x" * 64])
async def test_unusable_name_is_refused_before_anything_is_sent(client: Client, name: str) -> None:
    with pytest.raises(InvalidNameError):
        await client.declare(shape(name))
    with pytest.raises(InvalidNameError):
        await client.withdraw(f"default/Shape/{name}")


async def test_a_source_must_be_valid(stack: Stack) -> None:
    for source in ("", "x" * 201, "a\nb"):
        with pytest.raises(ConfigurationError, match="source"):
            async with connect(stack.bus_url, source=source):
                pass


def test_the_longest_message_fits_the_limit_of_the_decider() -> None:
    assert refusals.MAX_MESSAGE_BYTES == MAX_MESSAGE_BYTES
