"""The provider contract, for the `Disk` and `Attachment` kinds with real images and mounts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import pytest
from msgspec import structs

from events.external import ExternalObject
from events.log import Action, Operation
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec, Scope
from infra.providers.disks.attachment import ATTACHMENT
from infra.providers.disks.disk import DISK, DisksProvider
from reconciler.errors import ConflictError
from reconciler.provider import Effect, Provider
from reconciler.provider.call_permit import CALL_GATE, CallPermit
from reconciler.provider.contract import Connect, ProviderContract
from reconciler.provider.contract import action as build_action
from reconciler.provider.secrets import Secrets
from reconciler.resource.owner_label import OWNER_LABEL
from tests.disks import MIB

SMALL: Fields = {"sizeBytes": 8 * MIB}

pytestmark = pytest.mark.disks


class TestDiskContract(ProviderContract):
    kind = DISK
    fields: ClassVar[Fields] = SMALL
    other_fields: ClassVar[Fields] = {"sizeBytes": 16 * MIB, "label": "grown"}
    refused_fields: ClassVar[Fields] = {"sizeBytes": 1 << 50}

    @pytest.fixture
    def endpoint(self, disk_root: Path) -> str:
        return disk_root.as_uri()


class DiskCreatingProvider:
    """An attachment provider that creates a disk for each, because a disk is attached only once."""

    def __init__(self, provider: Provider, endpoint: str) -> None:
        self._provider = provider
        self._disks = DisksProvider(ProviderConfigSpec("disks", endpoint), Secrets(), CallPermit())

    async def create(self, action: Action) -> Effect:
        disk = action.fields["disk"]
        permit = CALL_GATE.set(None)  # not a request by the provider
        if await self._disks.read(disk) is None:
            create_disk = build_action("Create", disk, DISK.check_fields(SMALL))
            labels = {OWNER_LABEL: f"test.default.Disk.{disk}"}
            await self._disks.create(structs.replace(create_disk, labels=labels))
        CALL_GATE.reset(permit)
        return await self._provider.create(action)

    async def update(self, action: Action) -> Effect:
        return await self._provider.update(action)

    async def delete(self, action: Action) -> Effect:
        return await self._provider.delete(action)

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        return await self._provider.read(external_name, uid)

    def pages(self, scope: Scope, *, page_size: int) -> AsyncIterator[Sequence[ExternalObject]]:
        return self._provider.pages(scope, page_size=page_size)

    async def close(self) -> None:
        await self._provider.close()
        await self._disks.close()


class TestAttachmentContract(ProviderContract):
    kind = ATTACHMENT
    fields: ClassVar[Fields] = {"disk": "filled-in"}
    other_fields: ClassVar[Fields] = {"disk": "filled-in", "readOnly": True}

    @pytest.fixture
    def endpoint(self, disk_root: Path) -> str:
        return disk_root.as_uri()

    @pytest.fixture
    async def provider(self, endpoint: str, connect: Connect) -> AsyncIterator[Provider]:
        provider = DiskCreatingProvider(connect(endpoint), endpoint)
        yield provider
        await provider.close()

    def action(self, operation: Operation, name: str, fields: Fields | None = None) -> Action:
        """Build an action on an attachment whose disk is named after it."""
        if fields is not None and self.kind.name_problem(name) is None:
            fields = {**fields, "disk": f"of-{name}"}
        return super().action(operation, name, fields)

    async def refused_create(self, provider: Provider, name: str) -> Action:
        """Build a create whose disk another attachment already uses."""
        other_action = self.action("Create", f"other-{name}", self.fields)
        with suppress(ConflictError):
            await provider.create(other_action)
        create = self.action("Create", name, self.fields)
        return structs.replace(create, fields=other_action.fields)

    def is_as_declared(self, observed: ExternalObject | None, fields: Fields) -> bool:
        assert observed is not None
        return super().is_as_declared(observed, {**fields, "disk": f"of-{observed.name}"})
