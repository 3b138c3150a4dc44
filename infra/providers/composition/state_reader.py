"""Read the state of Reconciler's resources: declarations from its log, status from its rows.

Rows lag slightly behind the log. If a row is older than required, the log is read instead.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from operator import itemgetter
from typing import Final, NamedTuple, Protocol, TypeVar

import msgspec
from nats.aio.client import Client

from events.composition import COMPOSED_SET_KIND, Child, ComposedSetSpec
from events.envelope import decode_log
from events.log import (
    Action,
    ActionDecided,
    ActionRetried,
    Condition,
    LogEvent,
    LookupDecided,
    OutcomeRecorded,
    SpecDeclared,
    SpecWithdrawn,
)
from events.manifest import Fields
from events.names import KIND_DEFINITION_KIND, SYSTEM_NAMESPACE, ResourceKey, is_token
from events.stored_content import COMPOSED_CONTENT_KIND, ComposedContentSpec
from events.subjects import parse_log
from infra.bus.event_log import open_log
from infra.bus.rows import JetStreamRows
from infra.bus.streams import LOG
from infra.jetstream.errors import BusError
from infra.jetstream.reads import last_for_subjects, last_from_leader, subject_counts
from infra.providers.jetstream.api import classify_error

_REMOVED_OUTCOMES: Final = ("Deleted", "Released", "Unowned")
"""Final outcomes of a withdrawn resource, including one whose policy keeps the object."""

_PAGE_DECLARATIONS: Final = 100
"""Number of declarations that are read and held at the same time. One has up to 256 KiB."""


class Declaration(NamedTuple):
    """The last declaration of a resource, and its outcome.

    ``withdrawn`` has the last fields of a resource that is no longer declared.
    """

    generation: int = 0
    labels: Mapping[str, str] = {}
    fields: Fields | None = None
    outcome: OutcomeRecorded | None = None
    withdrawn: Fields | None = None

    @property
    def is_declared(self) -> bool:
        """Whether the resource is declared now."""
        return self.fields is not None

    @property
    def is_removed(self) -> bool:
        """Whether it is not declared, and no action on its object remains."""
        if self.is_declared or not self.generation:
            return not self.is_declared
        return self.outcome is not None and self.outcome.outcome in _REMOVED_OUTCOMES

    def as_row(self, key: ResourceKey) -> Row:
        """Return its row as derived from the log, without outputs."""
        row = Row(
            key.namespace,
            key.kind,
            key.name,
            generation=self.generation,
            declared=self.is_declared,
            labels=dict(self.labels),
        )
        if self.outcome is None:
            return row
        return msgspec.structs.replace(
            row,
            observed_generation=self.outcome.generation,
            outcome=self.outcome.outcome,
            reason=self.outcome.reason,
            message=self.outcome.message,
            conditions=self.outcome.conditions,
        )


class ComposedSet(NamedTuple):
    """A set in the log. Its ``generation`` increases with each declaration and withdrawal.

    ``withdrawn`` has the last content of a set that is no longer declared.
    """

    key: ResourceKey
    generation: int
    spec: ComposedSetSpec | None
    withdrawn: ComposedSetSpec | None = None


class Row(msgspec.Struct, frozen=True, rename="camel"):
    """The fields that are read from a child's status row."""

    namespace: str
    kind: str
    name: str
    generation: int = 0
    observed_generation: int = 0
    declared: bool = False
    labels: dict[str, str] = {}
    outcome: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    outputs: Fields = {}

    @property
    def is_removed(self) -> bool:
        """Whether it is not declared, and no action on its object remains."""
        return not self.declared and self.outcome in _REMOVED_OUTCOMES

    def as_child(self) -> Child:
        """Return the child's status. The outcome of an older generation is ignored."""
        if self.observed_generation != self.generation:
            return Child()
        ready = next((each for each in self.conditions if each.type == "Ready"), None)
        is_ready = self.outcome == "Converged" and (ready is None or ready.status == "True")
        if is_ready:
            return Child(self.outcome, ready=True, outputs=self.outputs)
        condition = ready if self.outcome == "Converged" and ready is not None else self
        return Child(
            self.outcome, reason=condition.reason, message=condition.message, outputs=self.outputs
        )


_S = TypeVar("_S")
_row_decoder = msgspec.json.Decoder(Row)


class ConnectionOwner(Protocol):
    """Owner of a connection to the bus."""

    async def connection(self) -> Client:
        """Return the connection. Raises ``ProviderError`` classes while there is none."""
        ...


class StateReader:
    """Reads declarations and rows from the bus. Raises ``ProviderError`` classes."""

    def __init__(self, api: ConnectionOwner) -> None:
        self._api = api

    async def declarations(self, names: Collection[str]) -> dict[str, Declaration]:
        """Return the declarations of resources from the leader's log."""
        if not names:
            return {}
        nc = await self._api.connection()
        keys = [ResourceKey.parse(name) for name in names]
        try:
            log = await open_log(nc)
            histories = await log.load(keys, use_cache=False, from_leader=True)
        except BusError as error:
            raise classify_error(error, is_read=True) from error
        return {str(key): _declaration(each.events) for key, each in histories.items()}

    async def history(self, key: ResourceKey) -> Sequence[LogEvent]:
        """Return the events of one resource from the leader's log."""
        nc = await self._api.connection()
        try:
            log = await open_log(nc)
            loaded = await log.load([key], use_cache=False, from_leader=True)
        except BusError as error:
            raise classify_error(error, is_read=True) from error
        return loaded[key].events

    async def newest_actions(self, pattern: str) -> dict[str, Action]:
        """Return the newest action of each resource that matches ``namespace.kind.name``."""
        nc = await self._api.connection()
        newest: dict[str, tuple[int, Action]] = {}
        try:
            counts = (await subject_counts(nc, LOG, f"log.{pattern}.action.*")).counts
            for subject in counts:
                stored = await last_from_leader(nc, LOG, subject)
                event = None if stored is None else decode_log(stored.payload)
                if stored is None or event is None:
                    continue
                match event.data:
                    case ActionDecided(action) | ActionRetried(action) | LookupDecided(action):
                        name = str(event.key)
                        newest[name] = max(
                            newest.get(name, (0, action)),
                            (stored.seq, action),
                            key=itemgetter(0),
                        )
                    case _:
                        pass
        except BusError as error:
            raise classify_error(error, is_read=True) from error
        return {name: action for name, (_, action) in newest.items()}

    async def rows(self, names: Collection[str]) -> dict[str, Row]:
        """Return the rows of resources. A resource without a status has none."""
        if not names:
            return {}
        nc = await self._api.connection()
        subjects = [f"status.{name.replace('/', '.')}" for name in names]
        try:
            payloads = await JetStreamRows(nc).get(subjects)
        except BusError as error:
            raise classify_error(error, is_read=True) from error
        rows = [_row_decoder.decode(payload) for payload in payloads.values()]
        return {f"{row.namespace}/{row.kind}/{row.name}": row for row in rows}

    async def children(self, min_generations: Mapping[str, int]) -> dict[str, Row]:
        """Return rows that are not older than these generations, from the log if necessary."""
        rows = await self.rows(min_generations)
        stale = [
            name
            for name, generation in min_generations.items()
            if generation and (name not in rows or rows[name].generation < generation)
        ]
        for name, declaration in (await self.declarations(stale)).items():
            rows.pop(name, None)
            if not declaration.is_removed:
                rows[name] = declaration.as_row(ResourceKey.parse(name))
        return rows

    async def find_set(self, key: ResourceKey) -> ComposedSet:
        """Return a set from the leader's log."""
        declarations = await self.declarations([str(key)])
        return set_of(key, declarations[str(key)])

    async def sets(self, kind: str, prefix: str = "") -> AsyncIterator[Sequence[ComposedSet]]:
        """Return the declared sets of a kind whose external names have a prefix, in pages."""

        def is_wanted(key: ResourceKey) -> bool:
            name = key.name.removeprefix(f"{kind}-")
            return name != key.name and f"{key.namespace}.{name}".startswith(prefix)

        namespace, dot, _ = prefix.partition(".")
        namespace = namespace if dot and is_token(namespace) else "*"
        async for page in self._pages(namespace, COMPOSED_SET_KIND, is_wanted):
            yield [set_of(key, each) for key, each in page.items()]

    async def contents(
        self, namespace: str
    ) -> AsyncIterator[Mapping[str, tuple[int, ComposedContentSpec]]]:
        """Return pages of the stored contents of a namespace: generation and content by digest."""
        async for page in self._pages(namespace, COMPOSED_CONTENT_KIND):
            yield {
                key.name: (each.generation, spec)
                for key, each in page.items()
                if (spec := convert_fields(each.fields, ComposedContentSpec)) is not None
            }

    async def definitions(self) -> dict[str, tuple[int, Fields]]:
        """Return every defined kind by name, with its generation."""
        return {
            key.name: (each.generation, each.fields or {})
            async for page in self._pages(SYSTEM_NAMESPACE, KIND_DEFINITION_KIND)
            for key, each in page.items()
        }

    async def _pages(
        self,
        namespace: str,
        kind: str,
        is_wanted: Callable[[ResourceKey], bool] = lambda _: True,
    ) -> AsyncIterator[Mapping[ResourceKey, Declaration]]:
        """Return the declarations of a kind in pages, which limit the memory that they use.

        The subjects come from the leader, so a page lacks only what was declared since.
        """
        nc = await self._api.connection()
        try:
            facts = await subject_counts(nc, LOG, f"log.{namespace}.{kind}.*.fact")
            subjects = [each for each in sorted(facts.counts) if is_wanted(parse_log(each))]
            for start in range(0, len(subjects), _PAGE_DECLARATIONS):
                page = subjects[start : start + _PAGE_DECLARATIONS]
                newest = await last_for_subjects(nc, LOG, page)
                yield await self._read_declared([decode_log(each.payload) for each in newest])
        except BusError as error:
            raise classify_error(error, is_read=True) from error

    async def _read_declared(self, newest: Sequence[LogEvent]) -> Mapping[ResourceKey, Declaration]:
        """Return the declared resources among those of these newest facts.

        For most resources, the newest fact is enough.
        """
        events = {str(event.key): event for event in newest}
        declarations = {
            name: _declaration([event])
            for name, event in events.items()
            if isinstance(event.data, SpecDeclared | SpecWithdrawn)
        }
        declarations |= await self.declarations(
            [name for name in events if name not in declarations]
        )
        return {
            ResourceKey.parse(name): declaration
            for name, declaration in sorted(declarations.items())
            if declaration.is_declared
        }


def _declaration(events: Sequence[LogEvent]) -> Declaration:
    outcome: OutcomeRecorded | None = None
    withdrawn = 0
    for event in reversed(events):
        match event.data:
            case OutcomeRecorded() as data:
                outcome = outcome or data
            case SpecDeclared() as data if withdrawn:
                return Declaration(withdrawn, outcome=outcome, withdrawn=data.fields)
            case SpecDeclared() as data:
                return Declaration(data.generation, data.labels, data.fields, outcome)
            case SpecWithdrawn(generation):
                withdrawn = withdrawn or generation
            case _:
                pass  # other events do not change the declaration
    return Declaration(withdrawn, outcome=outcome)


def convert_fields(fields: Fields | None, spec: type[_S]) -> _S | None:
    """Return the spec with these fields; None if they are invalid, so that a listing continues."""
    try:
        return None if fields is None else msgspec.convert(fields, spec)
    except msgspec.ValidationError:
        return None


def set_of(key: ResourceKey, declaration: Declaration) -> ComposedSet:
    """Return the set of a declaration; without a spec if Reconciler did not write it."""
    spec = convert_fields(
        declaration.fields if declaration.is_declared else declaration.withdrawn, ComposedSetSpec
    )
    if spec is not None and spec.set_key != key:  # written by another client
        spec = None
    if declaration.is_declared:
        return ComposedSet(key, declaration.generation, spec)
    return ComposedSet(key, declaration.generation, None, spec)
