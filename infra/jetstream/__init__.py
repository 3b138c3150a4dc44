"""JetStream's wire rules, and nothing about reconciling.

Everything that knows a `Nats-…` header, a `$JS.API…` subject or a server error code is here, one
noun a module. It imports nothing of ours; anyone in `infra` may import it.
"""
