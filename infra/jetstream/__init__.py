"""Adapter for the wire protocol of NATS and JetStream, independent of reconciling.

All `Nats-…` headers, `$JS.API…` subjects and server error codes are used here, with one subject per
module. It imports only `events.integrity` and `infra.named_files`. Any module of `infra` may import
it.
"""
