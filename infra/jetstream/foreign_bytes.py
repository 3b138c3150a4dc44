"""What others may put into a subject or a header must not end our connection.

The server takes any bytes in a subject but spaces and line ends, and any in a header block; nats-py
expects valid UTF-8, no control characters that count as white space, and a readable status line. On
anything else its reading ends, or begins a new connection, which gets the same message again: one
message would hold up everybody for ever. Here all of it is read, so that it can be refused by name.
"""

from __future__ import annotations

import re
from typing import Final

from nats.protocol import parser

_MESSAGE_LINES: Final = {
    "MSG_RE": rb"\AMSG +([^ \r\n]+) +([^ \r\n]+) +(([^ \r\n]+) +)?(\d+)\r\n",
    "HMSG_RE": rb"\AHMSG +([^ \r\n]+) +([^ \r\n]+) +(([^ \r\n]+) +)?(\d+) +(\d+)\r\n",
}


def read_any_subject() -> None:
    """Have the client's parser take every subject that the server can send.

    Its expressions are replaced: nats-py has no setting for them.
    """
    for name, expression in _MESSAGE_LINES.items():
        setattr(parser, name, re.compile(expression))


def readable(raw: bytes) -> str:
    """Decode a subject; what is not UTF-8 is replaced by a character that no name may have."""
    return raw.decode("utf-8", "replace")
