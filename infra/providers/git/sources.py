"""The provider of ``GitSource``: it follows repositories, and declares their manifests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Final

from events.composition import ComposedSetSpec
from events.external import ExternalObject
from events.manifest import Fields, InvalidManifestError, Manifest
from events.names import KIND_DEFINITION_KIND
from events.provider_config import ProviderConfigSpec, Scope
from infra.providers.composition.provider import CompositionProvider, ReadReason, parent_of
from infra.providers.composition.spec import Summary
from infra.providers.git.checks import Check
from infra.providers.git.heads import Heads
from infra.providers.git.rendering import read_renderers
from reconciler.composites.git_source import REVISION, SOURCE, describe_revision
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.defined_kind import build_defined_kind
from reconciler.provider.kind import installed_kinds
from reconciler.provider.secrets import Secrets

_LIBRARIES: Final = ("dulwich", "semantic_version", "urllib3")


class GitSourceProvider(CompositionProvider):
    """Declares the manifests in repositories. Reading a set also reads its repository."""

    def __init__(
        self,
        config: ProviderConfigSpec,
        secrets: Secrets,
        permit: CallPermit,
        *,
        kind: str,
        summary: Summary,
    ) -> None:
        super().__init__(config, secrets, permit, kind=kind, summary=summary)
        for library in _LIBRARIES:  # imported only by the process that reads a repository
            if find_spec(library) is None:
                raise ModuleNotFoundError(name=library)
        read_renderers()  # raises if the file is invalid
        self._heads = Heads(
            self._contents,
            secrets,
            self._check,
            timeout_seconds=config.limits.request_timeout_seconds,
            allow=config.allow,
        )
        self._change_count = 0
        self._installed = installed_kinds()

    async def read_additional_outputs(
        self, specs: Sequence[ComposedSetSpec], reason: ReadReason
    ) -> Sequence[Fields]:
        """Return the state of each repository."""
        rows = (
            {}
            if reason == "Effect"
            else await self._state_reader.rows([each.parent for each in specs])
        )
        followed = {name for name, row in rows.items() if row.declared}

        async def read_outputs(spec: ComposedSetSpec) -> Fields:
            if SOURCE not in spec.fields:  # written by another client
                return {}
            if spec.parent not in followed:  # no resource follows it
                return self._heads.known_outputs(spec)
            return await self._heads.refresh(spec, is_requested=reason == "Read")

        return await asyncio.gather(*map(read_outputs, specs))

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        """List all sources, each with the state of its repository."""
        parents: set[str] = set()
        async for page in super().pages(scope, page_size=page_size):
            parents |= {parent_of(self.kind, each.name) for each in page}
            yield page
        self._heads.keep_only_sources(parents)

    async def changes(self, after: str | None) -> str:
        """Return the change cursor for outcomes and repositories."""
        outcomes = await super().changes(after)
        self._change_count += await self._heads.has_new_commits()
        return f"{outcomes}.{self._change_count}"

    async def close(self) -> None:
        """Stop all reads, and close the connection."""
        await self._heads.close()
        await super().close()

    async def _check(self) -> Check:
        """Return a check of manifests against the current kinds and those that they define."""
        kinds = self._installed.copy()
        for name, (generation, fields) in (await self._state_reader.definitions()).items():
            with suppress(InvalidManifestError):  # its engine may not be installed
                kinds.define(build_defined_kind(kinds, name, fields, generation))

        def check(manifest: Manifest) -> None:
            kinds.check(manifest)
            if manifest.kind == KIND_DEFINITION_KIND:
                kinds.define(build_defined_kind(kinds, manifest.metadata.name, manifest.spec, 1))

        return check

    def describe_source(self, fields: Fields) -> str:
        """Describe the commit that the content comes from."""
        return describe_revision(fields[REVISION]) if REVISION in fields else ""
