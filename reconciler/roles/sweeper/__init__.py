"""The sweeper: wakes what waits, and keeps references."""
