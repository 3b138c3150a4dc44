"""Reference cycles are found, at a cost bounded by the number of references."""

from __future__ import annotations

import itertools
from collections import Counter

from reconciler.resource.cycle import MAX_CYCLE, MAX_REFERENCES, find_cycle, find_cycles


def chain_of(length: int) -> dict[str, tuple[str, ...]]:
    """Return resources that each reference the next; the last one references the first."""
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


def test_all_targets_that_lead_back_are_found_together() -> None:
    graph = {"a": ("b", "d", "e"), "b": ("c",), "c": ("a",), "d": ("a",), "e": ("f",), "f": ()}
    assert find_cycles("a", graph["a"], graph.__getitem__) == {
        "b": ("a", "b", "c", "a"),
        "d": ("a", "d", "a"),
    }


def test_a_resource_on_many_paths_is_followed_once() -> None:
    """Ten levels of 16 resources that each reference the whole next level have 16^10 paths."""
    levels = [[f"{level}-{number}" for number in range(16)] for level in range(10)]
    graph = {name: below for above, below in itertools.pairwise(levels) for name in above}
    calls: Counter[str] = Counter()

    def targets_of(name: str) -> list[str]:
        calls[name] += 1
        return graph.get(name, [])

    assert find_cycle("root", levels[0], targets_of) == ()
    assert set(calls.values()) == {1}
    assert len(calls) == 10 * 16


def test_a_search_follows_a_limited_number_of_references_nearest_first() -> None:
    followed = 0

    def targets_of(name: str) -> list[str]:
        nonlocal followed
        followed += 64
        return [f"{name}/{number}" for number in range(63)] + ["far" if "/" in name else "near"]

    assert find_cycle("near", ["root"], targets_of) == ("near", "root", "near")
    assert find_cycle("other", ["root"], targets_of) == ()
    assert followed <= 2 * (MAX_REFERENCES + 64)
