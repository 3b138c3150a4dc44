"""The ceiling for appends: atomic batches to a separate stream, under no other load."""

from __future__ import annotations

import time

from nats.aio.client import Client

from infra.jetstream.append import append
from infra.jetstream.outgoing import OutgoingMessage
from infra.jetstream.topology import delete_stream, ensure_stream

BATCH = 500
_BATCHES = 20
_SCRATCH = "BENCHMARK"


async def append_ceiling(nc: Client, payload_bytes: int) -> float:
    """Append batches one after another, and return the events per second.

    The server is the case's server, with file storage and a sync before each acknowledgement.
    """
    await ensure_stream(
        nc, {"name": _SCRATCH, "subjects": ["benchmark.>"], "storage": "file", "allow_atomic": True}
    )
    try:
        batch = [
            OutgoingMessage(f"benchmark.{number}", bytes(payload_bytes)) for number in range(BATCH)
        ]
        await append(nc, batch)
        began = time.perf_counter()
        for _ in range(_BATCHES):
            await append(nc, batch)
        return BATCH * _BATCHES / (time.perf_counter() - began)
    finally:
        await delete_stream(nc, _SCRATCH)
