"""Passwords as a server keeps them: verifiers for SCRAM (RFC 5802), made and checked."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import re
import stringprep
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from psycopg.pq import PGconn

MAX_ITERATIONS: Final = 20_000
"""Of a verifier that is checked, which takes up to 40 ms. A role may store a verifier with any
number, 4,096 is PostgreSQL's default, and one that is not checked is replaced by ours."""

_VERIFIER = re.compile(
    r"SCRAM-SHA-256\$(?P<iterations>[0-9]{1,10}):(?P<salt>[A-Za-z0-9+/=]+)"
    r"\$(?P<stored>[A-Za-z0-9+/=]+):[A-Za-z0-9+/=]+"
)


_checks = ThreadPoolExecutor(max_workers=1, thread_name_prefix="passwords")
"""Of its own: roles with slow verifiers delay no other work that is done in threads."""


def make_verifier(password: str) -> str:
    """Return what a server keeps of a password, so that the password itself is never sent.

    On a connection, libpq would take the number of iterations that its server reports.
    """
    without_server = PGconn.connect_start(b"port=none")
    return without_server.encrypt_password(password.encode(), b"", b"scram-sha-256").decode()


async def check_password(verifier: str | None, password: str) -> bool:
    """Return whether a verifier was made of a password, which a thread computes."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_checks, is_password_of, verifier, password)


def has_too_many_iterations(verifier: str | None) -> bool:
    """Return whether a verifier would take too long to check."""
    found = _VERIFIER.fullmatch(verifier or "")
    return found is not None and int(found["iterations"]) > MAX_ITERATIONS


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
