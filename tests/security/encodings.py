"""Encodings in which an API, a library or a user may repeat a secret."""

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


def escape_like_go(text: str) -> str:
    """Escape a string as Go's encoding/json does."""
    escaped = json.dumps(text, ensure_ascii=False)[1:-1]
    for each in "<>&\u2028\u2029":
        escaped = escaped.replace(each, f"\\u{ord(each):04x}")
    return escaped


def escape_like_python(text: str) -> str:
    """Escape a string as ``json.dumps`` does."""
    return json.dumps(text)[1:-1]


def escape_every_unit(text: str) -> str:
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
    "Go's JSON": escape_like_go,
    "Python's JSON": escape_like_python,
    "JSON with a slash escaped": lambda text: escape_like_python(text).replace("/", "\\/"),
    "JSON with every unit escaped": escape_every_unit,
    "percent": lambda text: quote(text, safe=""),
    "percent in a path": quote,
    "percent in lower case": percent_lower,
    "percent for every byte": lambda text: _percent(text.encode()),
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
    "percent in UTF-16": _percent_u,
    "a hexadecimal dump": lambda text: text.encode().hex(" "),
    "hexadecimal with colons": lambda text: text.encode().hex(":").upper(),
    "hexadecimal in capitals with 0x": lambda text: ", ".join(
        f"0x{each:02X}" for each in text.encode()
    ),
    "C's bytes in lines": lambda text: ",\n  ".join(f"0X{each:02X}" for each in text.encode()),
    "a decimal list with semicolons": lambda text: ";".join(str(each) for each in text.encode()),
    "a decimal list with tabs": lambda text: "\t".join(str(each) for each in text.encode()),
    "C's bytes": lambda text: ", ".join(f"0x{each:02x}" for each in text.encode()),
    "Go's bytes": lambda text: " ".join(str(each) for each in text.encode()),
    "JSON of bytes": lambda text: ",".join(str(each) for each in text.encode()),
    "Python's list of bytes": lambda text: str(list(text.encode()))[1:-1],
}
"""Encodings of a secret by itself."""


ENCODED_ONCE: Final = frozenset(
    {
        "a shell",
        "SQL",
        "hexadecimal",
        "HEXADECIMAL",
        "a hexadecimal dump",
        "hexadecimal with colons",
        "hexadecimal in capitals with 0x",
        "C's bytes in lines",
        "a decimal list with semicolons",
        "a decimal list with tabs",
        "C's bytes",
        "Go's bytes",
        "JSON of bytes",
        "Python's list of bytes",
    }
)
"""Encodings that are recognized for a secret, but not for another encoding of it."""


def base64_between(before: bytes, after: bytes, *, url: bool = False) -> Encoding:
    """Return an encoding of a secret between other bytes."""
    encode = base64.urlsafe_b64encode if url else base64.b64encode
    return lambda text: encode(before + text.encode() + after).decode()


BASE64: Final[Mapping[str, Encoding]] = {
    "Base64": base64_between(b"", b""),
    "Base64 of a login": base64_between(b"user:", b""),
    "Base64 after one byte": base64_between(b"u", b"s"),
    "Base64 after two bytes": base64_between(b"u:", b"ss"),
    "Base64 in JSON": base64_between(b'{"sub": "', b'"}'),
    "Base64 for URLs": base64_between(b"user:", b" and more", url=True),
    "Base64 without padding": lambda text: base64_between(b"", b"x")(text).rstrip("="),
    "Base64 in lines": lambda text: base64.encodebytes(b"." * 40 + text.encode()).decode(),
}
"""Encodings that share their first and last character with the text around a secret."""


_DUMP_BYTES = 16  # in one line


def _split_lines(content: bytes) -> list[tuple[int, bytes, str]]:
    """Return the offset, the bytes and the text of each line of a dump."""
    starts = range(0, len(content), _DUMP_BYTES)
    lines = [(start, content[start : start + _DUMP_BYTES]) for start in starts]
    return [
        (start, line, "".join(chr(each) if 0x20 <= each < 0x7F else "." for each in line))
        for start, line in lines
    ]


def dump_like_go(content: bytes) -> str:
    """Dump bytes as Go's ``hex.Dump`` and ``hexdump -C`` do."""
    return "".join(
        f"{start:08x}  {line[:8].hex(' '):23}  {line[8:].hex(' '):23}  |{text}|\n"
        for start, line, text in _split_lines(content)
    )


def dump_like_xxd(content: bytes, *, group: int = 2) -> str:
    """Dump bytes as ``xxd`` does, with ``-g``."""
    width = 2 * _DUMP_BYTES + _DUMP_BYTES // group
    return "".join(
        f"{start:08x}: {line.hex(' ', -group):{width}} {text}\n"
        for start, line, text in _split_lines(content)
    )


DUMPS: Final[Mapping[str, Callable[[bytes], str]]] = {
    "Go's hex.Dump": dump_like_go,
    "xxd": dump_like_xxd,
    "xxd in bytes": lambda content: dump_like_xxd(content, group=1),
    "xxd in words": lambda content: dump_like_xxd(content, group=4),
    "xxd -i": lambda content: "\n".join(
        "  " + ", ".join(f"0x{each:02x}" for each in content[start : start + 12]) + ","
        for start in range(0, len(content), 12)
    ),
    "tcpdump": lambda content: "".join(
        f"\t0x{start:04x}:  {line.hex(' ', -2):40} {text}\n"
        for start, line, text in _split_lines(content)
    ),
    "Wireshark": lambda content: "".join(
        f"{start:04x}   {line.hex(' '):48}  {text}\n" for start, line, text in _split_lines(content)
    ),
    "od -t x1": lambda content: "".join(
        f"{start:07o} {line.hex(' ')}\n" for start, line, _ in _split_lines(content)
    ),
    "od -An -t x1": lambda content: "".join(
        f" {line.hex(' ')}\n" for _, line, _ in _split_lines(content)
    ),
    "hex.Dump in capitals": lambda content: dump_like_go(content).upper(),
    "code points": lambda content: " ".join(f"U+{each:04X}" for each in content),
    "indented JSON": lambda content: json.dumps(list(content), indent=4),
    "HTML without semicolons": lambda content: "".join(f"&#{each}" for each in content),
    "CSS": lambda content: "".join(f"\\{each:x} " for each in content),
    "LDAP": lambda content: "".join(f"\\{each:02x}" for each in content),
    "Perl": lambda content: "".join(f"\\x{{{each:x}}}" for each in content),
}
"""How programs show bytes, with a secret anywhere among them."""


def encode_in_every_way(secret: str) -> dict[str, str]:
    """Return a secret in every encoding, and in some nested ones."""
    ways = {name: encode(secret) for name, encode in {**ESCAPES, **BASE64}.items()}
    request = f"Authorization: Bearer {secret}\r\nfee: be ef\r\n".encode()
    ways |= {f"a request in {name}": dump(request) for name, dump in DUMPS.items()}
    ways["JSON in JSON"] = escape_like_go(escape_like_go(f'"{secret}"'))
    ways["a URL in JSON"] = escape_like_go(f"https://h/?key={quote(secret, safe='')}")
    ways["Base64 in a URL"] = quote(base64_between(b"user:", b"")(secret), safe="")
    ways["HTML in JSON"] = escape_like_go(html.escape(f"<b>{secret}</b>"))
    ways["cut off at the end"] = secret[: len(secret) * 3 // 4]
    changed = {
        "lower case": secret.lower(),
        "upper case": secret.upper(),
        "swapped case": secret.swapcase(),
        "reversed": secret[::-1],
    }
    for name, text in changed.items():
        ways |= {name: text, f"{name} in JSON": escape_like_go(text)}
        ways[f"{name} in HTML"] = html.escape(text)
    ways["Base32"] = base64.b32encode(secret.encode()).decode()
    return ways
