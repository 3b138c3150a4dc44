"""What stands in the way of an action."""

from __future__ import annotations

from events.external import ExternalObject
from events.log import Action
from reconciler.errors import ConflictError, ProviderError
from reconciler.provider import Provider


def check_uid(found: ExternalObject, action: Action) -> None:
    """Raise ``ConflictError`` if another object has taken the name of the action's."""
    if action.uid is not None and found.uid != action.uid:
        raise ConflictError(
            (
                f"{action.external_name!r} was replaced by another object: its uid is {found.uid}, "
                f"not {action.uid}"
            ),
            obstacle=found,
        )


async def with_obstacle(provider: Provider, action: Action, absent: ProviderError) -> ProviderError:
    """Read what stood in the way of a refused action; ``absent`` is the error if nothing does."""
    obstacle = await provider.read(action.external_name)
    if obstacle is None:
        return absent
    return ConflictError(
        absent.message, status=absent.status, obstacle=obstacle, replayed=absent.replayed
    )
