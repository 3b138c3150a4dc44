"""Distinguish a task's cancellation from a `CancelledError` that a library raises."""

from __future__ import annotations

import asyncio


def is_being_canceled() -> bool:
    """Return whether the running task is being canceled.

    A client library may raise a `CancelledError` for its own wait or task. If it propagates, the
    task ends as canceled, and its failure is not reported.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
