"""Objects that are too long to be observed: told once, so that the rest of a listing gets through.

The decider would refuse such an observation, and the next listing would bring it again, for ever.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import structlog

from events.envelope import MAX_MESSAGE_BYTES
from events.external import ExternalObject, digest
from events.intake import Observed
from events.names import ResourceKey
from events.subjects import intake
from reconciler.ports import DeadLetter, DecisionSink, IntakeDelivery

MAX_OBJECT_BYTES = MAX_MESSAGE_BYTES // 2
"""A longer object reaches neither the log nor a result."""

_encoder = msgspec.json.Encoder()
_logger = structlog.get_logger(__name__)


def is_too_long(seen: ExternalObject | None) -> bool:
    """Return whether an object is too long to be reported."""
    return seen is not None and len(_encoder.encode(seen)) > MAX_OBJECT_BYTES


def too_long(key: ResourceKey, observed: Observed) -> DeadLetter:
    """Make the letter about an object that is too long, the same one for the same content."""
    assert observed.object is not None
    payload = _encoder.encode(observed.object)
    reason = (
        f"object {observed.external_name!r} of {observed.provider_config!r}: its "
        f"{len(payload)} bytes exceed the limit of {MAX_OBJECT_BYTES}, so its changes are not "
        "detected; make it smaller"
    )
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
    return DeadLetter("observation", reason, delivery, about, digest(observed.object))


async def tell_too_long(sink: DecisionSink | None, letters: Sequence[DeadLetter]) -> None:
    """Store the letters that are new; a listing does not fail for them, the next one tells them."""
    if not letters:
        return
    _logger.warning("objects are too large to be observed", count=len(letters))
    if sink is None:
        return
    try:
        if waiting := await sink.store_dead_letters(letters):
            _logger.warning(
                "the stream of dead letters has no room; dropped dead letters", count=len(waiting)
            )
    except Exception as error:  # noqa: BLE001 - such as the bus being away
        _logger.warning("storing dead letters failed", error=str(error), count=len(letters))
