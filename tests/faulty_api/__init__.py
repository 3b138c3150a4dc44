"""The example API with faults on demand, counters, and a journal of every effect.

    python -m tests.faulty_api --port 8080 --data ./example-api

PUT, GET, DELETE /_faults   the faults of requests for shapes: see `faults`
GET, DELETE /_stats         requests by method and status, number of shapes, effects
GET /_journal?after=N&limit=M   effects with a sequence above N
/as/OPTIONS/shapes…         peculiarities of real APIs, such as assigned ids: see `options`
PUT /_expired?name=NAME     expire an object
"""

from pathlib import Path

from shapes_api import ExampleApi


class FaultyApi(ExampleApi):
    """The example API in a separate process, with the additions for tests."""

    module = "tests.faulty_api"
    folder = Path(__file__).parents[2]
