"""Epochs of a log, from which the idempotency keys of its actions are derived (ADR 0065).

A new log begins with a random epoch, which clients of the APIs cannot read, so they cannot compute
keys. Logs of earlier versions begin with an empty one.

Each restore begins an epoch, a string that contains the earlier ones: ``newest.older.oldest``.
Several earlier ones that do not contain each other are separated by a comma: ``newest.one,other``.
"""

from __future__ import annotations

from typing import Final

_FIRST: Final = "first-"


def first_epoch(random_text: str) -> str:
    """Return the epoch of a new log."""
    return f"{_FIRST}{random_text}"


def has_empty_epoch(epoch: str) -> bool:
    """Return whether the log began with an empty epoch."""
    return not any(each.startswith(_FIRST) for each in epochs_in(epoch))


def is_restored(epoch: str) -> bool:
    """Return whether a restore began this epoch."""
    return epoch != "" and not (epoch.startswith(_FIRST) and epochs_in(epoch) == [epoch])


def epochs_in(epoch: str) -> list[str]:
    """Return an epoch and all earlier ones that it contains, and harmless parts of joined ones."""
    found: dict[str, None] = {}
    waiting = [epoch]
    while waiting:
        each = waiting.pop(0)
        if each and each not in found:
            found[each] = None
            without_newest = each.partition(".")[2]
            waiting += [without_newest, each.rpartition(",")[0], each.partition(",")[2]]
    return list(found)


def next_epoch(new_id: str, *earlier: str) -> str:
    """Return the epoch with a new id that contains all earlier ones, each once."""
    known = [each for each in dict.fromkeys(earlier) if each]
    joined = [each for each in known if not any(each in epochs_in(other)[1:] for other in known)]
    return ".".join(filter(None, (new_id, ",".join(joined))))
