"""Why the content of a repository is not declared: in one word, and for the commit's author."""

from __future__ import annotations

from typing import Literal

from events.manifest import Fields

Reason = Literal["Unreachable", "RefGone", "Unsigned", "BadCommit"]


class GitError(Exception):
    """A read of a repository without a usable result. The declared parts stay.

    ``revision``: of the commit that cannot be declared, as far as it is known.
    """

    def __init__(self, reason: Reason, message: str, revision: Fields | None = None) -> None:
        super().__init__(message)
        self.reason: Reason = reason
        self.message = message
        self.revision = revision
