"""Tolerate any bytes that other clients put into subjects and headers.

The server accepts any bytes in a subject except spaces and line breaks, and any bytes in a header
block. nats-py expects valid UTF-8, no control characters that count as white space, and a
well-formed status line. On other input its read task ends, or reconnects and receives the same
message again, so one message could block all tenants permanently. This module makes every message
readable, so that the decider can reject it and name it.
"""

from __future__ import annotations

import re
from typing import Final

from nats.protocol import parser

_MESSAGE_LINES: Final = {
    # nats-py's expressions with `\s` and `\S` also split at control characters.
    "MSG_RE": rb"\AMSG +([^ \r\n]+) +([^ \r\n]+) +(([^ \r\n]+) +)?(\d+)\r\n",
    "HMSG_RE": rb"\AHMSG +([^ \r\n]+) +([^ \r\n]+) +(([^ \r\n]+) +)?(\d+) +(\d+)\r\n",
}


def read_any_subject() -> None:
    """Make the client's parser accept every subject that the server can send.

    It replaces nats-py's regular expressions, for which there is no setting.
    """
    for name, expression in _MESSAGE_LINES.items():
        setattr(parser, name, re.compile(expression))


def decode_text(raw: bytes) -> str:
    """Decode a subject. Invalid UTF-8 becomes a character that valid names never contain."""
    return raw.decode("utf-8", "replace")
