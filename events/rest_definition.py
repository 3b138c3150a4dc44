"""How a JSON API over HTTP is called: the part ``rest`` of a ``KindDefinition`` (ADR 0049).

A *place* is where something is found: a path such as ``metadata.uid`` or ``items.0.id``, ``.`` for
the whole, or a CEL expression behind ``=``. A *template* is JSON in which a text behind ``=`` is
such an expression. What they mean, and their bounds, is in `infra.providers.rest`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from events.manifest import Fields, ManifestStruct

MAX_TEXT_CHARACTERS: Final = 1000
MAX_ENTRIES: Final = 64

Place = Annotated[str, msgspec.Meta(max_length=MAX_TEXT_CHARACTERS)]
_Path = Annotated[
    str, msgspec.Meta(max_length=MAX_TEXT_CHARACTERS, pattern="^(/|(?!.))")
]  # empty: the endpoint
_Word = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
_Header = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9-]{1,64}(?!\n)$")]
_Headers = Annotated[dict[_Header, _Word], msgspec.Meta(max_length=MAX_ENTRIES)]
_Query = Annotated[dict[_Word, str], msgspec.Meta(max_length=MAX_ENTRIES)]
_Status = Annotated[int, msgspec.Meta(ge=200, le=599)]
Statuses = Annotated[tuple[_Status, ...], msgspec.Meta(max_length=MAX_ENTRIES)]
_Texts = Annotated[tuple[Place, ...], msgspec.Meta(max_length=MAX_ENTRIES)]
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
RuleClass = Literal["Transient", "Throttled", "Unknown", "Permanent", "Conflict", "Absent"]
OutputType = Literal["String", "Integer", "Number", "Boolean", "Strings"]


class Call(ManifestStruct, frozen=True):
    """One request, and what its answers mean.

    ``path`` and the values of ``query`` may hold ``{name}`` and ``{uid}``, which are URL-encoded.
    ``shows`` is the place of the object in the answer; without it the answer shows none.
    """

    path: _Path
    method: Method | None = None
    query: _Query = {}  # noqa: RUF012 - msgspec copies it
    headers: _Headers = {}  # noqa: RUF012
    body: Any = None
    success: Statuses = ()
    absent: Statuses = (404,)
    conflict: Statuses = ()
    shows: Place = ""


class Paging(ManifestStruct, frozen=True):
    """How a listing goes on behind its first page.

    ``parameter`` of the query holds the token, the number of the page (from ``first`` on) or the
    offset; ``at`` is the token's place in the answer. ``size`` is the parameter of how many are
    wanted, at most ``max_size``.
    """

    by: Literal["Token", "Link", "Page", "Offset"]
    parameter: _Word | None = None
    at: Place = ""
    size: _Word | None = None
    max_size: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1000
    first: Annotated[int, msgspec.Meta(ge=0, le=1)] = 1


class Listing(ManifestStruct, frozen=True):
    """The request that lists: ``items`` is the place of the objects in the answer."""

    path: _Path
    method: Method | None = None
    query: _Query = {}  # noqa: RUF012
    headers: _Headers = {}  # noqa: RUF012
    body: Any = None
    success: Statuses = ()
    items: Place = "."
    paging: Paging | None = None


class Reading(ManifestStruct, frozen=True):
    """The request that reads one object: it is at ``shows``, or one of those at ``items``.

    ``confirm`` is a path that answers only if the collection is there: any gateway says 404.
    """

    path: _Path
    method: Method | None = None
    query: _Query = {}  # noqa: RUF012
    headers: _Headers = {}  # noqa: RUF012
    body: Any = None
    success: Statuses = ()
    absent: Statuses = (404,)
    shows: Place = ""
    items: Place = ""
    confirm: _Path | None = None


class NamePlace(ManifestStruct, frozen=True):
    """Where an object's name is, and what of it belongs to the API alone.

    ``prefix`` and ``suffix`` are put around a name for the API, and taken off what it shows.
    ``matches`` is a regular expression of the names that the API can have, of linear time.
    """

    at: Place = "name"
    prefix: str = ""
    suffix: str = ""
    matches: Annotated[str, msgspec.Meta(max_length=200)] = ""


class Marks(ManifestStruct, frozen=True):
    """Where an object keeps whose it is: our labels, its uid and the key of its last action.

    As a ``Map`` of texts, or as one ``Text``, which a template knows as ``mark``.
    """

    at: Place
    form: Literal["Map", "Text"] = "Map"


class Idempotency(ManifestStruct, frozen=True):
    """The header that has the key, and the one by which the API says that an answer was kept."""

    header: _Header
    replayed: _Header | None = None


class ErrorRule(ManifestStruct, frozen=True):
    """What an answer means that has one of these codes and holds ``text``, in any case."""

    status: Statuses
    means: RuleClass
    text: Annotated[str, msgspec.Meta(max_length=200)] = ""


class Output(ManifestStruct, frozen=True):
    """A value that objects give to others."""

    at: Place
    type: OutputType = "String"
    about: Annotated[str, msgspec.Meta(max_length=300)] = ""


class ChangeMark(ManifestStruct, frozen=True):
    """A cheap request whose answer changes with the objects: the mark is at ``at``, or its ETag."""

    path: _Path
    query: _Query = {}  # noqa: RUF012
    at: Place = ""


class RestSpec(ManifestStruct, frozen=True):
    """How objects look in the API, and which requests read and write them.

    ``document`` is a template over ``spec``: what an object should have, in the API's own words;
    without it each field is at its ``to``. The same places are read back, or ``shown`` says from
    where. ``unordered`` are lists whose order means nothing, ``immutable`` places that cannot be
    changed. ``where`` says of a listed object whether it is one of this kind. ``condition``: what
    binds a write to the version that was read. ``headers`` go with every request.
    """

    read: Reading
    create: Call
    delete: Call
    update: Call | None = None
    list: Listing | None = None
    document: Fields | None = None
    shown: Annotated[dict[_Word, Place], msgspec.Meta(max_length=MAX_ENTRIES)] = {}  # noqa: RUF012
    unordered: _Texts = ()
    immutable: _Texts = ()
    where: Place = ""
    name: NamePlace = NamePlace()
    uid: Place = ""
    version: Place = ""
    condition: Literal["Version", "ETag", "Body"] | None = None
    marks: Marks | None = None
    idempotency: Idempotency | None = None
    credential_header: _Header | None = None
    headers: _Headers = {}  # noqa: RUF012
    errors: Annotated[tuple[ErrorRule, ...], msgspec.Meta(max_length=MAX_ENTRIES)] = ()
    ready: Place = ""
    outputs: Annotated[dict[_Word, Output], msgspec.Meta(max_length=MAX_ENTRIES)] = {}  # noqa: RUF012
    changes: ChangeMark | None = None
    consistency_grace_seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 0.0
