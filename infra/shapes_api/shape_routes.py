"""The routes of the contract: `/shapes` and `/shapes/{name}`."""

import asyncio
import hashlib
import time
from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from infra.shapes_api.fault_injector import Verdict
from infra.shapes_api.idempotency import fingerprint
from infra.shapes_api.listing import Filters, Item, read_page
from infra.shapes_api.lost_reply import LostReply
from infra.shapes_api.method_routing import route
from infra.shapes_api.paging import TOKEN_SECONDS, Position
from infra.shapes_api.problems import ProblemError
from infra.shapes_api.replies import JSON_HEADER, Reply
from infra.shapes_api.request_parts import (
    idempotency_key,
    listing_filters,
    page_size,
    read_body,
)
from infra.shapes_api.service import Service
from infra.shapes_api.shape_store import Caller
from infra.shapes_api.shapes import DesiredShape, read_desired_shape


class ShapeRoutes:
    """Answers the contract's requests, and lets go wrong what shall go wrong."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """Return the contract's routes."""
        one_shape = {"GET": self.get, "PUT": self.replace, "DELETE": self.delete}
        return [
            route("/shapes", {"GET": self.list_page, "POST": self.create}),
            route("/shapes/{name}", one_shape),
        ]

    async def create(self, request: Request) -> Response:
        """Create the shape in the body."""
        body = await read_body(request)
        desired = _desired_or_problem(body)
        name = None if isinstance(desired, ProblemError) else desired.name
        caller = Caller(idempotency_key(request))
        store = self._service.shapes
        return await self._change(
            request, body, name, caller, lambda: store.create(_or_raise(desired), caller)
        )

    async def replace(self, request: Request) -> Response:
        """Replace the shape in the path by the one in the body."""
        name: str = request.path_params["name"]
        body = await read_body(request)
        desired = _desired_or_problem(body)
        caller = Caller(idempotency_key(request), request.headers.get("if-match"))
        store = self._service.shapes
        return await self._change(
            request, body, name, caller, lambda: store.replace(name, _or_raise(desired), caller)
        )

    async def delete(self, request: Request) -> Response:
        """Delete the shape in the path."""
        name: str = request.path_params["name"]
        body = await read_body(request)
        caller = Caller(idempotency_key(request), request.headers.get("if-match"))
        store = self._service.shapes
        return await self._change(request, body, name, caller, lambda: store.delete(name, caller))

    async def get(self, request: Request) -> Response:
        """Show the shape in the path."""
        name: str = request.path_params["name"]
        verdict = self._service.faults.judge(request.method, name)
        await self._go_wrong_before(verdict)
        return _go_wrong_after(verdict, self._service.shapes.get(name))

    async def list_page(self, request: Request) -> Response:
        """Show one page of the listing that the query asks for."""
        filters, limit = listing_filters(request), page_size(request)
        verdict = self._service.faults.judge(request.method, None)
        await self._go_wrong_before(verdict)
        token = request.query_params.get("continue")
        position = self._position(token, _digest(filters), verdict)
        self._service.faults.fail_listing(verdict, position.page)
        return _go_wrong_after(verdict, self._page(filters, limit, position, verdict))

    async def _change(
        self,
        request: Request,
        body: bytes,
        name: str | None,
        caller: Caller,
        operation: Callable[[], Reply],
    ) -> Response:
        """Run a changing operation once for its key, in a transaction shared with others."""
        service, key = self._service, caller.idempotency_key
        print_of_request = fingerprint(request.method, request.scope["path"], body)
        with service.running_keys.claim(key):
            verdict = service.faults.judge(request.method, name)
            await self._go_wrong_before(verdict)
            reply = await service.group_commit.run(
                lambda: service.kept_replies.answer_once(key, print_of_request, operation)
            )
        service.counters.count_effect(reply.effect)
        return _go_wrong_after(verdict, reply)

    async def _go_wrong_before(self, verdict: Verdict) -> None:
        delay_seconds = self._service.latency_seconds + verdict.delay_seconds
        if delay_seconds:
            await asyncio.sleep(delay_seconds)
        if verdict.refusal is not None:
            raise verdict.refusal

    def _position(self, token: str | None, filters: str, verdict: Verdict) -> Position:
        now = time.time()
        if not token:
            return Position("", 0, filters, now)
        lifetime_seconds = self._service.faults.listing_token_seconds(verdict)
        if lifetime_seconds is None:
            lifetime_seconds = TOKEN_SECONDS
        return self._service.tokens.open(token, filters, now, lifetime_seconds)

    def _page(
        self, filters: Filters, limit: int | None, position: Position, verdict: Verdict
    ) -> Reply:
        service = self._service
        sequence = None
        if lag_seconds := service.faults.listing_lag_seconds(verdict):
            sequence = service.journal.last_sequence_at(time.time() - lag_seconds)
        page = read_page(service.connection, filters, position.after, limit, sequence)
        token = None
        if page.has_more:
            last_name = page.items[-1][0]
            following = Position(last_name, position.page + 1, position.filters, time.time())
            token = service.tokens.seal(following)
        dropped = service.faults.drop_from_listing(verdict, [name for name, _ in page.items])
        return _listing([item for item in page.items if item[0] not in dropped], token)


def _desired_or_problem(body: bytes) -> DesiredShape | ProblemError:
    """Return what is wrong with a body as a value: it is the answer that a key keeps."""
    try:
        return read_desired_shape(body)
    except ProblemError as error:
        return error


def _or_raise(desired: DesiredShape | ProblemError) -> DesiredShape:
    if isinstance(desired, ProblemError):
        raise desired
    return desired


def _go_wrong_after(verdict: Verdict, reply: Reply) -> Response:
    if verdict.reply_is_lost:
        return LostReply()
    if verdict.failure_after is not None:
        raise verdict.failure_after
    return reply.response()


def _listing(items: list[Item], token: str | None) -> Reply:
    """Return a page's answer, made of the documents as they are stored."""
    end = b"]}" if token is None else b'],"continue":' + msgspec.json.encode(token) + b"}"
    body = b'{"items":[' + b",".join([document for _, document in items]) + end
    return Reply(200, body, (JSON_HEADER,))


def _digest(filters: Filters) -> str:
    return hashlib.sha256(msgspec.json.encode(filters)).hexdigest()[:16]
