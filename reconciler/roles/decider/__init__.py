"""The decider, the only writer of the log."""
