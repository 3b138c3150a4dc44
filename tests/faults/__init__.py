"""Faults that must be survived, each on real processes and judged by the history checker.

Each test's docstring or name begins with the number of its fault:

- 1 and 2: a worker dies after its calls; a process dies at every failpoint
  (``test_fault_01_worker_dies_after_its_calls``, ``tests/crashes``)
- 3: nats-server killed or paused (``test_fault_03_server_killed_or_paused``)
- 4: leaders lost, replicas lost, a rolling restart (``tests/cluster``)
- 5: partitions (``test_bus_partition``); 6: lost acknowledgements (``test_bus_lost_responses``)
- 7: duplicates (``test_fault_07_duplicate_delivery``)
- 8: late, reordered messages (``test_fault_08_…``); 9: moved clocks (``test_fault_09_moved_clock``)
- 10: possible API responses (``tests/providers/test_classification``)
- 11 and 12: poison, and too much of it (``tests/scenarios/test_poison``, ``tests/corpus``)
- 13: malformed messages (``tests/corpus``)
- 14: streams full (``test_bus_full``); 15: disk full (``test_bus_disk_full``)
- 16: credentials that expire (``tests/security/test_access``)
- 17: slow readers (``test_bus_slow_reader``); 18: streams removed (``test_bus_removed``)
  or older data (``test_fault_18_older_data``)
- 19: events from other releases (``tests/events/golden``, ``tests/integrity/test_damaged_log``)
- 20: spoofed messages (``tests/security/test_forbidden``)
- 21: two deciders (``test_bus_split_brain``); 22: an abandoned batch (``test_fault_22_…``)
- 23: timers lost (``test_fault_23_timers_lost``)
- 24: a damaged log, backup and restore (``tests/integrity``)
- 25: all faults at random (``test_fault_25_soak``, ``tests/crashes/soak``)
"""
