"""Send requests to the decider, wait, print the results, and return the exit status."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence

from events.intake import Reply
from events.names import ResourceKey
from reconciler.cli.client import connect_client
from reconciler.cli.connection import Connection, run_async
from reconciler.cli.exits import Exit
from reconciler.cli.output import Format
from reconciler.cli.results import Result, build_result, exit_status, print_results
from reconciler.errors import DeclarationRefusedError
from reconciler.sdk.client import Client

ReplyOrRefusal = Reply | DeclarationRefusedError
SendRequests = Callable[[Client], Awaitable[Sequence[ReplyOrRefusal]]]
Wait = Callable[[Client, Sequence[Result]], Awaitable[None]]


def request(
    connection: Connection,
    keys: Sequence[ResourceKey],
    send_requests: SendRequests,
    *,
    output: Format,
    done: str,
    unchanged: str = "",
    wait: Wait | None = None,
    good: Collection[str] = (),
    problems: Sequence[str] = (),
) -> Exit:
    """Send a request for each resource, print the results, and return the exit status.

    ``done`` is the message for an accepted request. ``unchanged`` is the message for a request
    that has no effect. If it is set, a resource that was never declared is an error. With ``wait``,
    only the outcomes in ``good`` are successes. Raises ``BusError`` and ``ConfigurationError``.
    """

    async def work() -> list[Result]:
        async with connect_client(connection) as client:
            replies = zip(keys, await send_requests(client), strict=True)
            results = [_result(key, reply, done, unchanged) for key, reply in replies]
            if wait is not None:
                await wait(client, results)
        return results

    results = run_async(work()) if keys else []
    print_results(results, output, good=good, problems=problems)
    return Exit.FAILED if problems else exit_status(results, None if wait is None else good)


def _result(key: ResourceKey, reply: ReplyOrRefusal, done: str, unchanged: str) -> Result:
    result = build_result(key, reply)
    if result.reason == "Unchanged" and unchanged:
        if not result.generation:
            return Result(
                result.resource, False, "NotFound", message="the resource was never declared"
            )
        result.message = unchanged
    elif result.accepted and result.reason == "Accepted" and not result.message:
        result.message = done
    return result
