"""Every case in the corpus on the real bus: a dead letter with its reason, and no delay."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
from nats.aio.msg import Msg

from events.envelope import decode_log
from events.intake import Reply
from events.log import OutcomeRecorded
from events.names import ResourceKey
from events.subjects import REPLY_HEADER
from infra.bus.streams import REJECTIONS
from infra.jetstream.reads import read_subject
from reconciler.sdk.dead_letters import DeadLetter
from tests.corpus.cases import Case, cases
from tests.jetstream.raw import publish_raw
from tests.scenarios.conftest import api_url, world
from tests.scenarios.conftest import bare_world_on_own_server as bare_world
from tests.scenarios.harness import World

__all__ = ["api_url", "bare_world", "world"]

CASES = cases()
_REQUEST_TYPES = ("desired", "finalizer", "approval")


def headers_of(case: Case, inbox: str) -> bytes:
    headers = {"Nats-Msg-Id": case.name, REPLY_HEADER: f"{inbox}.{case.name}", **case.headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode()


def message_id(case: Case) -> str:
    return case.headers.get("Nats-Msg-Id", case.name)[:256]


async def publish_all(world: World) -> dict[str, Reply]:
    """Publish every case; return the replies as they arrive."""
    inbox = world.nc.new_inbox()
    replies: dict[str, Reply] = {}

    async def receive(message: Msg) -> None:
        name = message.subject.rpartition(".")[2]
        replies[name] = msgspec.json.decode(message.data, type=Reply)

    await world.nc.subscribe(f"{inbox}.*", cb=receive)  # pyright: ignore[reportUnknownMemberType]
    await world.nc.flush()
    await asyncio.gather(
        *(
            publish_raw(
                world.server.port,
                case.subject_bytes,
                case.payload_bytes,
                headers=headers_of(case, inbox),
            )
            for case in CASES.values()
        )
    )
    return replies


async def read_rejections(world: World) -> dict[str, OutcomeRecorded]:
    messages = await read_subject(world.nc, REJECTIONS, "rejection.>")
    events = [decode_log(each.payload) for each in messages]
    return {
        event.key.name: event.data for event in events if isinstance(event.data, OutcomeRecorded)
    }


def problem(
    case: Case,
    dead_letters: Mapping[str, DeadLetter],
    replies: Mapping[str, Reply],
    outcomes: Mapping[str, OutcomeRecorded],
) -> str | None:
    """Return how the result differs from the case, None if it does not."""
    letter, reply = dead_letters.get(message_id(case)), replies.get(case.name)
    if reply is None:
        return "no reply"
    if case.expected == "accepted":
        return None if reply.accepted and letter is None else f"{reply} {letter}"
    if reply.accepted or case.reason not in reply.message:
        return f"replied {reply}"
    if letter is None or (letter.record.stage, letter.record.size) != (
        case.expected,
        len(case.payload_bytes),
    ):
        return f"letter {letter}"
    if case.reason not in letter.record.reason:
        return f"reason {letter.record.reason}"
    if not letter.record.payload_truncated and letter.payload != case.payload_bytes:
        return "a different payload was stored"
    is_request = case.subject.split(".")[1] in _REQUEST_TYPES
    if isinstance(letter.resource, ResourceKey) and is_request and case.name not in outcomes:
        return "no rejected outcome"
    return None


async def test_every_case_is_reported_and_delays_no_other_message(world: World) -> None:
    replies = await publish_all(world)
    await world.declare("neighbor")

    await world.until_outcome("neighbor", "Converged")
    await world.until_settled()

    async def have_all_replied() -> bool:
        return len(replies) == len(CASES)

    await world.until(have_all_replied, f"replies for {CASES.keys() - replies.keys()}")
    dead_letters = {each.record.message_id: each for each in await world.client.dead_letters()}
    outcomes = await read_rejections(world)
    wrong = {name: problem(case, dead_letters, replies, outcomes) for name, case in CASES.items()}
    assert [f"{name}: {why}" for name, why in wrong.items() if why is not None] == []
    expected = [case for case in CASES.values() if case.expected != "accepted"]
    assert len(dead_letters) == len(expected)
    assert world.reconciler_nc.stats["reconnects"] == 0
