"""Error messages for invalid declarations."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest

from events.field_hints import closest_hint, field_error
from events.manifest import InvalidManifestError, Manifest, Metadata, split_manifest


class Port(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """A nested struct."""

    host_port: Annotated[int, msgspec.Meta(ge=1)]
    protocol: Literal["tcp", "udp"] = "tcp"


class Thing(msgspec.Struct, forbid_unknown_fields=True):
    """A struct with every type of nesting above a field."""

    color: Literal["Red", "Green"]
    ports: list[Port] = []
    named: dict[str, Port | None] = {}
    size: int | None = None
    mode: Annotated[str, msgspec.Meta(max_length=4, pattern="^[0-7]*$")] = "0644"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"color": "red"}, "color: 'red' is not allowed; use one of Green, Red; did you mean Red?"),
        ({"color": "Mauve"}, "color: 'Mauve' is not allowed; use one of Green, Red"),
        ({"color": "Light red"}, "color: 'Light red' is not allowed; use one of Green, Red"),
        (
            {"colour": "Red"},
            "colour: unknown field; use one of color, mode, named, ports, size; "
            "did you mean color?",
        ),
        (
            {"color": "Red", "ports": [{"hostPort": 1, "protocol": "TCP"}]},
            "ports[0].protocol: 'TCP' is not allowed; use one of tcp, udp; did you mean tcp?",
        ),
        (
            {"color": "Red", "named": {"a": {"hostport": 1}}},
            "named[...].hostport: unknown field; use one of hostPort, protocol; "
            "did you mean hostPort?",
        ),
        (
            {"color": "Red", "size": "large"},
            "size: must be an integer or null, not a string",
        ),
        ({"color": "Red", "size": 0.5}, "size: must be an integer or null, not a decimal number"),
        (
            {"color": "Red", "mode": 644},
            "mode: must be a string, not an integer; put it in quotes",
        ),
        ({"color": "Red", "mode": "+x"}, "mode: must match the regular expression '^[0-7]*$'"),
        ({"color": "Red", "mode": "06444"}, "mode: the length must be at most 4"),
        ({"color": "Red", "ports": [{"hostPort": 0}]}, "ports[0].hostPort: must be at least 1"),
        ({"color": "Red", "ports": 1}, "ports: must be a list, not an integer"),
        ({"color": "Red", "ports": [{"protocol": "tcp"}]}, "ports[0].hostPort: required"),
        ({}, "color: required"),
    ],
)
def test_an_error_names_the_field_the_problem_and_the_allowed_values(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(fields, Thing)
    assert field_error(caught.value, Thing) == message
    assert field_error(caught.value, Thing, "spec") == f"spec.{message}"


def test_an_error_in_the_whole_value_names_its_path() -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert([], Thing)
    assert field_error(caught.value, Thing, "spec") == "spec: must be a mapping, not a list"
    assert field_error(caught.value, Thing) == "must be a mapping, not a list"


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    manifest = Manifest("shapes/v1", "Shape", Metadata("a"), {"policy": {"deletion": "orphan"}})
    with pytest.raises(InvalidManifestError, match=r"one of Delete, Orphan; did you mean Orphan\?"):
        split_manifest(manifest)


def test_labels_that_would_make_listings_too_large_are_refused() -> None:
    labels = {f"k{number}": "é" * 500 for number in range(9)}
    for allowed, each in ((True, labels | {"k8": ""}), (False, labels)):
        manifest = Manifest("shapes/v1", "Shape", Metadata("a", labels=each))
        if allowed:
            split_manifest(manifest)
            continue
        with pytest.raises(InvalidManifestError, match="9018 bytes exceed the limit of 8192"):
            split_manifest(manifest)


def test_only_similar_names_are_suggested() -> None:
    assert closest_hint("shpe", ["Shape", "Stream"]) == "; did you mean Shape?"
    assert closest_hint("bucket", ["Shape", "Stream"]) == ""
