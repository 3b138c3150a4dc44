"""Fault 8 for declarations: the older one arrives last, because its first reader died.

The messages of a dead process are redelivered after their lease, following newer messages.
"""

from __future__ import annotations

import pytest

from reconciler.failpoints import Failpoint
from tests.crashes.lane import Lane, key

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_8_a_withdrawal_that_overtakes_its_declaration_wins(lane: Lane, name: str) -> None:
    await lane.declare(name)
    dying = lane.fork(Failpoint.DECIDER_TOOK)
    await dying.wait_until_killed_at(Failpoint.DECIDER_TOOK)
    await lane.withdraw(name)
    next_process = lane.fork()
    await next_process.wait_until_ready()
    await lane.wait_until_idle()
    await lane.assert_sound()
    assert (await lane.http.get(f"/shapes/{name}")).status_code == 404
    await next_process.stop()


async def test_8_an_unchanged_declaration_that_overtakes_a_change_wins(
    lane: Lane, name: str
) -> None:
    first = lane.fork()
    await lane.declare(name, "Red")
    await lane.wait_for_outcome(name, "Converged")
    await lane.wait_until_idle()
    await first.stop()
    await lane.declare(name, "Blue")
    dying = lane.fork(Failpoint.DECIDER_TOOK)
    await dying.wait_until_killed_at(Failpoint.DECIDER_TOOK)
    await lane.declare(name, "Red")
    next_process = lane.fork()
    await lane.wait_until_idle()
    await lane.wait_for_outcome(key(name), "Converged")
    assert (await lane.http.get(f"/shapes/{name}")).json()["color"] == "Red"
    await lane.assert_sound()
    await next_process.stop()
