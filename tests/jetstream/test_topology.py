import pytest
from nats.aio.client import Client

from infra.jetstream.connection import api_request
from infra.jetstream.errors import (
    BusRefusedError,
    IncompatibleStreamError,
    NotFoundOnBusError,
    StreamFullError,
)
from infra.jetstream.reads import stream_state
from infra.jetstream.topology import (
    delete_consumer,
    delete_stream,
    differences,
    ensure_consumer,
    ensure_stream,
)


async def test_a_stream_is_created_left_unchanged_and_updated(nc: Client, unique: str) -> None:
    config = {"name": unique, "subjects": [f"{unique}.>"], "max_bytes": 0, "max_age": 10**12}
    assert await ensure_stream(nc, config) == "created"
    assert await ensure_stream(nc, config) == "unchanged"
    assert await ensure_stream(nc, {**config, "max_msgs": 5}) == "updated"
    assert (
        await ensure_stream(nc, config) == "unchanged"
    )  # settings that we do not set are left unchanged
    assert (await stream_state(nc, unique)).config["max_msgs"] == 5
    assert await delete_stream(nc, unique)
    assert not await delete_stream(nc, unique)


async def test_a_larger_limit_that_an_operator_set_is_kept(nc: Client, unique: str) -> None:
    config = {"name": unique, "subjects": [f"{unique}.>"], "max_bytes": 1_000_000}
    await ensure_stream(nc, config)
    changed_config = {**config, "max_bytes": 2_000_000}
    await api_request(nc, f"STREAM.UPDATE.{unique}", changed_config)
    assert await ensure_stream(nc, config) == "unchanged"
    assert (await stream_state(nc, unique)).config["max_bytes"] == changed_config["max_bytes"]
    for unlimited in (1_000, -1):
        await api_request(nc, f"STREAM.UPDATE.{unique}", {**config, "max_bytes": unlimited})
        assert await ensure_stream(nc, config) == "updated"
        assert (await stream_state(nc, unique)).config["max_bytes"] == config["max_bytes"]
    await delete_stream(nc, unique)


async def test_the_error_for_an_incompatible_stream_names_the_differences(
    nc: Client, stream: str
) -> None:
    with pytest.raises(IncompatibleStreamError) as caught:
        await ensure_stream(nc, {"name": stream, "storage": "memory"})
    text = str(caught.value)
    assert "storage: expected 'memory', found 'file'" in text
    assert stream in text
    assert "another name" in text


async def test_an_impossible_stream_is_refused(nc: Client, unique: str) -> None:
    with pytest.raises(BusRefusedError):
        await ensure_stream(nc, {"name": unique, "subjects": ["a b"]})


async def test_replicas_on_a_single_server_are_refused_with_a_remedy(
    nc: Client, unique: str
) -> None:
    with pytest.raises(BusRefusedError, match=r"non-clustered mode.*use --replicas 1"):
        await ensure_stream(nc, {"name": unique, "subjects": [f"{unique}.>"], "num_replicas": 3})


@pytest.mark.parametrize(("limit", "is_reserved"), [(4_096, True), (-1, False)])
async def test_only_a_byte_limit_is_reported_as_reserved(
    monkeypatch: pytest.MonkeyPatch, nc: Client, unique: str, limit: int, is_reserved: bool
) -> None:
    async def fail_without_space(_nc: Client, subject: str, _body: object) -> dict[str, object]:
        if subject.startswith("STREAM.INFO"):
            raise NotFoundOnBusError("stream not found")
        raise StreamFullError("insufficient storage resources available")

    monkeypatch.setattr("infra.jetstream.topology.api_request", fail_without_space)
    with pytest.raises(StreamFullError) as refused:
        await ensure_stream(nc, {"name": unique, "max_bytes": limit})
    assert ("reserves its max_bytes" in str(refused.value)) == is_reserved
    assert "larger disk" in str(refused.value)


async def test_a_consumer_is_created_updated_and_deleted(nc: Client, stream: str) -> None:
    config: dict[str, object] = {
        "durable_name": "c",
        "ack_policy": "explicit",
        "filter_subject": f"{stream}.a.>",
        "priority_policy": "pinned_client",
        "priority_groups": ["g"],
        "priority_timeout": 2_000_000_000,
    }
    assert await ensure_consumer(nc, stream, config) == "created"
    assert await ensure_consumer(nc, stream, config) == "unchanged"
    assert await ensure_consumer(nc, stream, {**config, "max_ack_pending": 7}) == "updated"
    info = await api_request(nc, f"CONSUMER.INFO.{stream}.c", None)
    assert info["config"]["priority_groups"] == ["g"]
    with pytest.raises(IncompatibleStreamError, match="ack_policy: expected 'none'"):
        await ensure_consumer(nc, stream, {**config, "ack_policy": "none"})
    assert await delete_consumer(nc, stream, "c")
    assert not await delete_consumer(nc, stream, "c")


async def test_a_consumer_on_an_unknown_stream_is_an_error(nc: Client, unique: str) -> None:
    with pytest.raises(NotFoundOnBusError):
        await ensure_consumer(nc, unique, {"durable_name": "c", "ack_policy": "explicit"})


def test_only_expected_settings_are_compared() -> None:
    actual = {"a": 1, "b": {"c": [1, {"d": 2, "e": 3}]}, "f": -1}
    assert differences({"b": {"c": [1, {"d": 2}]}, "f": 0, "g": None}, actual) == {}
    assert differences({"b": {"c": [1, {"d": 4}]}}, actual) == {"b.c[1].d": (4, 2)}
    assert differences({"b": {"c": [1]}, "x": {"y": 1}}, actual) == {
        "b.c": ([1], [1, {"d": 2, "e": 3}]),
        "x.y": (1, None),
    }
