"""What the operating system says no to, as the classes of a provider's errors."""

from __future__ import annotations

import errno
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from reconciler.errors import PermanentError, ProviderError, TransientError, UnknownResultError

_ERROR_CLASSES: Mapping[int, type[ProviderError]] = {
    errno.EACCES: PermanentError,
    errno.EPERM: PermanentError,
    errno.EROFS: PermanentError,
    errno.ENAMETOOLONG: PermanentError,
    errno.ELOOP: PermanentError,
    errno.ENOTDIR: PermanentError,
    errno.EISDIR: PermanentError,
    errno.EINVAL: PermanentError,
    errno.EFBIG: PermanentError,
    errno.ENOTSUP: PermanentError,
    errno.ENOSPC: TransientError,
    errno.EDQUOT: TransientError,
    errno.EIO: TransientError,
    errno.ESTALE: TransientError,
    errno.EBUSY: TransientError,
    errno.EMFILE: TransientError,
    errno.ENFILE: TransientError,
    errno.ENOENT: TransientError,  # what was there a moment ago
}
"""Whatever else goes wrong may go well later."""


def failure(error: OSError) -> ProviderError:
    """Return what the system refused, as an error of a class, with what it was about."""
    failed = _ERROR_CLASSES.get(error.errno or 0, TransientError)
    where = f"{os.fsdecode(error.filename)!r}: " if isinstance(error.filename, str | bytes) else ""
    return failed(f"{where}{error.strerror}")


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
