"""The behavior of a bus: one suite that both the bus in memory and JetStream pass.

A model that is more lenient than the server proves nothing. Each port has a file.
"""
