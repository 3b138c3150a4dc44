"""What the operating system says no to, as the classes of a provider's errors."""

from __future__ import annotations

import errno
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from reconciler.errors import NotDoneError, ProviderError, RefusedError, UnknownResultError

_ERROR_CLASSES: Mapping[int, type[ProviderError]] = {
    errno.EACCES: RefusedError,
    errno.EPERM: RefusedError,
    errno.EROFS: RefusedError,
    errno.ENAMETOOLONG: RefusedError,
    errno.ELOOP: RefusedError,
    errno.ENOTDIR: RefusedError,
    errno.EISDIR: RefusedError,
    errno.EINVAL: RefusedError,
    errno.EFBIG: RefusedError,
    errno.ENOTSUP: RefusedError,
    errno.ENOSPC: NotDoneError,
    errno.EDQUOT: NotDoneError,
    errno.EBUSY: NotDoneError,
    errno.EMFILE: NotDoneError,
    errno.ENFILE: NotDoneError,
    errno.ENOENT: NotDoneError,  # what was there a moment ago
}
"""What the system refuses immediately. Any other failure, such as EIO, proves nothing."""


def failure(error: OSError, *, writes: bool) -> ProviderError:
    """Return what the system refused, as an error of a class, with what it was about."""
    unclassified = UnknownResultError if writes else NotDoneError
    failed = _ERROR_CLASSES.get(error.errno or 0, unclassified)
    where = f"{os.fsdecode(error.filename)!r}: " if isinstance(error.filename, str | bytes) else ""
    return failed(f"{where}{error.strerror or type(error).__name__}")


@contextmanager
def perhaps_done() -> Generator[None]:
    """Say of a failure that what was done before it may last or not."""
    try:
        yield
    except OSError as error:
        raise UnknownResultError(
            f"done, but the change may not be durable: {error.strerror}"
        ) from None


def settle(folder: int) -> None:
    """Have the disk keep a change of names, before anybody is told of it."""
    with perhaps_done():
        os.fsync(folder)
