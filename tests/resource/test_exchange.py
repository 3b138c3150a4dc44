"""Resources that exchange values which their API accepts for one object only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import eq
from typing import Any

import pytest

from events.log import FieldDifference
from infra.providers.jetstream.subjects import overlap
from reconciler.resource.exchange import describe_exchange, find_exchange

UNIQUE = {"port": eq}


def port(desired: Any, observed: Any) -> Sequence[FieldDifference]:
    return [FieldDifference("port", desired, observed)]


def circle(
    changes: Mapping[str, Sequence[FieldDifference]], resource: str = "a"
) -> tuple[str, ...]:
    exchange = find_exchange(resource, changes, UNIQUE)
    return () if exchange is None else exchange.circle


def test_two_resources_exchange_a_value():
    changes = {"a": port(1, 2), "b": port(2, 1), "c": port(3, 4)}
    assert circle(changes) == ("a", "b", "a")
    assert circle(changes, "b") == ("b", "a", "b")
    assert circle(changes, "c") == ()
    exchange = find_exchange("a", changes, UNIQUE)
    assert exchange is not None
    assert (
        describe_exchange(exchange) == "a and b exchange `port`, and the API refuses both updates"
    )


def test_three_resources_pass_a_value_on_in_a_circle():
    changes = {"a": port(1, 3), "b": port(2, 1), "c": port(3, 2)}
    exchange = find_exchange("a", changes, UNIQUE)
    assert exchange is not None
    assert exchange.circle == ("a", "b", "c", "a")
    assert describe_exchange(exchange).startswith("a → b → c → a: each requests `port` of the next")


def test_a_resource_that_waits_for_a_circle_is_no_part_of_it():
    changes = {"a": port(1, 9), "b": port(2, 1), "c": port([1], 2)}
    assert circle(changes, "b") == ("b", "c", "b")
    assert circle(changes) == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"a": port(1, 2), "b": port(3, 1)},  # a chain ends by itself
        {"a": port(1, 2), "b": port(1, 1)},  # b keeps the value
        {"a": port(1, 2)},
        {"a": port(None, 2), "b": port(2, None)},
        {"a": port(1, True), "b": port(True, 1)},
        {"a": port([1, 2], [2]), "b": port([2], [1, 2])},  # both keep 2
        {"a": [FieldDifference("color", 1, 2)], "b": [FieldDifference("color", 2, 1)]},
        {"a": port(1, 2), "b": [FieldDifference("other", 2, 1)]},
    ],
)
def test_other_changes_are_no_exchange(changes: Mapping[str, Sequence[FieldDifference]]):
    assert circle(changes) == ()


def test_the_elements_of_lists_are_compared_as_the_api_does():
    first = [FieldDifference("subjects", ["orders.*", "own.a"], ["bills.new", "own.a"])]
    second = [FieldDifference("subjects", ["bills.*"], ["orders.new"])]
    exchange = find_exchange("a", {"a": first, "b": second}, {"subjects": overlap})
    assert exchange is not None
    assert exchange.paths == ("subjects",)
    assert find_exchange("a", {"a": first, "b": second}) is None, "equal values only"


def test_any_field_may_be_unique_if_the_kind_does_not_say():
    changes = {
        "a": [*port(1, 2), FieldDifference("host", "x", "y"), FieldDifference("size", 5, 6)],
        "b": [*port(2, 1), FieldDifference("host", "y", "x"), FieldDifference("size", 7, 6)],
    }
    exchange = find_exchange("a", changes)
    assert exchange is not None
    assert exchange.paths == ("host", "port")
