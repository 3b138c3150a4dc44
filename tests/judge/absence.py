"""Rules about what is believed of an object: when it was read, and that it is missing."""

from __future__ import annotations

from collections.abc import Iterator

from events.log import ActionDecided, ExternalObserved
from events.provider_config import ProviderConfigSpec
from tests.judge.history import Recorded
from tests.judge.ledger import Ledger, Resource
from tests.judge.rule import Breach, on_event


@on_event()
def late(ledger: Ledger, resource: Resource, recorded: Recorded) -> Iterator[Breach]:
    """An observation is believed only if it began after our last effect (invariant 6)."""
    event = recorded.event
    if not isinstance(event.data, ExternalObserved):
        return
    if resource.in_flight is not None:
        yield event.key, f"{event.id}: an observation was believed while an action is in flight"
    if event.data.as_of < resource.effect_position:
        text = f"as of {event.data.as_of}, before the effect at {resource.effect_position}"
        yield event.key, f"{event.id} was observed {text}"


@on_event("messages")
def grace(ledger: Ledger, resource: Resource, recorded: Recorded) -> Iterator[Breach]:
    """An observation is believed only after the grace of an API that lags (invariant 6)."""
    event = recorded.event
    if not isinstance(event.data, ExternalObserved) or resource.effect_at is None:
        return
    observed = ledger.observation(event)
    seconds = _grace_of(ledger.configs[event.data.provider_config])
    if observed is None or observed.began_at is None or not seconds:
        return
    waited = (observed.began_at - resource.effect_at).total_seconds()
    if waited < seconds:
        yield event.key, f"{event.id}: believed {waited:.2f} s after our effect: grace {seconds} s"


@on_event("messages", "truth")
def false_absence(ledger: Ledger, resource: Resource, recorded: Recorded) -> Iterator[Breach]:
    """An object that is recorded as missing was missing at some moment (invariant 6).

    A listing that left it out is not the product's fault.
    """
    event, truth = recorded.event, ledger.history.truth
    if not isinstance(event.data, ExternalObserved) or event.data.object or truth is None:
        return
    name, began = event.data.external_name, ledger.history.message(event.data.as_of)
    cause = ledger.history.message(event.causeposition)
    since = 0.0 if began is None else began.stored_at
    known = None if resource.owned is None else resource.owned.uid
    if resource.owned is None and resource.observed is not None:
        known = resource.observed.uid
    begin = since - _grace_of(ledger.configs[event.data.provider_config])
    if cause is None or truth.was_hidden_since(name, since):
        return
    if not truth.was_absent_within(name, known, begin, cause.stored_at):
        yield event.key, f"{event.id}: {name} was held for missing, but existed all the time"


@on_event("messages")
def implausible_loss(ledger: Ledger, resource: Resource, recorded: Recorded) -> Iterator[Breach]:
    """A listing that misses many of our objects is believed once approved (invariant 17)."""
    event, told = recorded.event, ledger.observation(recorded.event)
    if not isinstance(event.data, ExternalObserved) or event.data.object or told is None:
        return
    losses, settings = told.losses, ledger.configs[event.data.provider_config]
    if losses is None or resource.owned is None or resource.approved == "LossGuard":
        return
    is_much = all(
        losses.missing >= each.loss_guard.min_count
        and losses.missing * 100 > losses.owned * each.loss_guard.max_percent
        for each in settings
    )
    if settings and is_much:
        text = f"{losses.missing} of {losses.owned} are missing at the same time"
        yield event.key, f"{event.id}: it was believed that {text}"


@on_event("truth")
def early_renewal(ledger: Ledger, resource: Resource, recorded: Recorded) -> Iterator[Breach]:
    """An object is renewed at its end, and not before (invariant 8)."""
    event, truth = recorded.event, ledger.history.truth
    if not isinstance(event.data, ActionDecided) or truth is None or resource.observed is None:
        return
    left = truth.seconds_to_expiry(resource.observed)
    if event.data.action.purpose == "Renew" and left is not None and left > 0.0:
        yield event.key, f"{event.id}: renewed {left:.2f} s before its end"


@on_event("truth")
def early_retirement(ledger: Ledger, resource: Resource, recorded: Recorded) -> Iterator[Breach]:
    """A replaced object is deleted only when the new one is ready (invariant 16)."""
    event, truth = recorded.event, ledger.history.truth
    if not isinstance(event.data, ActionDecided) or truth is None or resource.owned is None:
        return
    is_replaced = event.data.action.purpose == "Retire" and resource.is_declared
    if is_replaced and truth.is_starting(resource.owned.uid):
        yield event.key, f"{event.id}: deleted before {resource.owned.uid} is ready"


def _grace_of(settings: list[ProviderConfigSpec]) -> float:
    """Return the least grace that was ever configured: a decider may have read an older one."""
    return min((each.consistency_grace_seconds for each in settings), default=0.0)
