"""Publishes the messages of services, people and other teams' observers, with retries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from events.envelope import encode_intake, encode_listing_part
from events.hold import Hold
from events.intake import (
    Approved,
    Declared,
    FinalizerReleased,
    FinalizerRequested,
    ForcedRelease,
    IntakeData,
    ListingBegan,
    ListingCompleted,
    ListingItem,
    ListingPart,
    ReconcileRequested,
    Withdrawn,
)
from events.manifest import (
    EXTERNAL_NAME_ANNOTATION,
    MOVED_FROM_ANNOTATION,
    RECONCILER_API_VERSION,
    Fields,
    Manifest,
    Metadata,
)
from events.names import KIND_DEFINITION_KIND, SYSTEM_NAMESPACE, ResourceKey
from events.provider_config import (
    PROVIDER_CONFIG_KIND,
    DeletionGuard,
    Limits,
    LossGuard,
    ProviderConfigSpec,
    Retry,
    Scope,
)
from events.reference import REFERENCE_KIND
from events.subjects import Intake
from events.subjects import intake as intake_subject
from events.subjects import listing as listing_subject
from infra.jetstream.errors import StreamFullError
from reconciler.resource.state import ResourceState
from tests.judge.from_simulation import PERSON
from tests.memory_bus.clock import Clock
from tests.memory_bus.intake import IntakeStream
from tests.memory_bus.listings import Listings
from tests.memory_bus.network import Network
from tests.simulation import plan as p
from tests.simulation.api import Api
from tests.simulation.vault import hide_secrets

SERVICE = "service"
GUARD = 2
"""Number of undeclared objects that may be deleted at a time."""

CONFIG_KEY = ResourceKey(SYSTEM_NAMESPACE, PROVIDER_CONFIG_KIND, "default")
_NEVER = 1_000
_LATE_SECONDS = 6.0
DEFINITION_KEY = ResourceKey(SYSTEM_NAMESPACE, KIND_DEFINITION_KIND, "Shape")
_APPROVABLE_HOLDS = (
    Hold.DELETION_GUARD,
    Hold.LOSS_GUARD,
    Hold.ADOPTION,
    Hold.DEFINITION_GUARD,
    Hold.APPROVAL,
    Hold.DATA_LOSS,
    Hold.DATA_MISSING,
)
_SUBJECT_CLASSES: dict[type[IntakeData], Intake] = {
    Declared: "desired",
    Withdrawn: "desired",
    ReconcileRequested: "desired",
    FinalizerRequested: "finalizer",
    FinalizerReleased: "finalizer",
    ForcedRelease: "approval",
    Approved: "approval",
}


def resource_key(name: str) -> ResourceKey:
    """Return the key of one of the plan's resources."""
    return ResourceKey("default", "Shape", name)


def reference_key(name: str) -> ResourceKey:
    """Return the key of one of the plan's references."""
    return ResourceKey("default", REFERENCE_KIND, name)


class _Message(NamedTuple):
    subject: str
    payload: bytes
    message_id: str


class Publisher:
    """All clients that publish from outside the reconciler's processes."""

    def __init__(
        self,
        traits: p.ApiTraits,
        *,
        network: Network,
        intake: IntakeStream,
        listings: Listings,
        api: Api,
        states: Mapping[ResourceKey, ResourceState],
        time: Callable[[], float],
    ) -> None:
        self._traits = traits
        self._network = network
        self._intake = intake
        self._listings = listings
        self._api = api
        self._states = states
        self._time = time
        self._clock = Clock(time)
        self._messages: dict[int, _Message] = {}
        self._count = 0

    def apply(self, step: p.Step) -> bool:
        """Apply a step if a client publishes it; return whether one does."""
        do = _HANDLERS.get(type(step))
        if do is not None:
            do(self, step)
        return do is not None

    # --- declarations

    def _declare(self, step: p.Declare) -> None:
        spec: dict[str, Any] = dict(step.fields)
        if step.policy:
            spec["policy"] = step.policy
        annotations = {MOVED_FROM_ANNOTATION: step.moved_from} if step.moved_from else {}
        if step.external_name:
            annotations[EXTERNAL_NAME_ANNOTATION] = step.external_name
        metadata = Metadata(step.shape, labels=dict(step.labels), annotations=annotations)
        manifest = Manifest("sim/v1", "Shape", metadata, spec)
        self.publish(resource_key(step.shape), Declared(manifest), step.number, copies=step.copies)

    def _withdraw(self, step: p.Withdraw) -> None:
        self.publish(resource_key(step.shape), Withdrawn(), step.number, copies=step.copies)

    def _refer(self, step: p.Refer) -> None:
        key = reference_key(step.name)
        if not step.target:
            self.publish(key, Withdrawn(), step.number)
            return
        fields: Fields = {
            "target": {"kind": "Shape", "name": step.target},
            "onWithdrawal": step.on_withdrawal,
        }
        manifest = Manifest(RECONCILER_API_VERSION, REFERENCE_KIND, Metadata(step.name), fields)
        self.publish(key, Declared(manifest), step.number)

    def configure(self, step: p.Configure) -> None:
        """Declare or withdraw the configuration of the API."""
        if not step.present:
            self.publish(CONFIG_KEY, Withdrawn())
            if step.forced:
                self.publish(CONFIG_KEY, ForcedRelease("the plan says so"), source=PERSON)
            return
        traits = self._traits
        spec = ProviderConfigSpec(
            provider="simulated",
            endpoint="http://simulated",
            scope=Scope(mode="Exclusive" if traits.exclusive else "Shared"),
            ownership=traits.ownership,
            resync_seconds=step.resync_seconds,
            limits=Limits(concurrency=step.concurrency, page_size=2),
            retry=Retry(initial_seconds=0.3, max_seconds=2.0),
            deletion_guard=DeletionGuard(max_count=GUARD),
            loss_guard=LossGuard(min_count=traits.loss_guard or _NEVER),
            consistency_grace_seconds=traits.grace_seconds,
            approve=traits.approve,
        )
        metadata = Metadata(CONFIG_KEY.name, SYSTEM_NAMESPACE)
        fields = msgspec.to_builtins(spec, str_keys=True)
        manifest = Manifest(RECONCILER_API_VERSION, PROVIDER_CONFIG_KIND, metadata, fields)
        self.publish(CONFIG_KEY, Declared(manifest))

    def _define(self, step: p.Define) -> None:
        """Define the resources' kind over the installed one."""
        spec: Fields = {
            "apiVersion": "sim/v1",
            "provider": "simulated",
            "over": "Base",
            "fields": {"color": {}},
            "constants": step.constants,
        }
        metadata = Metadata(DEFINITION_KEY.name, SYSTEM_NAMESPACE)
        manifest = Manifest(RECONCILER_API_VERSION, KIND_DEFINITION_KIND, metadata, spec)
        self.publish(DEFINITION_KEY, Declared(manifest))

    # --- holds

    def _request_finalizer(self, step: p.RequestFinalizer) -> None:
        data = FinalizerRequested(step.service)
        self.publish(resource_key(step.shape), data, step.number, source=step.service)

    def _release_finalizer(self, step: p.ReleaseFinalizer) -> None:
        data = FinalizerReleased(step.service, step.force, "the plan says so")
        self.publish(resource_key(step.shape), data, step.number, source=step.by)

    def _force_release(self, step: p.ForceRelease) -> None:
        data = ForcedRelease("the plan says so", step.orphan)
        self.publish(resource_key(step.shape), data, step.number, source=PERSON)

    def _look(self, step: p.Look) -> None:
        data = ReconcileRequested("the plan says so")
        self.publish(resource_key(step.shape), data, step.number, source=PERSON)

    def _approve(self, step: p.Approve) -> None:
        key = resource_key(step.shape)
        state = self._states.get(key)
        hold = _APPROVABLE_HOLDS[0]
        if state is not None and state.outcome is not None and is_held_for_a_person(state):
            hold = state.outcome.reason
        approval = None if state is None else state.holds.approval
        plan = "" if approval is None else approval.plan
        self.publish(key, Approved(hold, plan=plan), source=PERSON)

    def release_all(self) -> None:
        """Remove everything that holds a resource, as a permitted client."""
        for key, state in list(self._states.items()):
            for each in state.holds.finalizers:
                self.publish(key, FinalizerReleased(each.name), source=each.holder)
            spec = state.desired.spec
            if spec is not None and spec.references and state.desired.is_declared:
                self.publish(key, Withdrawn())

    def approve_all(self) -> None:
        """Approve every action that is waiting for approval."""
        for key, state in list(self._states.items()):
            if key.kind == "Shape" and is_held_for_a_person(state):
                self._approve(p.Approve(at=0.0, shape=key.name))

    # --- publishing

    def publish(
        self,
        key: ResourceKey,
        data: IntakeData,
        number: int = -1,
        *,
        source: str = SERVICE,
        copies: int = 1,
    ) -> None:
        """Publish repeatedly under the same id until the message is stored."""
        self._count += 1
        message_id = f"m{number}" if number >= 0 else f"once-{self._count}"
        payload = encode_intake(message_id, source, data, time=self._clock.now())
        subject = intake_subject(_SUBJECT_CLASSES[type(data)], key)
        message = _Message(subject, payload, message_id)
        if number >= 0:
            self._messages[number] = message
        for copy in range(copies):
            self._store(message, 0.05 * copy)

    def _store(self, message: _Message, wait: float) -> None:
        subject, payload, message_id = message

        def arrive() -> None:
            if self._network.is_away:
                self._network.call_later(0.5, arrive)
                return
            try:
                self._intake.store(subject, payload, message_id, f"_INBOX.{message_id}")
            except StreamFullError:
                self._network.call_later(0.5, arrive)

        self._network.call_later(wait + self._network.latency(), arrive)

    def _repeat(self, step: p.Repeat) -> None:
        if step.number in self._messages:
            self._store(self._messages[step.number], 0.0)

    def _garbage(self, step: p.Garbage) -> None:
        subject = f"rec.desired.default.Shape.{step.shape}"
        for copy in range(step.copies):
            self._store(_Message(subject, step.payload.encode(), ""), 0.0005 * copy)

    # --- another team's observer

    def _listing(self, step: p.Listing) -> None:
        self._count += 1
        objects = [hide_secrets(each) for each in self._api.objects.values()]
        parts: list[ListingPart] = [
            ListingBegan(CONFIG_KEY.name, "Shape", self._intake.last_position),
            *[ListingItem(each) for each in objects],
            ListingCompleted(len(objects)),
        ]
        if step.how == "short" and objects:
            del parts[1]
        if step.how == "open":
            del parts[-1]
        subject = listing_subject(CONFIG_KEY.name, "Shape", f"s{self._count}")
        wait = _LATE_SECONDS if step.how == "late" else 0.0
        for number, part in enumerate(parts):
            payload = encode_listing_part(
                f"{subject}-{number}", "other-team", part, time=self._clock.now()
            )
            self._network.call_later(
                0.05 * number + wait * bool(number),
                lambda payload=payload: self._listings.store(subject, payload),
            )


def is_held_for_a_person(state: ResourceState) -> bool:
    """Return whether a guard holds a resource until an operator approves it."""
    outcome = state.outcome
    return outcome is not None and outcome.outcome == "Held" and outcome.reason in _APPROVABLE_HOLDS


_HANDLERS: dict[type[p.Step], Callable[[Publisher, Any], None]] = {
    p.Declare: Publisher._declare,  # pyright: ignore[reportPrivateUsage]
    p.Withdraw: Publisher._withdraw,  # pyright: ignore[reportPrivateUsage]
    p.Repeat: Publisher._repeat,  # pyright: ignore[reportPrivateUsage]
    p.Garbage: Publisher._garbage,  # pyright: ignore[reportPrivateUsage]
    p.Configure: Publisher.configure,
    p.RequestFinalizer: Publisher._request_finalizer,  # pyright: ignore[reportPrivateUsage]
    p.ReleaseFinalizer: Publisher._release_finalizer,  # pyright: ignore[reportPrivateUsage]
    p.ForceRelease: Publisher._force_release,  # pyright: ignore[reportPrivateUsage]
    p.Look: Publisher._look,  # pyright: ignore[reportPrivateUsage]
    p.Refer: Publisher._refer,  # pyright: ignore[reportPrivateUsage]
    p.Define: Publisher._define,  # pyright: ignore[reportPrivateUsage]
    p.Approve: Publisher._approve,  # pyright: ignore[reportPrivateUsage]
    p.Listing: Publisher._listing,  # pyright: ignore[reportPrivateUsage]
}
