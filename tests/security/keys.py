"""Users' key files, and the JWTs that an operator would sign for them."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import nkeys


class Pair:
    """The key pair of a user, account or operator."""

    def __init__(self, prefix: int) -> None:
        self._seed = bytes(nkeys.encode_seed(os.urandom(32), prefix))

    @classmethod
    def of_user(cls) -> Pair:
        return cls(nkeys.PREFIX_BYTE_USER)

    @property
    def seed(self) -> str:
        return self._seed.decode()

    @property
    def public(self) -> str:
        return bytes(nkeys.from_seed(bytearray(self._seed)).public_key).decode()

    def write(self, path: Path) -> Path:
        """Write the seed as `nk -gen user` prints it."""
        path.write_text(f"{self.seed}\n")
        return path

    def sign(self, text: str) -> bytes:
        return bytes(nkeys.from_seed(bytearray(self._seed)).sign(text.encode()))


def sign_jwt(issuer: Pair, subject: Pair, name: str, claims: dict[str, Any], *, seconds: int = 0):
    """Sign a JWT, which is valid for ``seconds`` (0: no expiry)."""
    body: dict[str, Any] = {
        "iat": int(time.time()),
        "iss": issuer.public,
        "sub": subject.public,
        "name": name,
        "nats": {"version": 2, **claims},
    }
    if seconds:
        body["exp"] = int(time.time()) + seconds
    body["jti"] = base64.b32encode(hashlib.sha256(json.dumps(body).encode()).digest()).decode()[:52]
    text = f"{_encode({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_encode(body)}"
    return f"{text}.{base64.urlsafe_b64encode(issuer.sign(text)).rstrip(b'=').decode()}"


def write_credentials(path: Path, jwt: str, user: Pair) -> Path:
    """Write a `.creds` file in one step, as a renewal should."""
    new = path.with_suffix(".new")
    new.write_text(
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\n"
        "NKEY Seed printed below can be used to sign and prove identity.\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
    )
    new.replace(path)
    return path


def _encode(part: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()
