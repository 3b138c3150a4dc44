"""An answer that never arrives: the connection is cut instead."""

from collections.abc import Callable
from typing import Final, cast

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

CUT_CONNECTION: Final = "shapes_api.cut_connection"  # the server's extension of the ASGI scope


class LostReply(Response):
    """Cuts the connection where a response would be sent."""

    async def __call__(self, scope: Scope, receive: Receive, _send: Send) -> None:
        """Cut it, and wait until the server has noticed."""
        cut = cast("Callable[[], None]", scope["extensions"][CUT_CONNECTION])
        cut()
        while (await receive())["type"] != "http.disconnect":
            pass
