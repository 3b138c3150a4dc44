"""The short way for messages gives what nats-py's parser gives, however the bytes come in."""

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
    "of line ends": (b"MSG a 1 8\r\n\r\nMSG \r\n\r\n", (1, b"a", b"", b"\r\nMSG \r\n", b"")),
    "of two spaces": (b"MSG a  1  3\r\nabc\r\n", (1, b"a", b"", b"abc", b"")),
    "of odd bytes": (b"MSG a\xff\x0b 1 3\r\nabc\r\n", (1, b"a\xff\x0b", b"", b"abc", b"")),
}


class Heard:
    """The client as the parser knows it."""

    def __init__(self) -> None:
        read_any_subject()
        self.messages: list[tuple[object, ...]] = []
        self.other: list[str] = []
        self.parser = MessageParser(self, self._process_msg)  # pyright: ignore[reportArgumentType]

    async def _process_msg(self, *message: object) -> None:
        *told, headers = message
        self.messages.append((*told, headers or b""))

    async def _process_ping(self) -> None:
        self.other.append("PING")

    async def _process_err(self, words: str) -> None:
        self.other.append(words)


STREAM = (
    b"PING\r\n".join(raw for raw, _ in MESSAGES.values()) + b"-ERR 'no'\r\n" + b"MSG z 1 0\r\n\r\n"
)
WANTED = [told for _, told in MESSAGES.values()] + [(1, b"z", b"", b"", b"")]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 50, 61, 100, len(STREAM)])
async def test_however_it_is_cut_each_message_comes_once_and_in_order(size: int) -> None:
    heard = Heard()
    for begin in range(0, len(STREAM), size):
        await heard.parser.parse(STREAM[begin : begin + size])
    assert heard.messages == WANTED
    assert heard.other == ["PING"] * (len(MESSAGES) - 1) + ["'no'"]


async def test_what_was_cut_is_forgotten_with_its_connection() -> None:
    heard = Heard()
    await heard.parser.parse(b"MSG a.b 1 3\r\nab")
    heard.parser.reset()
    await heard.parser.parse(b"MSG c 1 1\r\nx\r\n")
    assert heard.messages == [(1, b"c", b"", b"x", b"")]


async def test_a_line_that_is_no_message_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError):
        await Heard().parser.parse(b"MSG a one 3\r\nabc\r\nMSG\r\n")


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
def test_headers_are_what_all_of_them_read_at_once_are(lines: bytes) -> None:
    wanted = FastClient._parse_header_lines(lines)  # pyright: ignore[reportPrivateUsage]
    headers = Headers(b"NATS/1.0\r\n%b\r\n\r\n" % lines)
    assert headers == wanted
    assert dict(headers.items()) == wanted
    for name in ("Name", "Other", "Odd", "Absent"):
        assert headers.get(name) == wanted.get(name)
        assert (name in headers) == (name in wanted)


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
async def test_a_status_is_what_nats_py_reads(block: bytes) -> None:
    client = Client()
    told_by = client._process_headers  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType, reportUnknownVariableType]
    told = await told_by(block) or {}
    ours = dict(read_headers(block) or {})
    assert ours.get(STATUS) == told.get(STATUS)
    assert ours.keys() - {STATUS, DESCRIPTION} == told.keys() - {STATUS, DESCRIPTION}
    if STATUS in ours:
        assert ours[DESCRIPTION] == told.get(DESCRIPTION, "")


def test_a_message_without_headers_has_none() -> None:
    assert read_headers(b"") is None
