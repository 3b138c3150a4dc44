"""The scenarios, on a real server and a real external API.

Each test's name begins with the number of its scenario. A scenario has one test here, and more
only to test the server, a process that dies, a socket or a real system; permutations run in
virtual time (``tests/permutations``).

- scenario 1: a declared resource is created; scenario 2: a change is one update;
  scenario 3: a deleted object is recreated; scenario 4: a changed field is corrected, an ignored
  field is left alone (``test_convergence``)
- scenario 5: unowned objects are left alone; scenario 6: an exclusive scope is cleared behind its
  guard;
  scenario 7: a withdrawal while the reconciler is down does not leak; scenario 8: ownership is
  rebuilt from the log alone; scenario 19: an object is adopted or refused; scenario 20: an
  object is orphaned   (``test_ownership``)
- scenario 9: our label on an undeclared object; scenario 10: our label is removed;
  scenario 11: every strategy follows the verdict table (``test_verdicts``)
- scenario 34: an immutable field is replaced (``tests/resource/test_replacement``)
- scenario 36: a resource takes values from others, reports that it waits, and keeps them
  (``test_referring``)
- scenario 12: a worker is killed at every step, and one object exists (``tests/crashes``)
- scenario 13: a response after the timeout; scenario 14: 500, 429, no connection: the API's gate,
  its breaker and its backoff, across restarts; scenario 15: 422 (``test_trouble``, ``test_rate``)
- scenario 16: a listing that fails, is wrong or arrives late (``test_listings``)
- scenario 17: finalizers of other services, and force; scenario 18: dangling references
  (``test_holds``)
- scenario 21: observe-only, create-only and paused (``test_modes``)
- scenario 22: 1,000 resources and a restart; scenario 23: ten resyncs (``test_many``)
- scenario 24: five declarations in a row; scenario 26: redelivered, late and out of order
  (``test_convergence``)
- scenario 25: two deciders for one resource (``tests/faults/test_bus_split_brain.py``)
- scenario 27: unusable messages (``test_unusable``)
"""
