"""The example API that `up` starts: shapes and DNS-like records, over HTTP.

It is a separate process with its own database, and imports nothing from Reconciler. Only the
`kinds` package does, with the `Shape` and `Record` kinds, like the kinds of any other distribution.
The two APIs differ on purpose. Shapes follow `openapi.yaml`: idempotency keys, labels, pages with
opaque tokens, and problem documents. Records have no idempotency keys, and every write has a
precondition. They have tags, cursors, and a change feed.

    python -m shapes_api --port 8080 --data ./example-api
"""

from shapes_api.process import ExampleApi, ExampleApiError

__all__ = ["ExampleApi", "ExampleApiError"]
