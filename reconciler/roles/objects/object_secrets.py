"""Mask the secrets in external objects before they enter the log (invariant 12, ADR 0058)."""

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

MAX_MESSAGE_ID_CHARACTERS: Final = 256
"""Maximum length of an id in a message, because the API chooses ids."""

_encoder = msgspec.json.Encoder()
_logger = structlog.get_logger(__name__)


def hide_secrets(
    existing: ExternalObject, secrecy: Secrecy, *known: object
) -> Search[ExternalObject | None]:
    """Return an object without secrets; None if its name or id contains one.

    Names and ids are not masked, because a changed one would denote a different object. The
    resource name that a listing would derive is searched, too. ``known``: JSON-like data that is in
    the log. Its strings are kept, so that a weak secret does not look like drift. An object larger
    than ``MAX_SEARCHED_BYTES`` is returned unchanged, because no caller records it.
    """
    content = _try_to_encode(existing)
    is_searched = len(content) <= MAX_SEARCHED_BYTES
    resource_name = name_for_external(existing.name)
    is_hidden_name = resource_name != existing.name and (yield from secrecy.search(resource_name))
    if content and is_searched and not is_hidden_name:
        is_in_content = yield from secrecy.search_json(content)
        if not is_in_content:
            return existing
    known_strings = strings_in(*known)
    # If the object's name is known, the derived name is not given to a new resource.
    is_omitted = is_hidden_name and existing.name not in known_strings
    for each in (existing.name, existing.uid):
        if each and not is_omitted and each not in known_strings:
            is_too_long = len(each) > MAX_SEARCHED_BYTES
            is_omitted = is_too_long or (yield from secrecy.search(each))
    if is_omitted:
        _logger.warning("an object is not recorded: its name or its id contains a secret")
        return None
    if not is_searched:
        return existing
    return replace(
        existing,
        fields=(yield from secrecy.search_and_hide(existing.fields, known_strings)),
        version=(yield from secrecy.search_and_hide(existing.version, known_strings)),
        labels=(yield from secrecy.search_and_hide(existing.labels, known_strings)),
        written_by=(yield from secrecy.search_and_hide(existing.written_by, known_strings)),
        outputs=(yield from secrecy.search_and_hide(existing.outputs, known_strings)),
    )


def hide_and_digest(
    existing: ExternalObject, secrecy: Secrecy, rows: Iterable[StatusRow]
) -> Search[tuple[ExternalObject, str] | None]:
    """Return an object without its secrets, and its digest. ``rows``: the object's resources.

    If the log already contains the object, only the fields outside the digest are searched.
    """
    observed_digest, known = digest(existing), list[object]()
    owner_label = existing.labels.get(OWNER_LABEL, "")
    for row in rows:
        if row.observed_digest == observed_digest:
            return (yield from _mask_undigested(existing, secrecy)), observed_digest
        known += [row.external_name, row.uid, row.observed_uid, row.labels]
        tokens = row.key.tokens
        if owner_label.endswith(tokens) and not (
            yield from secrecy.search(owner_label.removesuffix(tokens))
        ):
            known.append(owner_label)
    hidden = yield from hide_secrets(existing, secrecy, *known)
    if hidden is None or hidden is existing:
        return None if hidden is None else (existing, observed_digest)
    return hidden, digest(hidden)


def mask_ids(uids: Iterable[str], secrecy: Secrecy) -> tuple[str, ...]:
    """Return objects' ids for messages, shortened and without secrets."""
    return tuple(secrecy.hide_start(each, MAX_MESSAGE_ID_CHARACTERS) for each in uids)


def _mask_undigested(existing: ExternalObject, secrecy: Secrecy) -> Search[ExternalObject]:
    """Return an object without secrets in the fields that are not part of its digest."""
    if not (yield from secrecy.search(f"{existing.version} {existing.written_by}")):
        return existing
    version = yield from secrecy.search_and_hide(existing.version)
    written_by = yield from secrecy.search_and_hide(existing.written_by)
    return replace(existing, version=version, written_by=written_by)


def _try_to_encode(existing: ExternalObject) -> bytes:
    try:
        return _encoder.encode(existing)
    except Exception:  # noqa: BLE001 - a provider may return values that are not JSON
        return b""
