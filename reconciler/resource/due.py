"""Time in the desired state: what is as declared, and has to be written again (ADR 0027)."""

from __future__ import annotations

from datetime import timedelta

from events.external import ExternalObject
from events.log import DueScheduled
from reconciler.resource.attempt import new_action
from reconciler.resource.difference import merged, wanted
from reconciler.resource.state import ResourceState, Spec
from reconciler.resource.turn import Context, Settled, Step

_JITTER = 0.01  # of the time that is left
_MAX_JITTER = timedelta(minutes=10)
_NO_TIME = timedelta(0)


def when_due(
    spec: Spec, seen: ExternalObject, state: ResourceState, context: Context, otherwise: Settled
) -> Step:
    """Write an object again that is due, though nothing differs; once for each moment.

    Whether it is reached is read off the clock of the bus: one that is wrong here does nothing
    twice, and nothing too early.
    """
    kind, known, now = context.kind, state.due, context.bus_time or context.now
    assert kind is not None
    due = kind.due(state.desired.fields, seen)
    if due is None or state.owned is None or spec.policy.mode != "Present":
        return otherwise
    if known is None or known.due != due:
        left = max(due - now, _NO_TIME)
        at = due + min(left * _JITTER, _MAX_JITTER) * context.jitter
        return DueScheduled(due, at, round((at - now).total_seconds(), 3))
    if now < known.at:
        return otherwise
    if known.is_written:
        late = f"it was due at {due:%Y-%m-%dT%H:%M:%SZ}, was written again, and still is"
        return Settled("Degraded", "StillDue", late, ready=otherwise.ready)
    fields, labels = merged(wanted(state, context), seen, kind.normalize)
    return new_action(state, context, "Update", fields, labels, purpose="Renew")
