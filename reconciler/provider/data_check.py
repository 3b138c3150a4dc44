"""The check of an object's data between a read and the write that follows it (invariant 16).

The decider bases an update or deletion on an observation that may be minutes old. The worker sets
the check, and providers call it with the object that they read immediately before they write.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from events.external import ExternalObject
from reconciler.errors import ConflictError


@dataclass(frozen=True, slots=True)
class DataCheck:
    """The data that an action loses according to its decision, and how to describe it again."""

    describe: Callable[[ExternalObject], str]
    decided: str

    def compare(self, existing: ExternalObject) -> None:
        """Raise ``ConflictError`` if the action would lose data that its decision did not cover."""
        loss = self.describe(existing)
        if loss and loss != self.decided:
            raise ConflictError(
                f"{existing.name!r} has data that is newer than the decision: the action would "
                f"lose {loss}; nothing was changed, and Reconciler decides again",
                obstacle=existing,
            )


DATA_CHECK: ContextVar[DataCheck | None] = ContextVar("data_check", default=None)
"""Check of the action that the current task executes, if its kind describes data. Workers set it.
"""


def check_data(existing: ExternalObject) -> None:
    """Compare the data of an object that is about to be updated or deleted with the decision.

    Raises ``ConflictError`` with the object as the obstacle. The decider then decides again.
    """
    check = DATA_CHECK.get()
    if check is not None:
        check.compare(existing)
