"""The contract suite for our own providers with their real APIs, and for a minimal API."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import ClassVar

import pytest

from events.manifest import Fields
from events.provider_config import Scope
from reconciler.provider import Provider
from reconciler.provider.contract import ProviderContract
from reconciler.provider.http_faults import HttpFaultContract
from reconciler.provider.kind import Kind
from tests.providers.cases import RECORDS_CASE, SHAPES_CASE, Case
from tests.providers.plain import NOTE

ALIAS: Kind = runpy.run_path(str(Path(__file__).parents[2] / "examples/kinds/alias.py"))["ALIAS"]


class CaseContract(ProviderContract, HttpFaultContract):
    """Runs against a case's API."""

    @pytest.fixture
    def endpoint(self, case: Case, api_url: str) -> str:
        return api_url + case.endpoint_path

    async def test_small_pages_split_a_listing(self, provider: Provider, name: str) -> None:
        for number in range(4):
            await self.create_one(provider, f"{name}-{number}")
        pages = [page async for page in provider.pages(Scope(prefix=name), page_size=2)]
        assert len([page for page in pages if page]) > 1


@pytest.mark.parametrize("case", [SHAPES_CASE], indirect=True, ids=["Shape"], scope="session")
class TestShapes(CaseContract):
    kind = SHAPES_CASE.kind
    fields: ClassVar[Fields] = SHAPES_CASE.fields
    other_fields: ClassVar[Fields] = SHAPES_CASE.other_fields
    refused_fields: ClassVar[Fields] = {"color": "Invisible"}


@pytest.mark.parametrize("case", [RECORDS_CASE], indirect=True, ids=["Record"], scope="session")
class TestRecords(CaseContract):
    kind = RECORDS_CASE.kind
    fields: ClassVar[Fields] = RECORDS_CASE.fields
    other_fields: ClassVar[Fields] = RECORDS_CASE.other_fields
    refused_fields: ClassVar[Fields] = {"ttl": 0}


@pytest.mark.parametrize("case", [RECORDS_CASE], indirect=True, ids=["Alias"], scope="session")
class TestAliases(CaseContract):
    """The complete module that docs/how-to/add-a-kind.md shows."""

    kind = ALIAS
    fields: ClassVar[Fields] = {"target": "www.example.org."}
    other_fields: ClassVar[Fields] = {"target": "mail.example.org.", "ttl": 60}
    refused_fields: ClassVar[Fields] = {"ttl": 0}


class TestPlainApi(ProviderContract):
    """An API that generates the ids and has no labels, versions or keys."""

    kind = NOTE
    fields: ClassVar[Fields] = {"text": "one"}
    other_fields: ClassVar[Fields] = {"text": "two", "pinned": True}
    never_refused = "the API accepts everything"

    @pytest.fixture
    def endpoint(self) -> str:
        return "memory:"
