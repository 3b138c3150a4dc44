"""Named sets of manifests: the bus stores their members, so that omitted ones can be pruned."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from nats.aio.client import Client as Connection

from events.composition import digest_of, parent_in, without_name
from events.intake import Reply
from events.manifest import Fields, InvalidManifestError, Manifest, Metadata
from events.names import ResourceKey
from events.stored_content import CONTENT, Part, StoredContent, find_part_problem, stored_content
from infra.jetstream.errors import BusError
from infra.providers.composition.contents import Contents
from infra.providers.composition.messages import Publish
from infra.providers.composition.moves import OtherSets
from infra.providers.composition.state_reader import StateReader
from reconciler.errors import DeclarationRefusedError, ProviderError

MANIFEST_SET_KIND: Final = "ManifestSet"
MANIFEST_SET_API_VERSION: Final = "composition/v1"
COMPOSITION_CONFIG: Final = "composition"


class SetChange(msgspec.Struct, frozen=True, rename="camel"):
    """The changes from declaring a set.

    ``unnamed``: members that are omitted but not pruned. ``moved_in``: members that move here, with
    their former set. ``moved_out``: members that another set takes over, with that set.
    ``renamed``: members that take over the object of an omitted member, with that member.
    """

    resource: str
    generation: int
    content: str
    total: int
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    unnamed: tuple[str, ...] = ()
    moved_in: Mapping[str, str] = {}
    moved_out: Mapping[str, str] = {}
    renamed: Mapping[str, str] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no member is added, changed or removed."""
        return not any(names for _, names in self._counts())

    def __str__(self) -> str:
        words = [f"{len(names)} {word}" for word, names in self._counts() if names]
        return ", ".join(words) or "no changes"

    def _counts(self) -> Sequence[tuple[str, Sequence[str]]]:
        return (
            ("added", self.added),
            ("changed", self.changed),
            ("withdrawn", self.removed),
            ("moved", (*self.moved_in, *self.moved_out)),
            ("renamed", tuple(self.renamed)),
        )


class ManifestSets:
    """Declares sets on a bus; ``publish`` and ``declare`` are methods of a client."""

    def __init__(
        self, nc: Connection, publish: Publish, declare: Callable[..., Awaitable[Reply]]
    ) -> None:
        self._state_reader = StateReader(_ExistingConnection(nc))
        self._contents = Contents(self._state_reader, publish)
        self._declare = declare

    async def change(
        self, key: ResourceKey, parts: Iterable[Part], *, prune: bool
    ) -> tuple[SetChange, StoredContent]:
        """Compare a set with its current members; raises ``InvalidManifestError``, ``BusError``.

        Without ``prune``, current members that no manifest names stay in the set.
        """
        desired = {str(each.manifest.key): each for each in parts}
        for each in desired.values():
            problem = find_part_problem(key, each.manifest.key)
            if problem:
                raise InvalidManifestError(f"{each.origin or each.manifest.key}: {problem}")
        generation, current_parts = await self._parts(key)
        current = {str(each.manifest.key): each for each in current_parts}
        omitted = tuple(sorted(current.keys() - desired.keys()))
        if not prune:
            desired = {**current, **desired}
        content = stored_content(str(key), list(desired.values()))
        added = desired.keys() - current.keys()
        moved_in, moved_out = await self._find_moves(key, added, omitted if prune else ())
        pruned = {each for each in omitted if prune and each not in moved_out}
        renamed = _find_renames([desired[each] for each in sorted(added - moved_in.keys())], pruned)
        change = SetChange(
            str(key),
            generation,
            content.digest,
            len(current),
            tuple(sorted(added - moved_in.keys() - renamed.keys())),
            tuple(
                each
                for each in sorted(desired.keys() & current)
                if _differ(desired[each], current[each])
            ),
            tuple(sorted(pruned - set(renamed.values()))),
            () if prune else omitted,
            moved_in,
            moved_out,
            renamed,
        )
        return change, content

    async def _find_moves(
        self, key: ResourceKey, added: Collection[str], removed: Collection[str]
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return the sets that added parts come from, and those that take removed ones over."""
        try:
            declared = await self._state_reader.declarations(added)
            others = OtherSets(self._state_reader, self._contents)
            moved_out = await others.find_wanted(key, removed) if removed else dict[str, str]()
        except ProviderError as error:
            raise _cause(error) from error
        parents = {name: parent_in(each.labels) for name, each in sorted(declared.items())}
        moved_in = {
            name: str(parent)
            for name, parent in parents.items()
            if declared[name].is_declared and parent not in (None, key)
        }
        return moved_in, dict(sorted(moved_out.items()))

    async def declare(
        self, change: SetChange, content: StoredContent, *, reason: str = ""
    ) -> Reply:
        """Store the content, and declare the set unless another client has since declared it.

        Raises the same errors as a client's ``declare``.
        """
        key = ResourceKey.parse(change.resource)
        spec: Fields = {"providerConfigRef": {"name": COMPOSITION_CONFIG}, CONTENT: content.digest}
        metadata = Metadata(key.name, key.namespace)
        await self._store(key, content)
        manifest = Manifest(MANIFEST_SET_API_VERSION, MANIFEST_SET_KIND, metadata, spec)
        try:
            reply = await self._declare(
                manifest, expected_generation=change.generation, reason=reason
            )
        except DeclarationRefusedError:
            await self._withdraw_unused(key)
            raise
        # Store the content again: a concurrent write may have withdrawn it while no declaration
        # named it.
        await self._store(key, content)
        return reply

    async def _withdraw_unused(self, key: ResourceKey) -> None:
        """Withdraw the stored content that no declaration references."""
        try:
            declared = (await self._state_reader.declarations([str(key)]))[str(key)].fields or {}
            digests = [declared[CONTENT]] if CONTENT in declared else []
            await self._contents.withdraw_others(str(key), key.namespace, digests)
        except ProviderError as error:
            raise _cause(error) from error

    async def _store(self, key: ResourceKey, content: StoredContent) -> None:
        try:
            await self._contents.store(key.namespace, content)
        except ProviderError as error:
            raise _cause(error) from error

    async def _parts(self, key: ResourceKey) -> tuple[int, Sequence[Part]]:
        try:
            row = (await self._state_reader.declarations([str(key)]))[str(key)]
            generation, declared = row.generation, row.fields or {}
            if CONTENT not in declared:
                return generation, ()
            # An operator may have withdrawn this content, which only this declaration stores again.
            parts = await self._contents.load(key.namespace, declared[CONTENT], is_withdrawn=True)
        except ProviderError as error:
            raise _cause(error) from error
        if parts is None:
            raise InvalidManifestError(f"{key}: the log does not contain its content")
        return generation, parts


class _ExistingConnection:
    """Adapts an existing connection."""

    def __init__(self, nc: Connection) -> None:
        self._nc = nc

    async def connection(self) -> Connection:
        return self._nc


def _find_renames(added: Iterable[Part], pruned: Collection[str]) -> Mapping[str, str]:
    """Return the added members that take over the object of a pruned one, with that member."""
    former: dict[str, str] = {}
    for each in added:
        name = each.manifest.moved_from
        if name in pruned and name not in former:  # only one resource takes over an object
            former[name] = str(each.manifest.key)
    return {new: name for name, new in former.items()}


def _differ(left: Part, right: Part) -> bool:
    left_digest, right_digest = (digest_of(without_name(each.manifest)) for each in (left, right))
    return left_digest != right_digest


def _cause(error: ProviderError) -> Exception:
    """Return the underlying bus error, because the provider's message addresses workers."""
    return error.__cause__ if isinstance(error.__cause__, BusError) else error
