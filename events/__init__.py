"""The published language: every event and command on the bus, as typed structs, with no I/O.

An *event* here is a CloudEvents 1.0 message in structured JSON. Three vocabularies meet:

- ``intake``: what others tell the reconciler (declarations, observations, results, timers);
- ``log``: what the reconciler recorded about one resource, the only truth;
- ``outcome``: what it tells others about the result.

``names`` and ``subjects`` say how a resource is named and where its messages travel; ``manifest``
is what people write. This package imports nothing else of this project.
"""
