"""The contract suite on composed objects, whose API is a running reconciler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import ClassVar
from uuid import uuid4

import msgspec
import pytest
import pytest_asyncio

from events.composition import children_of, content_of
from events.external import ExternalObject
from events.log import Action, Operation
from events.manifest import Fields, Manifest, Metadata
from events.names import ResourceKey
from infra.embedded import EmbeddedServer
from reconciler.provider import Provider
from reconciler.provider.contract import ProviderContract, action
from reconciler.wiring import initialize, open_connection
from tests.composites.palette import PALETTE
from tests.composites.trio import kind_from
from tests.crashes.role_process import RoleProcess


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reconciler_url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    folder = tmp_path_factory.mktemp("reconciler")
    server = EmbeddedServer()
    url = await server.start(folder / "nats")
    async with open_connection(url) as nc:
        await initialize(nc)
    process = RoleProcess.fork(url, folder / "roles.log")
    await process.wait_until_ready()
    yield url
    await process.stop()
    await server.kill()


class TestComposedContract(ProviderContract):
    """Each object has two parts, which wait for a configuration that no manifest declares."""

    kind = PALETTE
    fields: ClassVar[Fields] = {"size": 1}
    other_fields: ClassVar[Fields] = {"size": 2}

    @pytest.fixture
    def endpoint(self, reconciler_url: str) -> str:
        return reconciler_url

    @pytest.fixture
    def name(self) -> str:
        return f"default.t{uuid4().hex[:12]}"

    def action(self, operation: Operation, name: str, fields: Fields | None = None) -> Action:
        return action(operation, name, {} if fields is None else self.content(name, fields))

    async def create_one(self, provider: Provider, name: str) -> ExternalObject:
        """Create an object, and wait until each of its parts has a status."""
        existing = await super().create_one(provider, name)
        while any(child.outcome == "Pending" for child in children_of(existing).values()):
            await asyncio.sleep(0.02)
            existing_composite = await provider.read(name)
            assert existing_composite is not None
            existing = existing_composite
        return existing

    async def refused_create(self, provider: Provider, name: str) -> Action:
        """Create an object with a part in another namespace."""
        del provider
        foreign_part = Metadata(name.partition(".")[2], "elsewhere")
        part = Manifest("shapes/v1", "Shape", foreign_part, {"type": "Square", "color": "Red"})
        create = self.action("Create", name, self.fields)
        return msgspec.structs.replace(create, fields={**create.fields, **content_of([part])})

    def is_as_declared(self, observed: ExternalObject | None, fields: Fields) -> bool:
        assert observed is not None
        return observed.fields == self.content(observed.name, fields)

    def content(self, name: str, fields: Fields) -> Fields:
        """Return the two parts of an object; the second depends on the size."""
        if self.kind.name_problem(name) is not None:
            return {}
        parts = [
            Manifest(
                "shapes/v1",
                "Shape",
                Metadata(f"{name.partition('.')[2]}-{part}"),
                {"type": "Square", "color": color, "providerConfigRef": {"name": "nowhere"}},
            )
            for part, color in (("a", "Red"), ("b", "Blue" if fields["size"] == 1 else "Green"))
        ]
        return {**content_of(parts), **fields}


class TestDefinedContract(TestComposedContract):
    """The contract for a kind that a definition composes without code."""

    kind = kind_from()
    fields: ClassVar[Fields] = {"color": "Red", "dots": ["a"]}
    other_fields: ClassVar[Fields] = {"color": "Blue", "side": False}

    def content(self, name: str, fields: Fields) -> Fields:
        """Return the parts of an object."""
        if self.kind.name_problem(name) is not None:
            return {}
        composed_content = self.kind.composition
        assert composed_content is not None
        namespace, _, external_name = name.partition(".")
        key = ResourceKey(namespace, self.kind.name, external_name)
        return composed_content.compose(key, self.kind.check_declared(fields), None)
