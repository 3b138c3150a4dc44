"""The kinds `Container` and `Volume` on a real Engine: the contract, and what only they do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest

from events.manifest import Fields
from infra.providers.docker.container import CONTAINER
from infra.providers.docker.volume import VOLUME
from reconciler.provider.contract import ProviderContract
from tests.engines import TestEngine

pytestmark = pytest.mark.dockerd


class OnEngine(ProviderContract):
    @pytest.fixture
    def endpoint(self, engine: TestEngine, name: str) -> Iterator[str]:
        yield engine.endpoint
        engine.hands.remove_all(name)


class TestContainerContract(OnEngine):
    kind = CONTAINER
    fields: ClassVar[Fields] = {
        "image": "filled in by the fixture",
        "env": {"A": "1", "B": 2},
        "stopSeconds": 0,
        "memoryBytes": 64 * 1024 * 1024,
    }
    other_fields: ClassVar[Fields] = {**fields, "memoryBytes": 96 * 1024 * 1024, "restart": "no"}

    @pytest.fixture(autouse=True)
    def of_this_engine(self, engine: TestEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("fields", "other_fields"):
            monkeypatch.setattr(type(self), name, {**getattr(self, name), "image": engine.image})


class TestVolumeContract(OnEngine):
    kind = VOLUME
    fields: ClassVar[Fields] = {}
    other_fields: ClassVar[Fields] = {"options": {"type": "tmpfs", "device": "tmpfs"}}
