"""The routes outside of the contract: the contract's text, health, and controls.

GET /openapi.yaml        the contract
GET /healthz             200 while the service works
PUT, GET, DELETE /_faults   what shall go wrong (see `faults`), for requests to /shapes
GET /_stats              requests by method and status, number of shapes, effects
DELETE /_stats           counts from zero again
GET /_journal?after=N&limit=M   effects that really happened, with a sequence above N
"""

from importlib.resources import files

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from infra.shapes_api.faults import NO_FAULTS, Faults
from infra.shapes_api.method_routing import route
from infra.shapes_api.problems import ProblemError
from infra.shapes_api.replies import json_reply
from infra.shapes_api.request_parts import MAX_SEQUENCE, read_body, whole_number
from infra.shapes_api.service import Service


class ControlRoutes:
    """Answers the requests outside of the contract."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._contract = files(__package__ or "").joinpath("openapi.yaml").read_bytes()

    def routes(self) -> list[Route]:
        """Return the routes outside of the contract."""
        return [
            route("/openapi.yaml", {"GET": self.contract}),
            route("/healthz", {"GET": self.health}),
            route(
                "/_faults",
                {
                    "GET": self.show_faults,
                    "PUT": self.replace_faults,
                    "DELETE": self.clear_faults,
                },
            ),
            route("/_stats", {"GET": self.show_statistics, "DELETE": self.reset_statistics}),
            route("/_journal", {"GET": self.show_journal}),
        ]

    async def contract(self, _request: Request) -> Response:
        """Show the OpenAPI document."""
        return Response(self._contract, media_type="application/yaml")

    async def health(self, _request: Request) -> Response:
        """Say that the database answers."""
        self._service.connection.execute("SELECT 1 FROM settings").fetchone()
        return json_reply({"status": "ok"}).response()

    async def show_faults(self, _request: Request) -> Response:
        """Show the faults in force."""
        return json_reply(self._service.faults.faults).response()

    async def replace_faults(self, request: Request) -> Response:
        """Put the faults in the body in force, instead of those before."""
        self._service.faults.replace(_read_faults(await read_body(request)))
        return await self.show_faults(request)

    async def clear_faults(self, _request: Request) -> Response:
        """Let nothing go wrong any more."""
        self._service.faults.replace(NO_FAULTS)
        return Response(status_code=204)

    async def show_statistics(self, _request: Request) -> Response:
        """Show the counts."""
        return json_reply(self._service.counters.statistics()).response()

    async def reset_statistics(self, _request: Request) -> Response:
        """Count from zero again."""
        self._service.counters.reset()
        return Response(status_code=204)

    async def show_journal(self, request: Request) -> Response:
        """Show effects in their order."""
        after = whole_number(request, "after", 0, MAX_SEQUENCE) or 0
        limit = whole_number(request, "limit", 1, MAX_SEQUENCE)
        return json_reply({"entries": self._service.journal.entries(after, limit)}).response()


def _read_faults(body: bytes) -> Faults:
    try:
        return msgspec.json.decode(body, type=Faults)
    except msgspec.ValidationError as error:
        raise ProblemError(422, str(error), kind="not-valid") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProblemError(400, f"the body is not JSON: {error}", kind="malformed-json") from error
