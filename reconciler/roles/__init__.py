"""The roles: decider, worker, observer and projector. Each can run in its own process.

They have no durable state, so each can be killed at any step and restarted.
"""
