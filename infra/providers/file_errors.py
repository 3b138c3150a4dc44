"""Errors of the operating system as the classes of a provider's errors."""

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
    errno.ENOENT: NotDoneError,  # it existed a moment before
}
"""Errors that the system returns before any effect. Others, such as EIO, prove nothing."""


def failure(error: OSError, *, writes: bool) -> ProviderError:
    """Return an error of the system as an error of a class, with its subject."""
    unclassified = UnknownResultError if writes else NotDoneError
    error_class = _ERROR_CLASSES.get(error.errno or 0, unclassified)
    prefix = f"{os.fsdecode(error.filename)!r}: " if isinstance(error.filename, str | bytes) else ""
    return error_class(f"{prefix}{error.strerror or type(error).__name__}")


@contextmanager
def mark_unknown_result() -> Generator[None]:
    """Mark a failure after which earlier effects may or may not persist."""
    try:
        yield
    except OSError as error:
        raise UnknownResultError(
            f"done, but the change may not be durable: {error.strerror}"
        ) from None


def settle(folder: int) -> None:
    """Write a change of names to the disk, before it is reported."""
    with mark_unknown_result():
        os.fsync(folder)
