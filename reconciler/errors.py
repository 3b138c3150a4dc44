"""The exceptions of this project. Each message states what is wrong, where, and what to do.

A provider reports what happened by the class of its ``ProviderError`` (ADR 0070)::

    ProviderError
    ├── NotDoneError            nothing was changed: retried
    │   ├── NotCalledError
    │   │   └── NameTakenError  the name belongs to another resource
    │   └── UntrustedApiError
    ├── RefusedError            nothing was or will be changed: waits for a new generation
    ├── ConflictError           nothing was changed: the known state was outdated
    ├── NotFoundError           nothing was changed: the known state was outdated
    ├── ThrottledError          may have been done in part: retried when the API accepts calls
    ├── UnknownResultError      may have been done: retried with the same key, or looked up
    └── ListingExpiredError     a listing expired, and is restarted
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from http import HTTPStatus

from events.external import ExternalObject
from events.intake import ErrorClass

_SUCCESS = 200
_REDIRECTED = 300
_CLIENT_ERROR = 400
_SERVER_ERROR = 500
# Client errors that do not prove that the API works: unauthorized, timeout, too early.
_UNSERVED = frozenset({401, 408, 425})


class ReconcilerError(Exception):
    """Base of every error that a user of this project may want to catch."""


class ConfigurationError(ReconcilerError):
    """A configured value cannot work, such as an option, a manifest or a ``ProviderConfig``."""


class HostError(ConfigurationError):
    """The host of a process lacks a variable, file, program or library.

    The message is for users of the roles. ``local_text`` is for users of the process itself.
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
    """No kind with that name is registered."""


class DeclarationRefusedError(ReconcilerError):
    """The decider refused a declaration. ``reason`` is one word, and the text explains it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class WaitTimeoutError(ReconcilerError):
    """An awaited event did not occur in time. The work continues."""


class PositionNotFoundError(ReconcilerError):
    """The log contains nothing for that time or position. The message names what it contains."""


class ProviderError(ReconcilerError):
    """A call to an external API did not succeed. The class determines what happens next.

    ``obstacle``: the object that prevents the call, if known. For a creation that was permanently
    refused after its first calls, the object that these calls created. ``retry_after_seconds``: the
    delay that the API requests. ``replayed``: the API returned its stored response to the key.
    ``responded``: the API responds, so the error proves nothing about its health. Examples are a
    listing beyond a limit, and a success with an invalid body.
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
        responded: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.retry_after_seconds = retry_after_seconds
        self.obstacle = obstacle
        self.replayed = replayed
        self.responded = responded

    @property
    def proves_failure(self) -> bool:
        """Whether the error suggests that the API is down, unlike most client errors."""
        if self.responded or self.error_class not in ("NotDone", "Unknown"):
            return False
        return self.status is None or is_failure(self.status)


def is_failure(status: int) -> bool:
    """Return whether an API with this response serves no client."""
    if status in _UNSERVED:
        return True
    return not (_SUCCESS <= status < _REDIRECTED or _CLIENT_ERROR <= status < _SERVER_ERROR)


class NotDoneError(ProviderError):
    """Nothing was changed, and the same call may succeed later.

    The API refused the call in its response, or no call was sent. A failed read also raises this. A
    failure that proves less is an ``UnknownResultError``.
    """

    error_class: ErrorClass = "NotDone"


class NotCalledError(NotDoneError):
    """No call was sent, so nothing new is known about the API or the object."""


class NameTakenError(NotCalledError):
    """The name of a new object belongs to ``resource``, so no call was sent."""

    error_class: ErrorClass = "Conflict"

    def __init__(self, resource: str) -> None:
        super().__init__("the name belongs to another resource")
        self.resource = resource


class UntrustedApiError(NotDoneError):
    """The API's certificate cannot be trusted. Nothing was sent."""


class ThrottledError(ProviderError):
    """The API requires fewer calls (429). Part of the action may have been executed."""

    error_class: ErrorClass = "Throttled"


class ConflictError(ProviderError):
    """The known state was outdated (409, 412). Nothing was changed."""

    error_class: ErrorClass = "Conflict"


class NotFoundError(ProviderError):
    """The object does not exist (404). Nothing was changed.

    For a creation: the object that its first call created was deleted before the next call.
    """

    error_class: ErrorClass = "NotFound"


class RefusedError(ProviderError):
    """The API refused the call in its response, and will never accept it. Nothing was changed.

    For a creation, ``obstacle`` is the object that the first of its calls created.
    """

    error_class: ErrorClass = "Refused"


class UnknownResultError(ProviderError):
    """The call may have been executed, or may still be: nothing proves that it was not.

    The causes are no response, a broken connection, a response that cannot be read or classified,
    and a failure after the first of several calls of one action.
    """

    error_class: ErrorClass = "Unknown"


class UnreadableObjectsError(ProviderError):
    """A listing is complete, except for objects that exist but cannot be shown.

    ``objects``: their names and uids, None for unknown ones. The listing does not prove that one of
    them is absent. If one of the names is unknown, it does not prove that any object is absent.
    ``groups``: tests of a name for further objects, of which only such a test is known.
    """

    error_class: ErrorClass = "NotDone"

    def __init__(
        self,
        message: str,
        objects: Collection[tuple[str | None, str | None]],
        groups: Collection[Callable[[str], bool]] = (),
    ) -> None:
        # this status reveals nothing about the API's health
        super().__init__(message, status=HTTPStatus.CONFLICT)
        self.objects = objects
        self.groups = groups

    def may_have(self, name: str) -> bool:
        """Return whether one of the objects has, or may have, a name."""
        is_one = any(each in (None, name) for each, _ in self.objects)
        return is_one or any(has(name) for has in self.groups)


class ListingExpiredError(ProviderError):
    """The continue token of a listing has expired (410). List again from the start."""

    error_class: ErrorClass = "NotDone"
