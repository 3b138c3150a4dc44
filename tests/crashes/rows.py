"""Rows of the matrix for the quirks of real APIs: one story each, on a test kind.

The trigger and the actions differ; everything else is as for a plain shape.
"""

from __future__ import annotations

from typing import ClassVar

from events.intake import Declared
from events.log import Operation, Purpose
from events.manifest import RECONCILER_API_VERSION, Fields, Manifest, Metadata
from events.names import KIND_DEFINITION_KIND, SYSTEM_NAMESPACE, ResourceKey
from reconciler.provider.kind import Kind
from shapes_api.kinds.shapes import SHAPE
from tests.crashes.cases import Case, Row
from tests.crashes.lane import Lane, config_key, key
from tests.crashes.story import METHODS, Story
from tests.faulty_api.kinds import EXPIRING, FIXED, NUMBERED, SEALED, TWIN, UNLISTED, WHITE


class RowStory(Story):
    """A story about one resource, in the configuration of its row."""

    installed_kind: ClassVar[Kind]

    def __init__(self, lane: Lane, case: Case, number: int) -> None:
        super().__init__(lane, case, number)
        self.config = case.row
        self.name = f"{case.row}-foo-{number}"
        self.generation = 1 if case.operation == "Create" else 2
        self.outcome = "Deleted" if case.operation == "Delete" else "Converged"
        self.spec: dict[str, object] = {"providerConfigRef": {"name": self.config}}

    @property
    def kind(self) -> str:
        return self.installed_kind.name

    async def declare(self, color: object = "Red", **spec: object) -> None:
        await self.lane.declare(self.name, color, kind=self.kind, **self.spec, **spec)

    async def declare_existing(self) -> None:
        if self.config not in self.lane.configured:
            await self.lane.configure(
                self.config, f"{self.config}-", provider=self.installed_kind.provider
            )
        if self.case.operation != "Create":
            await self.declare()

    async def wait_until_prepared(self) -> None:
        if self.case.operation != "Create":
            await self.lane.wait_for_outcome(key(self.name, self.kind), "Converged")

    async def trigger(self) -> None:
        if self.case.operation == "Delete":
            await self.lane.withdraw(self.name, self.kind)
        else:
            await self.declare("Purple")


class TwinStory(RowStory):
    """A replacement that is created under a second name before the old object is deleted."""

    installed_kind = TWIN

    def __init__(self, lane: Lane, case: Case, number: int) -> None:
        super().__init__(lane, case, number)
        self.methods = ["POST", "DELETE"]
        self.actions = [("Create", "Replace"), ("Delete", "Retire")]

    async def trigger(self) -> None:
        await self.declare(type="Circle")


class FixedStory(RowStory):
    """A replacement under the same name: the old object is deleted first."""

    installed_kind = FIXED

    def __init__(self, lane: Lane, case: Case, number: int) -> None:
        super().__init__(lane, case, number)
        self.methods = ["DELETE", "POST"]
        self.actions = [("Delete", "Replace"), ("Create", "Converge")]

    async def trigger(self) -> None:
        await self.declare(type="Circle")


class ExpiringStory(RowStory):
    """A renewal: the object has expired, but its fields are as declared."""

    installed_kind = EXPIRING

    def __init__(self, lane: Lane, case: Case, number: int) -> None:
        super().__init__(lane, case, number)
        self.actions = [("Update", "Renew")]
        self.generation = 1

    async def trigger(self) -> None:
        await self.lane.expire_object(self.name)


class ReferenceStory(RowStory):
    """A resource that references another one, which changes."""

    installed_kind = FIXED

    def __init__(self, lane: Lane, case: Case, number: int) -> None:
        super().__init__(lane, case, number)
        self.referrer = f"{self.config}-bar-{number}"
        self.methods = ["PUT", "PUT"]
        self.actions: list[tuple[Operation, Purpose]] = [("Update", "Converge")] * 2

    @property
    def names(self) -> list[str]:
        return [self.name, self.referrer]

    async def declare_existing(self) -> None:
        await super().declare_existing()
        color = {"$ref": f"{self.kind}/{self.name}", "field": "outputs.color"}
        await self.lane.declare(self.referrer, color, kind=self.kind, **self.spec)

    async def wait_until_prepared(self) -> None:
        await super().wait_until_prepared()
        await self.lane.wait_for_outcome(key(self.referrer, self.kind), "Converged")


class NumberedStory(RowStory):
    """An object with an API-assigned ID; unless it is created, another one has the same name."""

    installed_kind = NUMBERED

    async def wait_until_prepared(self) -> None:
        await super().wait_until_prepared()
        if self.case.operation != "Create":
            await self.lane.create_object(self.name, "ids")


class UnlistedStory(RowStory):
    """An unlisted object that is deleted or changed out of band."""

    installed_kind = UNLISTED

    def __init__(self, lane: Lane, case: Case, number: int) -> None:
        super().__init__(lane, case, number)
        self.generation = 1

    async def declare_existing(self) -> None:
        await super().declare_existing()
        if self.case.operation == "Create":
            await self.declare()

    async def wait_until_prepared(self) -> None:
        await self.lane.wait_for_outcome(key(self.name, self.kind), "Converged")

    async def trigger(self) -> None:
        if self.case.operation == "Create":
            await self.lane.delete_object(self.name)
        else:
            await self.lane.recolor_object(self.name, "Green")


class WhiteStory(RowStory):
    """An object that takes two calls to create."""

    installed_kind = WHITE

    def __init__(self, lane: Lane, case: Case, number: int) -> None:
        super().__init__(lane, case, number)
        is_created = case.operation == "Create"
        self.methods = ["POST", "PUT"] if is_created else [METHODS[case.operation]]
        # The lost response is the one to the second call or to the first.
        self.lost_methods = ["PUT"] if case.point.startswith("worker.called") else ["POST"]


class DefinedStory(RowStory):
    """A resource of a kind that is defined at run time, and then redefined."""

    installed_kind = SHAPE

    def __init__(self, lane: Lane, case: Case, number: int) -> None:
        super().__init__(lane, case, number)
        self.config = f"{self.config}-{number}"
        self.spec = {"providerConfigRef": {"name": self.config}}
        self.generation = 1

    @property
    def kind(self) -> str:
        return f"Badge{self.config.rpartition('-')[2]}"

    async def _define(self, kind: str) -> None:
        fields: Fields = {
            "apiVersion": "badges/v1",
            "provider": self.config,
            "over": self.installed_kind.name,
            "fields": {"color": {}},
            "constants": {"type": kind},
        }
        metadata = Metadata(self.kind, SYSTEM_NAMESPACE)
        manifest = Manifest(RECONCILER_API_VERSION, KIND_DEFINITION_KIND, metadata, fields)
        await self.lane.publish(manifest.key, Declared(manifest))

    async def declare_existing(self) -> None:
        await self._define("Square")

    async def wait_until_prepared(self) -> None:
        """Wait for the definition before the resource is declared."""
        definition = ResourceKey(SYSTEM_NAMESPACE, KIND_DEFINITION_KIND, self.kind)
        await self.lane.wait_for_outcome(definition, "Converged")
        await self.lane.configure(self.config, self.name, provider=self.config)
        spec: Fields = {"color": "Red", **self.spec}
        manifest = Manifest("badges/v1", self.kind, Metadata(self.name), spec)
        await self.lane.wait_for_outcome(config_key(self.config), "Converged")
        await self.lane.publish(manifest.key, Declared(manifest))
        await self.lane.wait_for_outcome(manifest.key, "Converged")

    async def trigger(self) -> None:
        await self._define("Circle")


class SealedStory(RowStory):
    """A resource that references a secret, which is changed."""

    installed_kind = SEALED

    def __init__(self, lane: Lane, case: Case, number: int) -> None:
        super().__init__(lane, case, number)
        self.generation = 1

    async def declare(self, color: object = "Red", **spec: object) -> None:
        await super().declare({"$secret": self.name}, **spec)

    async def declare_existing(self) -> None:
        await self.lane.put_secret(self.name, "Red")
        await super().declare_existing()

    async def trigger(self) -> None:
        if self.case.operation == "Create":
            await self.declare()
        else:
            await self.lane.put_secret(self.name, "Purple")


_STORIES: dict[Row, type[RowStory]] = {
    "twin": TwinStory,
    "fixed": FixedStory,
    "expiring": ExpiringStory,
    "reference": ReferenceStory,
    "numbered": NumberedStory,
    "unlisted": UnlistedStory,
    "white": WhiteStory,
    "defined": DefinedStory,
    "sealed": SealedStory,
}


def create_story(lane: Lane, case: Case, number: int) -> Story:
    """Create the story of a case."""
    return _STORIES[case.row](lane, case, number) if case.row else Story(lane, case, number)
