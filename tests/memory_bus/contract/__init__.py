"""How a bus behaves: one suite, which the bus in memory and JetStream both pass.

A model that is kinder than the server proves nothing. Each port of ``reconciler.ports`` has a file.
"""
