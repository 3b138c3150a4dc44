"""Only shapes: idempotency keys, and the two meanings of 409."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from events.external import ExternalObject
from events.log import Operation
from events.manifest import InvalidManifestError
from events.provider_config import Scope
from reconciler.errors import (
    ConflictError,
    ListingExpiredError,
    NotCalledError,
    NotDoneError,
    NotFoundError,
    ProviderError,
    RefusedError,
    UnknownResultError,
)
from reconciler.provider import Provider
from reconciler.provider.call_permit import CALL_GATE
from reconciler.provider.contract import action, listing
from reconciler.provider.http_faults import Proxy, build_response
from shapes_api.kinds.shapes import SHAPE, name_problem
from tests.providers.connect import Connect, action_on
from tests.providers.permit import Permit

FIELDS = {"type": "Square", "color": "Red"}
OTHER_SHAPE = build_response(200, '{"name": "foo", "type": "Star", "color": "Mauve", "extra": 1}')
ABSENT = build_response(404)
NONE_LISTED = build_response(200, '{"items": []}')
KNOWN_OBJECT = ExternalObject("foo", FIELDS, uid="u1", version="1")
KNOWN_SHAPE = build_response(
    200, '{"name": "foo", "type": "Square", "color": "Red", "uid": "u1", "version": 1}'
)
REPLAYED = {"Idempotent_Replayed": "true"}


@pytest.fixture
async def planned() -> AsyncIterator[Proxy]:
    async with Proxy("http://never-asked.invalid") as proxy:
        yield proxy


@pytest.fixture
def shapes(planned: Proxy, connect: Connect) -> Provider:
    return connect(SHAPE, planned.url)


@pytest.mark.parametrize(
    ("refusal", "next_response", "error"),
    [
        (build_response(409, '{"detail": "name taken"}'), OTHER_SHAPE, ConflictError),
        (build_response(409, '{"detail": "name taken"}'), ABSENT, ConflictError),
        (build_response(409, '{"detail": "name taken"}', **REPLAYED), ABSENT, ConflictError),
        (build_response(409, '{"detail": "this key is still running"}'), None, UnknownResultError),
        (build_response(409, Retry_After="3"), None, UnknownResultError),
        (
            build_response(422, '{"detail": "the key was used with another body"}'),
            None,
            RefusedError,
        ),
        (build_response(409, '{"detail": "name taken"}'), build_response(503), UnknownResultError),
    ],
)
async def test_a_refused_create_raises_the_matching_error(
    shapes: Provider,
    planned: Proxy,
    refusal: bytes,
    next_response: bytes | None,
    error: type[ProviderError],
) -> None:
    last_response = NONE_LISTED if next_response is ABSENT else None
    planned.plan.extend(
        response for response in (refusal, next_response, last_response) if response is not None
    )

    with pytest.raises(error) as caught:
        await shapes.create(action("Create", "foo", FIELDS))
    assert type(caught.value) is error
    assert not planned.plan
    assert (caught.value.obstacle is not None) == (next_response is OTHER_SHAPE)


@pytest.mark.parametrize(
    ("refusal", "next_response", "error"),
    [
        (build_response(412), OTHER_SHAPE, ConflictError),
        (build_response(412), ABSENT, NotFoundError),
        (build_response(404), NONE_LISTED, NotFoundError),
        (build_response(409, '{"detail": "this key is still running"}'), None, UnknownResultError),
    ],
)
async def test_a_refused_update_raises_the_matching_error(
    shapes: Provider,
    planned: Proxy,
    refusal: bytes,
    next_response: bytes | None,
    error: type[ProviderError],
) -> None:
    last_response = NONE_LISTED if next_response is ABSENT else None
    planned.plan.extend(
        response
        for response in (OTHER_SHAPE, refusal, next_response, last_response)
        if response is not None
    )

    with pytest.raises(error) as caught:
        await shapes.update(action("Update", "foo", FIELDS))
    assert type(caught.value) is error
    assert (caught.value.obstacle is not None) == (next_response is OTHER_SHAPE)


async def test_a_listed_object_whose_read_returns_404_is_not_absent(
    shapes: Provider, planned: Proxy
) -> None:
    planned.plan.extend(
        [
            ABSENT,
            build_response(200, '{"items": [{"name": "foo", "type": "Star", "color": "Mauve"}]}'),
        ]
    )
    with pytest.raises(NotDoneError, match="is listed"):
        await shapes.read("foo")


async def test_every_write_carries_its_key(shapes: Provider, planned: Proxy) -> None:
    create = action("Create", "foo", FIELDS)
    planned.plan.append(build_response(503))
    with pytest.raises(UnknownResultError):
        await shapes.create(create)
    assert f"idempotency-key: {create.idempotency_key}" in planned.heads[0].lower()


async def test_an_expired_listing_raises_its_own_error(shapes: Provider, planned: Proxy) -> None:
    planned.plan.extend(
        [build_response(200, '{"items": [], "continue": "t"}'), build_response(410)]
    )
    with pytest.raises(ListingExpiredError):
        await listing(shapes, Scope())


async def test_unknown_values_are_shown_unchanged(shapes: Provider, planned: Proxy) -> None:
    planned.plan.append(OTHER_SHAPE)
    existing = await shapes.read("foo")
    assert existing is not None
    assert existing.fields == {"type": "Star", "color": "Mauve"}
    assert (existing.uid, existing.version, existing.labels) == (None, None, {})


@pytest.mark.parametrize("name", ["a", "0", "a-b", "a" * 63])
def test_names_that_the_api_allows(name: str) -> None:
    assert name_problem(name) is None


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a.b", "a_b", "a" * 64, "a\n", "é", ".."])
def test_names_that_the_api_refuses(name: str) -> None:
    assert name_problem(name) is not None


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "Square"},
        {"type": "Square", "color": "red"},
        {"type": "Square", "color": "Red", "size": 3},
    ],
)
def test_an_invalid_shape_spec_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidManifestError):
        SHAPE.check_fields(fields)


@pytest.mark.parametrize("operation", ["Update", "Delete"])
async def test_a_write_is_not_sent_after_its_read_became_too_old(
    shapes: Provider, planned: Proxy, monkeypatch: pytest.MonkeyPatch, operation: Operation
) -> None:
    """The process paused or had to wait, so the name may now belong to another object."""
    monkeypatch.setattr("reconciler.provider.call_permit.READ_VALID_SECONDS", -1.0)
    planned.plan.append(KNOWN_SHAPE)
    write = shapes.update if operation == "Update" else shapes.delete
    with pytest.raises(NotCalledError, match="the read that the request depends on is 0 s old"):
        await write(action_on(operation, KNOWN_OBJECT, FIELDS))
    assert planned.methods() == ["GET"]


async def test_a_write_has_priority_and_waits_for_the_rate_limit(
    shapes: Provider, planned: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.provider.call_permit.READ_VALID_SECONDS", -1.0)
    permit = Permit(interval_seconds=10.0)
    permit.is_granted.set()
    planned.plan += [KNOWN_SHAPE, build_response(204)]
    token = CALL_GATE.set(permit)
    await shapes.delete(action_on("Delete", KNOWN_OBJECT, {}))
    CALL_GATE.reset(token)
    assert permit.waits == [False, True], "the deletion has priority"
