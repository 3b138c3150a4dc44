"""The page ``docs/how-to/publish-and-subscribe.md``: its code runs, its JSON is current."""

import ast
import asyncio
import inspect
import json
import re
import shlex
from datetime import datetime
from pathlib import Path
from typing import Any, cast, get_args
from urllib.parse import urlsplit

import jsonschema_rs
import msgspec
import pytest

from events import envelope
from events.intake import ListingPart, Reply
from events.log import LogEvent, OutcomeName
from events.manifest import Manifest
from events.schema import json_schema
from infra.bus.streams import DEADLETTERS, LOG, REJECTIONS, ROWS
from infra.jetstream.connection import connect as connect_bus
from reconciler.sdk.client import Client
from reconciler.sdk.outcomes import SETTLED
from tests.jetstream.helpers import until
from tests.sdk.conftest import Stack

ROOT = Path(__file__).parents[2]
PATH = ROOT / "docs/how-to/publish-and-subscribe.md"
PAGE = PATH.read_text()
OUTCOMES = (ROOT / "docs/concepts/outcomes.md").read_text()
URL = "nats://127.0.0.1:4222"
TIMEOUT_SECONDS = 90


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


JSON_BLOCKS: list[tuple[str, str]] = re.findall(
    r"<!-- (\w+) -->\n```json\n(.*?)```", PAGE, re.DOTALL
)


def ignore_output(*_: object) -> None:
    """Ignore the output of the page."""


async def test_the_python_code_of_the_page_runs(stack: Stack, client: Client) -> None:
    names: dict[str, Any] = {"client": client, "print": ignore_output}
    for block in blocks("python"):
        code = compile(
            block.replace(URL, stack.bus_url),
            PATH.name,
            "exec",
            flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
        )
        async with asyncio.timeout(TIMEOUT_SECONDS):
            running = eval(code, names)  # noqa: S307, RUF100
            if inspect.isawaitable(running):
                await running
        names["client"] = client  # the first block's has been closed by now

    assert names["refused"] == []
    assert len(names["found"]) == 20
    assert names["history"]
    assert isinstance(names["rows"], list)  # what the projector has written by then

    async def is_written() -> bool:
        return bool(await client.statuses(namespace="default", kind="Shape"))

    await until(is_written)


def test_every_json_block_names_its_schema() -> None:
    assert len(JSON_BLOCKS) == PAGE.count("```json") > 5


@pytest.mark.parametrize(("name", "block"), JSON_BLOCKS, ids=[name for name, _ in JSON_BLOCKS])
def test_json_matches_its_schema(name: str, block: str) -> None:
    schema = {**json_schema(), "$ref": f"#/$defs/{name}"}
    jsonschema_rs.validator_for(schema).validate(json.loads(block))


@pytest.mark.parametrize(("name", "block"), JSON_BLOCKS, ids=[name for name, _ in JSON_BLOCKS])
def test_json_has_no_field_that_is_not_read(name: str, block: str) -> None:
    """Decoding and encoding a document keeps all its fields, except for default values."""
    document = json.loads(block)
    assert contains(reencode(name, document, block.encode()), document)


def reencode(name: str, shown: Any, payload: bytes) -> Any:
    plain = {"Manifest": Manifest, "Reply": Reply, "LogEvent": LogEvent}
    if name in plain:
        return json.loads(msgspec.json.encode(msgspec.json.decode(payload, type=plain[name])))
    time = datetime.fromisoformat(shown.get("time", "2026-11-21T12:00:00Z"))
    if name == "ListingPartCloudEvent":
        part: ListingPart = envelope.decode_listing_part(payload)
        return json.loads(
            envelope.encode_listing_part(shown["id"], shown["source"], part, time=time)
        )
    what = shown["type"].split(".")[1]
    message = envelope.decode_intake(payload, expected=what, fallback_id="")
    return json.loads(envelope.encode_intake(message.id, message.source, message.data, time=time))


def contains(whole: Any, part: Any) -> bool:
    if isinstance(part, dict):
        items = cast("dict[str, Any]", part).items()
        return all(key in whole and contains(whole[key], value) for key, value in items)
    return whole == part


async def test_the_wire_protocol_on_the_page_receives_replies(stack: Stack) -> None:
    (block,) = blocks("nats")
    url = urlsplit(stack.bus_url)
    options = {"verbose": False, "headers": True, "user": url.username, "pass": url.password}
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await reader.readline()
        writer.write(f"CONNECT {json.dumps(options)}\r\n".encode())
        writer.write(block.replace("\n", "\r\n").encode())
        received: dict[str, Any] = {}
        while len(received) < 2:
            line = (await reader.readline()).decode().split()
            assert line[0] != "-ERR", line
            if line[0] == "MSG":
                received[line[1]] = json.loads(await reader.readexactly(int(line[-1]) + 2))
    writer.close()

    assert received["_INBOX.billing.stored"]["stream"] == "INTAKE"
    assert received["_INBOX.billing.reply"]["accepted"] is True


async def test_a_message_published_from_the_command_line_receives_a_reply(stack: Stack) -> None:
    (publish,) = [line for line in blocks("sh")[0].splitlines() if line.startswith("nats pub")]
    _, _, subject, *options, payload = shlex.split(publish)
    headers = dict(each.split(":", 1) for each in options if each != "-H")
    nc = await connect_bus(stack.bus_url, name="test")
    inbox = await nc.subscribe(headers["Reconciler-Reply-To"])  # pyright: ignore[reportUnknownMemberType]
    await nc.publish(subject, payload.encode(), headers=headers)
    reply = msgspec.json.decode((await inbox.next_msg(TIMEOUT_SECONDS)).data, type=Reply)
    await nc.close()

    assert reply.accepted


def test_streams_in_the_shell_commands_exist() -> None:
    commands = blocks("sh")[0]
    assert set(re.findall(r"(?:view|add|next) ([A-Z_0-9]+)", commands)) == {
        REJECTIONS,
        LOG,
        DEADLETTERS,
    }
    assert "kv get reconciler " in commands
    assert ROWS == "KV_reconciler"


def test_every_outcome_is_explained() -> None:
    """The page links to the table of outcomes and to the section about settled ones."""
    table = OUTCOMES.split("| outcome | meaning |")[1].split("\n\n")[0]
    explained = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(explained) == sorted(get_args(OutcomeName))
    settled = OUTCOMES.split("## Settled outcomes\n")[1].split("\n## ")[0]
    open_ended = set(re.findall(r"`([A-Z]\w+)`", settled))
    assert open_ended == {"Waiting", "Degraded", "Unowned", "Rejected"}
    assert frozenset(get_args(OutcomeName)) - SETTLED == open_ended
    for anchor in ("outcomes.md", "outcomes.md#settled-outcomes"):
        assert f"](../concepts/{anchor})" in PAGE


@pytest.mark.parametrize("target", re.findall(r"\]\((?!https?:)([^)#]+)", PAGE))
def test_links_lead_to_a_file(target: str) -> None:
    assert (PATH.parent / target).exists()


async def test_an_unreadable_message_gets_a_reply(stack: Stack) -> None:
    nc = await connect_bus(stack.bus_url, name="test")
    inbox = nc.new_inbox()
    replies = await nc.subscribe(inbox)  # pyright: ignore[reportUnknownMemberType]
    await nc.publish(
        "rec.desired.default.Shape.bad", b"not JSON", headers={"Reconciler-Reply-To": inbox}
    )
    reply = msgspec.json.decode((await replies.next_msg(TIMEOUT_SECONDS)).data, type=Reply)
    await nc.close()

    assert (reply.accepted, reply.reason) == (False, "Invalid")
