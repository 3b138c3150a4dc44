"""`reconciler diff`: show the changes of one resource between two moments, by field."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from cyclopts import Parameter
from nats.aio.client import Client

from events.external import ExternalObject
from events.names import ResourceKey
from projections.ownership import OwnershipRow, ownership_of
from projections.read_models import ReadModels
from projections.status import StatusRow
from reconciler.cli.connection import HERE, Connection, bus, run_async
from reconciler.cli.console import print_table
from reconciler.cli.errors import CommandError, UsageError
from reconciler.cli.exits import Exit
from reconciler.cli.naming import Reference, parse_reference
from reconciler.cli.options import Files, Integer, Name, Namespace, Output, Resource
from reconciler.cli.output import Format, print_structured
from reconciler.cli.past.declared import Generations, manifest_of
from reconciler.cli.past.knowledge import known_object, whole_past
from reconciler.cli.past.summaries import last_declared, show
from reconciler.cli.search import find_resource
from reconciler.cli.standard_streams import tolerating_closed_output
from reconciler.cli.when import At
from reconciler.ports import StoredEvent
from reconciler.sdk.history import Past
from reconciler.sdk.moments import Moment, When, moment

Part = Literal["declared", "object", "status", "ownership"]

_MOVES_ALWAYS = frozenset(
    {
        "version",
        "position",
        "changed_at",
        "since",
        "labels",
        "observed_at",
        "retry_seconds",
        "throttled_seconds",
        "unmet_since",
    }
)
_OF_OWNERSHIP = frozenset({"owned_by", "owned_since", "owned_reason"})
_SHOWN_ELSEWHERE = frozenset({"namespace", "kind", "name", "outputs", "retiring_outputs"})
_DIGESTS = frozenset({"observed_digest", "pending_digest", "retiring_digest", "foreign_identity"})
_OF_NO_STATUS = _MOVES_ALWAYS | _OF_OWNERSHIP | _SHOWN_ELSEWHERE | _DIGESTS
# A touch is not a difference, as for observers.
_OF_NO_OBJECT = frozenset({"version", "written_by"})
_NOTHING: tuple[Any, ...] = ("", None, {}, [])
_IDENTITY = frozenset({"kind", "metadata.name", "metadata.namespace"})


class Change(msgspec.Struct, frozen=True, rename="camel"):
    """One changed field. A missing value means that the field does not exist."""

    part: Part
    path: str
    before: Any = msgspec.UNSET
    after: Any = msgspec.UNSET


class Changes(msgspec.Struct, frozen=True, rename={"since": "from", "until": "to"}):
    """The changes of a resource between two moments."""

    resource: str
    since: Moment
    until: Moment
    changes: list[Change]


class _End(NamedTuple):
    """Start or end of the compared time: a moment, or the end of a generation; otherwise now."""

    when: When | None
    generation: int | None


def diff(
    resource: Resource | None = None,
    name: Name = None,
    /,
    *,
    file: Files = (),
    namespace: Namespace = None,
    from_: Annotated[At, Parameter(name="--from")] = None,
    to: At = None,
    from_generation: Integer | None = None,
    to_generation: Integer | None = None,
    output: Output = "table",
    connection: Connection = HERE,
) -> int:
    """Show what changed in one resource between two points in time.

    The command compares the declaration, the observed object, the status and
    the ownership. With -f, it shows instead what the files would change, as
    `reconciler plan` does.

    Exit status: 0 no difference, 2 differences, 1 an error.

    For example:

        reconciler diff foo --from 2h
        reconciler diff Shape/foo --from 1234 --to 2026-01-31T12:00:05Z
        reconciler diff foo --from-generation 2 --to-generation 3
        reconciler diff foo --from 7d -o json | jq '.changes[].path'
        reconciler diff -f shapes/

    Parameters
    ----------
    from_
        Start: a log position (1234), a time (2026-01-31T12:00:05Z; UTC without a zone) or
        a time span before now (30m, 2h, 7d).
    to
        End, in the same forms. Default: now.
    from_generation
        Instead of --from: the end of this generation.
    to_generation
        Instead of --to: the end of this generation.
    """
    if file:
        return _of_files(file, resource, namespace, output, connection)
    if resource is None:
        raise UsageError("diff: no resource given; give a resource, or -f FILE")
    if (from_ is None) == (from_generation is None):
        raise UsageError("--from and --from-generation: give exactly one of them")
    if to is not None and to_generation is not None:
        raise UsageError("--to and --to-generation: give only one of them")
    reference = parse_reference(resource, namespace, name)
    ends = (_End(from_, from_generation), _End(to, to_generation))
    differences = run_async(_diff(connection, reference, ends))
    with tolerating_closed_output():
        if output == "table":
            _print(differences)
        else:
            print_structured(differences, output)
    return Exit.DIFFERENT if differences.changes else Exit.OK


def _of_files(
    file: Files, resource: str | None, namespace: str | None, output: Format, connection: Connection
) -> int:
    from reconciler.cli.plan import plan  # noqa: PLC0415 - not for the history

    if resource is not None:
        raise UsageError("-f compares manifests in files; remove either the resource or -f")
    return plan(file=file, namespace=namespace or "default", output=output, connection=connection)


async def _diff(connection: Connection, reference: Reference, ends: tuple[_End, _End]) -> Changes:
    async with bus(connection) as nc:
        key = await find_resource(nc, reference)
        past = await whole_past(nc, key)
        since, until = [await _moment(nc, key, past, end) for end in ends]
    if past.damage is not None and past.damage.position <= max(since.position, until.position):
        damage = f"the log is damaged ({past.damage})"
        sys.stderr.write(f"{damage}; only the events before the damage are compared\n")
    old, new = past.until(since.position).events, past.until(until.position).events
    if past.events and not old and not new:
        first = past.events[0].position
        raise CommandError(f"{key} existed at neither time; its first event is at position {first}")
    return Changes(str(key), since, until, list(changes(key, old, new)))


async def _moment(nc: Client, key: ResourceKey, past: Past, end: _End) -> Moment:
    if end.generation is None:
        return await moment(nc, end.when)
    return await moment(nc, Generations(key, past.events).end(end.generation))


def changes(
    key: ResourceKey, before: Sequence[StoredEvent], after: Sequence[StoredEvent]
) -> Iterator[Change]:
    """Yield the differences between two parts of a resource's history, from its first event."""
    old, new = _parts(key, before), _parts(key, after)
    for part, fields in old.items():
        others = new[part]
        for path in [*fields, *(path for path in others if path not in fields)]:
            was, is_now = fields.get(path, msgspec.UNSET), others.get(path, msgspec.UNSET)
            if _encoded(was) != _encoded(is_now):  # in Python, 1, 1.0 and True are equal
                yield Change(part, path, was, is_now)


def _parts(key: ResourceKey, history: Sequence[StoredEvent]) -> dict[Part, dict[str, Any]]:
    """Return all compared values by path."""
    models, row = ReadModels(), StatusRow(key.namespace, key.kind, key.name)
    for position, event in history:
        # Also a row whose last state is a deleted object.
        row = models.apply(position, event)
    declared, known = last_declared(history), known_object(history)
    manifest: dict[str, Any] = {}
    if declared is not None:
        manifest = msgspec.to_builtins(manifest_of(key, declared))
    content = None if known is None else known.object
    owned = ownership_of(row) or OwnershipRow()
    return {
        "declared": {path: value for path, value in _flat(manifest) if path not in _IDENTITY},
        "object": {} if content is None else dict(_flat(_plain(content, _OF_NO_OBJECT))),
        "status": dict(_flat(_plain(row, _OF_NO_STATUS))),
        "ownership": dict(_flat(_plain(owned, frozenset()))),
    }


def _encoded(value: Any) -> bytes:
    return b"" if value is msgspec.UNSET else msgspec.json.encode(value, order="deterministic")


def _plain(struct: ExternalObject | StatusRow | OwnershipRow, without: frozenset[str]) -> Any:
    """Return a struct's fields under their names in JSON, with conditions by type."""
    plain = {
        field.encode_name: msgspec.to_builtins(getattr(struct, field.name), str_keys=True)
        for field in msgspec.structs.fields(struct)
        if field.name not in without
    }
    if isinstance(struct, StatusRow):
        plain["conditions"] = {
            each.type: {"status": each.status, "reason": each.reason, "message": each.message}
            for each in struct.conditions
        }
    return plain


def _flat(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        if isinstance(inner, dict) and inner:
            yield from _flat(inner, f"{path}{name}.")  # pyright: ignore[reportUnknownArgumentType]
        elif inner not in _NOTHING:
            yield f"{path}{name}", inner


def _print(differences: Changes) -> None:
    sys.stdout.write(
        f"{differences.resource}\nfrom {differences.since}\nto   {differences.until}\n"
    )
    if not differences.changes:
        sys.stdout.write("no differences\n")
        return
    rows = [
        (each.part, each.path, _shown(each.before), _shown(each.after))
        for each in differences.changes
    ]
    print_table(("PART", "FIELD", "BEFORE", "AFTER"), rows)


def _shown(value: Any) -> str:
    return "not set" if value is msgspec.UNSET else show(value)
