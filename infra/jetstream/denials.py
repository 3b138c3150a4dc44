"""Permission denials from the server, passed on to the requests that they concern.

The server does not respond to a denied publish or subscription: it only sends an error to the
connection. Without this module, each denied request would time out.
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
    """One denied permission.

    Attributes:
        verb: "publish to" or "subscribe to".
        subject: the denied subject, possibly in lower case.
        text: the server's message.
    """

    verb: str
    subject: str
    text: str

    def concerns(self, subject: str) -> bool:
        """Return whether the denial concerns a subject, even if nats-py has lower-cased it."""
        return self.subject in (subject, subject.lower())

    def error(self, user: str) -> BusDeniedError:
        """Return the error for a user."""
        return BusDeniedError(
            f"permission denied: user {user} may not {self.verb} {self.subject!r} (server error: "
            f"{self.text}); `reconciler permissions` shows the permissions of each role",
            subject=self.subject,
        )


def parse_denial(text: str) -> Denial | None:
    """Parse an error message from the server. Return None if it is not a denial."""
    match = _VIOLATION.search(text)
    if match is None:
        return None
    verb = "publish to" if match.group(1).lower() == "publish" else "subscribe to"
    return Denial(verb, match.group(2), text.strip("' "))


DenialListener = Callable[[Denial], bool]
"""Receives every denial. Returns whether the denial concerned it."""


class Denials:
    """Distributes denials to listeners.

    Attributes:
        inbox_denial: a denial of this connection's own inbox, after which no response can arrive.
    """

    def __init__(self, inbox_prefix: str) -> None:
        self.inbox_denial: Denial | None = None
        self._inbox = f"{inbox_prefix}.".lower()
        self._listeners: set[DenialListener] = set()

    def notify(self, denial: Denial) -> bool:
        """Notify all listeners. Return whether the denial concerned one of them."""
        if denial.verb == "subscribe to" and denial.subject.lower().startswith(self._inbox):
            self.inbox_denial = denial
        # A list, so that every listener receives the denial.
        results = [listener(denial) for listener in list(self._listeners)]
        return any(results)

    def reset(self) -> None:
        """Discard the denial of the inbox, which belongs to an earlier connection."""
        self.inbox_denial = None

    @contextmanager
    def register(self, listener: DenialListener) -> Generator[None]:
        """Register a listener for the duration of the context."""
        self._listeners.add(listener)
        try:
            yield
        finally:
            self._listeners.discard(listener)
