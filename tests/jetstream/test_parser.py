"""Our fast parser returns the same messages as nats-py's parser for any split of the bytes."""

import pytest
from nats.aio.client import Client
from nats.errors import ProtocolError

from infra.jetstream.foreign_bytes import read_any_subject
from infra.jetstream.parser import DESCRIPTION, STATUS, Headers, MessageParser, read_headers
from infra.jetstream.wire import FastClient

HEAD = b"NATS/1.0\r\nName: value\r\n\r\n"
MESSAGES = {
    "plain": (b"MSG a.b 1 3\r\nabc\r\n", (1, b"a.b", b"", b"abc", b"")),
    "with a reply": (b"MSG a.b 1 re.ply 3\r\nabc\r\n", (1, b"a.b", b"re.ply", b"abc", b"")),
    "empty": (b"MSG a.b 21 0\r\n\r\n", (21, b"a.b", b"", b"", b"")),
    "with headers": (b"HMSG a 1 25 28\r\n%babc\r\n" % HEAD, (1, b"a", b"", b"abc", HEAD)),
    "with both": (b"HMSG a 1 r 25 28\r\n%babc\r\n" % HEAD, (1, b"a", b"r", b"abc", HEAD)),
    "with line ends": (b"MSG a 1 8\r\n\r\nMSG \r\n\r\n", (1, b"a", b"", b"\r\nMSG \r\n", b"")),
    "with two spaces": (b"MSG a  1  3\r\nabc\r\n", (1, b"a", b"", b"abc", b"")),
    "with odd bytes": (b"MSG a\xff\x0b 1 3\r\nabc\r\n", (1, b"a\xff\x0b", b"", b"abc", b"")),
}


class ParserClient:
    """The part of the client that the parser uses."""

    def __init__(self) -> None:
        read_any_subject()
        self.messages: list[tuple[object, ...]] = []
        self.other: list[str] = []
        self.parser = MessageParser(self, self._process_msg)  # pyright: ignore[reportArgumentType]

    async def _process_msg(self, *message: object) -> None:
        *parsed, headers = message
        self.messages.append((*parsed, headers or b""))

    async def _process_ping(self) -> None:
        self.other.append("PING")

    async def _process_err(self, words: str) -> None:
        self.other.append(words)


STREAM = (
    b"PING\r\n".join(raw for raw, _ in MESSAGES.values()) + b"-ERR 'no'\r\n" + b"MSG z 1 0\r\n\r\n"
)
EXPECTED_MESSAGES = [parsed for _, parsed in MESSAGES.values()] + [(1, b"z", b"", b"", b"")]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 50, 61, 100, len(STREAM)])
async def test_each_message_is_parsed_once_and_in_order_for_any_split_of_the_bytes(
    size: int,
) -> None:
    client = ParserClient()
    for start in range(0, len(STREAM), size):
        await client.parser.parse(STREAM[start : start + size])
    assert client.messages == EXPECTED_MESSAGES
    assert client.other == ["PING"] * (len(MESSAGES) - 1) + ["'no'"]


async def test_a_partial_message_is_dropped_with_its_connection() -> None:
    client = ParserClient()
    await client.parser.parse(b"MSG a.b 1 3\r\nab")
    client.parser.reset()
    await client.parser.parse(b"MSG c 1 1\r\nx\r\n")
    assert client.messages == [(1, b"c", b"", b"x", b"")]


async def test_an_invalid_line_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError):
        await ParserClient().parser.parse(b"MSG a one 3\r\nabc\r\nMSG\r\n")


@pytest.mark.parametrize(
    "lines",
    [
        b"Name: value",
        b"Name:value\r\nOther:  spaced  ",
        b"Name: first\r\nOther: x\r\nName: last",
        b"Longer-Name: no\r\nName: a: b\r\nName-Too: no",
        b"Odd: \xff\xfe\r\nName: \xc3\xa4",
        b"no colon\r\nwith space: x\r\nName: ",
        b"",
    ],
)
def test_lazy_headers_equal_headers_that_are_parsed_immediately(lines: bytes) -> None:
    expected = FastClient._parse_header_lines(lines)  # pyright: ignore[reportPrivateUsage]
    headers = Headers(b"NATS/1.0\r\n%b\r\n\r\n" % lines)
    assert headers == expected
    assert dict(headers.items()) == expected
    for name in ("Name", "Other", "Odd", "Absent"):
        assert headers.get(name) == expected.get(name)
        assert (name in headers) == (name in expected)


@pytest.mark.parametrize(
    "block",
    [
        b"NATS/1.0\r\nName: value\r\n\r\n",
        b"NATS/1.0 503\r\n\r\n",
        b"NATS/1.0 404 No Messages\r\n\r\n",
        b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 7\r\nNats-Last-Stream: 9\r\n\r\n",
        b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 5\r\n\r\n",
        b"NATS/1.0 abc words\r\n\r\n",
    ],
)
async def test_a_status_is_read_as_nats_py_reads_it(block: bytes) -> None:
    client = Client()
    process_headers = client._process_headers  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType, reportUnknownVariableType]
    headers = await process_headers(block) or {}
    parsed_headers = dict(read_headers(block) or {})
    assert parsed_headers.get(STATUS) == headers.get(STATUS)
    assert parsed_headers.keys() - {STATUS, DESCRIPTION} == headers.keys() - {STATUS, DESCRIPTION}
    if STATUS in parsed_headers:
        assert parsed_headers[DESCRIPTION] == headers.get(DESCRIPTION, "")


def test_a_message_without_headers_has_none() -> None:
    assert read_headers(b"") is None
