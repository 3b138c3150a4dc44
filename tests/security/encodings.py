"""Ways in which an API, a library or a person repeats a secret, each as text."""

from __future__ import annotations

import base64
import html
import json
import quopri
import shlex
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import quote, quote_plus

Encoding = Callable[[str], str]


def json_of_go(text: str) -> str:
    """Escape a string as Go's encoding/json does."""
    escaped = json.dumps(text, ensure_ascii=False)[1:-1]
    for each in "<>&\u2028\u2029":
        escaped = escaped.replace(each, f"\\u{ord(each):04x}")
    return escaped


def json_of_python(text: str) -> str:
    """Escape a string as ``json.dumps`` does."""
    return json.dumps(text)[1:-1]


def every_unit_escaped(text: str) -> str:
    """Escape each UTF-16 code unit."""
    units = text.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def percent_lower(text: str) -> str:
    """Encode for a URL, with lower-case digits."""
    return "".join(
        each if each.isascii() and each.isalnum() else _percent(each.encode()) for each in text
    )


def _percent_u(text: str) -> str:
    """Encode every UTF-16 unit as JavaScript's ``escape`` does."""
    content = text.encode("utf-16-be")
    return "".join(f"%u{content[at : at + 2].hex()}" for at in range(0, len(content), 2))


def _percent(content: bytes) -> str:
    return "".join(f"%{byte:02x}" for byte in content)


ESCAPES: Final[Mapping[str, Encoding]] = {
    "as it is": str,
    "Go's JSON": json_of_go,
    "Python's JSON": json_of_python,
    "JSON with a slash escaped": lambda text: json_of_python(text).replace("/", "\\/"),
    "JSON with every unit escaped": every_unit_escaped,
    "percent": lambda text: quote(text, safe=""),
    "percent of a path": quote,
    "percent in lower case": percent_lower,
    "percent of every byte": lambda text: _percent(text.encode()),
    "a form": quote_plus,
    "HTML": html.escape,
    "HTML in decimal": lambda text: "".join(f"&#{ord(each)};" for each in text),
    "HTML in hexadecimal": lambda text: "".join(f"&#x{ord(each):X};" for each in text),
    "Python's bytes": lambda text: repr(text.encode())[2:-1],
    "Python's ASCII": lambda text: ascii(text)[1:-1],
    "a shell": lambda text: shlex.quote(text + " ").removesuffix(" '").removeprefix("'"),
    "SQL": lambda text: text.replace("'", "''"),
    "hexadecimal": lambda text: text.encode().hex(),
    "HEXADECIMAL": lambda text: text.encode().hex().upper(),
    "quoted-printable": lambda text: quopri.encodestring(text.encode()).decode(),
    "percent of UTF-16": _percent_u,
    "a hexadecimal dump": lambda text: text.encode().hex(" "),
    "hexadecimal with colons": lambda text: text.encode().hex(":").upper(),
    "C's bytes": lambda text: ", ".join(f"0x{each:02x}" for each in text.encode()),
    "Go's bytes": lambda text: " ".join(str(each) for each in text.encode()),
    "JSON of bytes": lambda text: ",".join(str(each) for each in text.encode()),
    "Python's list of bytes": lambda text: str(list(text.encode()))[1:-1],
}
"""Encodings that leave nothing of a secret but itself."""


ENCODED_ONCE: Final = frozenset(
    {
        "a shell",
        "SQL",
        "hexadecimal",
        "HEXADECIMAL",
        "a hexadecimal dump",
        "hexadecimal with colons",
        "C's bytes",
        "Go's bytes",
        "JSON of bytes",
        "Python's list of bytes",
    }
)
"""Those that are found around a secret, and not around another encoding of it."""


def base64_of(before: bytes, after: bytes, *, url: bool = False) -> Encoding:
    """Encode a secret within other bytes."""
    encode = base64.urlsafe_b64encode if url else base64.b64encode
    return lambda text: encode(before + text.encode() + after).decode()


BASE64: Final[Mapping[str, Encoding]] = {
    "Base64": base64_of(b"", b""),
    "Base64 of a login": base64_of(b"user:", b""),
    "Base64 behind one byte": base64_of(b"u", b"s"),
    "Base64 behind two bytes": base64_of(b"u:", b"ss"),
    "Base64 in JSON": base64_of(b'{"sub": "', b'"}'),
    "Base64 for URLs": base64_of(b"user:", b" and more", url=True),
    "Base64 without padding": lambda text: base64_of(b"", b"x")(text).rstrip("="),
    "Base64 in lines": lambda text: base64.encodebytes(b"." * 40 + text.encode()).decode(),
}
"""Encodings that share their first and last character with what is around a secret."""


def every_way(secret: str) -> dict[str, str]:
    """Return a secret in every encoding, and in some within others."""
    ways = {name: encode(secret) for name, encode in {**ESCAPES, **BASE64}.items()}
    ways["JSON in JSON"] = json_of_go(json_of_go(f'"{secret}"'))
    ways["a URL in JSON"] = json_of_go(f"https://h/?key={quote(secret, safe='')}")
    ways["Base64 in a URL"] = quote(base64_of(b"user:", b"")(secret), safe="")
    ways["HTML in JSON"] = json_of_go(html.escape(f"<b>{secret}</b>"))
    ways["cut at its end"] = secret[: len(secret) * 3 // 4]
    ways["lower case"] = secret.lower()
    ways["upper case"] = secret.upper()
    ways["swapped case"] = secret.swapcase()
    ways["reversed"] = secret[::-1]
    ways["Base32"] = base64.b32encode(secret.encode()).decode()
    return ways
