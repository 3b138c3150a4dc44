"""Renewal of an object that is as declared, at a time that its kind computes (ADR 0027)."""

from __future__ import annotations

from datetime import timedelta

from events.external import ExternalObject
from events.log import RenewalScheduled
from reconciler.resource.attempt import (
    has_waited,
    new_action,
    rejection,
    wait_after_conflicts,
    wait_max_delay,
)
from reconciler.resource.difference import merge_desired
from reconciler.resource.situation import Situation
from reconciler.resource.state import Spec
from reconciler.resource.turn import Conclusion, Step

_JITTER = 0.01  # fraction of the remaining time
_MAX_JITTER = timedelta(minutes=10)
_NO_TIME = timedelta(0)


def renewal_step(
    existing: ExternalObject, spec: Spec, situation: Situation, otherwise: Conclusion
) -> Step:
    """Return the step for a renewal, or ``otherwise`` if none is due.

    Each renewal time causes one write. The bus's clock determines whether it has passed, so a
    decider with an inaccurate clock cannot cause an early or second write.
    """
    state, context, kind = situation.state, situation.context, situation.kind
    known, now = state.renewal, context.bus_now
    assert kind.renewal_time is not None
    renewal_time = kind.renewal_time(state.desired.fields, existing)
    if renewal_time is None or state.owned is None or spec.policy.mode != "Present":
        return otherwise
    is_still_due = known is not None and known.is_written and renewal_time <= now
    if not is_still_due and (known is None or known.time != renewal_time):
        remaining = max(renewal_time - now, _NO_TIME)
        at = renewal_time + min(remaining * _JITTER, _MAX_JITTER) * context.jitter
        return RenewalScheduled(renewal_time, at, round((at - now).total_seconds(), 3))
    assert known is not None
    if not is_still_due and now < known.at:
        return otherwise
    # Another client changed the object, and the API has rejected the write of this generation.
    rejected = rejection(state)
    if rejected is not None:
        return rejected
    if is_still_due and not has_waited(state, context):
        return wait_max_delay(situation.config.retry, context, "RenewalOverdue")
    waiting = wait_after_conflicts(situation)
    if waiting is not None:
        return waiting
    fields, labels = merge_desired(situation.comparison.wanted, existing, kind)
    return new_action(state, context, "Update", fields, labels, purpose="Renew")
