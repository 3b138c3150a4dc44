"""Distinguish the cancellation of a task from one that a library raised."""

from __future__ import annotations

import asyncio


def is_being_cancelled() -> bool:
    """Return whether the running task is being canceled.

    A client library may raise a `CancelledError` for its own wait or task. A task that lets it pass
    ends as canceled, and such a task is not reported.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
