"""Errors for repository content that cannot be declared, each with a one-word reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from events.documents import Problem
from events.manifest import Fields

Reason = Literal["Unreachable", "RefGone", "Unsigned", "BadCommit"]


class GitError(Exception):
    """A read of a repository failed. The declared parts are kept.

    ``revision`` describes the commit that cannot be declared, if it is known.
    ``problems`` are those of its documents.
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        revision: Fields | None = None,
        problems: Sequence[Problem] = (),
    ) -> None:
        super().__init__(message)
        self.reason: Reason = reason
        self.message = message
        self.revision = revision
        self.problems = problems
