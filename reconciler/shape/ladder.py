"""The ladder of unknown results: repeat, look, ask a person (ADR 0012).

A call whose answer never came may have been done or not. The first rung repeats it with the same
key, where the API makes that safe: it knows the key, or the name is unique, or the write replaces.
The second looks at what is there, past the API's grace. The third holds the action for a person:
only where nothing that the API offers can tell. Each rung is an event of the log.
"""

from __future__ import annotations

from typing import Literal

from events.external import ExternalObject
from events.log import Action, FoundBy
from reconciler.provider import Capabilities
from reconciler.shape.desired import grace_seconds
from reconciler.shape.differences import Wanted, differences
from reconciler.shape.folds.actions import NOT_DONE
from reconciler.shape.inputs import Context
from reconciler.shape.owner_label import OWNER_LABEL
from reconciler.shape.state import InFlight

REPEATS_BEFORE_A_LOOK = 3
"""So many results in a row may stay unknown before a look is worth more than another repeat."""

Rung = Literal["Repeat", "Look"]

_ANYTHING = Capabilities(
    idempotency_keys=True, deterministic_names=True, labels=True, conditional_writes=True
)


def capabilities_of(context: Context) -> Capabilities:
    """Give what the kind's API can do; of an unknown kind nothing will be called anyway."""
    if context.kind is None or context.kind.capabilities is None:
        return _ANYTHING
    return context.kind.capabilities


def next_rung(flight: InFlight, context: Context, *, is_wanted: bool = True) -> Rung:
    """Choose between calling again and looking, after an attempt that did not succeed."""
    assert flight.failed is not None
    if not is_wanted:
        return "Look"  # nobody wants it done any more, so that only a look may tell
    if flight.failed == NOT_DONE:
        return "Repeat"
    if not is_safe_to_repeat(flight.action, capabilities_of(context)):
        refused = flight.failed.error_class == "Throttled" and not flight.uncertain
        return "Repeat" if refused else "Look"
    if flight.seeking:
        return "Repeat"  # the look failed: perhaps only reads do
    return "Look" if flight.unknown >= REPEATS_BEFORE_A_LOOK else "Repeat"


def is_safe_to_repeat(action: Action, capabilities: Capabilities) -> bool:
    """Tell whether a second call does no harm, whatever the first one did."""
    if action.operation != "Create":
        return True  # bound to a uid or a version, and the second changes nothing
    return capabilities.idempotency_keys or capabilities.deterministic_names


def least_wait_seconds(flight: InFlight, rung: Rung, context: Context) -> float:
    """Give how long a look must wait, so that it sees what the attempt did."""
    if rung == "Repeat":
        return 0.0
    return grace_seconds(context, flight.action.provider_config)


Finding = FoundBy | Literal["NotDone", "Gone", "Another", "Unclear"]
"""What a look says of an action: done (and how that is known), not done, gone, in the way of
another object, or nothing that can be told."""


def find(action: Action, found: ExternalObject | None, context: Context) -> Finding:
    """Tell what came of an action from what is there now."""
    match action.operation:
        case "Create":
            return _find_created(action, found, context)
        case "Update":
            return _find_updated(action, found, context)
        case "Delete":
            if found is None:
                return "Absence"
            is_other = action.uid is not None and found.uid not in (None, action.uid)
            return "Another" if is_other else "NotDone"


def _find_created(action: Action, found: ExternalObject | None, context: Context) -> Finding:
    capabilities = capabilities_of(context)
    if found is None:
        findable = capabilities.deterministic_names or capabilities.labels
        return "NotDone" if findable else "Unclear"
    if found.written_by == action.idempotency_key:
        return "Key"
    label = found.labels.get(OWNER_LABEL)
    if label is not None:
        return "Label" if label == context.owner else "Another"
    # Nobody claims it: somebody may have taken our label off. Its content tells nothing, since
    # anybody may have changed it since, and a stranger can want the same.
    return "Unclear"


def _find_updated(action: Action, found: ExternalObject | None, context: Context) -> Finding:
    if found is None:
        return "Gone"
    if action.uid is not None and found.uid not in (None, action.uid):
        return "Another"
    if found.written_by == action.idempotency_key:
        return "Key"
    if _has_content(action, found, context):
        return "Content"
    unchanged = action.version is not None and found.version == action.version
    return "NotDone" if unchanged or action.version is None else "Another"


def _has_content(action: Action, found: ExternalObject, context: Context) -> bool:
    assert context.kind is not None
    wanted = Wanted(action.fields, action.labels)
    return not differences(wanted, found, context.kind.normalize)


def found_in_the_way(
    flight: InFlight, obstacle: ExternalObject | None, context: Context, *, uncertain: bool
) -> Finding:
    """Tell whether what stands in the way of a write is what its own earlier attempt did.

    ``uncertain``: there may have been one. An API that keeps keys would have given the first answer
    again: there an object counts only by our label, and only if some creation of ours ended in the
    unknown.
    """
    keyless = not capabilities_of(context).idempotency_keys
    if obstacle is None or flight.action.operation == "Delete":
        return "Another"
    if flight.action.operation == "Update":
        return (
            _find_updated(flight.action, obstacle, context) if keyless and uncertain else "Another"
        )
    finding = _find_created(flight.action, obstacle, context)
    if finding == "Label" and not (keyless or uncertain):
        return "Another"
    if finding == "Unclear" and not (keyless and uncertain):
        return "Another"
    return finding
