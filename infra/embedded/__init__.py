"""The embedded server: a `nats-server` process that belongs to the process that started it.

It is the default bus of a single machine, and the server of the tests. Any module of `infra`, and
modules that assemble a process, may import it. It imports only `infra.jetstream`.
"""

from infra.embedded.server import EmbeddedServer, EmbeddedServerError

__all__ = ["EmbeddedServer", "EmbeddedServerError"]
