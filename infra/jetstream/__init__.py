"""Adapter for the NATS and JetStream protocols, independent of reconciliation.

It handles all `Nats-…` headers, `$JS.API…` subjects and server error codes, with one topic per
module. It imports only `events.integrity` and `infra.named_files`. Any module in `infra` may import
it.
"""
