"""Definitions of HTTP APIs that cannot work: each says what, where and what to do."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any

import pytest

from events.manifest import InvalidManifestError
from infra.providers.rest import expressions
from tests.rest.kinds import kind_from, manifest
from tests.rest.test_made_ids import SPEC as MEMO

FIGURE: dict[str, Any] = manifest("figure")["spec"]
LINES = "\n"


def built(spec: dict[str, Any], **changes: Any) -> None:
    """Build a definition with some of its places changed; ``__`` stands for the dot of a place."""
    spec = deepcopy(spec)
    for path, value in changes.items():
        *above, last = path.split("__")
        place: dict[str, Any] = spec
        for step in above:
            place = place.setdefault(step, {})
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    kind_from({"metadata": {"name": "Figure"}, "spec": spec})


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"over": "Shape"}, "spec: give either over, an installed kind, or rest, how an HTTP API"),
    ({"rest": None}, "spec: give either over, an installed kind, or rest, how an HTTP API"),
    (
        {"rest__uid": None, "rest__marks": None},
        "spec.rest.uid: say where an object's id is, or by marks where whose it is can be kept",
    ),
    (
        {"rest__list": None},
        "spec.rest.read.confirm: a wrong endpoint answers 404, too: give a list, or a path",
    ),
    (
        {"rest__version": None},
        "spec.rest.version: condition Version needs its place",
    ),
    (
        {"rest__read__path": "/shapes/{nam}"},
        "spec.rest.read: nothing is called {nam}: use {name} or {uid}",
    ),
    (
        {"rest__create__path": "/shapes/{uid}"},
        "spec.rest.create: there is no {uid} before it is made",
    ),
    ({"rest__list__path": "/s/{name}"}, "spec.rest.list: it is of all objects: leave out"),
    ({"rest__read__path": "/a?b=c"}, "spec.rest.read.path: leave out ? and #, and use query"),
    ({"rest__read__path": "shapes"}, "spec: Expected `str` matching regex"),
    (
        {"rest__headers": {"Authorization": "Bearer x"}},
        "spec.rest.read.headers.Authorization: a secret stays in no log: use spec.credentials",
    ),
    (
        {"rest__headers": {"Host": "x"}},
        "spec.rest.read.headers.Host: the client writes it itself",
    ),
    (
        {"rest__read__body": {"a": 1}},
        "spec.rest.read.body: GET has none: give a method",
    ),
    (
        {"rest__create__body": {"name": "= nam", "labels": "= labels"}},
        "spec.rest.create.body.name: nothing is called 'nam': use key, labels, mark, name",
    ),
    (
        {"rest__create__body": {"name": "= name"}},
        "spec.rest.create.body: it writes labels nowhere, where marks are to be kept",
    ),
    (
        {"rest__create__body": {"name": "= name +", "labels": "= labels"}},
        "spec.rest.create.body.name: 'name +' is no CEL expression: at 1:7: Syntax error",
    ),
    (
        {"rest__where": "= object.type.lower()"},
        "spec.rest.where: no function 'lower': use bool, contains",
    ),
    (
        {"rest__name__matches": "(a)\\1"},
        "spec.rest.name.matches: '(a)\\\\1' is no regular expression of linear time",
    ),
    (
        {"rest__name__at": "= object.name"},
        "spec.rest.create.body: the name and the marks are found by expressions",
    ),
    (
        {"rest__shown": {"colour": "= object.color"}},
        "spec.rest.shown.colour: the document has no place 'colour', only color, type",
    ),
    (
        {"rest__immutable": ["size"]},
        "spec.rest.immutable: the document has no place 'size', only color, type",
    ),
    (
        {"rest__unordered": ["size"]},
        "spec.rest.unordered: the document has no place 'size', only color, type",
    ),
    (
        {"rest__marks": {"at": "color"}},
        "spec.rest.marks.at: the document writes that place, too",
    ),
    ({"rest__uid": "a..b"}, "spec.rest.uid: 'a..b' has an empty step: write a.b, or . alone"),
    (
        {"rest__list__paging": {"by": "Token", "at": "next"}},
        "spec.rest.list.paging.parameter: say in which parameter of the query the token goes",
    ),
    (
        {"rest__list__paging": {"by": "Token", "parameter": "next"}},
        "spec.rest.list.paging.at: say where in the answer the token of the next page is",
    ),
    (
        {"rest__ready": "= object.x", "rest__outputs": {"ready": {"at": "x"}}},
        "spec.rest.outputs.ready: ready gives it already",
    ),
    (
        {"rest__errors": [{"status": [], "means": "Transient"}]},
        "spec.rest.errors[0].status: give at least one code",
    ),
    (
        {"rest__errors": [{"status": [500], "means": "Fatal"}]},
        "spec: Invalid enum value 'Fatal' - at `$.rest.errors[0].means`: one of Absent",
    ),
    (
        {"rest__reed": {}},
        "spec: Object contains unknown field `reed` - at `$.rest`: the fields are",
    ),
    (
        {
            "rest__document": {"type": "= spec.type", "color": "= spec.color"},
            "constants": {"a": 1},
        },
        "spec.constants: write them into spec.rest.document",
    ),
    (
        {"rest__document": {"a": "= spec.type"}, "fields__type__to": "b"},
        "spec.fields.type.to: spec.rest.document says where it goes: leave one out",
    ),
    (
        {"rest__document": {"a.b": "= spec.type"}},
        "spec.rest.document: 'a.b': a name with a dot cannot be told from a place",
    ),
    (
        {"rest__document": {"a": "= spc.type"}},
        "spec.rest.document.a: nothing is called 'spc': use spec",
    ),
    ({"rest__document": {}}, "spec.rest.document: it has 0 places, and 1 to 128 are allowed"),
    (
        {"fields__type__to": "a", "fields__color__to": "a.b"},
        "spec.fields.color: 'a.b' is written by spec.fields.type already",
    ),
    (
        {"fields__type": {"type": "Object"}},
        "spec.fields.type.fields: an Object has them, and nothing else",
    ),
    (
        {"fields__type": {"type": "List"}},
        "spec.fields.type.items: a List and a Map have it, and nothing else",
    ),
    (
        {"fields__type": {"type": "Map", "items": {"to": "x"}}},
        "spec.fields.type.items.to: only a field of the spec itself has one",
    ),
    (
        {"fields__type": {"type": "Map", "items": {}, "normalize": ["Trim"]}},
        "spec.fields.type: values and normalize are of what is within a Map: say it there",
    ),
    (
        {"fields__type": {"default": "a", "optional": True}},
        "spec.fields.type.optional: it has a default: leave one out",
    ),
    (
        {"fields__type": {"minimum": 3, "maximum": 2}},
        "spec.fields.type.minimum: it is more than the maximum",
    ),
    (
        {"fields__type": {"type": "Integer", "minimum": 0.5}},
        "spec.fields.type: its minimum and maximum are whole numbers",
    ),
    (
        {"fields__type": {"type": "Boolean", "minimum": 1}},
        "spec.fields.type: a Boolean has no minimum and no maximum",
    ),
    ({"fields__type": {"minimum": -1}}, "spec.fields.type: no length is less than 0"),
]


@pytest.mark.parametrize(("changes", "said"), REFUSED)
def test_a_definition_that_cannot_work_says_what_where_and_what_to_do(
    changes: dict[str, Any], said: str
):
    with pytest.raises(InvalidManifestError) as caught:
        built(FIGURE, **changes)
    message = str(caught.value)
    assert message.startswith(said), message
    assert LINES not in message


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rest__uid": None}, "spec.rest.uid: say where an object's id is"),
        ({"rest__create__shows": None}, "spec.rest.create.shows: the API makes the id: say where"),
        (
            {"rest__list": None, "rest__read__confirm": "/notes"},
            "spec.rest.list: the API makes the ids: without a listing nothing is found by its name",
        ),
        (
            {"rest__update__body": {"text": "= object.text"}},
            "spec.rest.update.body: it writes version nowhere",
        ),
    ],
)
def test_what_an_api_of_made_ids_needs_is_asked_for(changes: dict[str, Any], said: str):
    with pytest.raises(InvalidManifestError, match=re.escape(said)):
        built(MEMO, **changes)


def test_fields_are_bounded_in_number_and_depth():
    deep: dict[str, Any] = {}
    for _ in range(7):
        deep = {"type": "List", "items": deep}
    with pytest.raises(InvalidManifestError, match="at most 128 fields and 6 levels"):
        built(FIGURE, fields__type=deep)
    wide: dict[str, Any] = {"type": "Object", "fields": {f"f{number}": {} for number in range(128)}}
    with pytest.raises(InvalidManifestError, match="at most 128 fields and 6 levels"):
        built(FIGURE, fields__type=wide)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("'" + "a" * expressions.MAX_CHARACTERS + "'", "at most 1000 characters"),
        ("(" * 17 + "1" + ")" * 17, "brackets are nested 17 deep: 16 are the most"),
        (".map(a, a)".join(["spec.x"] * 5), "4 loops (map, filter, all, exists): 3 are the most"),
        (
            "spec.a.map(x, spec.b.map(y, spec.c.map(z, z)))",
            "loops are nested deeper than 2",
        ),
        ("+".join(["1"] * 34), "33 times +: 32 are the most"),
        ("", "'' is no CEL expression: at 1:1"),
        ("1 +", "'1 +' is no CEL expression: at 1:4"),
        ("a", "nothing is called 'a': use spec"),
        ("timestamp('2024-01-01T00:00:00Z')", "no function 'timestamp': use"),
    ],
)
def test_an_expression_that_could_cost_too_much_or_mean_nothing_is_refused(text: str, said: str):
    with pytest.raises(InvalidManifestError) as caught:
        expressions.Expression(text, "spec.rest.ready", {"spec"})
    assert str(caught.value).startswith("spec.rest.ready: ")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value", "said"),
    [
        ("x.map(a, a)", list(range(501)), "at most 500 members"),
        ("x.map(a, x.map(b, b))", list(range(51)), "at most 50 members"),
        ("size(x)", "a" * 300_000, "262144 characters"),
        ("size(x)", [["a"] * 500] * 21, "at most 10000 values"),
        ("x / 0", 1, "division by zero"),
        ("x + 1", "a", "Unsupported operation: string + int"),
        ("x.y", {}, "finds nothing at"),
        ("x[3]", [], "finds nothing at"),
        ("b'a'", 1, "gives bytes, which is no JSON"),
        ("x * 2", 2**62, "verflow"),
    ],
)
def test_an_expression_without_a_value_says_why(text: str, value: Any, said: str):
    expression = expressions.Expression(text, "here", {"x"})
    with pytest.raises(expressions.ExpressionError, match=re.escape(said)):
        expression.value({"x": value})


def test_loops_and_brackets_within_texts_do_not_count():
    text = f"'{'(' * 40} .map(a, .map(b, .map(c, .map(d, +' + x"
    assert expressions.Expression(text, "here", {"x"}).value({"x": "!"}).endswith("+!")
