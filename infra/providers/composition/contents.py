"""Contents in the log: the parts of large sets, stored once and read by digest."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from http import HTTPStatus

import msgspec

from events.intake import Declared, Withdrawn
from events.manifest import RECONCILER_API_VERSION, Fields, Manifest, Metadata
from events.names import ResourceKey
from events.stored_content import (
    COMPOSED_CONTENT_KIND,
    ComposedContentSpec,
    Part,
    StoredContent,
    parts_of,
)
from infra.providers.composition.messages import Publish
from infra.providers.composition.state_reader import Declaration, StateReader, convert_fields
from reconciler.errors import NotDoneError
from reconciler.ports import IntakeMessageOut


class ContentRefusedError(NotDoneError):
    """A decider refused to store content, for example because of a quota."""


class Contents:
    """Reads and writes the contents of sets. Raises ``ProviderError`` classes."""

    def __init__(self, state_reader: StateReader, publish: Publish) -> None:
        self._state_reader = state_reader
        self._publish = publish
        self._read: dict[tuple[str, str], list[Part]] = {}

    async def load(
        self, namespace: str, digest: str, *, is_withdrawn: bool = False
    ) -> list[Part] | None:
        """Return the parts of a set's content; None if it is no longer stored.

        ``is_withdrawn`` also allows withdrawn content that is still in the log.
        """
        cached = self._read.get((namespace, digest))
        if cached is not None:
            return cached
        index = (await self._specs(namespace, [digest], is_withdrawn)).get(digest)
        if index is None:
            return None
        chunks = await self._specs(namespace, index.chunks, is_withdrawn)
        if len(chunks) < len(index.chunks):
            return None
        parts = list(parts_of(chunks[name] for name in index.chunks))
        # keeps the newest two
        self._read = {**dict(list(self._read.items())[-1:]), (namespace, digest): parts}
        return parts

    async def store(self, namespace: str, content: StoredContent) -> None:
        """Store the documents that are missing. Repeating the call has no effect."""
        names = [f"{namespace}/{COMPOSED_CONTENT_KIND}/{name}" for name in content.documents]
        declarations = await self._state_reader.declarations(names)
        messages: list[IntakeMessageOut] = []
        for name, (digest, spec) in zip(names, content.documents.items(), strict=True):
            if declarations[name].is_declared:
                continue
            fields: Fields = msgspec.to_builtins(spec, str_keys=True)
            manifest = Manifest(
                RECONCILER_API_VERSION, COMPOSED_CONTENT_KIND, Metadata(digest, namespace), fields
            )
            identity = f"{digest}.{declarations[name].generation}"
            messages.append(IntakeMessageOut("desired", manifest.key, Declared(manifest), identity))
        for reply in await self._publish(messages) if messages else ():
            if not reply.accepted:
                raise ContentRefusedError(
                    f"storing its content failed: {reply.message}", status=HTTPStatus.CONFLICT
                )

    async def withdraw_others(self, parent: str, namespace: str, retained: Collection[str]) -> None:
        """Withdraw all contents of a set except those in ``retained``."""
        indexes = await self._specs(namespace, retained, is_withdrawn=False)
        kept = {*retained, *(chunk for index in indexes.values() for chunk in index.chunks)}
        messages: list[IntakeMessageOut] = []
        async for page in self._state_reader.contents(namespace):
            for digest, (generation, spec) in page.items():
                if spec.parent != parent or digest in kept:
                    continue
                key = ResourceKey(namespace, COMPOSED_CONTENT_KIND, digest)
                data = Withdrawn(generation, reason=f"{parent} has different content")
                messages.append(
                    IntakeMessageOut("desired", key, data, f"{digest}.{generation}.gone")
                )
        if messages:
            await self._publish(messages)

    async def _specs(
        self, namespace: str, digests: Collection[str], is_withdrawn: bool
    ) -> Mapping[str, ComposedContentSpec]:
        names = {f"{namespace}/{COMPOSED_CONTENT_KIND}/{each}": each for each in digests}
        declarations = await self._state_reader.declarations(list(names))
        return {
            names[name]: spec
            for name, each in declarations.items()
            if (spec := convert_fields(_fields(each, is_withdrawn), ComposedContentSpec))
            is not None
        }


def _fields(declaration: Declaration, is_withdrawn: bool) -> Fields | None:
    return (
        declaration.fields if declaration.is_declared or not is_withdrawn else declaration.withdrawn
    )
