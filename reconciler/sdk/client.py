"""The client that other services use to declare, wait for, follow and read resources.

See ``reconciler.sdk``. Resources are named by ``ResourceKey`` or ``"namespace/kind/name"``.
Positions refer to the stream that a method reads. Every method may raise ``BusError``.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from itertools import chain, repeat, zip_longest
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakSet

from nats.aio.client import Client as Connection

from events.dead_letter import DeadLetterHandled, Discarded
from events.hold import Hold
from events.intake import ApprovalDecision, Observed, Reply
from events.integrity import LogDamagedError
from events.log import OutcomeName
from events.manifest import Manifest
from events.names import ResourceKey, check_token
from events.provider_config import config_key
from infra.bus.bus_clock import BusClock, read_clock
from infra.bus.client_bus import JetStreamClientBus
from projections.ownership import OwnershipRow, ownership_of
from projections.read_models import (
    FLEET,
    STATUS,
    FleetSummary,
    OutdatedRowsError,
    decode_fleet,
    decode_status,
    rebuild,
    restore,
    status_name,
)
from projections.readiness import show_readiness
from projections.status import StatusRow
from reconciler.errors import DeclarationRefusedError
from reconciler.ports import IntakeMessageOut, StoredEvent
from reconciler.sdk.dead_letters import (
    REPLIED_TO,
    DeadLetter,
    RetryResult,
    check_not_superseded,
    collect,
    filter_letters,
    prepare_retry,
)
from reconciler.sdk.listing_writer import ListingWriter
from reconciler.sdk.messages import (
    approval,
    as_key,
    check_manifest,
    check_replies,
    declaration,
    finalizer_release,
    finalizer_request,
    forced_release,
    reconcile_request,
    withdrawal,
)
from reconciler.sdk.moments import Moment, When, moment, span
from reconciler.sdk.outcomes import SETTLED, OnOutcome, Outcome, OutcomeStream, Waiting, wait
from reconciler.sdk.timeline import EventFilter, newest_events

if TYPE_CHECKING:
    from reconciler.sdk.manifest_sets import ManifestSets
    from reconciler.sdk.plan import Plan, PlannedResource

ResourceName = ResourceKey | str
AnyManifest = Manifest | Mapping[str, Any]


class Client:
    """A service's connection to the reconciler; concurrent tasks may share it."""

    def __init__(self, bus: JetStreamClientBus, nc: Connection) -> None:
        self._bus = bus
        self._nc = nc
        self._streams: WeakSet[OutcomeStream] = WeakSet()

    # --- desired state

    async def declare(
        self,
        manifest: AnyManifest,
        *,
        expected_generation: int | None = None,
        reason: str = "",
        timeout_seconds: float = 10.0,
    ) -> Reply:
        """Declare a resource and wait until it is accepted, but not until it converges.

        With ``expected_generation``, the decider refuses the declaration unless the resource has
        that generation (0: it does not exist). The history records the ``reason``. A different
        reason alone changes nothing.

        Raises ``InvalidManifestError`` or ``InvalidNameError`` before anything is sent,
        ``DeclarationRefusedError`` with the decider's reason, and ``WaitTimeoutError`` if it is
        unknown whether the declaration was stored or processed. You can safely repeat it. With
        an expected generation, the repeat may be refused as stale, because the first attempt
        succeeded.
        """
        message = declaration(manifest, expected_generation, reason=reason)
        return await self._request_one(message, timeout_seconds)

    async def declare_many(
        self,
        manifests: Iterable[AnyManifest],
        *,
        expected_generations: Iterable[int | None] = (),
        reason: str = "",
        timeout_seconds: float = 30.0,
    ) -> list[Reply | DeclarationRefusedError]:
        """Declare many resources concurrently; return the reply or refusal of each, in order.

        All are checked before the first is sent. ``expected_generations`` correspond to the
        manifests in order, and may be fewer. Raises the same errors as ``declare``, but returns
        refusals.
        """
        messages = [
            declaration(manifest, expected, reason=reason)
            for manifest, expected in zip_longest(manifests, expected_generations)
        ]
        return await self._request(messages, timeout_seconds)

    async def plan(
        self, manifests: Iterable[AnyManifest] = (), *, withdraw: Iterable[ResourceName] = ()
    ) -> Plan:
        """Compute the exact result of declarations, with the locally installed kinds.

        ``withdraw``: resources whose declarations are withdrawn after that. Nothing is declared.
        Raises ``InvalidManifestError`` or ``InvalidNameError``.
        """
        from reconciler.sdk.plan import compute_plan  # noqa: PLC0415 - it imports a whole decider

        checked = [check_manifest(each) for each in manifests]
        return await compute_plan(self._nc, checked, withdraw=[as_key(each) for each in withdraw])

    def manifest_sets(self, *, timeout_seconds: float = 30.0) -> ManifestSets:
        """Return the interface to named sets of manifests, which the bus stores."""
        from reconciler.sdk.manifest_sets import ManifestSets  # noqa: PLC0415 - rarely used

        async def request(messages: Sequence[IntakeMessageOut]) -> Sequence[Reply]:
            results = await self._request(messages, timeout_seconds)
            if refused := [each for each in results if isinstance(each, DeclarationRefusedError)]:
                raise refused[0]
            return [each for each in results if isinstance(each, Reply)]

        return ManifestSets(self._nc, request, self.declare)

    async def apply_planned(
        self,
        resources: Iterable[PlannedResource],
        *,
        reason: str = "",
        timeout_seconds: float = 30.0,
    ) -> list[Reply | DeclarationRefusedError]:
        """Declare planned resources; a result that differs from the plan is refused (PlanOutdated).

        Returns and raises the same as ``declare_many``. Resources that the plan contains only as
        consequences are skipped.
        """
        messages = [
            declaration(each.manifest, plan=each.ref, reason=reason)
            for each in resources
            if each.manifest is not None
        ]
        return await self._request(messages, timeout_seconds)

    async def withdraw(
        self,
        resource: ResourceName,
        *,
        expected_generation: int | None = None,
        reason: str = "",
        timeout_seconds: float = 10.0,
    ) -> Reply:
        """Delete a declaration; raises the same errors as ``declare``."""
        message = withdrawal(resource, expected_generation, reason)
        return await self._request_one(message, timeout_seconds)

    async def withdraw_many(
        self, resources: Iterable[ResourceName], *, reason: str = "", timeout_seconds: float = 30.0
    ) -> list[Reply | DeclarationRefusedError]:
        """Delete many declarations; returns and raises the same as ``declare_many``."""
        messages = [withdrawal(resource, reason=reason) for resource in resources]
        return await self._request(messages, timeout_seconds)

    async def reconcile_many(
        self, resources: Iterable[ResourceName], *, reason: str = "", timeout_seconds: float = 30.0
    ) -> list[Reply | DeclarationRefusedError]:
        """Reconcile resources immediately, without backoff; the history records the requester.

        For a ``ProviderConfig``, list its whole scope. Returns and raises the same as
        ``declare_many``.
        """
        messages = [reconcile_request(resource, reason) for resource in resources]
        return await self._request(messages, timeout_seconds)

    async def publish(
        self, manifests: Iterable[AnyManifest], *, timeout_seconds: float = 30.0
    ) -> None:
        """Declare resources and return when the messages are stored, before they are processed.

        The outcomes include refusals. Raises the same errors as ``declare``, except for refusals.
        """
        messages = [declaration(manifest) for manifest in manifests]
        await self._bus.store(messages, timeout_seconds=timeout_seconds)

    # --- finalizers and holds

    async def request_finalizer(
        self, resource: ResourceName, finalizer: str, *, timeout_seconds: float = 10.0
    ) -> Reply:
        """Add a finalizer to a declared resource, which blocks its deletion until you release it.

        ``finalizer`` is a name that you choose, such as ``billing/last-invoice``. Raises the
        same errors as ``declare``.
        """
        return await self._request_one(finalizer_request(resource, finalizer), timeout_seconds)

    async def release_finalizer(
        self,
        resource: ResourceName,
        finalizer: str,
        *,
        force: bool = False,
        reason: str = "",
        timeout_seconds: float = 10.0,
    ) -> Reply:
        """Remove a finalizer; another service's only with ``force``.

        Raises the same errors as ``declare``.
        """
        message = finalizer_release(resource, finalizer, force=force, reason=reason)
        return await self._request_one(message, timeout_seconds)

    async def approve_many(
        self,
        resources: Iterable[ResourceName],
        *,
        hold: str,
        decision: ApprovalDecision = "Proceed",
        reason: str = "",
        generations: Sequence[int] | None = None,
        timeout_seconds: float = 30.0,
    ) -> list[Reply | DeclarationRefusedError]:
        """Approve or reject resources that are held by ``hold``, the reason in their outcome.

        ``generations``: the approved generation of each resource. If a resource has a newer one by
        then, the approval is refused (``Outdated``). Returns and raises the same as
        ``declare_many``.
        """
        known = chain(generations or (), repeat(0))
        messages = [
            approval(resource, hold, decision, reason, generation=generation)
            for resource, generation in zip(resources, known, strict=False)
        ]
        return await self._request(messages, timeout_seconds)

    async def decide_plans(
        self,
        plans: Iterable[tuple[ResourceName, str]],
        *,
        approve: bool,
        reason: str = "",
        timeout_seconds: float = 30.0,
    ) -> list[Reply | DeclarationRefusedError]:
        """Approve or reject exactly this pending plan for each resource.

        The plan is ``pending_plan`` in its status. If another plan is pending by then, the decision
        is refused (``PlanOutdated``) and has no effect. Returns and raises the same as
        ``declare_many``.
        """
        decision: ApprovalDecision = "Proceed" if approve else "Reject"
        messages = [
            approval(resource, Hold.APPROVAL, decision, reason, plan) for resource, plan in plans
        ]
        return await self._request(messages, timeout_seconds)

    async def force_release_many(
        self,
        resources: Iterable[ResourceName],
        *,
        reason: str,
        orphan: bool = False,
        timeout_seconds: float = 30.0,
    ) -> list[Reply | DeclarationRefusedError]:
        """Release withdrawn resources despite any hold; with ``orphan``, their objects are kept.

        Returns and raises the same as ``declare_many``.
        """
        messages = [forced_release(resource, reason, orphan=orphan) for resource in resources]
        return await self._request(messages, timeout_seconds)

    async def _request_one(self, message: IntakeMessageOut, timeout_seconds: float) -> Reply:
        result = (await self._request([message], timeout_seconds))[0]
        if isinstance(result, DeclarationRefusedError):
            raise result
        return result

    async def _request(
        self, messages: Sequence[IntakeMessageOut], timeout_seconds: float
    ) -> list[Reply | DeclarationRefusedError]:
        replies = await self._bus.request(messages, timeout_seconds=timeout_seconds)
        return check_replies(messages, replies, timeout_seconds)

    # --- outcomes

    def outcomes(
        self,
        namespace: str = "*",
        kind: str = "*",
        name: str = "*",
        *,
        after: int | None = None,
        durable: str | None = None,
    ) -> OutcomeStream:
        """Follow outcomes: ``async with client.outcomes(...) as stream``, then iterate over it.

        ``after``: start after this position of the log, 0 for its beginning; None: only new
        outcomes. Rejections are kept for 30 days. ``durable``: the server stores the progress under
        this name, and uses ``after`` only the first time. Several processes may share the name.

        Raises ``InvalidNameError``.
        """
        tokens = _pattern(namespace, kind, name)
        if durable is None:
            stream = OutcomeStream(partial(self._bus.outcomes, [tokens], after=after))
        else:
            check_token(durable, what="durable")
            open_feed = partial(self._bus.durable_outcomes, tokens, after=after, durable=durable)
            stream = OutcomeStream(open_feed)
        self._streams.add(stream)
        return stream

    async def wait_for(
        self,
        resource: ResourceName,
        *,
        generation: int,
        outcomes: Collection[OutcomeName] = SETTLED,
        ready: bool = True,
        timeout_seconds: float = 60.0,
    ) -> Outcome:
        """Wait until a generation, or a newer one, has one of these outcomes; return the outcome.

        An existing outcome counts. ``Converged`` counts only when the object is also ready, unless
        ``ready`` is false. While its API does not respond, its readiness is unknown, so the wait
        continues if you may read that (`silent_since`). If its kind may stop being ready by itself,
        such as a container, it must stay ready for some seconds: the client then requests a read of
        the object, as ``reconcile`` does. Raises ``WaitTimeoutError`` with the
        outcomes so far.
        """
        key = as_key(resource)
        outcomes_by_key = await self.wait_for_many(
            {key: generation}, outcomes=outcomes, ready=ready, timeout_seconds=timeout_seconds
        )
        return outcomes_by_key[key]

    async def wait_for_many(
        self,
        resources: Mapping[ResourceKey, int] | Mapping[str, int],
        *,
        outcomes: Collection[OutcomeName] = SETTLED,
        ready: bool = True,
        timeout_seconds: float = 60.0,
        on_outcome: OnOutcome | None = None,
    ) -> dict[ResourceKey, Outcome]:
        """Wait for many resources and their generations, as ``wait_for`` does for one.

        ``Held`` counts only after some seconds if the declaration of another one of these resources
        may end it, such as the target of a ``ShapeRef`` or a ``ProviderConfig``.

        ``on_outcome`` is called with every new outcome of these resources, including those that do
        not end the wait, so that you can show progress.
        """
        generations = {as_key(resource): generation for resource, generation in resources.items()}
        waiting = Waiting(generations, outcomes, on_outcome, ready=ready)
        await wait(self._bus, waiting, timeout_seconds)
        return waiting.accepted

    async def silent_since(self, provider_config: str) -> datetime | None:
        """Return the time of the last response of an API that does not respond, or None.

        Meanwhile, the readiness of its objects is unknown, but their outcomes do not change. A
        service may read this only for the configurations in its permissions, otherwise it raises
        ``BusDeniedError``. Raises ``InvalidNameError``.
        """
        return await self._bus.silent_since(check_token(provider_config, what="provider_config"))

    # --- the log

    async def history(self, resource: ResourceName) -> list[StoredEvent]:
        """Return every event of one resource, since its first declaration or observation.

        Raises ``LogDamagedError`` if the log lacks events that were written.
        """
        return await self._read_events(as_key(resource), None)

    async def _read_events(self, key: ResourceKey, position: int | None) -> list[StoredEvent]:
        from reconciler.sdk.history import History  # noqa: PLC0415 - its library costs 0.1 s of CPU

        history = await History(self._nc).get(key)
        if position is not None:
            history = history.until(position)
        if history.damage is not None:
            raise LogDamagedError(history.damage)
        return list(history.events)

    async def replay(
        self,
        *,
        after: int = 0,
        follow: bool = False,
        namespace: str = "*",
        kind: str = "*",
        name: str = "*",
    ) -> AsyncGenerator[list[StoredEvent]]:
        """Read the log in batches, in order, after a position.

        It ends when all events that existed at the start have been read; with ``follow`` it
        continues. Raises ``InvalidNameError``.
        """
        tokens = _pattern(namespace, kind, name)
        async with aclosing(self._bus.replay(tokens, after=after, follow=follow)) as batches:
            async for batch in batches:
                yield list(batch)

    async def events(
        self,
        *,
        namespace: str = "*",
        kind: str = "*",
        name: str = "*",
        actor: str | None = None,
        outcome: OutcomeName | None = None,
        event_names: Collection[str] = (),
        since: When | None = None,
        until: When | None = None,
        limit: int = 50,
    ) -> list[StoredEvent]:
        """Return at most ``limit`` of the newest events of many resources, in log order.

        In ``actor``, ``*`` matches any text. ``event_names`` are names of event types, such as
        ``SpecDeclared``. ``since`` and ``until`` are positions or times. Raises
        ``InvalidNameError`` and ``PositionNotFoundError``.
        """
        event_filter = EventFilter(namespace, kind, name, actor, outcome, event_names)
        log_span = await span(self._nc, since, until)
        return await newest_events(self._nc, event_filter, log_span, limit)

    async def moment(self, when: When) -> Moment:
        """Return a moment of the log: a position, or the newest event at or before a time.

        Pass its position as ``at`` if several responses must reflect the same moment. Raises
        ``PositionNotFoundError`` if the log has no events from that time.
        """
        return await moment(self._nc, when)

    # --- read models, which lag slightly behind the log

    async def status(self, resource: ResourceName, *, at: When | None = None) -> StatusRow | None:
        """Return the status of a resource; None if only its history is left.

        While its API does not respond, the condition ``Ready`` is ``Unknown``.

        ``at``: the status at a position of the log or at a time, folded from the history, which
        raises ``PositionNotFoundError`` and ``LogDamagedError``.
        """
        key = as_key(resource)
        if at is None:
            row = await self._bus.row(status_name(key))
            return None if row is None else (await self._show([decode_status(row)]))[0]
        requested = await moment(self._nc, at)
        history = await self._read_events(key, requested.position)
        return rebuild(history).status.get(str(key))

    async def statuses(
        self, namespace: str | None = None, kind: str | None = None, *, at: When | None = None
    ) -> list[StatusRow]:
        """Return the status of all resources, sorted by key.

        While the API of a resource does not respond, its condition ``Ready`` is ``Unknown``.

        ``at``: the status at a position of the log or at a time, which raises
        ``PositionNotFoundError``. If it precedes the read models' position, the log is read up to
        it, limited to the namespace or kind. Without ``at``, the log is read if the stored rows of
        all resources are inconsistent. Those of a namespace or kind are not checked.
        """
        tokens = _pattern(namespace or "*", kind or "*", "*")
        rows = None if at is not None else await self._stored_statuses(tokens)
        if rows is not None:
            rows = await self._show(rows)
        if rows is None:
            from reconciler.sdk.log_replay import replay_to  # noqa: PLC0415 - rarely used

            requested = await moment(self._nc, at)
            async with replay_to(self._nc, requested.position, tokens=tokens) as replay:
                rows = [
                    row
                    for row in replay.models.status.values()
                    if namespace in (None, row.namespace) and kind in (None, row.kind)
                ]
        return sorted(rows, key=lambda row: row.key)

    async def _stored_statuses(self, tokens: str) -> list[StatusRow] | None:
        """Return matching stored rows; None if all are requested and are inconsistent."""
        is_selection = tokens != _pattern("*", "*", "*")
        stored = await self._bus.rows(f"{STATUS}.{tokens}" if is_selection else ">")
        if is_selection or not stored:
            return [decode_status(row) for row in stored.values()]
        try:
            return list(restore(stored).status.values())
        except OutdatedRowsError:
            return None

    async def _show(self, rows: Sequence[StatusRow]) -> list[StatusRow]:
        """Return the rows with unknown readiness where an API does not respond."""
        configs = await self._decode_rows(config_key("*").tokens)
        if all(each.silent_since is None for each in configs.values()):
            return list(rows)
        # The readiness of a composed resource depends on its parts.
        known = await self._decode_rows(_pattern("*", "*", "*"))
        return [show_readiness(each, known) for each in rows]

    async def _decode_rows(self, tokens: str) -> dict[str, StatusRow]:
        stored = await self._bus.rows(f"{STATUS}.{tokens}")
        return {str(row.key): row for row in map(decode_status, stored.values())}

    async def ownership(self, resource: ResourceName) -> OwnershipRow | None:
        """Return the external object that a resource owns or may own, or None."""
        row = await self._bus.row(status_name(as_key(resource)))
        return None if row is None else ownership_of(decode_status(row))

    async def ownerships(
        self, namespace: str | None = None, kind: str | None = None
    ) -> dict[ResourceKey, OwnershipRow]:
        """Return all objects that resources own or may own, sorted by resource."""
        rows = await self.statuses(namespace, kind)
        owners = ((row.key, ownership_of(row)) for row in rows)
        return {key: owned for key, owned in owners if owned is not None}

    async def fleet(self) -> FleetSummary:
        """Return the number of resources in each state."""
        row = await self._bus.row(FLEET)
        return FleetSummary() if row is None else decode_fleet(row)

    # --- dead letters

    async def dead_letters(
        self,
        *,
        stage: str | None = None,
        resource: ResourceName | None = None,
        since: datetime | None = None,
        only_open: bool = True,
        limit: int | None = None,
    ) -> list[DeadLetter]:
        """Return dead letters, newest last.

        ``only_open``: omit letters that were retried or dismissed. ``limit``: approximate number of
        newest letters to search. Raises ``InvalidNameError``.
        """
        key = None if resource is None else as_key(resource)
        letters = collect(*await self._bus.dead_letters(limit=limit))
        return filter_letters(letters, stage=stage, resource=key, since=since, only_open=only_open)

    async def discarded(self) -> Sequence[Discarded]:
        """Return how many messages were discarded beyond each namespace's share."""
        return await self._bus.discarded()

    async def read_clock(self) -> BusClock:
        """Return the offset of the bus's clock from the local clock; raises ``BusError``."""
        return await read_clock(self._nc)

    async def retry_dead_letter(
        self,
        letter: DeadLetter,
        *,
        payload: bytes | None = None,
        force: bool = False,
        reply_seconds: float = 5.0,
    ) -> RetryResult:
        """Publish a dead letter's message again on its subject, or a corrected payload for it.

        The letter is then marked as retried. If the message is undeliverable again, it becomes
        another letter. The resource recognizes a duplicate retry. Raises ``LetterRefusedError`` for
        a letter that cannot be retried.
        """
        message = prepare_retry(letter, payload, force=force)
        if message.intake == "desired" and not force:
            check_not_superseded(letter, await self.history(message.key))
        position, reply = await self._bus.publish_again(
            message.subject,
            message.payload,
            message.message_id,
            reply_timeout_seconds=reply_seconds if message.intake in REPLIED_TO else 0,
        )
        await self._bus.record_handling(
            self._build_handling(
                letter, "Retried", position=position, corrected=payload is not None
            )
        )
        return RetryResult(letter.number, position, reply)

    async def dismiss_dead_letter(self, letter: DeadLetter, *, note: str = "") -> None:
        """Mark a dead letter as dismissed. It is kept, but no longer counts as open."""
        await self._bus.record_handling(self._build_handling(letter, "Dismissed", note=note))

    def _build_handling(
        self,
        letter: DeadLetter,
        resolution: Literal["Retried", "Dismissed"],
        *,
        position: int = 0,
        corrected: bool = False,
        note: str = "",
    ) -> DeadLetterHandled:
        return DeadLetterHandled(
            number=letter.number,
            stage=letter.record.stage,
            resolution=resolution,
            by=self._bus.source,
            at=datetime.now(UTC),
            position=position,
            corrected=corrected,
            note=note,
        )

    # --- observed state

    async def observation_time(self) -> int:
        """Return the current logical time for ``Observed.as_of``; call it before you read."""
        return await self._bus.last_intake_position()

    async def publish_observation(
        self, resource: ResourceName, observed: Observed, *, timeout_seconds: float = 10.0
    ) -> None:
        """Publish an observation of one resource; returns when it is stored.

        Raises ``InvalidNameError`` and ``WaitTimeoutError``.
        """
        message = observation(resource, observed)
        await self._bus.store([message], timeout_seconds=timeout_seconds)

    def listing(
        self,
        provider_config: str,
        kind: str,
        *,
        prefix: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> ListingWriter:
        """Publish all objects of a scope: ``async with client.listing(...) as listing``.

        ``prefix`` and ``labels`` must match the configuration's scope. A listing of another
        scope proves nothing, and is dropped. Raises ``InvalidNameError``.
        """
        check_token(provider_config, what="provider_config")
        check_token(kind, what="kind")
        return ListingWriter(
            self._bus, provider_config, kind, prefix=prefix, labels=dict(labels or {})
        )

    async def close(self) -> None:
        """End the subscriptions of this client; the caller closes the connection."""
        for stream in list(self._streams):
            await stream.aclose()


def observation(resource: ResourceName, observed: Observed) -> IntakeMessageOut:
    """Return the message that reports an observation; raises ``InvalidNameError``."""
    check_token(observed.provider_config, what="provider_config")
    return IntakeMessageOut("observed", as_key(resource), observed, uuid.uuid4().hex)


def _pattern(namespace: str, kind: str, name: str) -> str:
    """Return ``namespace.kind.name``, in which each part is a valid token or ``*``."""
    named = {"namespace": namespace, "kind": kind, "name": name}
    return ".".join(
        value if value == "*" else check_token(value, what=what) for what, value in named.items()
    )
