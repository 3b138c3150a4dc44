"""The graph of references, in which a declaration must not close a cycle."""

from __future__ import annotations

from collections.abc import Iterable

from events.intake import Declared
from events.manifest import InvalidManifestError, split_manifest
from events.names import InvalidNameError, ResourceKey
from events.reference import has_reference
from reconciler.provider.kind import KindRegistry
from reconciler.resource.cycle import MAX_CYCLE
from reconciler.resource.turn import Command
from reconciler.roles.decider.repository import ResourceRepository

_MAX_RESOURCES = 1_000
"""Limit on resources to read for a batch. Longer cycles are found later, from the read models."""

Graph = dict[str, tuple[str, ...]]


def targets_of(commands: Iterable[Command], kinds: KindRegistry, key: ResourceKey) -> set[str]:
    """Return the targets of all references that the declarations in ``commands`` contain."""
    targets: set[str] = set()
    for command in commands:
        data = command.data
        if type(data) is not Declared or not has_reference(data.manifest.spec):
            continue
        kind = kinds.find(key.kind)
        if kind is None:
            break
        try:
            fields = split_manifest(data.manifest).fields
            targets |= {each.target for each in kind.references(fields, key.namespace)}
        except (InvalidManifestError, InvalidNameError):
            continue  # the decider rejects it
    return targets


async def graph_from(targets: Iterable[str], repository: ResourceRepository) -> Graph:
    """Return the references reachable from ``targets``, according to the newest states."""
    graph: Graph = {}
    frontier = set(targets)
    for _ in range(MAX_CYCLE):
        names = sorted(frontier)[: _MAX_RESOURCES - len(graph)]
        if not names:
            break
        newest = await repository.get_newest([ResourceKey.parse(each) for each in names])
        for each in names:
            resource = newest.get(ResourceKey.parse(each))
            desired = None if resource is None else resource.state.desired
            spec = None if desired is None or not desired.is_declared else desired.spec
            graph[each] = (
                () if spec is None else tuple(reference.target for reference in spec.references)
            )
        frontier = {target for each in names for target in graph[each]} - graph.keys()
    return graph
