"""Delete processed messages from the intake.

The intake is a stream with limits rather than a work queue. A work queue deletes each message when
it is acknowledged, and waits for the disk each time, which is twenty times slower (ADR 0007). There
is no age limit: unprocessed messages stay, however long the deciders are down.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import structlog
from nats.aio.client import Client

from infra.bus.streams import INTAKE, decider_consumers
from infra.jetstream.connection import api_request
from infra.jetstream.reads import StreamState, stream_state

TRIM_SECONDS: Final = 30.0
KEPT_MESSAGES: Final = 10_000
"""Number of processed messages to keep, so that operators can inspect recent input."""

_logger = structlog.get_logger(__name__)


async def trim_periodically(nc: Client) -> None:
    """Trim the intake periodically. Several processes may do so concurrently."""
    while True:
        await asyncio.sleep(TRIM_SECONDS)
        try:
            await trim(nc)
        except Exception as error:  # noqa: BLE001 - the next interval retries
            _logger.info("failed to trim the intake", error=str(error))


async def trim(nc: Client, *, keep: int = KEPT_MESSAGES) -> int:
    """Delete processed messages except the newest ``keep``. Return the number deleted."""
    # Read this before the consumers, so that messages stored in between are not included.
    state = await stream_state(nc, INTAKE)
    processed = min(
        [await _processed_position(nc, name, state.last_seq) for name in decider_consumers()]
    )
    last_trimmed = min(processed, state.last_seq - keep)
    if last_trimmed < state.first_seq:
        return 0
    response = await api_request(nc, f"STREAM.PURGE.{INTAKE}", {"seq": last_trimmed + 1})
    return int(response.get("purged", 0))


def count_lost_messages(state: StreamState) -> int:
    """Count the messages that another client deleted: ``trim`` would have kept them."""
    first = int(state.config.get("first_seq", 0)) or 1
    kept = state.last_seq - state.first_seq + 1
    return max(0, min(KEPT_MESSAGES, state.last_seq - first + 1) - kept)


async def _processed_position(nc: Client, consumer: str, last: int) -> int:
    """Return the last position that a consumer has processed without a gap."""
    info: dict[str, Any] = await api_request(nc, f"CONSUMER.INFO.{INTAKE}.{consumer}", {})
    if not info["num_pending"] and not info["num_ack_pending"]:
        return last
    return int(info["ack_floor"]["stream_seq"])
