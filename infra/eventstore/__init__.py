"""A persistence module on JetStream for the `eventsourcing` library.

With `PERSISTENCE_MODULE=infra.eventstore` and `NATS_URL`, an application that uses the library
stores its events in its own stream. Reconciler's log has a different layout (`resource_layout`) in
the same store (`infra.jetstream.sequences`), which `reconciler.sdk.history` reads. `factory.py`
lists the settings. ADRs 0005 and 0023 explain why.

The library expects exactly one factory class in this module, so do not export another.
"""

from infra.eventstore.factory import JetStreamFactory

__all__ = ["JetStreamFactory"]
