"""A persistence module of the `eventsourcing` library on JetStream.

Set `PERSISTENCE_MODULE=infra.eventstore` and `NATS_URL`, and a library application keeps its events
in a stream of its own. The product's own log has another layout (`resource_layout`), over the same
store (`infra.jetstream.sequences`): `reconciler.sdk.history` reads it. `factory.py` lists the
settings, `docs/adr/0005` and `0023` say why.

The library looks for exactly one factory class in this module: export no other.
"""

from infra.eventstore.factory import JetStreamFactory

__all__ = ["JetStreamFactory"]
