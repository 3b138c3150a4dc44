"""Deciding an action: its id, its key and its frozen parameters."""

from __future__ import annotations

import hashlib

from events.external import ExternalObject
from events.log import Action, ActionDecided, Operation, event_id
from events.manifest import Fields
from reconciler.shape.inputs import Context
from reconciler.shape.state import ShapeState


def new_action(
    state: ShapeState,
    context: Context,
    operation: Operation,
    fields: Fields,
    labels: dict[str, str],
    found: ExternalObject | None = None,
) -> ActionDecided:
    """Decide an operation on the shape's object; ``found`` is what an update replaces."""
    action_id = event_id(context.key, state.version + 1)
    owned = state.owned
    if owned is not None:
        place = (owned.provider_config, owned.external_name)
    else:
        assert state.spec is not None
        place = (state.spec.provider_config, state.spec.external_name)
    uid = None if operation == "Create" or owned is None else owned.uid
    return ActionDecided(
        Action(
            action_id=action_id,
            idempotency_key=idempotency_key(context.log_id, action_id, context.epoch),
            operation=operation,
            generation=state.generation,
            provider_config=place[0],
            external_name=place[1],
            because=(state.because,) if state.because else (),
            fields=fields,
            labels=labels,
            uid=uid,
            version=None if found is None or operation != "Update" else found.version,
        )
    )


def idempotency_key(log_id: str, action_id: str, epoch: str = "") -> str:
    """Derive an action's key: the same in every replay, another in every other log.

    A log that was restored uses the ids of what it has lost again: ``epoch`` keeps the keys apart.
    """
    name = f"{log_id}:{epoch}" if epoch else log_id
    return hashlib.sha256(f"{name}/{action_id}".encode()).hexdigest()[:40]
