"""The protocol of a defined kind: ``rest`` in its definition, checked and compiled."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast
from urllib.parse import quote

import msgspec

from events.external import ExternalObject
from events.kind_definition import KindDefinitionSpec
from events.manifest import Fields, InvalidManifestError
from events.rest_definition import (
    Call,
    ErrorRule,
    Listing,
    Method,
    Output,
    OutputType,
    Reading,
    RestSpec,
)
from infra.providers.endpoint import changes_path
from infra.providers.responses import decode_start
from infra.providers.rest.document import Document
from infra.providers.rest.expressions import Expression, ExpressionError
from infra.providers.rest.items import UndecodableItem
from infra.providers.rest.json_paths import (
    MISSING,
    WHOLE_DOCUMENT,
    Finder,
    Template,
    is_expression,
)
from infra.providers.rest.marks import Marking, ObjectMarks
from infra.providers.rest.patterns import Pattern, PatternError, read_pattern
from reconciler.provider import Capabilities

_METADATA: Final = re.compile(r"(?<![\w.])metadata\b")
BODY_VARIABLES: Final = ("name", "uid", "version", "key", "object", "patch", "metadata")
MAX_NAME_CHARACTERS: Final = 253
MAX_RULE_CHARACTERS: Final = 64 * 1024
"""Number of characters in a response to search for a rule's text: 32 MiB would take seconds."""

OUTPUT_TYPES: Final[Mapping[OutputType, Any]] = {
    "String": str,
    "Integer": int,
    "Number": float,
    "Boolean": bool,
    "Strings": list[str],
}
READY: Final = "ready"

_PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")
_SECRET_HEADERS: Final = frozenset({"authorization", "cookie", "proxy-authorization"})
_CLIENT_HEADERS: Final = frozenset({"host", "content-length", "transfer-encoding"})


class UnusableObjectError(ValueError):
    """An object in a response does not match the definition."""


class Request:
    """The compiled method, path, query, headers and body of a request."""

    def __init__(
        self, call: Call | Listing | Reading, location: str, default: Method, rest: RestSpec
    ) -> None:
        self.method: Method = call.method or default
        self.success = frozenset(call.success or _default_success(location, call))
        self._path = call.path
        self._query = call.query
        self.headers = {"Content-Type": "application/json", **rest.headers, **call.headers}
        for name in (*rest.headers, *call.headers):
            if name.lower() in _SECRET_HEADERS | {(rest.credential_header or "").lower()}:
                raise InvalidManifestError(
                    f"{location}.headers.{name}: must not contain a secret, because the log keeps "
                    "it; use spec.credentialsRef of the ProviderConfig, and credentialHeader"
                )
            if name.lower() in _CLIENT_HEADERS:
                raise InvalidManifestError(
                    f"{location}.headers.{name}: the client sets this header; remove it"
                )
        if "?" in self._path or "#" in self._path:
            raise InvalidManifestError(f"{location}.path: must not contain ? or #; use query")
        self.placeholders: set[str] = set()
        for text in (self._path, *self._query.values()):
            self.placeholders.update(_PLACEHOLDER.findall(text))
        if unknown := sorted(self.placeholders - {"name", "uid"}):
            raise InvalidManifestError(
                f"{location}: unknown placeholder {{{unknown[0]}}}; use {{name}} or {{uid}}"
            )
        self.body = None
        if call.body is not None:
            if self.method == "GET":
                raise InvalidManifestError(
                    f"{location}.body: not allowed with the GET method; set another method"
                )
            self.body = Template(call.body, f"{location}.body", BODY_VARIABLES)

    def path(self, values: Mapping[str, str]) -> str:
        """Return the path, with URL-encoded values."""
        return _PLACEHOLDER.sub(lambda match: quote(values[match[1]], safe=""), self._path)

    def query(self, values: Mapping[str, str]) -> list[tuple[str, str]]:
        """Return the query, whose values are encoded later with the request."""
        return [
            (name, _PLACEHOLDER.sub(lambda match: values[match[1]], text))
            for name, text in self._query.items()
        ]


class Protocol:
    """An API as a provider uses it: its requests, and the locations of values in its responses."""

    def __init__(self, spec: KindDefinitionSpec) -> None:
        """Compile a definition. Raises ``InvalidManifestError`` if it can never work."""
        rest = spec.rest
        assert rest is not None
        self.rest, self.digest = rest, spec.digest
        location = "spec.rest"
        self.document = Document(spec, rest)
        self.read = Request(rest.read, f"{location}.read", "GET", rest)
        self.create = Request(rest.create, f"{location}.create", "POST", rest)
        self.delete = Request(rest.delete, f"{location}.delete", "DELETE", rest)
        self.update = (
            None if rest.update is None else Request(rest.update, f"{location}.update", "PUT", rest)
        )
        self.list = (
            None if rest.list is None else Request(rest.list, f"{location}.list", "GET", rest)
        )
        self.has_server_ids = "uid" in self.read.placeholders
        self.name_at = Finder(rest.name.at, f"{location}.name.at", "object")
        self.uid_at = Finder(rest.uid, f"{location}.uid", "object") if rest.uid else None
        self.version_at = (
            Finder(rest.version, f"{location}.version", "object") if rest.version else None
        )
        self.marking = Marking(rest.metadata, f"{location}.metadata.at") if rest.metadata else None
        self.items_at = Finder(
            rest.list.items if rest.list else WHOLE_DOCUMENT, f"{location}.list.items", "answer"
        )
        self._filter = (
            Expression(rest.where.removeprefix("="), f"{location}.where", ("object",))
            if (rest.where)
            else None
        )
        self.shown_at = {
            name: Finder(call.shows, f"{location}.{name}.shows", "answer")
            for name, call in (("create", rest.create), ("update", rest.update))
            if call is not None and call.shows
        }
        self.read_at = Finder(rest.read.shows or WHOLE_DOCUMENT, f"{location}.read.shows", "answer")
        self.read_items_at = (
            Finder(rest.read.items, f"{location}.read.items", "answer") if rest.read.items else None
        )
        self._ready = Finder(rest.ready, f"{location}.ready", "object") if rest.ready else None
        self._outputs = {
            name: (Finder(each.at, f"{location}.outputs.{name}.at", "object"), each)
            for name, each in rest.outputs.items()
        }
        self.mark_at = (
            Finder(rest.changes.at, f"{location}.changes.at", "answer")
            if rest.changes and rest.changes.at
            else None
        )
        self._name_pattern: Pattern | None = None
        if rest.name.matches:
            try:
                self._name_pattern = read_pattern(rest.name.matches)
                self._name_pattern.is_in("a")
            except PatternError as error:
                raise InvalidManifestError(
                    f"{location}.name.matches: {rest.name.matches!r} {error}"
                ) from None
        _check(self)

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities that follow from the definition."""
        rest = self.rest
        return Capabilities(
            idempotency_keys=rest.idempotency is not None,
            deterministic_names=not self.has_server_ids,
            labels=rest.metadata is not None,
            conditional_writes=rest.condition in ("Version", "Body"),
            watch=rest.changes is not None,
            listing=self.list is not None,
            consistency_grace_seconds=rest.consistency_grace_seconds,
        )

    @property
    def rejects_duplicates(self) -> bool:
        """Whether the API rejects the creation of an existing object."""
        return bool(self.rest.create.conflict)

    @property
    def outputs(self) -> Mapping[str, Output]:
        """The outputs of objects, including ``ready`` if the definition has a readiness rule."""
        description = "Whether the object can be used."
        ready = {READY: Output("", "Boolean", description)} if self._ready else {}
        return {**self.rest.outputs, **ready}

    def has_token_within(self, steps: Sequence[str]) -> bool:
        """Return whether the next page's token may be below a path."""
        paging = None if self.rest.list is None else self.rest.list.paging
        if paging is None or paging.by != "Token":
            return False
        token_steps = Finder(paging.at, "", "answer").steps
        return token_steps is None or token_steps[: len(steps)] == tuple(steps)

    def name_problem(self, name: str) -> str | None:
        """Describe why this API cannot have an object with this name; None if it can."""
        if not 0 < len(name) <= MAX_NAME_CHARACTERS:
            return f"use 1 to {MAX_NAME_CHARACTERS} characters"
        is_path = "/" in name or changes_path(name)
        if is_path or not name.isprintable() or name != name.strip():
            return "do not use /, control characters, surrounding spaces, or the names . and .."
        if self._name_pattern is None or self._name_pattern.is_in(name):
            return None
        return f"it must match {self.rest.name.matches}"

    def is_of_kind(self, content: Any) -> bool:
        """Return whether a listed object has this kind. Raises ``UnusableObjectError``."""
        if self._filter is not None:
            try:
                if self._filter.value({"object": content}) is not True:
                    return False
            except ExpressionError as error:
                raise UnusableObjectError(str(error)) from None
        name = self._string_at(self.name_at, content)
        if name is None:
            raise UnusableObjectError(f"an object has no name at {self.name_at.text}")
        return self._is_named(name)

    def _is_named(self, name: str) -> bool:
        named = self.rest.name
        return name.startswith(named.prefix) and name.endswith(named.suffix)

    def api_name(self, external_name: str) -> str:
        """Return an object's name in the API."""
        return f"{self.rest.name.prefix}{external_name}{self.rest.name.suffix}"

    def convert(self, content: Any) -> ExternalObject:
        """Convert an API object to the log's format. Raises ``UnusableObjectError``."""
        marks = self.marking.read(content) if self.marking else None
        name, uid = self._read_identity(content, marks)
        return ExternalObject(
            name=name,
            fields=self.document.extract(content),
            uid=uid,
            version=self._string_at(self.version_at, content) if self.version_at else None,
            labels={} if marks is None else marks.labels,
            written_by=None if marks is None else marks.key,
            outputs=self._find_outputs(content),
        )

    def identify_item(self, item: Any) -> tuple[str | None, str | None] | None:
        """Return the name and uid of an unreadable item, each None if unknown.

        Return None if the name belongs to another kind.
        """
        content, is_whole = item, True
        if isinstance(item, UndecodableItem):
            content, is_whole = item.readable, False
        name = self._known_string(self.name_at, content, is_whole=is_whole)
        if name is None:
            return None, None
        if not self._is_named(name):
            return None
        named, uid = self.rest.name, None
        if self.uid_at is not None:
            uid = self._known_string(self.uid_at, content, is_whole=is_whole)
        elif self.marking is not None and (is_whole or self.marking.steps is not None):
            uid = self.marking.read(content).uid
        return name.removeprefix(named.prefix).removesuffix(named.suffix), uid

    def _known_string(self, finder: Finder, content: Any, *, is_whole: bool) -> str | None:
        """Return a string; None if an expression may be wrong, because members are missing."""
        if not is_whole and finder.steps is None:
            return None
        try:
            return self._string_at(finder, content)
        except UnusableObjectError:
            return None

    def _read_identity(self, content: Any, marks: ObjectMarks | None) -> tuple[str, str | None]:
        name, named = self._string_at(self.name_at, content), self.rest.name
        if name is None:
            raise UnusableObjectError(f"the object has no name at {self.name_at.text}")
        uid = None if marks is None else marks.uid
        if self.uid_at is not None:
            uid = self._string_at(self.uid_at, content)
            if uid is None:
                raise UnusableObjectError(f"the object has no id at {self.uid_at.text}")
        return name.removeprefix(named.prefix).removesuffix(named.suffix), uid

    def _string_at(self, finder: Finder, content: Any) -> str | None:
        try:
            value = finder.find(content)
        except ExpressionError as error:
            raise UnusableObjectError(str(error)) from None
        if value is MISSING or value is None or value == "":
            return None
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise UnusableObjectError(
                f"the value at {finder.text} is neither a string nor a number"
            )
        return str(value)

    def _find_outputs(self, content: Any) -> Fields:
        """Return the outputs, except those that are missing or have the wrong type."""
        outputs: Fields = {}
        for name, (finder, output) in self._outputs.items():
            try:
                outputs[name] = msgspec.convert(finder.find(content), OUTPUT_TYPES[output.type])
            except (ExpressionError, msgspec.ValidationError):
                continue
        if self._ready is not None:
            try:
                outputs[READY] = self._ready.find(content) is True
            except ExpressionError:
                outputs[READY] = False
        return outputs

    def rule_for(self, status: int, content: bytes) -> ErrorRule | None:
        """Return the definition's rule for a response, if there is one."""
        rules = [each for each in self.rest.errors if status in each.status]
        if not rules:
            return None
        text = decode_start(content, MAX_RULE_CHARACTERS)[:MAX_RULE_CHARACTERS].lower()
        return next((each for each in rules if each.text.lower() in text), None)


def _default_success(location: str, call: Call | Listing | Reading) -> tuple[int, ...]:
    if isinstance(call, Reading | Listing):
        return (200,)
    if location.endswith(".create"):
        return (200, 201) if call.shows else (200, 201, 204)
    return (200,) if call.shows else (200, 204)


def _check(protocol: Protocol) -> None:
    """Reject a definition that can never work, or would cause harm."""
    rest, location = protocol.rest, "spec.rest"
    if protocol.uid_at is None and protocol.marking is None:
        raise InvalidManifestError(
            f"{location}.uid: required without metadata, to distinguish objects with the same "
            "name; set uid to the path of the id, or set metadata"
        )
    if "uid" in protocol.create.placeholders:
        raise InvalidManifestError(
            f"{location}.create: {{uid}} is unknown before the object exists; remove it"
        )
    if protocol.list is not None and protocol.list.placeholders:
        raise InvalidManifestError(f"{location}.list: must list all objects; remove {{...}}")
    if protocol.has_server_ids:
        _check_server_ids(protocol, location)
    if rest.read.absent and protocol.list is None and rest.read.confirm is None:
        raise InvalidManifestError(
            f"{location}.read.confirm: required, because an incorrect endpoint also returns "
            f"{rest.read.absent[0]}; set it to a path that succeeds only if the collection "
            f"exists, or set {location}.list"
        )
    if rest.read.shows and rest.read.items:
        raise InvalidManifestError(f"{location}.read: set shows or items, not both")
    if rest.condition in ("Version", "Body") and protocol.version_at is None:
        raise InvalidManifestError(
            f"{location}.version: required with condition {rest.condition}; set it to the path of "
            "the version"
        )
    if rest.name.matches and not protocol.name_at.text:
        raise InvalidManifestError(f"{location}.name.at: required; set it to the path of the name")
    _check_paging(rest, location)
    _check_writes(protocol, location)
    if READY in rest.outputs and rest.ready:
        raise InvalidManifestError(
            f"{location}.outputs.{READY}: {location}.ready already sets this output; "
            "remove one of them"
        )
    for number, rule in enumerate(rest.errors):
        if not rule.status:
            raise InvalidManifestError(
                f"{location}.errors[{number}].status: must have at least one code"
            )


def _check_server_ids(protocol: Protocol, location: str) -> None:
    if protocol.uid_at is None:
        raise InvalidManifestError(
            f"{location}.uid: required, because read uses {{uid}}; set it to the path of the id"
        )
    if "create" not in protocol.shown_at:
        raise InvalidManifestError(
            f"{location}.create.shows: required, because the API creates the id; set it to the "
            "path of the object in the response"
        )
    if protocol.list is None:
        raise InvalidManifestError(
            f"{location}.list: required, because the API creates the ids and only a listing finds "
            "an object by name"
        )


def _check_paging(rest: RestSpec, location: str) -> None:
    paging = None if rest.list is None else rest.list.paging
    if paging is None:
        return
    if paging.by != "Link" and paging.parameter is None:
        raise InvalidManifestError(
            f"{location}.list.paging.parameter: required; set it to the query parameter for the "
            f"{paging.by.lower()}"
        )
    if paging.by == "Token" and not paging.at:
        raise InvalidManifestError(
            f"{location}.list.paging.at: required; set it to the path of the next page's token "
            "in the response"
        )
    if paging.by == "Token":
        Finder(paging.at, f"{location}.list.paging.at", "answer")


def _check_writes(protocol: Protocol, location: str) -> None:
    rest = protocol.rest
    for name, call in (("create", rest.create), ("update", rest.update)):
        if call is None:
            continue
        if call.body is None:
            _check_default_body(protocol, f"{location}.{name}.body")
            continue
        expressions = " ".join(_expressions(call.body))
        if protocol.marking is not None and _METADATA.search(expressions) is None:
            raise InvalidManifestError(
                f"{location}.{name}.body: must include metadata, because spec.rest.metadata is set"
            )
        if rest.condition == "Body" and name == "update" and "version" not in expressions:
            raise InvalidManifestError(
                f"{location}.{name}.body: must include version, because condition is Body"
            )
    if protocol.marking is not None and protocol.marking.is_map:
        top = protocol.marking.steps[:1] if protocol.marking.steps else ()
        if tuple(top) and ".".join(protocol.marking.steps or ()) in protocol.document.paths:
            raise InvalidManifestError(
                f"{location}.metadata.at: the document also writes this path; use another path"
            )


def _check_default_body(protocol: Protocol, location: str) -> None:
    """Reject a missing body if the locations to write are expressions."""
    finders = [protocol.name_at.steps]
    if protocol.marking is not None:
        finders.append(protocol.marking.steps)
    if not all(finders):
        raise InvalidManifestError(
            f"{location}: required, because the paths of the name and the metadata are expressions "
            "or the whole object; write both in the body"
        )
    if protocol.rest.condition == "Body" and not (
        protocol.version_at is not None and protocol.version_at.steps
    ):
        raise InvalidManifestError(
            f"{location}: required with condition Body, because the path of the version is an "
            "expression; write the version in the body"
        )


def _expressions(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        if is_expression(node):
            yield node
    elif isinstance(node, dict):
        for each in cast("dict[str, Any]", node).values():
            yield from _expressions(each)
    elif isinstance(node, list):
        for each in cast("list[Any]", node):
            yield from _expressions(each)
