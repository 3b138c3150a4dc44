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

_SHOWN = 12
_LOADED_AT_ONCE = 2_000


def manifest_of(key: ResourceKey, declared: SpecDeclared | Spec) -> Manifest:
    """Return an equivalent manifest of a declaration."""
    spec: dict[str, Any] = dict(declared.fields)
    if declared.provider_config not in ("", DEFAULT_PROVIDER_CONFIG):
        spec["providerConfigRef"] = {"name": declared.provider_config}
    if policy := msgspec.to_builtins(declared.policy):
        spec["policy"] = policy
    metadata = Metadata(key.name, key.namespace, declared.labels, declared.annotations)
    return Manifest(declared.api_version, key.kind, metadata, spec)


async def declarations(
    nc: Client, versions: Mapping[ResourceKey, int], *, as_of_version: bool
) -> dict[ResourceKey, Manifest]:
    """Return the last declaration of each resource, even if withdrawn; empty for none.

    ``as_of_version``: at the given versions instead of now. Raises ``BusError``.
    """
    log = await open_log(nc)
    manifests: dict[ResourceKey, Manifest] = {}
    keys = list(versions)
    for start in range(0, len(keys), _LOADED_AT_ONCE):
        some = keys[start : start + _LOADED_AT_ONCE]
        specs: dict[ResourceKey, SpecDeclared | Spec | None]
        if as_of_version:
            loaded = await log.load(some, use_cache=False)
            specs = {key: _newest(each.events, versions[key]) for key, each in loaded.items()}
        else:
            kept = await ResourceRepository(log).get(some)
            specs = {key: each.state.desired.spec for key, each in kept.items()}
        manifests |= {key: _manifest(key, specs.get(key)) for key in some}
    return manifests


def _newest(events: Iterable[LogEvent], version: int) -> SpecDeclared | None:
    known = [each.data for each in events if each.resourceversion <= version]
    return next((each for each in reversed(known) if isinstance(each, SpecDeclared)), None)


def _manifest(key: ResourceKey, declared: SpecDeclared | Spec | None) -> Manifest:
    if declared is not None:
        return manifest_of(key, declared)
    kind = installed_kinds().find(key.kind)
    version = "" if kind is None else kind.api_version
    return Manifest(version, key.kind, Metadata(key.name, key.namespace))


class Generations:
    """The generations of one resource: declarations and withdrawals."""

    def __init__(self, key: ResourceKey, history: Sequence[StoredEvent]) -> None:
        self._key = key
        self._history = history
        self._begins: dict[int, tuple[int, SpecDeclared | SpecWithdrawn]] = {}
        for number, stored in enumerate(history):
            data = stored.event.data
            if isinstance(data, (SpecDeclared, SpecWithdrawn)):
                self._begins[data.generation] = (number, data)

    @property
    def newest(self) -> int:
        """The resource's current generation, 0 if it was never declared."""
        return max(self._begins, default=0)

    @property
    def is_paused(self) -> bool:
        """Whether the current declaration pauses the resource."""
        data = self._begins[self.newest][1] if self._begins else None
        return isinstance(data, SpecDeclared) and data.policy.paused

    def declared(self, generation: int) -> SpecDeclared:
        """Return the declaration of a generation; ``CommandError`` lists the existing ones."""
        data = self._begin(generation)[1]
        if isinstance(data, SpecWithdrawn):
            raise CommandError(
                f"generation {generation} of {self._key} is a withdrawal, which declares "
                f"nothing; {self._which_there_are()}"
            )
        return data

    def newest_ready(self) -> int:
        """Return the newest ready generation whose declaration differs from the current one.

        Raises:
            CommandError: there is none.
        """
        now = _content(self._begins[self.newest][1]) if self._begins else None
        for generation in sorted(self._was_ready(), reverse=True):
            data = self._begins[generation][1]
            if isinstance(data, SpecDeclared) and _content(data) != now:
                return generation
        raise CommandError(
            f"no other generation of {self._key} was ready; choose one with --to: "
            f"{self._which_there_are()}"
        )

    def _was_ready(self) -> set[int]:
        return {
            data.generation
            for each in self._history
            if isinstance(data := each.event.data, OutcomeRecorded)
            and data.outcome == "Converged"
            and all(one.status == "True" for one in data.conditions if one.type == "Ready")
        } & self._begins.keys()

    def end(self, generation: int) -> int:
        """Return the position of a generation's newest event; raises ``CommandError``."""
        self._begin(generation)
        later = [number for each, (number, _) in self._begins.items() if each > generation]
        return self._history[min(later, default=len(self._history)) - 1].position

    def _begin(self, generation: int) -> tuple[int, SpecDeclared | SpecWithdrawn]:
        if generation not in self._begins:
            raise CommandError(
                f"{self._key} has no generation {generation}; {self._which_there_are()}"
            )
        return self._begins[generation]

    def _which_there_are(self) -> str:
        by_class: Mapping[type, list[int]] = {SpecDeclared: [], SpecWithdrawn: []}
        for generation, (_, data) in self._begins.items():
            by_class[type(data)].append(generation)
        if not self._begins:
            return "it was never declared"
        withdrawn = by_class[SpecWithdrawn]
        text = f"declared generations: {_listed(by_class[SpecDeclared])}"
        return f"{text}; withdrawals: {_listed(withdrawn)}" if withdrawn else text


def _content(data: SpecDeclared | SpecWithdrawn) -> SpecDeclared | None:
    """Return the content of a declaration, without its generation and reason."""
    if isinstance(data, SpecWithdrawn):
        return None
    return msgspec.structs.replace(data, generation=0, reason="")


def _listed(generations: Sequence[int]) -> str:
    newest = ", ".join(map(str, generations[-_SHOWN:]))
    return f"..., {newest}" if len(generations) > _SHOWN else newest
