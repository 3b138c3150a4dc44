"""Why what a repository has is not declared: in one word, and for the commit's author."""

from __future__ import annotations

from typing import Literal

from events.manifest import Fields

Reason = Literal["Unreachable", "RefGone", "Unsigned", "BadCommit"]


class GitError(Exception):
    """A look at a repository that leads to nothing new; what was declared stays.

    ``revision``: of the commit that cannot be declared, as far as it is known.
    """

    def __init__(self, reason: Reason, message: str, revision: Fields | None = None) -> None:
        super().__init__(message)
        self.reason: Reason = reason
        self.message = message
        self.revision = revision
