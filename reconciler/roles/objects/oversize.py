"""Objects too large to observe: reported once, so that the rest of a listing is processed.

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
"""A larger object is recorded neither in the log nor in a result."""

MAX_OBJECT_NESTING = MAX_NESTING - 10
"""Levels of an object's JSON. An observation is a message with some levels around the object."""

MAX_ID_CHARACTERS = 2048
"""Limit of an object's name or id. The row of a resource may contain a dozen of them."""

MAX_SEARCHED_BYTES = 2 * MAX_OBJECT_BYTES
"""Larger objects are neither searched for secrets, which takes up to 2 s per MiB, nor recorded."""

_encoder = msgspec.json.Encoder()
_logger = structlog.get_logger(__name__)


def is_too_large(seen: ExternalObject | None) -> bool:
    """Return whether an object is too large, or nested too deeply, to be reported."""
    return seen is not None and bool(_excess(seen, _encoder.encode(seen)))


def build_size_letter(key: ResourceKey, observed: Observed) -> DeadLetter:
    """Return the dead letter of an object that is too large, the same one for the same content."""
    seen = observed.object
    assert seen is not None
    payload, name = _encoder.encode(seen), observed.external_name[:MAX_ID_CHARACTERS]
    reason = (
        f"object {name!r} of {observed.provider_config!r}: its {_excess(seen, payload)}, so its "
        "changes are not detected; make it smaller"
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
    about = f"{observed.provider_config}/{key.kind}/{observed.external_name}"
    return DeadLetter("observation", reason, delivery, about, digest(seen))


def _excess(seen: ExternalObject, payload: bytes) -> str:
    """Return how an object exceeds a limit, or ""."""
    longest = max(len(seen.name), len(seen.uid or ""))
    if longest > MAX_ID_CHARACTERS:
        return f"name or id of {longest} characters exceeds the limit of {MAX_ID_CHARACTERS}"
    if len(payload) > MAX_OBJECT_BYTES:
        return f"{len(payload)} bytes exceed the limit of {MAX_OBJECT_BYTES}"
    if is_nested_deeper(payload, MAX_OBJECT_NESTING):
        return f"levels of JSON exceed the limit of {MAX_OBJECT_NESTING}"
    return ""


async def store_size_letters(sink: DecisionSink | None, letters: Sequence[DeadLetter]) -> None:
    """Store new letters. A failure does not fail the listing, because the next one repeats them."""
    if not letters:
        return
    _logger.warning("objects are too large to be observed", count=len(letters))
    if sink is None:
        return
    try:
        if waiting := await sink.store_dead_letters(letters):
            _logger.warning("stream DEADLETTERS is full; dropped dead letters", count=len(waiting))
    except Exception as error:  # noqa: BLE001 - such as an unreachable bus
        _logger.warning("storing dead letters failed", error=str(error), count=len(letters))
