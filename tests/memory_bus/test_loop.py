"""The virtual loop: a loop that is closed while work is pending does not affect the next one."""

from __future__ import annotations

from tests.memory_bus.loop import VirtualLoop
from tests.memory_bus.network import Network


def test_callbacks_left_over_in_a_closed_loop_do_not_stop_the_next_one() -> None:
    first = VirtualLoop("first")
    first.call_soon(lambda: None)
    first.close()

    second = VirtualLoop("second")
    called: list[float] = []
    began = second.time()
    second.call_later(1, lambda: called.append(second.time()))
    second.run_until(began + 2)
    assert called == [began + 1]


def test_a_message_can_be_sent_while_the_loop_is_not_running() -> None:
    loop = VirtualLoop("seed")
    assert Network(loop, "seed").latency() > 0
