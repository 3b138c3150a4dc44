"""Calls to a JSON API over HTTP: ``rest`` of a ``KindDefinition`` (ADR 0049).

A *path* is the location of a value: ``metadata.uid``, ``items.0.id``, ``.`` for the whole value, or
a CEL expression after ``=``. A *template* is JSON in which a string with a leading ``=`` is such an
expression. `infra.providers.rest` defines their variables and limits.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from events.manifest import Fields, ManifestStruct

MAX_TEXT_CHARACTERS: Final = 1000
MAX_ENTRIES: Final = 64

BoundedText = Annotated[str, msgspec.Meta(max_length=MAX_TEXT_CHARACTERS)]
_Path = Annotated[
    str, msgspec.Meta(max_length=MAX_TEXT_CHARACTERS, pattern="^(/|(?!.))")
]  # empty: the endpoint
_Word = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
_Header = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9-]{1,64}(?!\n)$")]
_Headers = Annotated[dict[_Header, _Word], msgspec.Meta(max_length=MAX_ENTRIES)]
_Query = Annotated[dict[_Word, str], msgspec.Meta(max_length=MAX_ENTRIES)]
_Status = Annotated[int, msgspec.Meta(ge=200, le=599)]
Statuses = Annotated[tuple[_Status, ...], msgspec.Meta(max_length=MAX_ENTRIES)]
_Texts = Annotated[tuple[BoundedText, ...], msgspec.Meta(max_length=MAX_ENTRIES)]
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
RuleClass = Literal["NotDone", "Refused", "Conflict", "Absent", "Throttled", "Unknown"]
OutputType = Literal["String", "Integer", "Number", "Boolean", "Strings"]


class Call(ManifestStruct, frozen=True):
    """One request, and the meaning of its responses.

    ``path`` and the values of ``query`` may contain ``{name}`` and ``{uid}``, which are
    URL-encoded. ``shows`` is the path of the object in the response. If it is unset, the response
    does not contain the object.
    """

    path: Annotated[
        _Path,
        msgspec.Meta(
            description="Path, appended to the endpoint. {name} and {uid} are replaced. If it is "
            "empty, the endpoint itself is called."
        ),
    ]
    method: Annotated[
        Method | None,
        msgspec.Meta(
            description="HTTP method. Default: POST for create, PUT for update, DELETE for delete."
        ),
    ] = None
    query: Annotated[
        _Query, msgspec.Meta(description="Query parameters. They may contain {name} and {uid}.")
    ] = {}  # noqa: RUF012 - msgspec copies it
    headers: Annotated[_Headers, msgspec.Meta(description="Headers of this request.")] = {}  # noqa: RUF012
    body: Annotated[
        Any,
        msgspec.Meta(
            description="Template of the JSON body. Default: the document, with name and "
            "metadata at their paths."
        ),
    ] = None
    success: Annotated[
        Statuses,
        msgspec.Meta(
            description="Status codes that indicate success. Default: 200, for create also 201, "
            "and without shows also 204."
        ),
    ] = ()
    absent: Annotated[
        Statuses, msgspec.Meta(description="Status codes that mean that the object does not exist.")
    ] = (404,)
    conflict: Annotated[
        Statuses,
        msgspec.Meta(
            description="Status codes that mean that the object already exists. If create has"
            " none, Reconciler reads the object before it creates one."
        ),
    ] = ()
    shows: Annotated[
        BoundedText,
        msgspec.Meta(
            description="Path of the object in the response; . is the whole response. Without "
            "it, Reconciler reads the object after the call."
        ),
    ] = ""


class Paging(ManifestStruct, frozen=True):
    """How to request the next page of a listing.

    The query parameter ``parameter`` contains the token, the page number (starting at ``first``) or
    the offset. ``at`` is the path of the token in the response. The ``size`` parameter contains the
    page size, at most ``max_size``.
    """

    by: Annotated[
        Literal["Token", "Link", "Page", "Offset"],
        msgspec.Meta(
            description="Token: a token in the response. Link: the Link header. Page: "
            "numbered pages. Offset: offsets."
        ),
    ]
    parameter: Annotated[
        _Word | None,
        msgspec.Meta(description="Query parameter for the token, the page number or the offset."),
    ] = None
    at: Annotated[BoundedText, msgspec.Meta(description="Path of the token in the response.")] = ""
    size: Annotated[
        _Word | None, msgspec.Meta(description="Query parameter for the page size.")
    ] = None
    max_size: Annotated[int, msgspec.Meta(ge=1, le=100_000, description="Maximum page size.")] = (
        1000
    )
    first: Annotated[int, msgspec.Meta(ge=0, le=1, description="Number of the first page.")] = 1


class Listing(ManifestStruct, frozen=True):
    """Request that lists all objects. ``items`` is the path of the objects in the response."""

    path: Annotated[
        _Path,
        msgspec.Meta(
            description="Path, appended to the endpoint. If it is empty, the endpoint itself is "
            "called."
        ),
    ]
    method: Annotated[Method | None, msgspec.Meta(description="HTTP method. Default: GET.")] = None
    query: Annotated[_Query, msgspec.Meta(description="Query parameters.")] = {}  # noqa: RUF012
    headers: Annotated[_Headers, msgspec.Meta(description="Headers of this request.")] = {}  # noqa: RUF012
    body: Annotated[Any, msgspec.Meta(description="Template of the JSON body.")] = None
    success: Annotated[
        Statuses, msgspec.Meta(description="Status codes that indicate success. Default: 200.")
    ] = ()
    items: Annotated[
        BoundedText,
        msgspec.Meta(description="Path of the objects in the response; . is the whole response."),
    ] = "."
    paging: Annotated[
        Paging | None,
        msgspec.Meta(
            description="How to request the next page. Without it, one response contains all "
            "objects."
        ),
    ] = None


class Reading(ManifestStruct, frozen=True):
    """Request that reads one object, at ``shows`` or in the list at ``items``.

    ``confirm`` is a URL path that returns success only if the collection exists, because any
    gateway may respond with 404.
    """

    path: Annotated[
        _Path,
        msgspec.Meta(
            description="Path, appended to the endpoint. {name} and {uid} are replaced; with "
            "{uid}, the API assigns the ids."
        ),
    ]
    method: Annotated[Method | None, msgspec.Meta(description="HTTP method. Default: GET.")] = None
    query: Annotated[
        _Query, msgspec.Meta(description="Query parameters. They may contain {name} and {uid}.")
    ] = {}  # noqa: RUF012
    headers: Annotated[_Headers, msgspec.Meta(description="Headers of this request.")] = {}  # noqa: RUF012
    body: Annotated[Any, msgspec.Meta(description="Template of the JSON body.")] = None
    success: Annotated[
        Statuses, msgspec.Meta(description="Status codes that indicate success. Default: 200.")
    ] = ()
    absent: Annotated[
        Statuses, msgspec.Meta(description="Status codes that mean that the object does not exist.")
    ] = (404,)
    shows: Annotated[
        BoundedText,
        msgspec.Meta(
            description="Path of the object in the response. Default: the whole response."
        ),
    ] = ""
    items: Annotated[
        BoundedText,
        msgspec.Meta(description="Path of a list that contains the object, instead of shows."),
    ] = ""
    confirm: Annotated[
        _Path | None,
        msgspec.Meta(
            description="URL path that returns success only if the collection exists. Without it, "
            "the first page of list must be read successfully before absence is proven."
        ),
    ] = None


class NameField(ManifestStruct, frozen=True):
    """Where an object stores its name, and which parts of the name only the API uses.

    ``prefix`` and ``suffix`` are added to a name for the API, and removed from names that it
    returns. ``matches`` is a regular expression for valid names. It is evaluated in linear time.
    """

    at: Annotated[BoundedText, msgspec.Meta(description="Path of the name in the object.")] = "name"
    prefix: Annotated[str, msgspec.Meta(description="Text that precedes the name in the API.")] = ""
    suffix: Annotated[
        str,
        msgspec.Meta(description="Text that follows the name in the API, such as .example.org."),
    ] = ""
    matches: Annotated[
        str,
        msgspec.Meta(
            max_length=200,
            description="Names that the API accepts: a regular expression with ^ and $.",
        ),
    ] = ""


class MetadataField(ManifestStruct, frozen=True):
    """Where an object stores its metadata: labels, uid and the key of its last action.

    It is a ``Map`` of strings, or one ``Text``. Templates read it as ``metadata``.
    """

    at: Annotated[BoundedText, msgspec.Meta(description="Path of the metadata in the object.")]
    form: Annotated[
        Literal["Map", "Text"],
        msgspec.Meta(
            description="Map: a map of strings, such as labels. Text: one string, such as a "
            "comment."
        ),
    ] = "Map"


class Idempotency(ManifestStruct, frozen=True):
    """Request header with the idempotency key, and response header that marks a stored response."""

    header: Annotated[
        _Header, msgspec.Meta(description="Request header for the key of the action.")
    ]
    replayed: Annotated[
        _Header | None,
        msgspec.Meta(
            description="Response header that indicates that the API is repeating a stored "
            "response."
        ),
    ] = None


class ErrorRule(ManifestStruct, frozen=True):
    """Meaning of responses with one of these codes that contain ``text``, case-insensitively."""

    status: Annotated[Statuses, msgspec.Meta(description="Status codes that the rule applies to.")]
    means: Annotated[RuleClass, msgspec.Meta(description="Meaning of the response.")]
    text: Annotated[
        str,
        msgspec.Meta(
            max_length=200,
            description="String that the first 65,536 characters of the response contain, "
            "case-insensitive. Default: any response.",
        ),
    ] = ""


class Output(ManifestStruct, frozen=True):
    """A value of an object that other resources can reference."""

    at: Annotated[BoundedText, msgspec.Meta(description="Path of the value in the object.")]
    type: Annotated[OutputType, msgspec.Meta(description="Type of the value.")] = "String"
    about: Annotated[
        str,
        msgspec.Meta(max_length=300, description="Description, as `reconciler explain` shows it."),
    ] = ""


class ChangeMark(ManifestStruct, frozen=True):
    """A cheap request whose response changes with the objects: at ``at``, or in its ETag."""

    path: Annotated[_Path, msgspec.Meta(description="Path, appended to the endpoint.")]
    query: Annotated[_Query, msgspec.Meta(description="Query parameters.")] = {}  # noqa: RUF012
    at: Annotated[
        BoundedText,
        msgspec.Meta(
            description="Path of the value in the response. Default: the ETag of the response."
        ),
    ] = ""


class RestSpec(ManifestStruct, frozen=True):
    """How objects look in the API, and which requests read and write them.

    ``document`` is a template over ``spec``: the desired object in the API's own format. Without
    it, each field is written to its ``to``. It is read there, or at its path in ``shown``. The
    lists in ``unordered`` have no significant order. ``immutable`` paths cannot change. ``where``
    determines whether a listed object is of this kind. ``condition`` restricts a write to the
    version that was read. Every request contains ``headers``.
    """

    read: Annotated[Reading, msgspec.Meta(description="Request that reads one object.")]
    create: Annotated[Call, msgspec.Meta(description="Request that creates an object.")]
    delete: Annotated[Call, msgspec.Meta(description="Request that deletes an object.")]
    update: Annotated[
        Call | None,
        msgspec.Meta(
            description="Request that updates an object. Without it, every change replaces "
            "the object."
        ),
    ] = None
    list: Annotated[
        Listing | None,
        msgspec.Meta(
            description="Request that lists all objects. Without it, Reconciler reads "
            "declared objects one by one, and does not detect undeclared ones."
        ),
    ] = None
    document: Annotated[
        Fields | None,
        msgspec.Meta(
            description="Template over spec: the declared object in the API's format. Without"
            " it, Reconciler writes each field to its path (to)."
        ),
    ] = None
    shown: Annotated[
        dict[_Word, BoundedText],
        msgspec.Meta(
            max_length=MAX_ENTRIES,
            description="Path at which the API returns a field of the document, if it differs.",
        ),
    ] = {}  # noqa: RUF012
    unordered: Annotated[_Texts, msgspec.Meta(description="Paths of unordered lists.")] = ()
    immutable: Annotated[
        _Texts,
        msgspec.Meta(
            description="Paths that the API cannot change. Changing one replaces the object."
        ),
    ] = ()
    where: Annotated[
        BoundedText,
        msgspec.Meta(
            description="Expression over object: whether a listed object is of this kind. "
            "Default: every listed object is."
        ),
    ] = ""
    name: Annotated[NameField, msgspec.Meta(description="Name of the object in the API.")] = (
        NameField()
    )
    uid: Annotated[BoundedText, msgspec.Meta(description="Path of the API's own id.")] = ""
    version: Annotated[BoundedText, msgspec.Meta(description="Path of the version.")] = ""
    condition: Annotated[
        Literal["Version", "ETag", "Body"] | None,
        msgspec.Meta(
            description="Form of the condition on the version that was read. Version: "
            "If-Match contains the version. ETag: If-Match contains the ETag of the "
            "preceding read. Body: the body contains the version."
        ),
    ] = None
    metadata: Annotated[
        MetadataField | None,
        msgspec.Meta(
            description="Where an object stores its metadata: the labels, including the owner "
            "label, the uid and the key of its last action."
        ),
    ] = None
    idempotency: Annotated[
        Idempotency | None, msgspec.Meta(description="Idempotency keys, if the API supports them.")
    ] = None
    credential_header: Annotated[
        _Header | None,
        msgspec.Meta(
            description="Header for the secret of credentialsRef. Default: Authorization, as "
            "a bearer token."
        ),
    ] = None
    headers: Annotated[
        _Headers,
        msgspec.Meta(description="Headers of all requests. They must not contain a secret."),
    ] = {}  # noqa: RUF012
    errors: Annotated[
        tuple[ErrorRule, ...],
        msgspec.Meta(
            max_length=MAX_ENTRIES,
            description="Rules for the meaning of responses. The first matching rule applies.",
        ),
    ] = ()
    ready: Annotated[
        BoundedText,
        msgspec.Meta(
            description="Path that is true when the object is ready. Default: an object is "
            "always ready."
        ),
    ] = ""
    outputs: Annotated[
        dict[_Word, Output],
        msgspec.Meta(
            max_length=MAX_ENTRIES,
            description="Values for other resources. The log records them, so do not use counters.",
        ),
    ] = {}  # noqa: RUF012
    changes: Annotated[
        ChangeMark | None,
        msgspec.Meta(
            description="Request whose response changes whenever an object changes. "
            "Reconciler sends it once per second."
        ),
    ] = None
    consistency_grace_seconds: Annotated[
        float,
        msgspec.Meta(ge=0, le=3600, description="Seconds that may pass before reads show a write."),
    ] = 0.0
