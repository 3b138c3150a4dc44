"""Only records: a set of values, a default, and their own names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.errors import NotDoneError
from reconciler.provider.contract import action
from reconciler.provider.http_faults import Proxy, build_response
from reconciler.provider.kind import installed_kinds
from shapes_api.kinds.records import RECORD, name_problem, normalize
from tests.providers.connect import Connect

values = st.lists(st.text(max_size=5), min_size=1)


@given(st.data(), values)
def test_the_order_and_number_of_values_do_not_matter(
    data: st.DataObject, given_values: list[str]
) -> None:
    reordered_values = data.draw(st.permutations([*given_values, given_values[0]]))
    assert normalize({"type": "A", "values": list(reordered_values)}) == normalize(
        {"type": "A", "values": given_values, "ttl": 300}
    )


@given(values)
def test_normalizing_twice_changes_nothing(given_values: list[str]) -> None:
    normalized = normalize({"type": "TXT", "values": given_values})
    assert normalize(normalized) == normalized


@pytest.mark.parametrize("name", ["@", "www", "_dmarc.mail", "*.dev", "*", "a.b.c"])
def test_names_that_the_api_allows(name: str) -> None:
    assert name_problem(name) is None


@pytest.mark.parametrize("name", ["", ".", "..", "a..b", "a.", "-a", "A", "a/b", "a\n", "a." * 127])
def test_names_that_the_api_refuses(name: str) -> None:
    assert name_problem(name) is not None


def test_the_kind_is_found_by_its_entry_point() -> None:
    assert installed_kinds()["Record"] is RECORD
    assert {"Shape", "Record"} <= set(installed_kinds())


async def test_a_record_that_changes_during_its_deletion_is_kept(connect: Connect) -> None:
    record = (
        '{"name": "www", "id": "i", "etag": "e7", "type": "A", "ttl": 300, "values": ["x"],'
        ' "tags": ["prod"]}'
    )
    async with Proxy("http://never-asked.invalid") as proxy:
        proxy.plan.extend([build_response(200, record), build_response(412)])
        with pytest.raises(NotDoneError):
            await connect(RECORD, proxy.url).delete(action("Delete", "www", {}))
    assert proxy.methods() == ["GET", "DELETE"]
    assert 'if-match: "e7"' in proxy.heads[1].lower()
