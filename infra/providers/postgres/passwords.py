"""Passwords as a server keeps them: whether a stored verifier is of a password (RFC 5802)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import stringprep
import unicodedata
from typing import Final

MAX_ITERATIONS: Final = 1_000_000
"""A verifier that wants more was not made by a server that anybody logs in to."""

_VERIFIER = re.compile(
    r"SCRAM-SHA-256\$(?P<iterations>[0-9]{1,7}):(?P<salt>[A-Za-z0-9+/=]+)"
    r"\$(?P<stored>[A-Za-z0-9+/=]+):[A-Za-z0-9+/=]+"
)


def is_password_of(verifier: str | None, password: str) -> bool:
    """Return whether a verifier was made of a password; takes about three milliseconds.

    False for MD5, too: a password of ours is always kept as SCRAM.
    """
    found = _VERIFIER.fullmatch(verifier or "")
    if found is None or not 0 < int(found["iterations"]) <= MAX_ITERATIONS:
        return False
    try:
        salt = base64.b64decode(found["salt"], validate=True)
        stored = base64.b64decode(found["stored"], validate=True)
    except (binascii.Error, ValueError):
        return False
    iterations = int(found["iterations"])
    # Clients prepare what is not ASCII, but take it as it is where that fails.
    return any(
        hmac.compare_digest(_stored_key(each, salt, iterations), stored)
        for each in {password, _prepared(password)}
    )


def _stored_key(password: str, salt: bytes, iterations: int) -> bytes:
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    return hashlib.sha256(client_key).digest()


def _prepared(password: str) -> str:
    """Map and normalise as SASLprep does (RFC 4013)."""
    kept = (each for each in password if not stringprep.in_table_b1(each))
    mapped = "".join(" " if stringprep.in_table_c12(each) else each for each in kept)
    return unicodedata.normalize("NFKC", mapped)
