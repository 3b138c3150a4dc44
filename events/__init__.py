"""The published language: every event and command on the bus, as typed structs, without I/O.

An *event* here is a CloudEvents 1.0 message in structured JSON. There are three vocabularies:

- ``intake``: messages to Reconciler (declarations, observations, results, timers)
- ``log``: recorded events of the resources, the only source of truth
- ``outcome``: public results, to which other services subscribe

``names`` and ``subjects`` define the names of resources and the subjects of their messages.
``manifest`` defines the format of declarations. This package imports no other package of this
project.
"""
