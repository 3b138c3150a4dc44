"""Objects of external APIs without secrets, in the form for the log (invariant 12, ADR 0058)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
import structlog
from msgspec.structs import replace

from events.external import ExternalObject, digest
from events.names import name_for_external
from projections.status import StatusRow
from reconciler.resource.owner_label import OWNER_LABEL
from reconciler.roles.objects.oversize import MAX_SEARCHED_BYTES
from reconciler.secrecy import Search, Secrecy, strings_in

MAX_SHOWN_ID_CHARACTERS: Final = 256
"""Limit of each of several ids in a message, because the API chooses them."""

_encoder = msgspec.json.Encoder()
_logger = structlog.get_logger(__name__)


def hide_secrets(
    seen: ExternalObject, secrecy: Secrecy, *known: object
) -> Search[ExternalObject | None]:
    """Return an object without secrets; None if its name or id contains one.

    The name of the resource that a listing would derive from the object's name also counts. An
    object with a changed name or id would be a different object. ``known``: JSON-like data that is
    already in the log. Its strings are kept, so that a weak secret does not look like drift. An
    object above ``MAX_SEARCHED_BYTES`` is returned unchanged, because no caller records it.
    """
    content = _encoded(seen)
    is_searched = len(content) <= MAX_SEARCHED_BYTES
    resource_name = name_for_external(seen.name)
    is_hidden_name = resource_name != seen.name and (yield from secrecy.search(resource_name))
    if content and is_searched and not is_hidden_name:
        is_in_content = yield from secrecy.search_json(content)
        if not is_in_content:
            return seen
    kept = strings_in(*known)
    is_omitted = is_hidden_name and seen.name not in kept  # otherwise no resource gets this name
    for each in (seen.name, seen.uid):
        if each and not is_omitted and each not in kept:
            is_too_long = len(each) > MAX_SEARCHED_BYTES
            is_omitted = is_too_long or (yield from secrecy.search(each))
    if is_omitted:
        _logger.warning("an object is not recorded: its name or its id contains a secret")
        return None
    if not is_searched:
        return seen
    return replace(
        seen,
        fields=(yield from secrecy.search_and_hide(seen.fields, kept)),
        version=(yield from secrecy.search_and_hide(seen.version, kept)),
        labels=(yield from secrecy.search_and_hide(seen.labels, kept)),
        written_by=(yield from secrecy.search_and_hide(seen.written_by, kept)),
        outputs=(yield from secrecy.search_and_hide(seen.outputs, kept)),
    )


def hide_and_digest(
    seen: ExternalObject, secrecy: Secrecy, rows: Iterable[StatusRow]
) -> Search[tuple[ExternalObject, str] | None]:
    """Return an object of some resources without secrets, and its digest.

    If the log already has the object, only the fields outside the digest are searched.
    """
    observed_digest, known = digest(seen), list[object]()
    mark = seen.labels.get(OWNER_LABEL, "")
    for row in rows:
        if row.observed_digest == observed_digest:
            return (yield from _without_secret_marks(seen, secrecy)), observed_digest
        known += [row.external_name, row.uid, row.observed_uid, row.labels]
        tokens = row.key.tokens
        if mark.endswith(tokens) and not (yield from secrecy.search(mark.removesuffix(tokens))):
            known.append(mark)
    hidden = yield from hide_secrets(seen, secrecy, *known)
    if hidden is None or hidden is seen:
        return None if hidden is None else (seen, observed_digest)
    return hidden, digest(hidden)


def mask_ids(uids: Iterable[str], secrecy: Secrecy) -> tuple[str, ...]:
    """Return the ids of objects for messages: shortened, and without secrets."""
    return tuple(secrecy.hide_start(each, MAX_SHOWN_ID_CHARACTERS) for each in uids)


def _without_secret_marks(seen: ExternalObject, secrecy: Secrecy) -> Search[ExternalObject]:
    """Return an object without secrets in the fields that are not part of its digest."""
    if not (yield from secrecy.search(f"{seen.version} {seen.written_by}")):
        return seen
    version = yield from secrecy.search_and_hide(seen.version)
    written_by = yield from secrecy.search_and_hide(seen.written_by)
    return replace(seen, version=version, written_by=written_by)


def _encoded(seen: ExternalObject) -> bytes:
    try:
        return _encoder.encode(seen)
    except Exception:  # noqa: BLE001 - a provider may return values that are not JSON
        return b""
