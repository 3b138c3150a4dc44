"""Read models: caches that are folded from the event log, and that a replay restores exactly."""
