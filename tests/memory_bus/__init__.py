"""The bus in memory: every port of ``reconciler.ports`` without a server and without real time.

``log``, ``intake``, ``actions``, ``decisions``, ``listings``, ``rows`` and ``rates`` each have a
class for the state of one stream or bucket, and a ``Memory…`` class for the port of one process.
``MemoryBus`` has one of each and returns the ports of a process. ``Network`` carries the requests,
and injects the faults of ``faults``.

Run the code on a ``VirtualLoop``, an event loop whose clock jumps to the next timer: leases,
backoff and timeouts take no real time. ``contract`` states how a bus behaves; its tests run on
this bus and on JetStream.
"""
