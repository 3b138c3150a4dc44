"""Checks a manifest before it is sent, as far as possible without the decider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from events.envelope import MAX_MESSAGE_BYTES
from events.field_hints import field_error
from events.manifest import InvalidManifestError, Manifest, split_manifest

_ENVELOPE_BYTES: Final = 4 * 1024  # upper limit for the size of id, source, type and time


def check_manifest(manifest: Manifest | Mapping[str, Any]) -> Manifest:
    """Return the manifest, checked as far as possible without the decider.

    Raises ``InvalidManifestError`` or ``InvalidNameError``.
    """
    if not isinstance(manifest, Manifest):
        try:
            manifest = msgspec.convert(manifest, Manifest)
        except msgspec.ValidationError as error:
            raise InvalidManifestError(field_error(error, Manifest)) from None
    _ = manifest.key  # raises InvalidNameError
    split_manifest(manifest)
    _check_size(manifest)
    return manifest


def _check_size(manifest: Manifest) -> None:
    try:
        size = len(msgspec.json.encode(manifest))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidManifestError(f"spec: cannot be encoded as JSON: {error}") from None
    allowed = MAX_MESSAGE_BYTES - _ENVELOPE_BYTES
    if size > allowed:
        raise InvalidManifestError(
            f"{manifest.key}: the manifest is {size} bytes long, more than the limit of {allowed}; "
            "make it smaller"
        )
