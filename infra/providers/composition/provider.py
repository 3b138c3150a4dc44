"""The provider of composed kinds: declares and withdraws the children of an object."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, Final, Literal

import msgspec
from nats.aio.client import Client

from events.composition import (
    CHILDREN,
    COMPOSED_SET_KIND,
    PART_OF_LABEL,
    REFUSED,
    RETRY_AT,
    Child,
    ComposedSetSpec,
    as_part,
    digest_of,
    manifests_of,
    without_name,
)
from events.external import ExternalObject
from events.intake import Declared, IntakeData, Reply, Withdrawn
from events.log import Action
from events.manifest import RECONCILER_API_VERSION, Fields, Manifest, Metadata
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec, Scope
from events.stored_content import CONTENT, Part, find_part_problem
from events.subjects import outcome_filter
from infra.bus.client_bus import JetStreamClientBus
from infra.bus.streams import LOG, find_log_id
from infra.jetstream.errors import BusError
from infra.jetstream.reads import last_from_leader
from infra.providers.composition.children import Children
from infra.providers.composition.contents import Contents
from infra.providers.composition.messages import build_message, digest_of_text
from infra.providers.composition.moves import Moves, OtherSets, is_part
from infra.providers.composition.spec import MAX_NAME_CHARACTERS, Summary, name_problem
from infra.providers.composition.state_reader import ComposedSet, Row, StateReader
from infra.providers.jetstream.api import JetStreamApi, classify_error
from reconciler.errors import (
    ConflictError,
    NotFoundError,
    RefusedError,
    UnknownResultError,
)
from reconciler.ports import IntakeMessageOut
from reconciler.provider import Effect
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.listing import Turns
from reconciler.provider.named_objects import check_uid
from reconciler.provider.secrets import Secrets
from reconciler.resource.owner_label import OWNER_LABEL, belongs_to_log, namespace_of

EDITED: Final = "edited"
"""Field of a stored set that lists the children that differ from its declaration."""

STORED_DIGEST: Final = "as stored"

ReadReason = Literal["Effect", "Read", "Listing"]
"""Why an object is read: after a write, on request, or for a listing."""


_MAX_EDITED: Final = 20


_MAX_DOUBLINGS: Final = 32


class CompositionProvider:
    """Declares and withdraws the children of a composed kind's objects."""

    def __init__(
        self,
        config: ProviderConfigSpec,
        secrets: Secrets,
        permit: CallPermit,
        *,
        kind: str,
        summary: Summary,
    ) -> None:
        self.kind = kind
        self._summary = summary
        self._api = JetStreamApi(config, secrets, permit)
        self._retry = config.retry
        self._state_reader = StateReader(self._api)
        self._contents = Contents(self._state_reader, self._publish)
        self._bus: tuple[Client, JetStreamClientBus] | None = None
        self._opening = asyncio.Lock()
        self._log_id: tuple[Client, str] | None = None

    # --- writes

    async def create(self, action: Action) -> Effect:
        """Declare the set, then its children."""
        await self._check_log(action)
        existing = await self._find(action.external_name)
        if existing.spec is not None and existing.spec.key != action.idempotency_key:
            obstacle = await self._as_object(existing, existing.spec)
            raise ConflictError(f"{action.external_name} already exists", obstacle=obstacle)
        uid = f"set-{digest_of_text(action.idempotency_key)}"
        return await self._write(action, existing, uid)

    async def update(self, action: Action) -> Effect:
        """Declare the changed set, and withdraw the children that are no longer in it."""
        await self._check_log(action)
        existing = await self._find(action.external_name)
        if existing.spec is None:
            raise NotFoundError(f"{action.external_name} does not exist")
        if existing.spec.key != action.idempotency_key:
            obstacle = await self._as_object(existing, existing.spec)
            check_uid(obstacle, action)
            if action.version not in (None, obstacle.version):
                raise ConflictError(
                    f"{action.external_name} has changed since it was read", obstacle=obstacle
                )
        return await self._write(action, existing, existing.spec.uid)

    async def delete(self, action: Action) -> Effect:
        """Withdraw all children, and then the set.

        Each attempt reports what blocks the deletion of a child, such as resources that use it.
        """
        existing = await self._find(action.external_name)
        if existing.spec is None:
            withdrawn = existing.withdrawn
            # An operator withdrew the set, so its parts are withdrawn, too.
            if withdrawn is not None and action.uid in (None, withdrawn.uid):
                await self._children(action, withdrawn.fields).remove(_parts_of(withdrawn))
            return Effect(None, absent=True)
        if action.uid is not None and existing.spec.uid != action.uid:
            obstacle = await self._as_object(existing, existing.spec)
            raise ConflictError(
                f"{action.external_name} was replaced by another object", obstacle=obstacle
            )
        set_spec = existing.spec
        leaving = _parts_of(set_spec)
        last = msgspec.structs.replace(
            existing.spec,
            key=action.idempotency_key,
            fields={**existing.spec.fields, CHILDREN: {}},
            generations={},
            leaving=leaving,
        )
        if last != existing.spec:
            existing = await self._declare_set(action, existing, last, "leaving")
        await self._children(action, set_spec.fields).remove(leaving)
        # includes content that was stored for the next set
        await self._contents.withdraw_others(set_spec.parent, existing.key.namespace, ())
        await self._publish_set(action, existing, Withdrawn(existing.generation), "gone")
        return Effect(None)

    async def _check_log(self, action: Action) -> None:
        """Raise `RefusedError` if the endpoint is the bus of another reconciler.

        Its decider would accept the parts, and its workers would create their objects.
        """
        label = action.labels.get(OWNER_LABEL, "")
        if not namespace_of(label):
            return  # it names no log
        nc = await self._api.connection()
        if self._log_id is None or self._log_id[0] is not nc:
            try:
                self._log_id = nc, await find_log_id(nc)
            except BusError as error:
                raise classify_error(error, is_read=True) from error
        log_id = self._log_id[1]
        if not belongs_to_log(label, log_id):
            raise RefusedError(
                f"the endpoint is the bus of another reconciler, whose log has the id {log_id}; "
                "set the endpoint of the ProviderConfig to the bus of this reconciler"
            )

    async def _write(self, action: Action, existing: ComposedSet, uid: str) -> Effect:
        parent = parent_of(self.kind, action.external_name)
        parts = await self._parts(action.external_name, action.fields)
        for part in parts:
            problem = find_part_problem(ResourceKey.parse(parent), part.manifest.key)
            if problem:
                raise RefusedError(problem)
        previous = existing.spec
        old_generations: dict[str, int] = {} if previous is None else previous.generations
        desired = _digests(action.fields, parts)
        parts = [each._replace(manifest=as_part(each.manifest, parent)) for each in parts]
        unchanged = await self._find_unchanged(desired, previous)
        changed_parts = [each for each in parts if str(each.manifest.key) not in unchanged]
        manifests = [each.manifest for each in changed_parts]
        children = self._children(action, action.fields)
        new = await children.check_names_free(
            [each for each in manifests if not old_generations.get(str(each.key))]
        )
        # A child that an operator was permitted to declare differently is not among the parts.
        part_names = {str(each.manifest.key) for each in parts}
        unchanged |= {
            name: old_generations.get(name, 0) for name in desired if name not in part_names
        }
        # A set that an operator withdrew still determines its children.
        withdrawn = (
            existing.withdrawn if existing.withdrawn and existing.withdrawn.generations else None
        )
        last = previous or withdrawn
        old_names = () if last is None else _parts_of(last)
        intended = ComposedSetSpec(
            parent=parent,
            uid=uid,
            key=action.idempotency_key,
            labels=action.labels,
            fields=action.fields,
            generations={name: unchanged.get(name, 0) for name in desired},
            leaving=tuple(dict.fromkeys(name for name in old_names if name not in desired)),
        )
        if previous is None or previous.key != action.idempotency_key:
            existing = await self._declare_set(action, existing, intended, "begun")
        else:  # an earlier attempt of this action, whose generations apply
            intended = previous
        generations, refusal_by_name = await children.declare(changed_parts, new)
        is_same = previous is not None and previous.fields == action.fields
        refusals = 1 + (previous.refusals if previous is not None and is_same else 0)
        kept = _find_former_names(parts, refusal_by_name)
        await children.withdraw([name for name in intended.leaving if name not in kept])
        remaining = await self._state_reader.declarations(intended.leaving)
        completed = msgspec.structs.replace(
            intended,
            generations=unchanged | generations,
            refused=refusal_by_name,
            refusals=refusals if refusal_by_name else 0,
            retry_at=self._next_retry_time(refusals) if refusal_by_name else None,
            leaving=tuple(
                name
                for name, each in remaining.items()
                if not (each.is_removed or each.is_declared)
                or (name in kept and is_part(each, parent))
            ),
        )
        if completed != intended:
            existing = await self._declare_set(action, existing, completed, "done")
        if previous is not None and (
            previous.key == action.idempotency_key  # an earlier attempt may have stopped here
            or previous.fields.get(CONTENT, "") != action.fields.get(CONTENT, "")
        ):
            await self._withdraw_former_contents(action, parent)
        return Effect(await self._as_object(existing, completed))

    def _next_retry_time(self, refusals: int) -> datetime:
        """Return when to declare a refused part again.

        By then, the reason for the refusal may no longer apply.
        """
        longest = self._retry.max_seconds
        seconds = min(self._retry.initial_seconds * 2.0 ** min(refusals, _MAX_DOUBLINGS), longest)
        return datetime.now(UTC) + timedelta(seconds=seconds)

    async def _withdraw_former_contents(self, action: Action, parent: str) -> None:
        """Withdraw the former contents of a set, but not its next content."""
        declared = (await self._state_reader.declarations([parent]))[parent].fields or {}
        retained = {each for each in (action.fields.get(CONTENT), declared.get(CONTENT)) if each}
        await self._contents.withdraw_others(parent, ResourceKey.parse(parent).namespace, retained)

    async def _parts(self, external_name: str, fields: Fields) -> list[Part]:
        """Return the parts of a set with these fields.

        Raises ``ConflictError`` if newer content has replaced the stored content.
        """
        digest = fields.get(CONTENT)
        if digest is None:
            return [Part(each) for each in manifests_of(fields)]
        parts = await self._contents.load(external_name.partition(".")[0], digest)
        if parts is None:
            raise ConflictError(
                f"content {digest} of {external_name} is no longer stored",
                obstacle=await self.read(external_name),
            )
        return parts

    async def _find_unchanged(
        self, desired: Mapping[str, str], previous: ComposedSetSpec | None
    ) -> dict[str, int]:
        """Return the generations of children that are already declared as required."""
        if previous is None:
            return {}
        digests = previous.fields.get(CHILDREN, {})
        if CONTENT in previous.fields:
            name = _external_name(previous)
            old = await self._contents.load(name.partition(".")[0], previous.fields[CONTENT])
            digests = _digests(previous.fields, old or [])
        candidates = {
            name: generation
            for name, generation in previous.generations.items()
            if generation
            and name not in previous.refused
            and desired.get(name) == digests.get(name)
        }
        rows = await self._state_reader.children(candidates)
        part_of = previous.parent.replace("/", ".")
        return {
            name: generation
            for name, generation in candidates.items()
            if (row := rows.get(name)) is not None
            and (row.declared, row.generation) == (True, generation)
            and row.labels.get(PART_OF_LABEL) == part_of
        }

    def _children(self, action: Action, content: Fields) -> Children:
        """Return the children of an action. ``content``: the fields of its set."""
        return Children(
            self._state_reader,
            self._publish,
            action,
            parent_of(self.kind, action.external_name),
            source=self.describe_source(action.fields),
            moves=Moves(
                self._state_reader,
                OtherSets(self._state_reader, self._contents),
                self._publish,
                action,
                content,
            ),
        )

    def describe_source(self, fields: Fields) -> str:
        """Describe the source of a set's content; empty if its parent contains all of it."""
        del fields
        return ""

    # --- the set

    async def _find(self, external_name: str) -> ComposedSet:
        return await self._state_reader.find_set(_set_key(self.kind, external_name))

    async def _declare_set(
        self, action: Action, existing: ComposedSet, spec: ComposedSetSpec, step: str
    ) -> ComposedSet:
        metadata = Metadata(existing.key.name, existing.key.namespace)
        fields: Fields = msgspec.to_builtins(spec, str_keys=True)
        manifest = Manifest(RECONCILER_API_VERSION, COMPOSED_SET_KIND, metadata, fields)
        data = Declared(manifest, expected_generation=existing.generation)
        generation = await self._publish_set(action, existing, data, step)
        return existing._replace(generation=generation, spec=spec)

    async def _publish_set(
        self, action: Action, existing: ComposedSet, data: IntakeData, step: str
    ) -> int:
        [reply] = await self._publish([build_message(action, existing.key, data, step)])
        match reply.reason:
            case "StaleGeneration" | "Superseded":
                raise ConflictError(f"{existing.key} has changed since it was read")
            case _ if not reply.accepted:
                raise RefusedError(f"{existing.key}: {reply.reason}: {reply.message}")
            case _:
                return reply.generation

    async def _publish(self, messages: Sequence[IntakeMessageOut]) -> Sequence[Reply]:
        bus = await self._open_bus()
        await self._api.permit.before_request()
        try:
            responses = await bus.request(messages, timeout_seconds=self._api.timeout_seconds)
        except (BusError, TimeoutError) as error:
            raise UnknownResultError(f"Reconciler's bus: {error}") from error
        replies = [each for each in responses if each is not None]
        if any(each.accepted for each in replies):
            self._api.permit.record_write()
        if len(replies) < len(messages):
            # The breaker ignores this status: the messages may be waiting behind the tenant's own.
            raise UnknownResultError(
                "no decider replied; the parts may or may not have been declared",
                status=HTTPStatus.FAILED_DEPENDENCY,
            )
        return replies

    # --- reads

    async def read(self, external_name: str, uid: str | None = None) -> ExternalObject | None:  # noqa: ARG002 - names are unique
        """Read a set, and the status of its children."""
        await self._api.permit.before_request()
        existing = await self._find(external_name)
        if existing.spec is None:
            return None
        if existing.spec.refused:  # a client requested the current status, so the retry is due now
            requested = msgspec.structs.replace(existing.spec, retry_at=datetime.now(UTC))
            existing = existing._replace(spec=requested)
        [observed] = await self._as_objects([existing], "Read")
        return observed

    async def pages(
        self, scope: Scope, *, page_size: int
    ) -> AsyncIterator[Sequence[ExternalObject]]:
        """List the sets of this kind."""
        await self._api.permit.before_request()
        async for page in self._state_reader.sets(self.kind, scope.prefix or ""):
            sets = [each for each in page if self._is_in(scope, each)]
            for start in range(0, len(sets), page_size):
                yield await self._as_objects(sets[start : start + page_size], "Listing")

    async def changes(self, after: str | None) -> str:
        """Return the position of the newest outcome, which may be a child's.

        A row lags slightly behind its outcome, so the same position has two cursors.
        """
        await self._api.permit.before_request()
        try:
            last = await last_from_leader(
                await self._api.connection(), LOG, outcome_filter("*.*.*")
            )
        except BusError as error:
            raise classify_error(error, is_read=True) from error
        position = f"{0 if last is None else last.seq}."
        return (
            f"{position}settled"
            if after is not None and after.startswith(position)
            else f"{position}new"
        )

    async def close(self) -> None:
        """Close the connection."""
        if self._bus is not None:
            await self._bus[1].close()
        await self._api.close()

    def _is_in(self, scope: Scope, existing: ComposedSet) -> bool:
        spec = existing.spec
        if spec is None or spec.parent.split("/")[1] != self.kind:
            return False
        return scope.has(_external_name(spec), spec.labels)

    async def _as_object(self, existing: ComposedSet, spec: ComposedSetSpec) -> ExternalObject:
        [observed] = await self._as_objects([existing._replace(spec=spec)])
        return observed

    async def read_additional_outputs(
        self, specs: Sequence[ComposedSetSpec], reason: ReadReason
    ) -> Sequence[Fields]:
        """Return a kind's additional outputs for its sets."""
        del reason
        return [dict[str, Any]() for _ in specs]

    async def _as_objects(
        self, sets: Sequence[ComposedSet], reason: ReadReason = "Effect"
    ) -> list[ExternalObject]:
        specs = [(each.generation, each.spec) for each in sets if each.spec is not None]
        rows = await self._state_reader.children(
            {
                name: generation
                for _, spec in specs
                for name, generation in (dict.fromkeys(spec.leaving, 0) | spec.generations).items()
            }
        )
        additional = await self.read_additional_outputs([spec for _, spec in specs], reason)
        objects: list[ExternalObject] = []
        turns = Turns()
        for (generation, spec), additional_fields in zip(specs, additional, strict=True):
            objects.append(self._object(generation, spec, rows, additional_fields))
            await turns.pause()
        return objects

    def _object(
        self,
        generation: int,
        spec: ComposedSetSpec,
        rows: Mapping[str, Row],
        additional_fields: Fields,
    ) -> ExternalObject:
        is_stored = CONTENT in spec.fields
        desired: dict[str, Any] = spec.fields.get(CHILDREN, {})
        if is_stored:
            desired = dict.fromkeys(spec.generations, STORED_DIGEST)
        part_of = spec.parent.replace("/", ".")
        observed: dict[str, Any] = {}
        for name, digest in desired.items():
            row, declared = rows.get(name), spec.generations.get(name, 0)
            if name in spec.refused:
                observed[name] = digest
                continue
            if row is None or not row.declared:
                continue
            if row.labels.get(PART_OF_LABEL) != part_of or 0 < declared < row.generation:
                observed[name] = f"another declaration, of generation {row.generation}"
            elif declared:
                observed[name] = digest
        children = {
            name: Child(REFUSED, reason=REFUSED, message=spec.refused[name])
            if name in spec.refused
            else (row.as_child() if (row := rows.get(name)) is not None else Child())
            for name in observed
        }
        outputs = dict(additional_fields)
        if not is_stored:
            outputs[CHILDREN] = msgspec.to_builtins(dict(sorted(children.items())))
        leaving = sorted(name for name in spec.leaving if _is_leaving(rows.get(name), part_of))
        if leaving:
            outputs["leaving"] = leaving
        if spec.retry_at is not None:
            outputs[RETRY_AT] = spec.retry_at.isoformat()
        fields = {**spec.fields, CHILDREN: observed}
        if is_stored:
            differences = {name: observed.get(name, "not declared") for name in desired}
            differences = {
                name: state for name, state in differences.items() if state != STORED_DIGEST
            }
            fields = {
                **spec.fields,
                **({EDITED: _limit_differences(differences)} if differences else {}),
            }
        return ExternalObject(
            name=_external_name(spec),
            fields=fields,
            uid=spec.uid,
            version=str(generation),
            labels=spec.labels,
            written_by=spec.key,
            outputs={**outputs, **self._summary(fields, children)},
        )

    async def _open_bus(self) -> JetStreamClientBus:
        nc = await self._api.connection()
        async with self._opening:
            if self._bus is None or self._bus[0] is not nc:
                bus = JetStreamClientBus(nc, f"composition/{self.kind}")
                try:
                    await bus.open()
                except BusError as error:
                    raise classify_error(error, is_read=True) from error
                self._bus = (nc, bus)
            return self._bus[1]


def _set_key(kind: str, external_name: str) -> ResourceKey:
    problem = name_problem(external_name, max_characters=MAX_NAME_CHARACTERS)
    if problem is not None:
        raise RefusedError(f"{external_name!r}: {problem}")
    namespace, _, name = external_name.partition(".")
    return ResourceKey(namespace, COMPOSED_SET_KIND, f"{kind}-{name}")


def parent_of(kind: str, external_name: str) -> str:
    """Return the resource whose object has this name."""
    namespace, _, name = external_name.partition(".")
    return f"{namespace}/{kind}/{name}"


def _parts_of(spec: ComposedSetSpec) -> tuple[str, ...]:
    """Return the children that a set has declared and that may still exist."""
    return tuple(dict.fromkeys([*spec.generations, *spec.leaving]))


def _find_former_names(parts: Sequence[Part], refused: Collection[str]) -> set[str]:
    """Return the resources whose objects the refused parts take over.

    They stay declared, because a withdrawal without the new name deletes the object.
    """
    return {each.manifest.moved_from for each in parts if str(each.manifest.key) in refused}


def _external_name(spec: ComposedSetSpec) -> str:
    namespace, _, name = spec.parent.split("/")
    return f"{namespace}.{name}"


def _digests(fields: Fields, parts: Sequence[Part]) -> dict[str, str]:
    """Return the digest of each child of an object with these fields."""
    if CONTENT not in fields:
        return fields.get(CHILDREN, {})
    return {str(each.manifest.key): digest_of(without_name(each.manifest)) for each in parts}


def _limit_differences(differences: Mapping[str, str]) -> dict[str, str]:
    rest = len(differences) - _MAX_EDITED
    first = dict(sorted(differences.items())[:_MAX_EDITED])
    return {**first, "more": str(rest)} if rest > 0 else first


def _is_leaving(row: Row | None, part_of: str) -> bool:
    """Return whether a child is being withdrawn and was not declared by another client."""
    if row is None or row.is_removed:
        return False
    return not row.declared or row.labels.get(PART_OF_LABEL) == part_of  # rows lag slightly
