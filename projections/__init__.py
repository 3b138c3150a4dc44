"""Read models folded from the event log: caches that a replay gives back byte for byte."""
