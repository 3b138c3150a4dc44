"""Passwords as a server stores them: creates and checks SCRAM verifiers (RFC 5802)."""

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
"""Limit on a verifier's iterations, because checking it takes up to 40 ms. PostgreSQL's default is
4,096, but a role may store a verifier with any number. One with more is replaced without a check.
"""

_VERIFIER = re.compile(
    r"SCRAM-SHA-256\$(?P<iterations>[0-9]{1,10}):(?P<salt>[A-Za-z0-9+/=]+)"
    r"\$(?P<stored>[A-Za-z0-9+/=]+):[A-Za-z0-9+/=]+"
)


_checks = ThreadPoolExecutor(max_workers=1, thread_name_prefix="passwords")
"""A separate pool, so that slow verifiers do not delay other work in threads."""


def build_verifier(password: str) -> str:
    """Return the verifier of a password, so that the password itself is never sent.

    With a connection, libpq would use as many iterations as its server requests.
    """
    without_server = PGconn.connect_start(b"port=none")
    return without_server.encrypt_password(password.encode(), b"", b"scram-sha-256").decode()


async def check_password(verifier: str | None, password: str) -> bool:
    """Return whether a verifier matches a password, computed in a thread."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_checks, matches_password, verifier, password)


def has_too_many_iterations(verifier: str | None) -> bool:
    """Return whether a verifier would take too long to check."""
    match = _VERIFIER.fullmatch(verifier or "")
    return match is not None and int(match["iterations"]) > MAX_ITERATIONS


def matches_password(verifier: str | None, password: str) -> bool:
    """Return whether a verifier matches a password. It takes about 3 ms.

    MD5 never matches, because Reconciler stores all passwords as SCRAM.
    """
    match = _VERIFIER.fullmatch(verifier or "")
    if match is None or not 0 < int(match["iterations"]) <= MAX_ITERATIONS:
        return False
    try:
        salt = base64.b64decode(match["salt"], validate=True)
        stored_key = base64.b64decode(match["stored"], validate=True)
    except (binascii.Error, ValueError):
        return False
    iterations = int(match["iterations"])
    # Clients apply SASLprep to text that is not ASCII, and use it unchanged if that fails.
    return any(
        hmac.compare_digest(_stored_key(each, salt, iterations), stored_key)
        for each in {password, _apply_saslprep(password)}
    )


def _stored_key(password: str, salt: bytes, iterations: int) -> bytes:
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    return hashlib.sha256(client_key).digest()


def _apply_saslprep(password: str) -> str:
    """Map and normalize as SASLprep does (RFC 4013)."""
    characters = (each for each in password if not stringprep.in_table_b1(each))
    mapped = "".join(" " if stringprep.in_table_c12(each) else each for each in characters)
    return unicodedata.normalize("NFKC", mapped)
