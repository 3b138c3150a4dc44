"""The hierarchy of bus errors. Each message contains the problem, its location and the remedy."""

from collections.abc import Mapping


class BusError(Exception):
    """The bus failed, or was used incorrectly."""


class BusAccessError(BusError):
    """Invalid credentials: a key, certificate or related option cannot be used."""


class BusDeniedError(BusError):
    """The server denied a subject. Nothing was stored, read or changed.

    Attributes:
        subject: the subject that the user may not publish or subscribe to.
    """

    def __init__(self, message: str, *, subject: str = "") -> None:
        super().__init__(message)
        self.subject = subject


class BusUnavailableError(BusError):
    """No response: the server is unreachable or too slow.

    The result of the request is *unknown*, not failed: a publish may have been stored. Read before
    you repeat it, unless it is idempotent.
    """


class AppendConflictError(BusError):
    """A compare-and-set found a last sequence other than the expected one. Nothing was stored.

    Repeating an append whose acknowledgement was lost causes the same error. Read the last messages
    of the subjects before you conclude that another client has written.

    Attributes:
        filters: all expectations in the batch, as subject filter to expected last sequence.
        actual_last: the actual last sequence, or None if the server did not report it.
    """

    def __init__(
        self, message: str, *, filters: Mapping[str, int], actual_last: int | None = None
    ) -> None:
        super().__init__(message)
        self.filters = filters
        self.actual_last = actual_last


class StreamExistsError(BusError):
    """A stream that must be new already exists. Nothing was changed."""


class StreamFullError(BusError):
    """The stream, its account or its disk is full. Nothing was stored."""


class MessageTooLargeError(BusError):
    """A message exceeds a limit of the server or the stream. Nothing was stored."""


class ResponseTooLargeError(BusError):
    """A JetStream API response exceeds this process's limit."""


class IncompatibleServerError(BusError):
    """The server is too old, or has JetStream disabled."""


class IncompatibleStreamError(BusError):
    """An existing stream or consumer differs in a way that cannot be changed in place."""


class LogFormatError(IncompatibleStreamError):
    """Another release wrote the log, and no command of this release can repair it."""


class NotFoundOnBusError(BusError):
    """The stream, consumer or message does not exist."""


class StreamReplacedError(BusError):
    """A stream was deleted or recreated while it was being read. Its positions are invalid."""


class BusRefusedError(BusError):
    """The server returned an error that no other class covers.

    Attributes:
        code: HTTP-style status code.
        err_code: JetStream error code; 0 if there is none.
    """

    def __init__(self, message: str, *, code: int = 0, err_code: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.err_code = err_code
