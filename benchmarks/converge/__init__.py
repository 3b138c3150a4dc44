"""How fast declared resources come to exist, and what an unchanged fleet costs.

Everything runs as real processes: nats-server, the shapes API, `reconciler up`. The benchmark is
one client of the bus, as another team's service would be, and looks at the API's own journal.
"""
