"""The running parts: decider, worker, observer and projector. Each can run in its own process.

They hold no durable state, so each can be killed at any step and started again.
"""
