"""The running parts: decider, worker, observer and projector, each able to run alone.

They hold no state that matters: every one of them may be killed at any step and started again.
"""
