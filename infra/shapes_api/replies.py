"""What the service answers to one request, as a value that can be kept and given again."""

from enum import StrEnum
from typing import Final

import msgspec
from starlette.responses import Response

Headers = tuple[tuple[str, str], ...]

JSON_HEADER: Final = ("content-type", "application/json")


class Effect(StrEnum):
    """What a request changed."""

    CREATE = "creates"
    UPDATE = "updates"
    DELETE = "deletes"


class Reply(msgspec.Struct, frozen=True):
    """Status, headers and body of an answer, and the effect that it reports."""

    status: int
    body: bytes = b""
    headers: Headers = ()
    effect: Effect | None = None

    def response(self) -> Response:
        """Return the answer as the web framework sends it."""
        return Response(self.body, self.status, dict(self.headers))


def json_reply(content: object, status: int = 200) -> Reply:
    """Return an answer with `content` as its JSON body."""
    return Reply(status, msgspec.json.encode(content), (JSON_HEADER,))
