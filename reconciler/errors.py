"""The exceptions of this project: one tree, each saying what, where and what to do.

A provider reports what happened by the class of its ``ProviderError`` (ADR 0070)::

    ProviderError
    ├── NotDoneError            nothing was changed: retried
    │   ├── NotCalledError
    │   └── UntrustedApiError
    ├── RefusedError            nothing was changed, ever: waits for a new generation
    ├── ConflictError           nothing was changed: the known state was outdated
    ├── NotFoundError           nothing was changed: the known state was outdated
    ├── ThrottledError          a part may have been done: retried when the API accepts calls
    ├── UnknownResultError      may have been done: retried with the same key, or looked up
    └── ListingExpiredError     of a listing, which starts again
"""

from __future__ import annotations

from collections.abc import Collection
from http import HTTPStatus

from events.external import ExternalObject
from events.intake import ErrorClass


class ReconcilerError(Exception):
    """Base of every error that a user of this project may want to catch."""


class ConfigurationError(ReconcilerError):
    """Something that was configured cannot work: an option, a manifest, a ``ProviderConfig``."""


class HostError(ConfigurationError):
    """The host of a process lacks a variable, file, program or library.

    Its message is for the users of the roles, ``local_text`` for those of the process itself.
    """

    def __init__(self, problem: str, remedy: str = "") -> None:
        self.local_text = f"{problem} here{remedy}"
        super().__init__(f"{problem} where the roles run{remedy}")


class MissingExtraError(HostError):
    """A library of an extra is not installed; ``command`` installs it."""

    def __init__(self, problem: str, command: str) -> None:
        super().__init__(f"{problem}; run {command}")
        self.local_text = f"{problem}; run {command}"


class UnknownKindError(ConfigurationError):
    """No kind of that name is registered."""


class DeclarationRefusedError(ReconcilerError):
    """A declaration was refused by the decider; ``reason`` is one word, the text explains it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class WaitTimeoutError(ReconcilerError):
    """What was waited for did not happen in time; the work goes on without us."""


class NoSuchMomentError(ReconcilerError):
    """The log has nothing to say about that time or position; the message says what it has."""


class ProviderError(ReconcilerError):
    """A call to an external API did not succeed; the class decides what happens next.

    ``obstacle`` is what stands in the way, where it is known; of a creation that is refused for
    good after some of its calls, what those have made. ``retry_after_seconds`` is the API's own
    wish. ``replayed``: the API said that it had kept this answer with the action's key.
    """

    error_class: ErrorClass = "Unknown"

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retry_after_seconds: float | None = None,
        obstacle: ExternalObject | None = None,
        replayed: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.retry_after_seconds = retry_after_seconds
        self.obstacle = obstacle
        self.replayed = replayed


class NotDoneError(ProviderError):
    """Nothing was changed, and the same call may succeed later.

    The API refused the call in its response, or no call was sent. A read that fails is one too. A
    failure that proves less is an ``UnknownResultError``.
    """

    error_class: ErrorClass = "NotDone"


class NotCalledError(NotDoneError):
    """No call was made, and nothing new is known of the API or of the object."""


class UntrustedApiError(NotDoneError):
    """The API's certificate cannot be trusted; nothing was sent."""


class ThrottledError(ProviderError):
    """The API wants fewer calls (429). A part of the action may have been done."""

    error_class: ErrorClass = "Throttled"


class ConflictError(ProviderError):
    """What we knew is out of date (409, 412); nothing was done."""

    error_class: ErrorClass = "Conflict"


class NotFoundError(ProviderError):
    """The object is not there (404); nothing was done.

    Of a creation: what the first of its calls made is gone before the next.
    """

    error_class: ErrorClass = "NotFound"


class RefusedError(ProviderError):
    """The API refused the call in its response, and will never accept it; nothing was changed.

    Of a creation, ``obstacle`` is the object that the first of its calls created.
    """

    error_class: ErrorClass = "Refused"


class UnknownResultError(ProviderError):
    """The call may have been done, or may still be: nothing proves that it was not.

    No response, a cut connection, a response that cannot be read or classified, or a failure after
    the first of several calls of one action.
    """

    error_class: ErrorClass = "Unknown"


class UnreadableObjectsError(ProviderError):
    """A listing is complete, except for objects that exist and cannot be shown.

    ``objects``: their names and uids, None for what is unknown. The listing does not prove that
    one of them is absent; with one of an unknown name, it proves that of no object.
    """

    error_class: ErrorClass = "NotDone"

    def __init__(self, message: str, objects: Collection[tuple[str | None, str | None]]) -> None:
        super().__init__(message, status=HTTPStatus.CONFLICT)  # says nothing of the API's health
        self.objects = objects

    def may_have(self, name: str) -> bool:
        """Return whether one of the objects has, or may have, a name."""
        return any(each in (None, name) for each, _ in self.objects)


class ListingExpiredError(ProviderError):
    """A listing's continue token is too old (410): list again from the start."""

    error_class: ErrorClass = "NotDone"
