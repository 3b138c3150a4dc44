"""Lookups find the object of a creation with an unknown result, even if several share its name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
from msgspec.structs import replace

from events.external import ExternalObject
from events.log import Action
from events.provider_config import ProviderConfigSpec, Scope
from reconciler.provider import Capabilities, Effect
from reconciler.resource.owner_label import OWNER_LABEL
from reconciler.roles.worker.lookup import LookupResult, look_up

OWNER_LABELS = {OWNER_LABEL: "log.default.Note.todo"}
ACTION = Action(
    action_id="default/Note/todo@2",
    idempotency_key="key",
    operation="Create",
    generation=1,
    provider_config="notes",
    external_name="todo",
    causes=(),
    labels=OWNER_LABELS,
)
CONFIG = ProviderConfigSpec(provider="notes", endpoint="http://notes")


class Notes:
    """An API where several notes have the same name."""

    def __init__(self, *existing: ExternalObject) -> None:
        self.objects = existing
        self.read_by: list[tuple[str, str | None]] = []
        self.searched: list[Scope] = []

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:
        self.read_by.append((external_name, uid))
        return self.objects[0]

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        self.searched.append(scope)
        for each in self.objects:
            if scope.has(each.name, each.labels):
                yield [each]

    async def create(self, action: Action) -> Effect:
        raise AssertionError("a lookup creates nothing")

    update = delete = create

    async def close(self) -> None: ...


def note(uid: str, name: str = "todo", **fields: object) -> ExternalObject:
    return ExternalObject(name, {}, uid, **fields)  # pyright: ignore[reportArgumentType]


def build_capabilities(*, names: bool = False, listing: bool = True) -> Capabilities:
    return Capabilities(
        idempotency_keys=False,
        deterministic_names=names,
        labels=True,
        conditional_writes=True,
        listing=listing,
    )


@pytest.mark.parametrize("ours", [note("n3", labels=OWNER_LABELS), note("n3", written_by="key")])
async def test_a_lookup_selects_the_object_with_our_mark(ours: ExternalObject) -> None:
    notes = Notes(note("n1"), note("n2", "other", labels=OWNER_LABELS), ours)
    assert await look_up(notes, ACTION, CONFIG, build_capabilities()) == LookupResult(ours)


@pytest.mark.parametrize("listing", [True, False])
async def test_a_lookup_names_all_objects_with_our_label(listing: bool) -> None:
    """Another client copied the label, and nothing else identifies the created object."""
    notes = Notes(note("n1"), note("n2", labels=OWNER_LABELS), note("n3", labels=OWNER_LABELS))
    result = await look_up(notes, ACTION, CONFIG, build_capabilities(listing=listing))
    assert result == LookupResult(note("n2", labels=OWNER_LABELS), labeled_uids=("n2", "n3"))


async def test_the_key_selects_one_of_several_objects_with_our_label() -> None:
    own_object = note("n3", labels=OWNER_LABELS, written_by="key")
    result = await look_up(
        Notes(note("n2", labels=OWNER_LABELS), own_object), ACTION, CONFIG, build_capabilities()
    )
    assert result == LookupResult(own_object)


@pytest.mark.parametrize("listing", [True, False])
async def test_an_object_that_existed_before_the_creation_is_skipped(listing: bool) -> None:
    notes = Notes(note("n1", labels=OWNER_LABELS), note("n2", labels=OWNER_LABELS))
    result = await look_up(
        notes, ACTION, CONFIG, build_capabilities(listing=listing), known_uids=("n1",)
    )
    assert result == LookupResult(note("n2", labels=OWNER_LABELS))


async def test_a_lookup_without_a_mark_returns_the_first_object_with_the_name() -> None:
    notes = Notes(note("n1", "other"), note("n2"), note("n3"))
    assert await look_up(notes, ACTION, CONFIG, build_capabilities()) == LookupResult(note("n2"))
    assert await look_up(
        Notes(note("n1", "other")), ACTION, CONFIG, build_capabilities()
    ) == LookupResult(None)


async def test_the_object_is_read_by_name_if_names_are_unique() -> None:
    notes = Notes(note("n1"))
    assert await look_up(notes, ACTION, CONFIG, build_capabilities(names=True)) == LookupResult(
        note("n1")
    )
    assert notes.read_by == [("todo", None)]


async def test_an_api_that_cannot_list_is_searched_for_our_label() -> None:
    copied = note("n1", labels={OWNER_LABEL: "log.default.Note.other"})
    notes = Notes(copied, note("n3", labels=OWNER_LABELS))
    result = await look_up(notes, ACTION, CONFIG, build_capabilities(listing=False))
    assert result == LookupResult(note("n3", labels=OWNER_LABELS))
    assert notes.searched == [Scope(prefix="todo", labels=OWNER_LABELS)]
    assert not notes.read_by


async def test_an_api_that_cannot_list_returns_an_object_that_lost_its_label() -> None:
    notes = Notes(note("n1"))
    assert await look_up(notes, ACTION, CONFIG, build_capabilities(listing=False)) == LookupResult(
        note("n1")
    )
    assert notes.read_by == [("todo", None)]


async def test_an_api_that_cannot_list_and_has_no_labels_is_read() -> None:
    notes = Notes(note("n1"))
    unlabeled = replace(ACTION, labels={})
    assert await look_up(
        notes, unlabeled, CONFIG, build_capabilities(listing=False)
    ) == LookupResult(note("n1"))
    assert not notes.searched
