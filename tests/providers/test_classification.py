"""How each API failure is classified: the table of ``docs/how-to/add-a-kind.md``, row by row.

A scripted proxy in front of the real API of each reference provider applies the row's fault to the
request that the column names.
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
from tests.providers.connect import Connect, action_on

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs/how-to/add-a-kind.md").read_text()
TABLE = PAGE.split("<!-- tried by tests/providers/test_classification.py -->\n")[1].split("\n\n")[0]
ROWS = [
    (row[0], row[1], row[2])
    for row in (re.findall(r"[^|]+", line) for line in TABLE.splitlines()[2:])
]
NO_RESPONSE = "no response before the timeout, whether the API executed the request or not"
SHORT_TIMEOUT_SECONDS = 2.0
"""Only for a response that never comes; half of it must be enough to connect on a busy machine."""

SCRIPTS: dict[str, Fault | bytes] = {
    NO_RESPONSE: Fault.HOLD_REPLY,
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
TESTED_SEPARATELY = {
    "no connection",
    "404, and the collection does not exist either",
    "412, another object or version exists",
    "a success response about another object",
}


def test_the_table_and_the_scripts_name_the_same_failures() -> None:
    assert {row[0].strip() for row in ROWS} == SCRIPTS.keys() | TESTED_SEPARATELY


def error_class(cell: str) -> type[ProviderError]:
    return getattr(errors, cell.strip().strip("`"))


def expected_error(failure: str, column: int) -> type[ProviderError]:
    (row,) = (row for row in ROWS if row[0].strip() == failure)
    return error_class(row[column])


async def expect_error(call: Awaitable[object], expected: type[ProviderError]) -> None:
    """Expect a call to fail with an error of this class."""
    with pytest.raises(ProviderError) as caught:
        await call
    assert caught.value.error_class == expected.error_class, caught.value


Write = Callable[[Provider, Case, ExternalObject], Awaitable[object]]
WRITES: dict[str, Write] = {
    "create": lambda provider, case, existing: provider.create(
        action("Create", f"{existing.name}-new", case.fields)
    ),
    "update": lambda provider, case, existing: provider.update(
        action_on("Update", existing, case.other_fields)
    ),
    "delete": lambda provider, _case, existing: provider.delete(action_on("Delete", existing, {})),
}


@pytest.fixture
async def existing(case: Case, provider: Provider, name: str) -> ExternalObject:
    created_object = (await provider.create(action("Create", name, case.fields))).object
    assert created_object is not None
    return created_object


@pytest.fixture
def client(case: Case, proxy: Proxy, connect: Connect, failure: str) -> Provider:
    """The provider behind the proxy, with a short timeout only if nothing else ends the call."""
    endpoint = proxy.url + case.endpoint_path
    if failure == NO_RESPONSE:
        return connect(case.kind, endpoint, timeout_seconds=SHORT_TIMEOUT_SECONDS)
    return connect(case.kind, endpoint)


# The body of a deletion's response is irrelevant.
FAILED_WRITES = [
    (write, failure)
    for write in WRITES
    for failure in SCRIPTS
    if failure != "410 in response to a listing"
    and not (write == "delete" and failure.startswith("a success"))
]


@pytest.mark.parametrize(("write", "failure"), FAILED_WRITES)
async def test_a_write_that_fails_is_classified_as_the_table_says(
    case: Case, client: Provider, proxy: Proxy, existing: ExternalObject, failure: str, write: str
) -> None:
    proxy.exempt_methods = frozenset({"GET"})
    proxy.plan.append(SCRIPTS[failure])
    await expect_error(WRITES[write](client, case, existing), expected_error(failure, 1))
    assert not proxy.plan


@pytest.mark.parametrize("failure", SCRIPTS)
async def test_a_read_or_listing_that_fails_is_classified_as_the_table_says(
    client: Provider, proxy: Proxy, existing: ExternalObject, failure: str
) -> None:
    expected = expected_error(failure, 2)
    proxy.plan.append(SCRIPTS[failure])
    await expect_error(listing(client, Scope()), expected)
    if failure != "410 in response to a listing":
        proxy.plan.append(SCRIPTS[failure])
        await expect_error(client.read(existing.name), expected)
    assert not proxy.plan


@pytest.mark.parametrize("write", WRITES)
async def test_a_refused_connection_means_that_nothing_was_done(
    case: Case, connect: Connect, existing: ExternalObject, write: str
) -> None:
    async with Proxy("http://never-asked.invalid") as unreachable_proxy:
        closed = unreachable_proxy.url
    provider = connect(case.kind, closed + case.endpoint_path)
    await expect_error(WRITES[write](provider, case, existing), expected_error("no connection", 1))
    await expect_error(provider.read(existing.name), expected_error("no connection", 2))
    await expect_error(listing(provider, Scope()), expected_error("no connection", 2))


@pytest.mark.parametrize("path", ["/wrong", "/v2"])
async def test_a_wrong_base_path_never_counts_as_absence(
    case: Case,
    connect: Connect,
    provider: Provider,
    existing: ExternalObject,
    api_url: str,
    path: str,
) -> None:
    wrong, failure = (
        connect(case.kind, api_url + path),
        "404, and the collection does not exist either",
    )
    await expect_error(WRITES["create"](wrong, case, existing), expected_error(failure, 1))
    for write in (WRITES["update"], WRITES["delete"]):
        with pytest.raises(ProviderError):
            await write(wrong, case, existing)
    with pytest.raises(ProviderError):
        await wrong.delete(action("Delete", existing.name, {}))
    await expect_error(wrong.read(existing.name), expected_error(failure, 2))
    await expect_error(listing(wrong, Scope()), expected_error(failure, 2))
    assert await provider.read(existing.name) == existing


async def test_a_gateways_404_response_to_a_deletion_does_not_complete_it(
    case: Case, proxied: Provider, proxy: Proxy, provider: Provider, existing: ExternalObject
) -> None:
    proxy.plan.extend([Fault.NONE, build_response(404, "<html>"), build_response(404, "<html>")])
    failure = "404, and the collection does not exist either"
    await expect_error(
        proxied.delete(action_on("Delete", existing, {})), expected_error(failure, 1)
    )
    assert await provider.read(existing.name) == existing


async def test_an_existing_object_or_version_is_a_conflict(
    case: Case, provider: Provider, existing: ExternalObject
) -> None:
    failure = "412, another object or version exists"
    stale = action_on("Update", existing, case.other_fields)
    await provider.update(stale)
    await expect_error(
        provider.update(action_on("Update", existing, case.fields)), expected_error(failure, 1)
    )
    await expect_error(
        provider.create(action("Create", existing.name, case.fields)), expected_error(failure, 1)
    )


async def test_a_success_about_another_object_is_not_accepted(
    case: Case, proxied: Provider, proxy: Proxy, existing: ExternalObject
) -> None:
    failure = "a success response about another object"
    await proxied.read(existing.name)
    wrong_response = await proxy.fetch(proxy.requests[-1][1])
    proxy.plan.append(wrong_response)
    await expect_error(proxied.read(f"{existing.name}-2"), expected_error(failure, 2))
    proxy.plan.append(wrong_response.replace(b" 200 ", b" 201 ", 1))
    create = action("Create", f"{existing.name}-3", case.fields)
    await expect_error(proxied.create(create), expected_error(failure, 1))


WAITS = re.compile(r"does not exist yet|in use|declare\b|withdraw|unmount|is attached|set spec\.")
"""Wording of errors that last until a tenant acts."""


def test_errors_that_wait_for_a_tenant_have_a_status() -> None:
    """Otherwise several such errors in a row would open the API's breaker for all tenants."""
    missing = [
        f"{path.relative_to(REPOSITORY)}:{call.lineno}"
        for path in sorted((REPOSITORY / "infra/providers").rglob("*.py"))
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) == "NotDoneError"
        and WAITS.search(ast.unparse(call))
        and not any(each.arg == "status" for each in call.keywords)
    ]
    assert missing == []
