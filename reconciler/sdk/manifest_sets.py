"""Named sets of manifests. Their content is recorded, so omitted resources can be withdrawn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import msgspec
from nats.aio.client import Client as Connection

from events.composition import digest_of, without_name
from events.intake import Reply
from events.manifest import Fields, InvalidManifestError, Manifest, Metadata
from events.names import ResourceKey
from events.stored_content import CONTENT, Part, StoredContent, problem_of_part, stored_content
from infra.jetstream.errors import BusError
from infra.providers.composition.children import Ask
from infra.providers.composition.contents import Contents
from infra.providers.composition.standing import Standing
from reconciler.errors import DeclarationRefusedError, ProviderError

MANIFEST_SET_KIND: Final = "ManifestSet"
MANIFEST_SET_API_VERSION: Final = "composition/v1"
COMPOSITION_CONFIG: Final = "composition"


class SetChange(msgspec.Struct, frozen=True, rename="camel"):
    """The changes of a declared set.

    ``unnamed`` resources stay, because pruning was not requested.
    """

    resource: str
    generation: int
    content: str
    total: int
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    unnamed: tuple[str, ...] = ()

    def __str__(self) -> str:
        told = {"added": self.added, "changed": self.changed, "withdrawn": self.removed}
        words = [f"{len(names)} {word}" for word, names in told.items() if names]
        return ", ".join(words) or "no changes"


class ManifestSets:
    """Declares sets on a bus. ``declare`` and ``ask`` are functions of a client."""

    def __init__(self, nc: Connection, ask: Ask, declare: Callable[..., Awaitable[Reply]]) -> None:
        self._standing = Standing(_Here(nc))
        self._contents = Contents(self._standing, ask)
        self._declare = declare

    async def change(
        self, key: ResourceKey, parts: Iterable[Part], *, prune: bool
    ) -> tuple[SetChange, StoredContent]:
        """Compare a set with its current content. Raises ``InvalidManifestError``, ``BusError``.

        Without ``prune``, resources that the new set omits stay in it.
        """
        wanted = {str(each.manifest.key): each for each in parts}
        for each in wanted.values():
            problem = problem_of_part(key, each.manifest.key)
            if problem:
                raise InvalidManifestError(f"{each.origin or each.manifest.key}: {problem}")
        generation, parts_before = await self._parts(key)
        had = {str(each.manifest.key): each for each in parts_before}
        left_out = tuple(sorted(had.keys() - wanted.keys()))
        if not prune:
            wanted = {**had, **wanted}
        content = stored_content(str(key), list(wanted.values()))
        change = SetChange(
            str(key),
            generation,
            content.digest,
            len(had),
            tuple(sorted(wanted.keys() - had.keys())),
            tuple(each for each in sorted(wanted.keys() & had) if _differ(wanted[each], had[each])),
            left_out if prune else (),
            () if prune else left_out,
        )
        return change, content

    async def declare(
        self, change: SetChange, content: StoredContent, *, reason: str = ""
    ) -> Reply:
        """Store a content, and declare the set with it, unless another client has declared it.

        Raises as a client's ``declare``.
        """
        key = ResourceKey.parse(change.resource)
        spec: Fields = {"providerConfigRef": {"name": COMPOSITION_CONFIG}, CONTENT: content.digest}
        metadata = Metadata(key.name, key.namespace)
        await self._store(key, content)
        manifest = Manifest(MANIFEST_SET_API_VERSION, MANIFEST_SET_KIND, metadata, spec)
        try:
            answer = await self._declare(
                manifest, expected_generation=change.generation, reason=reason
            )
        except DeclarationRefusedError:
            await self._forget(key)
            raise
        # A write that has just ended may have withdrawn content that no declaration named yet.
        await self._store(key, content)
        return answer

    async def _forget(self, key: ResourceKey) -> None:
        """Withdraw content that was stored and is not used."""
        try:
            declared = (await self._standing.declarations([str(key)]))[str(key)].fields or {}
            kept = [declared[CONTENT]] if CONTENT in declared else []
            await self._contents.forget(str(key), key.namespace, kept)
        except ProviderError as error:
            raise _cause(error) from error

    async def _store(self, key: ResourceKey, content: StoredContent) -> None:
        try:
            await self._contents.store(key.namespace, content)
        except ProviderError as error:
            raise _cause(error) from error

    async def _parts(self, key: ResourceKey) -> tuple[int, Sequence[Part]]:
        try:
            found = (await self._standing.declarations([str(key)]))[str(key)]
            generation, declared = found.generation, found.fields or {}
            if CONTENT not in declared:
                return generation, ()
            # If an operator withdrew content, only this declaration can store it again.
            parts = await self._contents.load(key.namespace, declared[CONTENT], is_withdrawn=True)
        except ProviderError as error:
            raise _cause(error) from error
        if parts is None:
            raise InvalidManifestError(f"{key}: the log does not contain its content")
        return generation, parts


class _Here:
    """An existing connection."""

    def __init__(self, nc: Connection) -> None:
        self._nc = nc

    async def connected(self) -> Connection:
        return self._nc


def _differ(left: Part, right: Part) -> bool:
    one, other = (digest_of(without_name(each.manifest)) for each in (left, right))
    return one != other


def _cause(error: ProviderError) -> Exception:
    """Return the cause on the bus: the text of a provider is for workers."""
    return error.__cause__ if isinstance(error.__cause__, BusError) else error
