"""Report objects that are too large to observe, and process the rest of their listing.

The decider would reject such an observation, and every listing would repeat it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import structlog

from events.envelope import MAX_MESSAGE_BYTES, MAX_NESTING, is_nested_deeper
from events.external import ExternalObject, digest
from events.intake import Observed
from events.names import ResourceKey
from events.subjects import intake
from reconciler.ports import DeadLetter, DecisionSink, IntakeDelivery

MAX_OBJECT_BYTES = MAX_MESSAGE_BYTES // 2
"""Limit on objects that are recorded in the log or a result."""

MAX_OBJECT_NESTING = MAX_NESTING - 10
"""Limit on the nesting of an object's JSON. An observation adds a few levels around it."""

MAX_ID_CHARACTERS = 2048
"""Limit on an object's name or id. A resource's row may contain a dozen of them."""

MAX_SEARCHED_BYTES = 2 * MAX_OBJECT_BYTES
"""Larger objects are neither searched for secrets, which takes up to 2 s per MiB, nor recorded."""

_encoder = msgspec.json.Encoder()
_logger = structlog.get_logger(__name__)


def is_too_large(existing: ExternalObject | None) -> bool:
    """Return whether an object is too large, or nested too deeply, to be reported."""
    return existing is not None and bool(_excess(existing, _encoder.encode(existing)))


def build_size_letter(key: ResourceKey, observed: Observed) -> DeadLetter:
    """Return the dead letter for an oversized object, which is identical for identical content."""
    existing = observed.object
    assert existing is not None
    payload, name = _encoder.encode(existing), observed.external_name[:MAX_ID_CHARACTERS]
    reason = (
        f"object {name!r} of {observed.provider_config!r}: its {_excess(existing, payload)}, so "
        "its changes are not detected; make it smaller"
    )
    if len(payload) > MAX_SEARCHED_BYTES:
        payload = _encoder.encode({"name": name})
    delivery = IntakeDelivery(
        position=observed.as_of,
        subject=intake("observed", key),
        payload=payload,
        message_id="",
        reply_to=None,
        delivered=1,
        receipt=None,
    )
    identity = f"{observed.provider_config}/{key.kind}/{observed.external_name}"
    return DeadLetter("observation", reason, delivery, identity, digest(existing))


def _excess(existing: ExternalObject, payload: bytes) -> str:
    """Return how an object exceeds a limit, or ""."""
    longest = max(len(existing.name), len(existing.uid or ""))
    if longest > MAX_ID_CHARACTERS:
        return f"name or id of {longest} characters exceeds the limit of {MAX_ID_CHARACTERS}"
    if len(payload) > MAX_OBJECT_BYTES:
        return f"{len(payload)} bytes exceed the limit of {MAX_OBJECT_BYTES}"
    if is_nested_deeper(payload, MAX_OBJECT_NESTING):
        return f"JSON nesting exceeds the limit of {MAX_OBJECT_NESTING} levels"
    return ""


async def store_size_letters(sink: DecisionSink | None, letters: Sequence[DeadLetter]) -> None:
    """Store dead letters. A failure is only logged, because the next listing repeats them."""
    if not letters:
        return
    _logger.warning("objects are too large to be observed", count=len(letters))
    if sink is None:
        return
    try:
        if waiting := await sink.store_dead_letters(letters):
            _logger.warning(
                "the DEADLETTERS stream is full; dropped dead letters", count=len(waiting)
            )
    except Exception as error:  # noqa: BLE001 - such as an unreachable bus
        _logger.warning("failed to store dead letters", error=str(error), count=len(letters))
