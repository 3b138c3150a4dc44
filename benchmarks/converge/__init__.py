"""How fast declared resources are created, and what an unchanged fleet costs.

Everything runs as real processes: nats-server, the shapes API, `reconciler up`. The benchmark is
a client of the bus, like another team's service, and reads the API's own journal.
"""
