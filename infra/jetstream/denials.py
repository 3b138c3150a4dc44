"""What the server denies us, told to whoever waits for an answer that will not come.

A denied publish or subscription has no answer; the server only says so on the connection. Without
this, each would be a time-out without a reason.
"""

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from infra.jetstream.errors import BusDeniedError

_VIOLATION: Final = re.compile(
    r'permissions violation for (publish|subscription)[^"]*"([^"]*)"', re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Denial:
    """One thing that the server denied."""

    verb: str
    subject: str
    text: str

    def is_of(self, subject: str) -> bool:
        """Return whether this subject was denied, also where nothing but small letters came."""
        return self.subject in (subject, subject.lower())

    def error(self, user: str) -> BusDeniedError:
        """Say it with the user's name."""
        return BusDeniedError(
            f"permission denied: user {user} may not {self.verb} {self.subject!r} (the server: "
            f"{self.text}); `reconciler permissions` shows the permissions of each role",
            subject=self.subject,
        )


def parse_denial(text: str) -> Denial | None:
    """Read what the server said; None if it is about something else."""
    found = _VIOLATION.search(text)
    if found is None:
        return None
    verb = "publish to" if found.group(1).lower() == "publish" else "subscribe to"
    return Denial(verb, found.group(2), text.strip("' "))


DenialListener = Callable[[Denial], bool]
"""Told of each denial; gives whether it was about what the listener waits for."""


class Denials:
    """Hands denials out, and remembers the one of our own inbox, without which nothing answers."""

    def __init__(self, inbox_prefix: str) -> None:
        self.of_inbox: Denial | None = None
        self._inbox = f"{inbox_prefix}.".lower()
        self._listeners: set[DenialListener] = set()

    def tell(self, denial: Denial) -> bool:
        """Tell all listeners; gives whether one of them waited for it."""
        if denial.verb == "subscribe to" and denial.subject.lower().startswith(self._inbox):
            self.of_inbox = denial
        taken = [listener(denial) for listener in list(self._listeners)]  # every one is told
        return any(taken)

    def forget(self) -> None:
        """Forget what an earlier connection was denied."""
        self.of_inbox = None

    @contextmanager
    def noticed(self, listener: DenialListener) -> Generator[None]:
        """Have a listener told meanwhile."""
        self._listeners.add(listener)
        try:
            yield
        finally:
            self._listeners.discard(listener)
