"""The ASGI application."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from infra.shapes_api.control_routes import ControlRoutes
from infra.shapes_api.counters import CountRequests
from infra.shapes_api.problems import (
    ProblemError,
    answer_framework_error,
    answer_problem,
    answer_unexpected_error,
)
from infra.shapes_api.service import Service
from infra.shapes_api.shape_routes import ShapeRoutes


def create_app(service: Service) -> Starlette:
    """Return the application that serves the contract and the controls."""

    @asynccontextmanager
    async def purging(_app: Starlette) -> AsyncGenerator[None, None]:
        task = asyncio.create_task(service.purge_for_ever())
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    app = Starlette(
        routes=[*ShapeRoutes(service).routes(), *ControlRoutes(service).routes()],
        middleware=[Middleware(CountRequests, counters=service.counters)],
        exception_handlers={
            ProblemError: answer_problem,
            HTTPException: answer_framework_error,
            ClientDisconnect: _answer_nobody,
            Exception: answer_unexpected_error,
        },
        lifespan=purging,
    )
    app.router.redirect_slashes = False
    return app


async def _answer_nobody(_request: Request, _error: Exception) -> Response:
    """Answer a client that went away before its body was read; no one sees it."""
    return Response(status_code=400)
