"""Map operating system errors to provider errors."""

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
    errno.ENOENT: NotDoneError,  # it existed a moment ago
}
"""Errors that the system returns before any effect. Others, such as EIO, prove nothing."""


def to_provider_error(error: OSError, *, writes: bool) -> ProviderError:
    """Return the provider error for an operating system error. It quotes the file name if known."""
    unclassified = UnknownResultError if writes else NotDoneError
    error_class = _ERROR_CLASSES.get(error.errno or 0, unclassified)
    prefix = f"{os.fsdecode(error.filename)!r}: " if isinstance(error.filename, str | bytes) else ""
    return error_class(f"{prefix}{error.strerror or type(error).__name__}")


@contextmanager
def mark_unknown_result() -> Generator[None]:
    """Raise ``UnknownResultError`` for a failure after which a change may not be durable."""
    try:
        yield
    except OSError as error:
        raise UnknownResultError(
            f"done, but the change may not be durable: {error.strerror}"
        ) from None


def sync_folder(folder: int) -> None:
    """Sync a folder, so that changed names are durable before they are reported."""
    with mark_unknown_result():
        os.fsync(folder)
