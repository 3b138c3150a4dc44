"""The shape aggregate: pure folding and deciding, with no clock, no randomness and no I/O.

``evolve`` folds one event into the state; ``take_turn`` gives the events that follow from the state
and what has come in. Everything that could differ between two runs (clock, jitter, policy, ids) is
an input, so that replaying the log through ``take_turn`` gives the recorded decisions (invariant
10).
"""
