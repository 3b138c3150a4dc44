"""The embedded server: one `nats-server` process that belongs to the process that started it.

It is the default bus of a single machine, and the real server of the tests. Anyone in `infra` and
whoever wires a process together may import it; it imports only `infra.jetstream`.
"""

from infra.embedded.server import EmbeddedServer, EmbeddedServerError

__all__ = ["EmbeddedServer", "EmbeddedServerError"]
