"""Invalid HTTP API definitions: each error names the location, the problem and the remedy."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any

import pytest

from events.manifest import InvalidManifestError
from infra.providers.rest import expressions
from tests.rest.kinds import kind_from, manifest
from tests.rest.test_assigned_ids import SPEC as MEMO

FIGURE: dict[str, Any] = manifest("figure")["spec"]
NEWLINE = "\n"


def build_definition(spec: dict[str, Any], **changes: Any) -> None:
    """Build a definition with changed paths; ``__`` stands for a dot in a path."""
    spec = deepcopy(spec)
    for path, value in changes.items():
        *parents, last = path.split("__")
        target: dict[str, Any] = spec
        for step in parents:
            target = target.setdefault(step, {})
        if value is None:
            target.pop(last, None)
        else:
            target[last] = value
    kind_from({"metadata": {"name": "Figure"}, "spec": spec})


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"over": "Shape"},
        "spec: set exactly one of over (an installed kind), rest (how to call an HTTP API)",
    ),
    (
        {"rest": None},
        "spec: set exactly one of over (an installed kind), rest (how to call an HTTP API)",
    ),
    (
        {"rest__uid": None, "rest__metadata": None},
        "spec.rest.uid: required without metadata, to distinguish objects with the same name",
    ),
    (
        {"rest__list": None},
        "spec.rest.read.confirm: required, because an incorrect endpoint also returns 404",
    ),
    (
        {"rest__version": None},
        "spec.rest.version: required with condition Version; set it to the path of the version",
    ),
    (
        {"rest__read__path": "/shapes/{nam}"},
        "spec.rest.read: unknown placeholder {nam}; use {name} or {uid}",
    ),
    (
        {"rest__create__path": "/shapes/{uid}"},
        "spec.rest.create: {uid} is unknown before the object exists; remove it",
    ),
    ({"rest__list__path": "/s/{name}"}, "spec.rest.list: must list all objects; remove {"),
    ({"rest__read__path": "/a?b=c"}, "spec.rest.read.path: must not contain ? or #; use query"),
    ({"rest__read__path": "shapes"}, "spec.rest.read.path: must match the regular expression"),
    (
        {"rest__headers": {"Authorization": "Bearer x"}},
        "spec.rest.read.headers.Authorization: must not contain a secret, because the log keeps it",
    ),
    (
        {"rest__headers": {"Host": "x"}},
        "spec.rest.read.headers.Host: the client sets this header; remove it",
    ),
    (
        {"rest__read__body": {"a": 1}},
        "spec.rest.read.body: not allowed with the GET method; set another method",
    ),
    (
        {"rest__create__body": {"name": "= nam", "labels": "= metadata"}},
        "spec.rest.create.body.name: unknown variable 'nam'; use key, metadata, name",
    ),
    (
        {"rest__create__body": {"name": "= name"}},
        "spec.rest.create.body: must include metadata, because spec.rest.metadata is set",
    ),
    (
        {"rest__create__body": {"name": "= name +", "labels": "= metadata"}},
        "spec.rest.create.body.name: 'name +' is not a CEL expression: at 1:7: Syntax error",
    ),
    (
        {"rest__where": "= object.type.lower()"},
        "spec.rest.where: unknown function 'lower'; use bool, contains",
    ),
    (
        {"rest__name__matches": "(a)\\1"},
        "spec.rest.name.matches: '(a)\\\\1' is not an RE2 regular expression",
    ),
    (
        {"rest__name__at": "= object.name"},
        "spec.rest.create.body: required, because the paths of the name and the metadata are",
    ),
    (
        {"rest__shown": {"colour": "= object.color"}},
        "spec.rest.shown.colour: the document has no field 'colour'; use one of color, type",
    ),
    (
        {"rest__immutable": ["size"]},
        "spec.rest.immutable: the document has no field 'size'; use one of color, type",
    ),
    (
        {"rest__unordered": ["size"]},
        "spec.rest.unordered: the document has no field 'size'; use one of color, type",
    ),
    (
        {"rest__metadata": {"at": "color"}},
        "spec.rest.metadata.at: the document also writes this path; use another path",
    ),
    (
        {"rest__uid": "a..b"},
        "spec.rest.uid: 'a..b' has an empty step; use a form such as a.b, or a single .",
    ),
    (
        {"rest__list__paging": {"by": "Token", "at": "next"}},
        "spec.rest.list.paging.parameter: required; set it to the query parameter for the token",
    ),
    (
        {"rest__list__paging": {"by": "Token", "parameter": "next"}},
        (
            "spec.rest.list.paging.at: required; set it to the path of the next page's token in "
            "the response"
        ),
    ),
    (
        {"rest__ready": "= object.x", "rest__outputs": {"ready": {"at": "x"}}},
        "spec.rest.outputs.ready: spec.rest.ready already sets this output; remove one of them",
    ),
    (
        {"rest__errors": [{"status": [], "means": "NotDone"}]},
        "spec.rest.errors[0].status: must have at least one code",
    ),
    (
        {"rest__errors": [{"status": [500], "means": "Fatal"}]},
        "spec.rest.errors[0].means: 'Fatal' is not allowed; use one of Absent",
    ),
    (
        {"rest__reed": {}},
        "spec.rest.reed: unknown field; use one of",
    ),
    (
        {
            "rest__document": {"type": "= spec.type", "color": "= spec.color"},
            "constants": {"a": 1},
        },
        "spec.constants: not allowed with spec.rest.document; put the values in the document",
    ),
    (
        {"rest__document": {"a": "= spec.type"}, "fields__type__to": "b"},
        "spec.fields.type.to: not allowed with spec.rest.document; remove one of them",
    ),
    (
        {"rest__document": {"a.b": "= spec.type"}},
        "spec.rest.document: 'a.b': a name must not contain a dot",
    ),
    (
        {"rest__document": {"a": "= spc.type"}},
        "spec.rest.document.a: unknown variable 'spc'; use spec",
    ),
    ({"rest__document": {}}, "spec.rest.document: has 0 fields, but must have 1 to 128"),
    (
        {"fields__type__to": "a", "fields__color__to": "a.b"},
        "spec.fields.color: spec.fields.type already writes 'a.b'; remove one of them",
    ),
    (
        {"fields__type": {"type": "Object"}},
        "spec.fields.type.fields: required for the type Object, and not allowed for other types",
    ),
    (
        {"fields__type": {"type": "List"}},
        (
            "spec.fields.type.items: required for the types List and Map, and not allowed for "
            "other types"
        ),
    ),
    (
        {"fields__type": {"type": "Map", "items": {"to": "x"}}},
        "spec.fields.type.items.to: allowed only for a top-level field of the spec; remove it",
    ),
    (
        {"fields__type": {"type": "Map", "items": {}, "normalize": ["Trim"]}},
        (
            "spec.fields.type: values and normalize are not allowed for a Map; set them on its "
            "fields or items"
        ),
    ),
    (
        {"fields__type": {"default": "a", "optional": True}},
        "spec.fields.type.optional: not allowed together with default; remove one of them",
    ),
    (
        {"fields__type": {"minimum": 3, "maximum": 2}},
        "spec.fields.type.minimum: must not be greater than maximum",
    ),
    (
        {"fields__type": {"type": "Integer", "minimum": 0.5}},
        "spec.fields.type: minimum and maximum must be whole numbers",
    ),
    (
        {"fields__type": {"type": "Boolean", "minimum": 1}},
        "spec.fields.type: minimum and maximum are not allowed for the type Boolean; remove them",
    ),
    (
        {"fields__type": {"minimum": -1}},
        "spec.fields.type: minimum and maximum are lengths and must not be negative",
    ),
]


@pytest.mark.parametrize(("changes", "expected_message"), REFUSED)
def test_an_invalid_definition_has_an_error_with_location_and_remedy(
    changes: dict[str, Any], expected_message: str
):
    with pytest.raises(InvalidManifestError) as caught:
        build_definition(FIGURE, **changes)
    message = str(caught.value)
    assert message.startswith(expected_message), message
    assert NEWLINE not in message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rest__uid": None}, "spec.rest.uid: required without metadata"),
        (
            {"rest__create__shows": None},
            "spec.rest.create.shows: required, because the API creates the id",
        ),
        (
            {"rest__list": None, "rest__read__confirm": "/notes"},
            (
                "spec.rest.list: required, because the API creates the ids and only a listing "
                "finds an object by name"
            ),
        ),
        (
            {"rest__update__body": {"text": "= object.text"}},
            "spec.rest.update.body: must include version, because condition is Body",
        ),
    ],
)
def test_the_requirements_of_an_api_that_assigns_ids_are_checked(
    changes: dict[str, Any], message: str
):
    with pytest.raises(InvalidManifestError, match=re.escape(message)):
        build_definition(MEMO, **changes)


def test_fields_are_limited_in_number_and_depth():
    deep: dict[str, Any] = {}
    for _ in range(7):
        deep = {"type": "List", "items": deep}
    with pytest.raises(InvalidManifestError, match="at most 128 fields and 6 levels"):
        build_definition(FIGURE, fields__type=deep)
    wide: dict[str, Any] = {"type": "Object", "fields": {f"f{number}": {} for number in range(128)}}
    with pytest.raises(InvalidManifestError, match="at most 128 fields and 6 levels"):
        build_definition(FIGURE, fields__type=wide)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("'" + "a" * expressions.MAX_CHARACTERS + "'", "at most 1000 characters"),
        ("(" * 17 + "1" + ")" * 17, "brackets are nested 17 deep, but at most 16 are allowed"),
        (
            "spec.x" + ".map(a, a)" * 4,
            "4 loops (map, filter, all, exists), but at most 3 are allowed",
        ),
        (
            "spec.a.map(x, spec.b.map(y, spec.c.map(z, z)))",
            "loops are nested deeper than 2",
        ),
        ("+".join(["1"] * 34), "33 + operators, but at most 32 are allowed"),
        ("", "'' is not a CEL expression: at 1:1"),
        ("1 +", "'1 +' is not a CEL expression: at 1:4"),
        ("a", "unknown variable 'a'; use spec"),
        ("timestamp('2024-01-01T00:00:00Z')", "unknown function 'timestamp'; use"),
    ],
)
def test_an_expensive_or_invalid_expression_is_refused(text: str, message: str):
    with pytest.raises(InvalidManifestError) as caught:
        expressions.Expression(text, "spec.rest.ready", {"spec"})
    assert str(caught.value).startswith("spec.rest.ready: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value", "message"),
    [
        ("x.map(a, a)", list(range(501)), "exceeds the limit of 500 members"),
        ("x.map(a, x.map(b, b))", list(range(51)), "exceeds the limit of 50 members"),
        ("size(x)", "a" * 300_000, "262144 characters"),
        ("size(x)", [["a"] * 500] * 21, "exceeds the limit of 10000 values"),
        ("x / 0", 1, "division by zero"),
        ("x + 1", "a", "Unsupported operation: string + int"),
        ("x.y", {}, "has no value at"),
        ("x[3]", [], "has no value at"),
        ("b'a'", 1, "returns bytes, which is not JSON"),
        ("x * 2", 2**62, "verflow"),
    ],
)
def test_an_expression_without_a_value_has_an_error_with_the_reason(
    text: str, value: Any, message: str
):
    expression = expressions.Expression(text, "here", {"x"})
    with pytest.raises(expressions.ExpressionError, match=re.escape(message)):
        expression.value({"x": value})


def test_loops_and_brackets_within_strings_do_not_count():
    text = f"'{'(' * 40} .map(a, .map(b, .map(c, .map(d, +' + x"
    assert expressions.Expression(text, "here", {"x"}).value({"x": "!"}).endswith("+!")
