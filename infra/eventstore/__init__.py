"""A persistence module of the `eventsourcing` library on JetStream.

With `PERSISTENCE_MODULE=infra.eventstore` and `NATS_URL`, an application of the library stores its
events in its own stream. The log of Reconciler has another layout (`resource_layout`) over the same
store (`infra.jetstream.sequences`), which `reconciler.sdk.history` reads. `factory.py` lists the
settings. ADRs 0005 and 0023 contain the reasons.

The library expects exactly one factory class in this module: export no other.
"""

from infra.eventstore.factory import JetStreamFactory

__all__ = ["JetStreamFactory"]
