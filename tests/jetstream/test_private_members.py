"""Our client overrides and reads private members of nats-py, each of which must exist."""

import ast
import inspect
import re
from collections.abc import Iterator

from nats.aio.client import Client

from infra.jetstream import wire

OURS = {
    *("_as_said", "_forget_last_attempt", "_last_words", "_require_tls", "_take"),
    *("_listeners", "_security"),
}
OF_OTHERS = {"_buffer", "_id", "_io_reader"}  # of a stream reader, a subscription, a transport


def private_members(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(attr=name) | ast.Constant(value=str(name)):
                yield name
            case ast.ClassDef(body=body):
                functions = (ast.FunctionDef, ast.AsyncFunctionDef)
                yield from (each.name for each in body if isinstance(each, functions))
            case _:
                pass


def test_the_installed_nats_py_has_each_private_member_that_ours_uses() -> None:
    """Without it, a method of ours would never be called, or an attribute never be read."""
    members = set(private_members(inspect.getsource(wire)))
    used = {each for each in members if re.fullmatch("_[a-z][a-z_]*", each)} - OURS - OF_OTHERS
    assert len(used) > 20, "nothing was found to check"
    client = Client()
    assert not {each for each in used if not hasattr(client, each)}
