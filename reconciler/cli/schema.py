"""`reconciler schema`: print a schema of the published messages."""

from __future__ import annotations

from typing import Literal

from events.schema import asyncapi, json_schema
from reconciler.cli.output import print_structured


def schema(form: Literal["json-schema", "asyncapi"] = "json-schema", /) -> int:
    """Print the JSON Schema of all messages, or the bus as AsyncAPI 3.

    The command does not need a server.

    For example:

        reconciler schema > messages.schema.json
        reconciler schema asyncapi > asyncapi.json

    Parameters
    ----------
    form
        Format of the schema.
    """
    document = json_schema() if form == "json-schema" else asyncapi()
    print_structured(document, "json")
    return 0
