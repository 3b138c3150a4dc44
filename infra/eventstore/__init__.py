"""A persistence module of the `eventsourcing` library on JetStream.

Set `PERSISTENCE_MODULE=infra.eventstore` and `NATS_URL`, and a library application keeps its events
in a stream of its own; set `EVENT_LAYOUT_TOPIC=infra.eventstore.shape_layout:ShapeLayout` as well,
and it opens the product's own log. `factory.py` lists the settings, `docs/adr/0005` says why.

The library looks for exactly one factory class in this module: export no other.
"""

from infra.eventstore.factory import JetStreamFactory

__all__ = ["JetStreamFactory"]
