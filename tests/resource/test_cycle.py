"""Reference cycles are found, at a cost that the number of references bounds."""

from __future__ import annotations

import itertools
from collections import Counter

from reconciler.resource.cycle import MAX_CYCLE, find_cycle


def chain_of(length: int) -> dict[str, tuple[str, ...]]:
    """Return resources that each reference the next one, and the last one the first."""
    return {f"r{number}": (f"r{(number + 1) % length}",) for number in range(length)}


def test_a_cycle_is_returned_from_the_resource_back_to_itself() -> None:
    graph = chain_of(3)
    assert find_cycle("r0", graph["r0"], graph.__getitem__) == ("r0", "r1", "r2", "r0")
    assert find_cycle("r0", ("r0",), graph.__getitem__) == ("r0", "r0")
    assert find_cycle("other", graph["r0"], graph.__getitem__) == ()


def test_the_shortest_cycle_is_returned() -> None:
    graph = {"a": ("b", "d"), "b": ("c",), "c": ("a",), "d": ("a",)}
    assert find_cycle("a", graph["a"], graph.__getitem__) == ("a", "d", "a")


def test_a_cycle_has_a_maximum_length() -> None:
    longest, longer = chain_of(MAX_CYCLE), chain_of(MAX_CYCLE + 1)
    assert len(find_cycle("r0", longest["r0"], longest.__getitem__)) == MAX_CYCLE + 1
    assert find_cycle("r0", longer["r0"], longer.__getitem__) == ()


def test_a_resource_on_many_paths_is_followed_once() -> None:
    """Twenty levels of 64 resources that reference all of the next level have 64^20 paths."""
    levels = [[f"{level}-{number}" for number in range(64)] for level in range(20)]
    graph = {name: below for above, below in itertools.pairwise(levels) for name in above}
    calls: Counter[str] = Counter()

    def targets_of(name: str) -> list[str]:
        calls[name] += 1
        return graph.get(name, [])

    assert find_cycle("root", levels[0], targets_of) == ()
    assert set(calls.values()) == {1}
    assert len(calls) == 20 * 64
