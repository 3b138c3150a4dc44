"""What is told where something that is declared is not allowed."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest

from events.field_hints import closest, with_hint
from events.manifest import InvalidManifestError, Manifest, Metadata, take_apart


class Port(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """A nested struct."""

    host_port: Annotated[int, msgspec.Meta(ge=1)]
    protocol: Literal["tcp", "udp"] = "tcp"


class Thing(msgspec.Struct, forbid_unknown_fields=True):
    """A struct with everything that can stand between the top and a field."""

    color: Literal["Red", "Green"]
    ports: list[Port] = []
    named: dict[str, Port | None] = {}
    size: int | None = None


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"color": "red"}, ": one of Green, Red; did you mean Red?"),
        ({"color": "Mauve"}, ": one of Green, Red"),
        ({"colour": "Red"}, ": the fields are color, named, ports, size; did you mean color?"),
        (
            {"color": "Red", "ports": [{"hostPort": 1, "protocol": "TCP"}]},
            ": one of tcp, udp; did you mean tcp?",
        ),
        (
            {"color": "Red", "named": {"a": {"hostport": 1}}},
            ": the fields are hostPort, protocol; did you mean hostPort?",
        ),
        ({"color": "Red", "size": "large"}, ""),
        ({}, ""),
    ],
)
def test_what_is_allowed_is_told_behind_what_is_wrong(fields: dict[str, Any], hint: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(fields, Thing)
    assert with_hint(caught.value, Thing) == f"{caught.value}{hint}"


def test_a_policy_that_is_none_is_refused_with_those_there_are() -> None:
    manifest = Manifest("shapes/v1", "Shape", Metadata("a"), {"policy": {"deletion": "orphan"}})
    with pytest.raises(InvalidManifestError, match=r"one of Delete, Orphan; did you mean Orphan\?"):
        take_apart(manifest)


def test_only_what_is_alike_is_suggested() -> None:
    assert closest("shpe", ["Shape", "Stream"]) == "; did you mean Shape?"
    assert closest("bucket", ["Shape", "Stream"]) == ""
