"""The exceptions of this project: one tree, each saying what, where and what to do."""

from __future__ import annotations

from events.external import ExternalObject
from events.intake import ErrorClass


class ReconcilerError(Exception):
    """Base of every error that a user of this project may want to catch."""


class ConfigurationError(ReconcilerError):
    """Something that was configured cannot work: an option, a manifest, a ``ProviderConfig``."""


class MissingExtraError(ConfigurationError):
    """A library of an extra is not installed; ``command`` installs it.

    ``local_text``: the message for a person who uses the process that lacks the library.
    """

    def __init__(self, problem: str, command: str) -> None:
        self.local_text = f"{problem}; run {command}"
        super().__init__(f"{self.local_text} where the roles run")


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


class TransientError(ProviderError):
    """The API could not do it now (connection refused, 5xx); the same call may succeed later."""

    error_class: ErrorClass = "Transient"


class NothingDoneError(TransientError):
    """What it needs is not there: nothing was done, and the same call may succeed later.

    A creation of which only this is known is given up when something newer is declared.
    """


class NotCalledError(TransientError):
    """No call was made, and nothing new is known of the API or of the object."""


class UntrustedApiError(TransientError):
    """The API's certificate cannot be trusted; nothing was sent."""


class ThrottledError(ProviderError):
    """The API wants fewer calls (429); nothing was done."""

    error_class: ErrorClass = "Throttled"


class ConflictError(ProviderError):
    """What we knew is out of date (409, 412); nothing was done."""

    error_class: ErrorClass = "Conflict"


class NotFoundError(ProviderError):
    """The object is not there (404); nothing was done.

    Of a creation: what the first of its calls made is gone before the next.
    """

    error_class: ErrorClass = "NotFound"


class PermanentError(ProviderError):
    """The API will never accept this call (4xx); nothing was done."""

    error_class: ErrorClass = "Permanent"


class UnknownResultError(ProviderError):
    """The call may have been done or not: no answer, or a cut connection."""

    error_class: ErrorClass = "Unknown"


class ListingExpiredError(ProviderError):
    """A listing's continue token is too old (410): list again from the start."""

    error_class: ErrorClass = "Transient"
