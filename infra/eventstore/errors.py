"""The bus's errors in the words of the `eventsourcing` library."""

from collections.abc import Generator
from contextlib import contextmanager

from eventsourcing.persistence import DataError, OperationalError, ProgrammingError

from infra.jetstream.errors import (
    BusError,
    BusUnavailableError,
    MessageTooLargeError,
    NotFoundOnBusError,
)


@contextmanager
def library_errors() -> Generator[None]:
    """Raise the library's error for each error of the bus.

    Raises:
        OperationalError: the bus did not answer (the result is unknown), refused, or is full.
        ProgrammingError: the stream does not exist.
        DataError: a message is longer than the server accepts.
    """
    try:
        yield
    except BusUnavailableError as error:
        raise OperationalError(
            f"no answer from the bus, so the result is unknown: what was written may have been "
            f"stored; read before writing it again ({error})"
        ) from error
    except NotFoundOnBusError as error:
        raise ProgrammingError(
            f"{error}; create the stream, or let CREATE_TABLE=yes create it"
        ) from error
    except MessageTooLargeError as error:
        raise DataError(str(error)) from error
    except BusError as error:
        raise OperationalError(str(error)) from error
