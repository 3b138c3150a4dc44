"""The embedded server: a `nats-server` process that exits with its parent.

It is the default bus on a single machine, and the server for the tests. Any module in `infra`, and
modules that assemble a process, may import it. It imports only `infra.jetstream`.
"""

from infra.embedded.server import EmbeddedServer, EmbeddedServerError

__all__ = ["EmbeddedServer", "EmbeddedServerError"]
