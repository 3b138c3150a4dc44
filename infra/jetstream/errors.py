"""What can go wrong on the bus: one tree, each error saying what, where and what to do."""

from collections.abc import Mapping


class BusError(Exception):
    """Any failure of the bus, or of the way it is used."""


class BusAccessError(BusError):
    """We are not let in: a key, a certificate or an option about them cannot be used."""


class BusDeniedError(BusError):
    """The server denies us a subject: nothing was stored, read or changed.

    Attributes:
        subject: what we may not publish or subscribe to.
    """

    def __init__(self, message: str, *, subject: str = "") -> None:
        super().__init__(message)
        self.subject = subject


class BusUnavailableError(BusError):
    """No answer: the server is away, or too slow.

    The result of what was asked is *unknown*, not failed: a publish may have been stored. Read
    before repeating it (or repeat it, when it is idempotent).
    """


class AppendConflictError(BusError):
    """A compare-and-set found another last sequence than the expected one: nothing was stored.

    Also the answer to a repeat of an append whose acknowledgement was lost: read the tail of the
    subjects before concluding that somebody else wrote.

    Attributes:
        filters: every expectation of the batch, subject filter to expected last sequence.
        actual_last: the last sequence that the server found, or None where it doesn't say.
    """

    def __init__(
        self, message: str, *, filters: Mapping[str, int], actual_last: int | None = None
    ) -> None:
        super().__init__(message)
        self.filters = filters
        self.actual_last = actual_last


class StreamExistsError(BusError):
    """A stream that had to be new exists: nothing was changed."""


class StreamFullError(BusError):
    """The stream, its account or its disk has no room left: nothing was stored."""


class MessageTooLargeError(BusError):
    """A message is longer than the server or the stream accepts: nothing was sent or stored."""


class ResponseTooLargeError(BusError):
    """A response of the JetStream API exceeds the limit of this process."""


class IncompatibleServerError(BusError):
    """The server is too old, or has JetStream switched off."""


class IncompatibleStreamError(BusError):
    """An existing stream or consumer differs in a way that can't be changed in place."""


class LogFormatError(IncompatibleStreamError):
    """Another release wrote the log: no command of this one repairs it."""


class NotFoundOnBusError(BusError):
    """The stream, consumer or message does not exist."""


class StreamReplacedError(BusError):
    """A stream was deleted while it was read, and perhaps made anew: positions mean nothing now."""


class BusRefusedError(BusError):
    """The server answered with an error that none of the others describes.

    Attributes:
        code: the HTTP-like status code.
        err_code: JetStream's own code, 0 where there is none.
    """

    def __init__(self, message: str, *, code: int = 0, err_code: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.err_code = err_code
