"""A bus in memory: implementations of every protocol of ``reconciler.ports``.

What the server holds is in ``log``, ``intake``, ``actions``, ``decisions`` and ``rows``; what a
process holds of it are the ``Simulated…`` classes. Each answers as the JetStream adapters of
``infra.bus`` do, which ``test_contract`` compares.
"""
