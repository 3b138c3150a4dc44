"""The ASGI application, backed by a database."""

import asyncio
import sqlite3
from importlib.resources import files

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from shapes_api.problems import (
    Problem,
    handle_framework_error,
    handle_problem,
    handle_unexpected_error,
)
from shapes_api.records import Records
from shapes_api.shapes import BeforeRequest, Shapes


def latency(seconds: float) -> BeforeRequest:
    """Return a hook that delays each shape request by this time before it is handled."""

    async def wait(_request: Request, _name: str | None) -> None:
        if seconds:
            await asyncio.sleep(seconds)

    return wait


def create_app(database: sqlite3.Connection, before_request: BeforeRequest) -> Starlette:
    """Return the application that serves both kinds, their contract, and `/healthz`."""
    contract = files(__package__ or "").joinpath("openapi.yaml").read_bytes()

    async def show_contract(_request: Request) -> Response:
        return Response(contract, media_type="application/yaml")

    async def show_health(_request: Request) -> Response:
        database.execute("SELECT 1 FROM shapes").fetchone()
        return JSONResponse({"status": "ok"})

    app = Starlette(
        routes=[
            *Shapes(database, before_request).routes(),
            *Records(database).routes(),
            Route("/openapi.yaml", show_contract),
            Route("/healthz", show_health),
        ],
        exception_handlers={
            Problem: handle_problem,
            HTTPException: handle_framework_error,
            ClientDisconnect: _handle_disconnect,
            Exception: handle_unexpected_error,
        },
    )
    app.router.redirect_slashes = False
    return app


async def _handle_disconnect(_request: Request, _error: Exception) -> Response:
    """Return a response for a client that disconnected early, which never receives it."""
    return Response(status_code=400)
