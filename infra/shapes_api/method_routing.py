"""One route for all methods of a path, so that a refused method is answered with all the others."""

from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

Handler = Callable[[Request], Awaitable[Response]]


def route(path: str, handlers: Mapping[str, Handler]) -> Route:
    """Return the route of a path that has a handler for each of its methods."""

    async def answer(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await handlers[method](request)

    return Route(path, answer, methods=list(handlers))
