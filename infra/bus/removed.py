"""What to do when somebody has removed a stream or a consumer under a running process."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from nats.aio.client import Client

from events.envelope import decode_log
from infra.bus.streams import INTAKE, SHAPES
from infra.jetstream.errors import NotFoundOnBusError, StreamReplacedError
from infra.jetstream.reads import last_from_leader, stream_state

_LOG_GONE: Final = (
    "this process ends, since it knows what another log says; restore the log from a backup, or "
    "start with an empty one: `reconciler init`"
)


@contextmanager
def telling_what_to_do() -> Generator[None]:
    """Add to an error about a stream or consumer that is gone what to do about it."""
    try:
        yield
    except StreamReplacedError as error:
        raise StreamReplacedError(f"{error}; {_LOG_GONE}") from error
    except NotFoundOnBusError as error:
        raise NotFoundOnBusError(
            f"{error}: run `reconciler init`, which makes what is missing, and start this again "
            f"(if stream {SHAPES} itself is missing, restore it from a backup first)"
        ) from error


async def check_intake_positions(nc: Client) -> None:
    """Check that the intake counts on from what the log knows of it: it is the logical clock.

    Raises ``StreamReplacedError`` if somebody has made the intake anew, and it counts from 1: all
    that comes in would look older than what was decided long ago, and be ignored.
    """
    newest = await last_from_leader(nc, SHAPES, "log.>")
    if newest is None:
        return
    known = decode_log(newest.payload).causeposition
    last = (await stream_state(nc, INTAKE)).last_seq
    if last < known:
        raise StreamReplacedError(
            f"stream {INTAKE} is at {last}, and the log knows its position {known}: it was made "
            f"anew by hand. Delete it (`nats stream rm {INTAKE}`), and run `reconciler init`, "
            "which makes one that counts on"
        )
