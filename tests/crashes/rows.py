"""Rows of the matrix about the peculiarities of real APIs: a story each, on a kind of the tests.

What differs is what leads to the actions, and which they are; all else is as with a plain shape.
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
    """A story of one resource of a kind, in a configuration of the row."""

    of: ClassVar[Kind]

    def __init__(self, lane: Lane, case: Case, number: int) -> None:
        super().__init__(lane, case, number)
        self.config = case.row
        self.name = f"{case.row}-foo-{number}"
        self.generation = 1 if case.operation == "Create" else 2
        self.outcome = "Deleted" if case.operation == "Delete" else "Converged"
        self.spec: dict[str, object] = {"providerConfigRef": {"name": self.config}}

    @property
    def kind(self) -> str:
        return self.of.name

    async def declare(self, color: object = "Red", **spec: object) -> None:
        await self.lane.declare(self.name, color, kind=self.kind, **self.spec, **spec)

    async def declare_existing(self) -> None:
        if self.config not in self.lane.configured:
            await self.lane.configure(self.config, f"{self.config}-", provider=self.of.provider)
        if self.case.operation != "Create":
            await self.declare()

    async def until_there(self) -> None:
        if self.case.operation != "Create":
            await self.lane.until_outcome(key(self.name, self.kind), "Converged")

    async def cause(self) -> None:
        if self.case.operation == "Delete":
            await self.lane.withdraw(self.name, self.kind)
        else:
            await self.declare("Purple")


class TwinStory(RowStory):
    """A replacement beside what is there: it is made under a second name, then the old one goes."""

    of = TWIN

    def __init__(self, lane: Lane, case: Case, number: int) -> None:
        super().__init__(lane, case, number)
        self.methods = ["POST", "DELETE"]
        self.actions = [("Create", "Replace"), ("Delete", "Retire")]

    async def cause(self) -> None:
        await self.declare(type="Circle")


class FixedStory(RowStory):
    """A replacement in the place of what is there: that goes first."""

    of = FIXED

    def __init__(self, lane: Lane, case: Case, number: int) -> None:
        super().__init__(lane, case, number)
        self.methods = ["DELETE", "POST"]
        self.actions = [("Delete", "Replace"), ("Create", "Converge")]

    async def cause(self) -> None:
        await self.declare(type="Circle")


class ExpiringStory(RowStory):
    """A renewal: nothing differs, and the object is at its end."""

    of = EXPIRING

    def __init__(self, lane: Lane, case: Case, number: int) -> None:
        super().__init__(lane, case, number)
        self.actions = [("Update", "Renew")]
        self.generation = 1

    async def cause(self) -> None:
        await self.lane.let_expire(self.name)


class ReferenceStory(RowStory):
    """A resource that refers to another, which changes."""

    of = FIXED

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

    async def until_there(self) -> None:
        await super().until_there()
        await self.lane.until_outcome(key(self.referrer, self.kind), "Converged")


class NumberedStory(RowStory):
    """An object whose id the API makes; one of that name is a stranger's, if it is not created."""

    of = NUMBERED

    async def until_there(self) -> None:
        await super().until_there()
        if self.case.operation != "Create":
            await self.lane.make_by_hand(self.name, "ids")


class UnlistedStory(RowStory):
    """An object that no listing shows: a person deletes or changes it."""

    of = UNLISTED

    def __init__(self, lane: Lane, case: Case, number: int) -> None:
        super().__init__(lane, case, number)
        self.generation = 1

    async def declare_existing(self) -> None:
        await super().declare_existing()
        if self.case.operation == "Create":
            await self.declare()

    async def until_there(self) -> None:
        await self.lane.until_outcome(key(self.name, self.kind), "Converged")

    async def cause(self) -> None:
        if self.case.operation == "Create":
            await self.lane.delete_by_hand(self.name)
        else:
            await self.lane.paint_by_hand(self.name, "Green")


class WhiteStory(RowStory):
    """An object that is made by two calls."""

    of = WHITE

    def __init__(self, lane: Lane, case: Case, number: int) -> None:
        super().__init__(lane, case, number)
        is_made = case.operation == "Create"
        self.methods = ["POST", "PUT"] if is_made else [METHODS[case.operation]]
        # The answer that is lost: of the first call, or of the second.
        self.lost_methods = ["PUT"] if case.point.startswith("worker.called") else ["POST"]


class DefinedStory(RowStory):
    """A resource of a kind that is defined at run time, and then defined otherwise."""

    of = SHAPE

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
            "over": self.of.name,
            "fields": {"color": {}},
            "constants": {"type": kind},
        }
        metadata = Metadata(self.kind, SYSTEM_NAMESPACE)
        manifest = Manifest(RECONCILER_API_VERSION, KIND_DEFINITION_KIND, metadata, fields)
        await self.lane.tell(manifest.key, Declared(manifest))

    async def declare_existing(self) -> None:
        await self._define("Square")

    async def until_there(self) -> None:
        """Wait for the definition before anything is declared that needs it."""
        definition = ResourceKey(SYSTEM_NAMESPACE, KIND_DEFINITION_KIND, self.kind)
        await self.lane.until_outcome(definition, "Converged")
        await self.lane.configure(self.config, self.name, provider=self.config)
        spec: Fields = {"color": "Red", **self.spec}
        manifest = Manifest("badges/v1", self.kind, Metadata(self.name), spec)
        await self.lane.until_outcome(config_key(self.config), "Converged")
        await self.lane.tell(manifest.key, Declared(manifest))
        await self.lane.until_outcome(manifest.key, "Converged")

    async def cause(self) -> None:
        await self._define("Circle")


class SealedStory(RowStory):
    """A resource that names a secret, which is changed."""

    of = SEALED

    def __init__(self, lane: Lane, case: Case, number: int) -> None:
        super().__init__(lane, case, number)
        self.generation = 1

    async def declare(self, color: object = "Red", **spec: object) -> None:
        await super().declare({"$secret": self.name}, **spec)

    async def declare_existing(self) -> None:
        await self.lane.put_secret(self.name, "Red")
        await super().declare_existing()

    async def cause(self) -> None:
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


def story_of(lane: Lane, case: Case, number: int) -> Story:
    """Return the story of a case."""
    return _STORIES[case.row](lane, case, number) if case.row else Story(lane, case, number)
