"""The story that the product tells, on a real server and a real external API.

Each test's name begins with the number of its scenario. A number has its one test here, and more
only where their point is the server, a process that dies, a socket or a real system; permutations
run in virtual time (``tests/permutations``).

- scenario 1: what is declared is made; scenario 2: a change is one update;
  scenario 3: what a human deletes is recreated; scenario 4: what a human repaints is corrected,
  an ignored field is left (``test_convergence``)
- scenario 5: unowned is left alone; scenario 6: an exclusive scope is cleared behind its guard;
  scenario 7: a withdrawal while the reconciler is down does not leak; scenario 8: ownership is
  rebuilt from the log alone; scenario 19: adopted or refused; scenario 20: orphaned
  (``test_ownership``)
- scenario 9: our label on what was never declared; scenario 10: our label taken off;
  scenario 11: every strategy does what the table of verdicts says (``test_verdicts``)
- scenario 34: an immutable field is replaced (``tests/resource/test_replacement``)
- scenario 36: a resource takes values from others, waits visibly, keeps them
  (``test_referring``)
- scenario 12: a worker is killed at every step, one Foo (``tests/crashes``)
- scenario 13: an answer after our time-out; scenario 14: 500, 429, no connection: the API's gate,
  its breaker and its back-off, across restarts; scenario 15: 422 (``test_trouble``, ``test_rate``)
- scenario 16: a listing that fails, lies or comes late (``test_listings``)
- scenario 17: finalizers of other services, and force; scenario 18: references that dangle
  (``test_holds``)
- scenario 21: observe-only, create-only and paused (``test_modes``)
- scenario 22: 1,000 resources and a restart; scenario 23: ten resyncs (``test_many``)
- scenario 24: five declarations in a row; scenario 26: twice, late and out of order
  (``test_convergence``)
- scenario 25: two deciders for one resource (``tests/faults/test_bus_split_brain.py``)
- scenario 27: what cannot be used (``test_unusable``)
"""
