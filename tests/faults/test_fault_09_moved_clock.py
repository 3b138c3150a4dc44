"""Fault 9: a clock is off by an hour or jumps; order follows the sequence, never the clock.

Only the wall clock of the product's processes is moved (libfaketime); nats-server, the API and the
monotonic clock are not changed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from events.log import ActionRetried
from reconciler.failpoints import VARIABLE, Failpoint
from tests.crashes.lane import Lane
from tests.needs import FAKETIME_LIBRARIES

HOUR = 3600

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.faketime,
]


class Clock:
    """The wall clock of some processes, which can be moved while they run."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.move(0)

    def move(self, seconds: int) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}s\n")
        new.replace(self._file)

    def environment(self, failpoint: str = "") -> dict[str, str]:
        faked = {
            "LD_PRELOAD": FAKETIME_LIBRARIES[0],
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
        return faked | ({VARIABLE: failpoint} if failpoint else {})


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path / "clock")


@pytest.mark.parametrize("point", [Failpoint.DECIDER_BETWEEN_EVENTS, Failpoint.WORKER_CALLED])
@pytest.mark.parametrize("first_offset", [HOUR, -HOUR])
async def test_9_a_crash_between_two_clocks_an_hour_apart_leaves_one_effect(
    lane: Lane, name: str, clock: Clock, point: Failpoint, first_offset: int
) -> None:
    await lane.declare(name)
    clock.move(first_offset)
    dying = lane.spawn(clock.environment(point))
    await dying.wait_until_killed_at(point)
    next_process = lane.fork()
    await lane.wait_for_outcome(name, "Converged")
    await lane.wait_until_idle()
    times = [event.time.timestamp() for event in await lane.history(name)]
    assert abs(times[-1] - times[0]) > HOUR / 2, "the two clocks must differ"
    assert await lane.effects(name) == ["POST"]
    await lane.assert_sound()
    await next_process.stop()


async def test_9_a_clock_that_jumps_while_the_process_runs_does_not_change_decisions(
    lane: Lane, name: str, clock: Clock
) -> None:
    process = lane.spawn(clock.environment())
    await lane.declare(name, "Red")
    await lane.wait_for_outcome(name, "Converged", 1)
    for generation, (offset, color) in enumerate(
        [(HOUR, "Green"), (-HOUR, "Blue"), (HOUR, "White")], start=2
    ):
        clock.move(offset)
        await lane.declare(name, color)
        await lane.wait_for_outcome(name, "Converged", generation)
    await lane.withdraw(name)
    await lane.wait_for_outcome(name, "Deleted", 5)
    await lane.wait_until_idle()
    assert await lane.effects(name) == ["POST", "PUT", "PUT", "PUT", "DELETE"]
    await lane.assert_sound()
    await process.stop()


@pytest.mark.parametrize("offset", [-HOUR, HOUR])
async def test_9_a_scheduled_attempt_is_on_time_even_if_the_clock_is_corrected(
    lane: Lane, name: str, clock: Clock, offset: int
) -> None:
    """The wait was computed with a clock that was off by an hour; the next clock is correct."""
    clock.move(offset)
    await lane.break_api(error_rate=1)
    await lane.declare(name)
    process_with_wrong_clock = lane.spawn(clock.environment())
    await lane.wait_for_outcome(name, "Degraded")
    await process_with_wrong_clock.kill()
    await lane.break_api()
    process_with_correct_clock = lane.fork()
    await lane.wait_for_outcome(name, "Converged")
    assert any(isinstance(event.data, ActionRetried) for event in await lane.history(name))
    await lane.wait_until_idle()
    assert await lane.effects(name) == ["POST"]
    await lane.assert_sound()
    await process_with_correct_clock.stop()
