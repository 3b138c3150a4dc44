"""The contract suite reports what is missing in an incorrect provider."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import msgspec
import pytest

from events.external import ExternalObject
from events.log import Action
from events.manifest import Fields
from events.provider_config import ProviderConfigSpec, Scope
from reconciler.errors import ConflictError
from reconciler.provider import Capabilities, Effect
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.contract import ProviderContract
from reconciler.provider.kind import Kind
from reconciler.provider.listing import Unreadable
from reconciler.provider.named_objects import ExistingObject, NamedObjects
from reconciler.provider.secrets import Secrets


class BoxFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A box in memory."""

    size: int


@dataclass(frozen=True)
class Box:
    """A box, as its API stores it."""

    name: str
    uid: str
    version: int
    size: int
    labels: dict[str, str]
    key: str | None

    def as_object(self) -> ExternalObject:
        return ExternalObject(
            self.name,
            {"size": self.size},
            uid=self.uid,
            version=str(self.version),
            labels=self.labels,
            written_by=self.key,
        )


@dataclass
class Boxes(NamedObjects[Box]):
    """A correct provider."""

    noun: ClassVar[str] = "box"
    permit: CallPermit = field(default_factory=CallPermit)
    boxes: dict[str, Box] = field(default_factory=dict[str, Box])
    ids: itertools.count[int] = field(default_factory=itertools.count)

    def name_problem(self, external_name: str) -> str | None:
        return None if external_name.replace("-", "").isalnum() else "use letters, digits and -"

    async def find(self, external_name: str) -> Box | None:
        await self.permit.before_request()
        return self.boxes.get(external_name)

    async def create_object(self, action: Action) -> Box:
        await self.permit.before_request()
        if action.external_name in self.boxes:
            raise ConflictError("exists")
        return self.put(action, f"uid-{next(self.ids)}", 0)

    async def update_object(self, action: Action, existing: ExistingObject[Box]) -> Box:
        await self.permit.before_request()
        return self.put(action, existing.native.uid, existing.native.version + 1)

    async def delete_object(self, action: Action, existing: ExistingObject[Box]) -> None:
        del existing
        await self.permit.before_request()
        del self.boxes[action.external_name]

    async def list_objects(
        self, scope: Scope, page_size: int, unreadable: Unreadable
    ) -> AsyncIterator[Sequence[Box]]:
        del scope, page_size, unreadable
        await self.permit.before_request()
        yield list(self.boxes.values())

    async def close(self) -> None:
        pass

    def put(self, action: Action, uid: str, version: int) -> Box:
        key = action.idempotency_key
        box = Box(
            action.external_name, uid, version, action.fields["size"], dict(action.labels), key
        )
        self.boxes[box.name] = box
        return box


class IgnoresPermit(Boxes):
    async def create_object(self, action: Action) -> Box:
        return self.put(action, f"uid-{next(self.ids)}", 0)


class IgnoresVersions(Boxes):
    async def update(self, action: Action) -> Effect:
        await self.permit.before_request()
        box = self.boxes[action.external_name]
        return Effect(self.put(action, box.uid, box.version + 1).as_object())


class Unlabeled(Boxes):
    def put(self, action: Action, uid: str, version: int) -> Box:
        return replace(super().put(action, uid, version), labels={})


class ChangesSize(Boxes):
    def put(self, action: Action, uid: str, version: int) -> Box:
        box = replace(super().put(action, uid, version), size=99)
        self.boxes[box.name] = box
        return box


class Unscoped(Boxes):
    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        del scope
        async for page in super().pages(Scope(), page_size=page_size):
            yield page


class Overwriting(Boxes):
    async def create_object(self, action: Action) -> Box:
        await self.permit.before_request()
        return self.put(action, f"uid-{next(self.ids)}", 0)


class ReportsNoAbsence(Boxes):
    async def delete(self, action: Action) -> Effect:
        await super().delete(action)
        return Effect(None)


def _connect(config: ProviderConfigSpec, secrets: Secrets, permit: CallPermit) -> Boxes:
    del config, secrets
    return Boxes(permit)


class TestBoxes(ProviderContract):
    """The correct provider passes."""

    kind = Kind(
        name="Box",
        api_version="boxes/v1",
        provider="boxes",
        schema=BoxFields,
        capabilities=Capabilities(
            idempotency_keys=False, deterministic_names=True, labels=True, conditional_writes=True
        ),
        connect=_connect,
    )
    fields: ClassVar[Fields] = {"size": 1}
    other_fields: ClassVar[Fields] = {"size": 2}
    never_refused: ClassVar[str] = "the API accepts everything"

    @pytest.fixture
    def endpoint(self) -> str:
        return "memory:"


@pytest.mark.parametrize(
    ("provider", "case", "remedy"),
    [
        (
            IgnoresPermit,
            "no_request_is_sent_before_the_permit_allows_it",
            "permit.before_request()",
        ),
        (
            IgnoresVersions,
            "an_update_of_an_old_version_reports_the_current_object",
            "with_obstacle",
        ),
        (Unlabeled, "a_created_object_is_read_as_it_was_declared", "one function"),
        (ChangesSize, "a_created_object_is_read_as_it_was_declared", "Kind.normalize"),
        (Unscoped, "a_listing_shows_only_the_scopes_prefix", "scope.has"),
        (
            Overwriting,
            "a_create_over_another_clients_object_reports_it_and_changes_nothing",
            "with_obstacle",
        ),
        (ReportsNoAbsence, "deleting_an_absent_object_succeeds", "absent=True"),
    ],
)
async def test_a_failure_names_the_helper_that_is_missing(
    provider: type[Boxes], case: str, remedy: str
) -> None:
    test = getattr(TestBoxes(), f"test_{case}")
    with pytest.raises(pytest.fail.Exception) as failed:
        await test(provider(), "box")
    assert remedy in str(failed.value)
    assert "expected:" in str(failed.value)
