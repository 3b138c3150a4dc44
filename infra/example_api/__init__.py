"""The external API that `up` starts to try things on: shapes, and DNS-like records, over HTTP.

A process of its own, with a database of its own: it imports nothing else of this repository, and
the rest imports only `ExampleApi`. The two differ on purpose. Shapes keep to `openapi.yaml`:
idempotency keys, labels, pages with opaque tokens, problem documents. Records have no keys: every
write has a precondition; they have tags, cursors, and a feed of changes to wait at.

    python -m infra.example_api --port 8080 --data ./example-api
"""

from infra.example_api.process import ExampleApi, ExampleApiError

__all__ = ["ExampleApi", "ExampleApiError"]
