"""The shapes service: the external cloud API that a reconciler is run against.

A service in a process of its own, which keeps to the contract in `openapi.yaml` and to nothing of
ours: it imports nothing else of this repository, and the rest imports only `ShapesProcess`.
Besides the contract it has controls for tests and tours, described in `control_routes`:
`/_faults` (what shall go wrong), `/_stats` (what was asked and done) and `/_journal` (every effect
that really happened).

    python -m infra.shapes_api --port 8080 --data ./shapes
"""

from infra.shapes_api.process import ShapesProcess, ShapesProcessError

__all__ = ["ShapesProcess", "ShapesProcessError"]
