"""Features that our streams rely on: sources, subject transforms and partitions."""

from datetime import UTC, datetime

from nats.aio.client import Client

from infra.jetstream.append import append
from infra.jetstream.deliveries import ack
from infra.jetstream.follow import follow
from infra.jetstream.outgoing import OutgoingMessage
from infra.jetstream.publish import publish
from infra.jetstream.pull import PullGroup, PullReader
from infra.jetstream.reads import stream_state
from infra.jetstream.schedules import schedule
from infra.jetstream.topology import delete_stream, ensure_consumer, ensure_stream
from tests.jetstream.helpers import collect, message, pull


async def test_outcomes_are_sourced_from_atomic_batches(nc: Client, unique: str) -> None:
    """Headers are kept, except those of the batch; messages can also be published directly."""
    log, outcomes = f"{unique}-log", f"{unique}-outcomes"
    await ensure_stream(
        nc,
        {
            "name": log,
            "subjects": [f"log{unique}.>"],
            "allow_atomic": True,
            "allow_direct": True,
            "deny_delete": True,
            "deny_purge": True,
            "first_seq": 1_000,
        },
    )
    config = {
        "name": outcomes,
        "subjects": [f"outcome{unique}.>"],
        "sources": [
            {
                "name": log,
                "subject_transforms": [
                    {
                        "src": f"log{unique}.*.*.*.outcome",
                        "dest": f"outcome{unique}.{{{{wildcard(1)}}}}.{{{{wildcard(2)}}}}."
                        "{{wildcard(3)}}",
                    }
                ],
            }
        ],
    }
    assert await ensure_stream(nc, config) == "created"
    assert await ensure_stream(nc, config) == "unchanged"
    shape = f"log{unique}.Shape.ns.a"
    batch = [
        message(f"{shape}.decided", b"1", f"{shape}.>", 0),
        OutgoingMessage(f"{shape}.outcome", b"2", {"Custom": "kept"}),
    ]
    assert await append(nc, batch) == [1_000, 1_001]  # the log starts at first_seq
    await publish(nc, f"outcome{unique}.Shape.ns.b", b"direct")
    async with follow(nc, outcomes) as follower:
        messages = {message.subject: message for message in await collect(follower, 2)}
    sourced = messages[f"outcome{unique}.Shape.ns.a"]
    assert sourced.payload == b"2"
    assert sourced.headers is not None
    assert sourced.headers["Custom"] == "kept"
    assert sourced.headers["Nats-Stream-Source"].startswith(f"{log} 1001 ")
    assert "Nats-Batch-Id" not in sourced.headers
    assert messages[f"outcome{unique}.Shape.ns.b"].payload == b"direct"
    await delete_stream(nc, outcomes)
    await delete_stream(nc, log)


async def test_inputs_and_timers_of_a_resource_share_a_partition(nc: Client, unique: str) -> None:
    """`partition(n, …)` hashes the tokens of the named wildcards at any position."""
    timers, intake = f"{unique}-timers", f"{unique}-intake"
    await ensure_stream(
        nc,
        {
            "name": timers,
            "subjects": [f"sched{unique}.>", f"fired{unique}.>"],
            "allow_msg_schedules": True,
            "allow_msg_ttl": True,
        },
    )
    await ensure_stream(nc, _intake(intake, unique, timers))
    partitions = [f"p{i}" for i in range(8)]
    for index, name in enumerate(partitions):
        await _consumer(nc, intake, name, f"in{unique}.{index}.>")
    await _consumer(nc, intake, "misfits", f"rec{unique}.>")
    for i in range(20):
        await schedule(
            nc,
            subject=f"sched{unique}.Shape.ns.n{i}",
            target=f"fired{unique}.Shape.ns.n{i}",
            at=datetime.now(UTC),
            payload=b"wake",
        )
    await append(nc, [message(f"rec{unique}.desired.Shape.ns.n{i}") for i in range(20)])
    group = PullGroup(nc, intake, partitions)
    partitions_by_name: dict[str, set[str]] = {}
    origins: set[str] = set()
    for delivery in await pull(group, 40):
        _, partition, origin, _, _, name = delivery.subject.split(".")
        partitions_by_name.setdefault(name, set()).add(partition)
        origins.add(origin)
        await ack(nc, [delivery])
    await group.close()
    assert origins == {"desired", "timer"}
    assert [len(used_partitions) for used_partitions in partitions_by_name.values()] == [1] * 20
    assert (
        len(
            {
                partition
                for used_partitions in partitions_by_name.values()
                for partition in used_partitions
            }
        )
        > 1
    )
    await _check_unmatched_messages_are_readable(nc, intake, unique)
    assert (await stream_state(nc, intake)).first_seq >= 500
    await delete_stream(nc, intake)
    await delete_stream(nc, timers)


async def _check_unmatched_messages_are_readable(nc: Client, intake: str, unique: str) -> None:
    """A message that the transform does not match is stored under its own subject."""
    wrong = [f"rec{unique}.foo", f"rec{unique}.a.b.c.d.e.f"]
    for subject in wrong:
        await publish(nc, subject, b"")
    reader = PullReader(nc, intake, "misfits")
    assert [delivery.subject for delivery in await pull(reader, 2)] == wrong
    await reader.close()


def _intake(name: str, unique: str, timers: str) -> dict[str, object]:
    tokens = ".".join(f"{{{{wildcard({i})}}}}" for i in (1, 2, 3, 4))
    timer_tokens = ".".join(f"{{{{wildcard({i})}}}}" for i in (1, 2, 3))
    return {
        "name": name,
        "subjects": [f"rec{unique}.>"],
        "retention": "workqueue",
        "allow_atomic": True,
        "first_seq": 500,
        "subject_transform": {
            "src": f"rec{unique}.*.*.*.*",
            "dest": f"in{unique}.{{{{partition(8,2,3,4)}}}}.{tokens}",
        },
        "sources": [
            {
                "name": timers,
                "subject_transforms": [
                    {
                        "src": f"fired{unique}.*.*.*",
                        "dest": f"in{unique}.{{{{partition(8,1,2,3)}}}}.timer.{timer_tokens}",
                    }
                ],
            }
        ],
    }


async def _consumer(nc: Client, stream: str, name: str, subject_filter: str) -> None:
    config = {"durable_name": name, "ack_policy": "explicit", "filter_subject": subject_filter}
    await ensure_consumer(nc, stream, config)
