"""What each failure of an API is taken for: the table of ``docs/how-to/add-a-kind.md``, row by row.

A scripted HTTP server stands before the real API of each reference provider, and does the harm of
the row to the very request that the column names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from events.external import ExternalObject
from events.provider_config import Scope
from reconciler import errors
from reconciler.errors import ProviderError
from reconciler.provider import Provider
from reconciler.provider.contract import action, listing
from reconciler.provider.http_faults import Fault, Proxy, build_response
from tests.providers.cases import Case
from tests.providers.connect import Connect, upon

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs/how-to/add-a-kind.md").read_text()
TABLE = PAGE.split("<!-- tried by tests/providers/test_classification.py -->\n")[1].split("\n\n")[0]
ROWS = [
    (row[0], row[1], row[2])
    for row in (re.findall(r"[^|]+", line) for line in TABLE.splitlines()[2:])
]
NO_ANSWER = "no response before the timeout, whether the API executed the request or not"
IMPATIENT_SECONDS = 2.0
"""Only for what never comes; half of it must do for a connection, on a busy machine, too."""

SCRIPTS: dict[str, Fault | bytes] = {
    NO_ANSWER: Fault.HOLD_REPLY,
    "the connection ends before the response": Fault.LOSE_REPLY,
    "the connection ends within the response": Fault.CUT_REPLY,
    "the response is not HTTP": b"not http at all\r\n\r\n",
    "207, the API executed part of the request": build_response(207, '{"done": "a part"}'),
    "307 or another redirect": build_response(307, Location="http://elsewhere.example/"),
    "400": build_response(400),
    "401": build_response(401),
    "403": build_response(403),
    "405": build_response(405),
    "408": build_response(408),
    "409 with `Retry-After`": build_response(409, Retry_After="1"),
    "410 in response to a listing": build_response(410),
    "413": build_response(413),
    "422": build_response(422),
    "425": build_response(425),
    "429": build_response(429, Retry_After="1"),
    "500": build_response(500),
    "502": build_response(502),
    "503": build_response(503),
    "504": build_response(504),
    "a success response that is not JSON": build_response(200, "<html>welcome</html>"),
    "a success response with another schema": build_response(200, '{"hello": "world"}'),
}
ELSEWHERE = {
    "no connection",
    "404, and the collection does not exist either",
    "412, another object or version exists",
    "a success response about another object",
}


def test_the_table_and_the_scripts_name_the_same_failures() -> None:
    assert {row[0].strip() for row in ROWS} == SCRIPTS.keys() | ELSEWHERE


def error_class(cell: str) -> type[ProviderError]:
    return getattr(errors, cell.strip().strip("`"))


def cell_of(failure: str, column: int) -> type[ProviderError]:
    (row,) = (row for row in ROWS if row[0].strip() == failure)
    return error_class(row[column])


async def fails(call: Awaitable[object], expected: type[ProviderError]) -> None:
    """Make a call that fails with this class."""
    with pytest.raises(ProviderError) as caught:
        await call
    assert caught.value.error_class == expected.error_class, caught.value


Write = Callable[[Provider, Case, ExternalObject], Awaitable[object]]
WRITES: dict[str, Write] = {
    "create": lambda provider, case, thing: provider.create(
        action("Create", f"{thing.name}-new", case.fields)
    ),
    "update": lambda provider, case, thing: provider.update(
        upon("Update", thing, case.other_fields)
    ),
    "delete": lambda provider, _case, thing: provider.delete(upon("Delete", thing, {})),
}


@pytest.fixture
async def thing(case: Case, provider: Provider, name: str) -> ExternalObject:
    created_object = (await provider.create(action("Create", name, case.fields))).object
    assert created_object is not None
    return created_object


@pytest.fixture
def client(case: Case, proxy: Proxy, connect: Connect, failure: str) -> Provider:
    """The provider behind the proxy, impatient only where nothing else ends the call."""
    endpoint = proxy.url + case.endpoint_path
    if failure == NO_ANSWER:
        return connect(case.kind, endpoint, timeout_seconds=IMPATIENT_SECONDS)
    return connect(case.kind, endpoint)


# The body of a deletion's response is of no interest.
FAILED_WRITES = [
    (write, failure)
    for write in WRITES
    for failure in SCRIPTS
    if failure != "410 in response to a listing"
    and not (write == "delete" and failure.startswith("a success"))
]


@pytest.mark.parametrize(("write", "failure"), FAILED_WRITES)
async def test_a_write_that_fails_is_classified_as_the_table_says(
    case: Case, client: Provider, proxy: Proxy, thing: ExternalObject, failure: str, write: str
) -> None:
    proxy.exempt_methods = frozenset({"GET"})
    proxy.plan.append(SCRIPTS[failure])
    await fails(WRITES[write](client, case, thing), cell_of(failure, 1))
    assert not proxy.plan


@pytest.mark.parametrize("failure", SCRIPTS)
async def test_a_read_or_listing_that_fails_is_classified_as_the_table_says(
    client: Provider, proxy: Proxy, thing: ExternalObject, failure: str
) -> None:
    expected = cell_of(failure, 2)
    proxy.plan.append(SCRIPTS[failure])
    await fails(listing(client, Scope()), expected)
    if failure != "410 in response to a listing":
        proxy.plan.append(SCRIPTS[failure])
        await fails(client.read(thing.name), expected)
    assert not proxy.plan


@pytest.mark.parametrize("write", WRITES)
async def test_a_refused_connection_means_that_nothing_was_done(
    case: Case, connect: Connect, thing: ExternalObject, write: str
) -> None:
    async with Proxy("http://never-asked.invalid") as unreachable_proxy:
        closed = unreachable_proxy.url
    provider = connect(case.kind, closed + case.endpoint_path)
    await fails(WRITES[write](provider, case, thing), cell_of("no connection", 1))
    await fails(provider.read(thing.name), cell_of("no connection", 2))
    await fails(listing(provider, Scope()), cell_of("no connection", 2))


@pytest.mark.parametrize("path", ["/wrong", "/v2"])
async def test_a_wrong_base_path_never_counts_as_absence(
    case: Case, connect: Connect, provider: Provider, thing: ExternalObject, api_url: str, path: str
) -> None:
    wrong, failure = (
        connect(case.kind, api_url + path),
        "404, and the collection does not exist either",
    )
    await fails(WRITES["create"](wrong, case, thing), cell_of(failure, 1))
    for begins_with_a_read in (WRITES["update"], WRITES["delete"]):
        with pytest.raises(ProviderError):
            await begins_with_a_read(wrong, case, thing)
    with pytest.raises(ProviderError):
        await wrong.delete(action("Delete", thing.name, {}))
    await fails(wrong.read(thing.name), cell_of(failure, 2))
    await fails(listing(wrong, Scope()), cell_of(failure, 2))
    assert await provider.read(thing.name) == thing


async def test_a_gateway_that_answers_404_to_a_deletion_does_not_make_it_done(
    case: Case, proxied: Provider, proxy: Proxy, provider: Provider, thing: ExternalObject
) -> None:
    proxy.plan.extend([Fault.NONE, build_response(404, "<html>"), build_response(404, "<html>")])
    failure = "404, and the collection does not exist either"
    await fails(proxied.delete(upon("Delete", thing, {})), cell_of(failure, 1))
    assert await provider.read(thing.name) == thing


async def test_what_stands_in_the_way_is_a_conflict(
    case: Case, provider: Provider, thing: ExternalObject
) -> None:
    failure = "412, another object or version exists"
    stale = upon("Update", thing, case.other_fields)
    await provider.update(stale)
    await fails(provider.update(upon("Update", thing, case.fields)), cell_of(failure, 1))
    await fails(provider.create(action("Create", thing.name, case.fields)), cell_of(failure, 1))


async def test_a_success_about_another_object_is_not_accepted(
    case: Case, proxied: Provider, proxy: Proxy, thing: ExternalObject
) -> None:
    failure = "a success response about another object"
    await proxied.read(thing.name)
    lie = await proxy.fetch(proxy.requests[-1][1])
    proxy.plan.append(lie)
    await fails(proxied.read(f"{thing.name}-2"), cell_of(failure, 2))
    proxy.plan.append(lie.replace(b" 200 ", b" 201 ", 1))
    create = action("Create", f"{thing.name}-3", case.fields)
    await fails(proxied.create(create), cell_of(failure, 1))


WAITS = re.compile(r"does not exist yet|in use|declare\b|withdraw|unmount|is attached|set spec\.")
"""What a message says of an error that lasts until a tenant does something."""


def test_waiting_for_what_a_tenant_names_is_a_refusal() -> None:
    """Otherwise such errors in a row open the breaker of the API for all tenants."""
    without = [
        f"{path.relative_to(REPOSITORY)}:{call.lineno}"
        for path in sorted((REPOSITORY / "infra/providers").rglob("*.py"))
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) == "NotDoneError"
        and WAITS.search(ast.unparse(call))
        and not any(each.arg == "status" for each in call.keywords)
    ]
    assert without == []
