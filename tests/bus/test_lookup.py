"""Looks: which object a creation of unknown result has made, where several have one name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from events.external import ExternalObject
from events.log import Action
from events.provider_config import ProviderConfigSpec, Scope
from reconciler.provider import Capabilities, Effect
from reconciler.resource.owner_label import OWNER_LABEL
from reconciler.roles.lookup import look_up

OURS = {OWNER_LABEL: "log.default.Note.todo"}
ACTION = Action(
    action_id="default/Note/todo@2",
    idempotency_key="key",
    operation="Create",
    generation=1,
    provider_config="notes",
    external_name="todo",
    because=(),
    labels=OURS,
)
CONFIG = ProviderConfigSpec(provider="notes", endpoint="http://notes")


class Notes:
    """An API where several notes have one name."""

    def __init__(self, *found: ExternalObject) -> None:
        self.found = found
        self.read_by: list[tuple[str, str | None]] = []

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        self.read_by.append((external_name, uid))
        return self.found[0]

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        for each in self.found:
            yield [each]

    async def create(self, action: Action) -> Effect:
        raise AssertionError("a look makes nothing")

    update = delete = create

    async def close(self) -> None: ...


def note(uid: str, name: str = "todo", **of_it: object) -> ExternalObject:
    return ExternalObject(name, {}, uid, **of_it)  # pyright: ignore[reportArgumentType]


def can(*, names: bool = False, listing: bool = True) -> Capabilities:
    return Capabilities(
        idempotency_keys=False,
        deterministic_names=names,
        labels=True,
        conditional_writes=True,
        listing=listing,
    )


@pytest.mark.parametrize("ours", [note("n3", labels=OURS), note("n3", written_by="key")])
async def test_of_several_of_a_name_the_one_with_our_mark_is_meant(ours: ExternalObject) -> None:
    notes = Notes(note("n1"), note("n2", "other", labels=OURS), ours)
    assert await look_up(notes, ACTION, CONFIG, can()) == ours


async def test_without_a_mark_the_first_of_the_name_is_shown() -> None:
    notes = Notes(note("n1", "other"), note("n2"), note("n3"))
    assert await look_up(notes, ACTION, CONFIG, can()) == note("n2")
    assert await look_up(Notes(note("n1", "other")), ACTION, CONFIG, can()) is None


@pytest.mark.parametrize("capabilities", [can(names=True), can(listing=False)])
async def test_it_is_read_where_it_can_be(capabilities: Capabilities) -> None:
    notes = Notes(note("n1"))
    assert await look_up(notes, ACTION, CONFIG, capabilities) == note("n1")
    assert notes.read_by == [("todo", None)]
