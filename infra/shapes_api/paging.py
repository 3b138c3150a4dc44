"""Continue tokens: where the next page starts, sealed so that clients cannot read or forge it."""

import base64
import binascii
import hashlib
import hmac
from typing import Final

import msgspec

from infra.shapes_api.problems import ProblemError

TOKEN_SECONDS: Final = 300.0
_SEAL_BYTES: Final = 16


class Position(msgspec.Struct, frozen=True, array_like=True):
    """A place in a listing: behind a name, before the page of that number (the first is 0)."""

    after: str
    page: int
    filters: str
    issued_at: float


_decoder: Final = msgspec.json.Decoder(Position)


class ContinueTokens:
    """Makes tokens of positions, and positions of tokens."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def seal(self, position: Position) -> str:
        """Return the token of a position."""
        content = msgspec.json.encode(position)
        return base64.urlsafe_b64encode(self._seal_of(content) + content).decode().rstrip("=")

    def open(self, token: str, filters: str, now: float, lifetime_seconds: float) -> Position:
        """Return the position of a token.

        Raises:
            ProblemError: 410, the token is too old, of another listing, or not one of ours.
        """
        position = self._position(token)
        if position is None:
            raise _gone("is not one that this service gave out")
        if position.filters != filters:
            raise _gone("belongs to a listing with other filters")
        if now - position.issued_at >= lifetime_seconds:
            raise _gone("is too old")
        return position

    def _position(self, token: str) -> Position | None:
        try:
            sealed = base64.b64decode(token + "=" * (-len(token) % 4), b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        seal, content = sealed[:_SEAL_BYTES], sealed[_SEAL_BYTES:]
        if not hmac.compare_digest(seal, self._seal_of(content)):
            return None
        return _decoder.decode(content)

    def _seal_of(self, content: bytes) -> bytes:
        return hashlib.blake2b(content, key=self._secret, digest_size=_SEAL_BYTES).digest()


def _gone(why: str) -> ProblemError:
    detail = f"the continue token {why}: list again from the start"
    return ProblemError(410, detail, kind="continue-token-expired")
