"""Invalid input, one file per case: the message, the expected result and its reason.

A file is JSON: ``subject``, ``headers``, the payload as ``payload`` (text), ``base64`` or
``repeat`` (a long string), ``expected`` (``accepted``, or the stage of the dead letter) and
``reason``, a substring of the reason. ``%NAME%`` stands for the file's own name, ``%FF`` in a
subject for that byte. Each message that a fuzzer finds is added as a file.
"""

from __future__ import annotations

import base64
from pathlib import Path
from urllib.parse import unquote_to_bytes

import msgspec

FOLDER = Path(__file__).parent / "intake"


class Repeat(msgspec.Struct, forbid_unknown_fields=True):
    """A long string: a prefix, a repeated unit, and a suffix."""

    before: str
    unit: str
    count: int
    after: str


class Case(msgspec.Struct, forbid_unknown_fields=True):
    """One message that a client might publish."""

    subject: str
    expected: str
    reason: str
    headers: dict[str, str] = {}
    payload: str = ""
    base64: str | None = None
    repeat: Repeat | None = None
    name: str = ""

    @property
    def subject_bytes(self) -> bytes:
        return unquote_to_bytes(self.subject.replace("%NAME%", self.name))

    @property
    def payload_bytes(self) -> bytes:
        if self.base64 is not None:
            raw = base64.b64decode(self.base64)
        elif self.repeat is not None:
            long = self.repeat.unit * self.repeat.count
            raw = (self.repeat.before + long + self.repeat.after).encode()
        else:
            raw = self.payload.encode()
        return raw.replace(b"%NAME%", self.name.encode())


def cases() -> dict[str, Case]:
    """Read every file."""
    cases_by_name: dict[str, Case] = {}
    for path in sorted(FOLDER.glob("*.json")):
        case = msgspec.json.decode(path.read_bytes(), type=Case)
        case.name = path.stem
        cases_by_name[path.stem] = case
    return cases_by_name
