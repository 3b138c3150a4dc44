"""Read models: caches folded from the event log, which a replay restores exactly."""
