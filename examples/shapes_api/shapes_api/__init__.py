"""The external API that `up` starts to try things on: shapes, and DNS-like records, over HTTP.

A process of its own, with a database of its own, that imports nothing of Reconciler. Only the
package `kinds` does: the kinds `Shape` and `Record`, as the kinds of any other distribution. The
two APIs differ on purpose. Shapes keep to `openapi.yaml`:
idempotency keys, labels, pages with opaque tokens, problem documents. Records have no keys: every
write has a precondition; they have tags, cursors, and a feed of changes to wait at.

    python -m shapes_api --port 8080 --data ./example-api
"""

from shapes_api.process import ExampleApi, ExampleApiError

__all__ = ["ExampleApi", "ExampleApiError"]
