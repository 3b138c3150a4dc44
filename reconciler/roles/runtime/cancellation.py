"""Telling a task's own cancellation from one that only passes through it."""

from __future__ import annotations

import asyncio


def is_being_cancelled() -> bool:
    """Return whether somebody cancels the running task.

    A client library may let a cancellation of its own out, of a wait or a task of its own. Whoever
    lets that pass ends as cancelled: unseen, for nobody is told of a task that was cancelled.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
