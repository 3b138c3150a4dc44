"""The declarations of a resource, by generation, as manifests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from nats.aio.client import Client

from events.log import LogEvent, OutcomeRecorded, SpecDeclared, SpecWithdrawn
from events.manifest import DEFAULT_PROVIDER_CONFIG, Manifest, Metadata
from events.names import ResourceKey
from infra.bus.event_log import open_log
from reconciler.cli.errors import CommandError
from reconciler.ports import StoredEvent
from reconciler.provider.kind import installed_kinds
from reconciler.resource.state import Spec
from reconciler.roles.decider.repository import ResourceRepository

_MAX_SHOWN_GENERATIONS = 12
_BATCH_SIZE = 2_000


def build_manifest(key: ResourceKey, declared: SpecDeclared | Spec) -> Manifest:
    """Return a manifest that is equivalent to a declaration."""
    spec: dict[str, Any] = dict(declared.fields)
    if declared.provider_config not in ("", DEFAULT_PROVIDER_CONFIG):
        spec["providerConfigRef"] = {"name": declared.provider_config}
    if policy := msgspec.to_builtins(declared.policy):
        spec["policy"] = policy
    metadata = Metadata(key.name, key.namespace, declared.labels, declared.annotations)
    return Manifest(declared.api_version, key.kind, metadata, spec)


async def read_declarations(
    nc: Client, versions: Mapping[ResourceKey, int], *, as_of_version: bool
) -> dict[ResourceKey, Manifest]:
    """Return the last declaration of each resource, even if withdrawn; an empty one if none exists.

    ``as_of_version``: read it as of the given versions instead of now. Raises ``BusError``.
    """
    log = await open_log(nc)
    manifests: dict[ResourceKey, Manifest] = {}
    keys = list(versions)
    for start in range(0, len(keys), _BATCH_SIZE):
        batch = keys[start : start + _BATCH_SIZE]
        specs: dict[ResourceKey, SpecDeclared | Spec | None]
        if as_of_version:
            loaded = await log.load(batch, use_cache=False)
            specs = {
                key: _newest_declaration(each.events, versions[key]) for key, each in loaded.items()
            }
        else:
            loaded = await ResourceRepository(log).get(batch)
            specs = {key: each.state.desired.spec for key, each in loaded.items()}
        manifests |= {key: _build_manifest_or_empty(key, specs.get(key)) for key in batch}
    return manifests


def _newest_declaration(events: Iterable[LogEvent], version: int) -> SpecDeclared | None:
    known = [each.data for each in events if each.resourceversion <= version]
    return next((each for each in reversed(known) if isinstance(each, SpecDeclared)), None)


def _build_manifest_or_empty(key: ResourceKey, declared: SpecDeclared | Spec | None) -> Manifest:
    if declared is not None:
        return build_manifest(key, declared)
    kind = installed_kinds().find(key.kind)
    version = "" if kind is None else kind.api_version
    return Manifest(version, key.kind, Metadata(key.name, key.namespace))


class Generations:
    """The generations of one resource: declarations and withdrawals."""

    def __init__(self, key: ResourceKey, history: Sequence[StoredEvent]) -> None:
        self._key = key
        self._history = history
        self._starts: dict[int, tuple[int, SpecDeclared | SpecWithdrawn]] = {}
        for number, stored in enumerate(history):
            data = stored.event.data
            if isinstance(data, (SpecDeclared, SpecWithdrawn)):
                self._starts[data.generation] = (number, data)

    @property
    def newest(self) -> int:
        """The resource's current generation, 0 if it was never declared."""
        return max(self._starts, default=0)

    @property
    def is_paused(self) -> bool:
        """Whether the current declaration pauses the resource."""
        data = self._starts[self.newest][1] if self._starts else None
        return isinstance(data, SpecDeclared) and data.policy.paused

    def declaration(self, generation: int) -> SpecDeclared:
        """Return a declaration; raises a ``CommandError`` that lists all generations."""
        data = self._start(generation)[1]
        if isinstance(data, SpecWithdrawn):
            raise CommandError(
                f"generation {generation} of {self._key} is a withdrawal, which declares "
                f"nothing; {self._list_generations()}"
            )
        return data

    def newest_ready(self) -> int:
        """Return the newest ready generation whose declaration differs from the current one.

        Raises:
            CommandError: no such generation exists.
        """
        current = _without_metadata(self._starts[self.newest][1]) if self._starts else None
        for generation in sorted(self._ready_generations(), reverse=True):
            data = self._starts[generation][1]
            if isinstance(data, SpecDeclared) and _without_metadata(data) != current:
                return generation
        raise CommandError(
            f"no other generation of {self._key} was ready; choose one with --to: "
            f"{self._list_generations()}"
        )

    def _ready_generations(self) -> set[int]:
        return {
            data.generation
            for each in self._history
            if isinstance(data := each.event.data, OutcomeRecorded)
            and data.outcome == "Converged"
            and all(
                condition.status == "True"
                for condition in data.conditions
                if condition.type == "Ready"
            )
        } & self._starts.keys()

    def end(self, generation: int) -> int:
        """Return the position of a generation's newest event; raises ``CommandError``."""
        self._start(generation)
        later = [number for each, (number, _) in self._starts.items() if each > generation]
        return self._history[min(later, default=len(self._history)) - 1].position

    def _start(self, generation: int) -> tuple[int, SpecDeclared | SpecWithdrawn]:
        if generation not in self._starts:
            raise CommandError(
                f"{self._key} has no generation {generation}; {self._list_generations()}"
            )
        return self._starts[generation]

    def _list_generations(self) -> str:
        by_class: Mapping[type, list[int]] = {SpecDeclared: [], SpecWithdrawn: []}
        for generation, (_, data) in self._starts.items():
            by_class[type(data)].append(generation)
        if not self._starts:
            return "it was never declared"
        withdrawn = by_class[SpecWithdrawn]
        text = f"declared generations: {_format_generations(by_class[SpecDeclared])}"
        return f"{text}; withdrawals: {_format_generations(withdrawn)}" if withdrawn else text


def _without_metadata(data: SpecDeclared | SpecWithdrawn) -> SpecDeclared | None:
    """Return a declaration without its generation and reason; None for a withdrawal."""
    if isinstance(data, SpecWithdrawn):
        return None
    return msgspec.structs.replace(data, generation=0, reason="")


def _format_generations(generations: Sequence[int]) -> str:
    newest = ", ".join(map(str, generations[-_MAX_SHOWN_GENERATIONS:]))
    return f"..., {newest}" if len(generations) > _MAX_SHOWN_GENERATIONS else newest
