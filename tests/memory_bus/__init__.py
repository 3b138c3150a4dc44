"""The bus in memory: every port of ``reconciler.ports`` without a server and without real time.

``log``, ``intake``, ``actions``, ``decisions``, ``listings``, ``rows`` and ``rates`` each hold the
state of one stream or bucket, and beside it a ``Memory…`` class: the port of one process.
``MemoryBus`` has one of each and returns the ports of a process. ``Network`` carries the requests,
and injects the faults of ``faults``.

Run the code on a ``VirtualLoop``: it is an event loop whose clock jumps to the next timer, so that
leases, back-off and time-outs cost no time. ``contract`` states how a bus behaves; its tests run on
this bus and on JetStream.
"""
