"""`reconciler diff`: show the fields of one resource that changed between two moments."""

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
from reconciler.cli.connection import DEFAULT_CONNECTION, Connection, bus, run_async
from reconciler.cli.console import print_table
from reconciler.cli.errors import CommandError, UsageError
from reconciler.cli.exits import Exit
from reconciler.cli.naming import Reference, parse_reference
from reconciler.cli.options import Files, Integer, Name, Namespace, Output, Resource
from reconciler.cli.output import Format, print_structured
from reconciler.cli.past.generations import Generations, build_manifest
from reconciler.cli.past.past_state import last_observation, read_past
from reconciler.cli.past.summaries import format_short, last_declaration
from reconciler.cli.search import find_resource
from reconciler.cli.standard_streams import tolerating_closed_output
from reconciler.cli.when import At
from reconciler.ports import StoredEvent
from reconciler.sdk.history import ResourceHistory
from reconciler.sdk.moments import Moment, When, moment

Part = Literal["declared", "object", "status", "ownership"]

_VOLATILE_FIELDS = frozenset(
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
_OWNERSHIP_FIELDS = frozenset({"owned_by", "owned_since", "owned_reason"})
_FIELDS_SHOWN_ELSEWHERE = frozenset({"namespace", "kind", "name", "outputs", "retiring_outputs"})
_DIGEST_FIELDS = frozenset(
    {"observed_digest", "pending_digest", "retiring_digest", "foreign_identity"}
)
_IGNORED_STATUS_FIELDS = (
    _VOLATILE_FIELDS | _OWNERSHIP_FIELDS | _FIELDS_SHOWN_ELSEWHERE | _DIGEST_FIELDS
)
# As in observers, a new version without a changed field is not a difference.
_IGNORED_OBJECT_FIELDS = frozenset({"version", "written_by"})
_EMPTY_VALUES: tuple[Any, ...] = ("", None, {}, [])
_IDENTITY_FIELDS = frozenset({"kind", "metadata.name", "metadata.namespace"})


class Change(msgspec.Struct, frozen=True, rename="camel"):
    """One changed field. A missing value means that the field does not exist."""

    part: Part
    path: str
    before: Any = msgspec.UNSET
    after: Any = msgspec.UNSET


class Changes(msgspec.Struct, frozen=True, rename={"since": "from", "until": "to"}):
    """The changes to a resource between two moments."""

    resource: str
    since: Moment
    until: Moment
    changes: list[Change]


class _Endpoint(NamedTuple):
    """Start or end of the compared period: a moment, the end of a generation, or else now."""

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
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Show what changed in one resource between two points in time.

    The command compares the declaration, the observed object, the status and
    the ownership. With -f, it shows what the files would change instead, like
    `reconciler plan`.

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
        Start: a log position (1234), a time (2026-01-31T12:00:05Z; UTC if no zone is
        given) or a duration before now (30m, 2h, 7d).
    to
        End, in the same format. Default: now.
    from_generation
        Start at the end of this generation, instead of --from.
    to_generation
        Stop at the end of this generation, instead of --to.
    """
    if file:
        return _diff_files(file, resource, namespace, output, connection)
    if resource is None:
        raise UsageError("diff: no resource given; name a resource, or use -f FILE")
    if (from_ is None) == (from_generation is None):
        raise UsageError("--from and --from-generation: use exactly one of them")
    if to is not None and to_generation is not None:
        raise UsageError("--to and --to-generation: use only one of them")
    reference = parse_reference(resource, namespace, name)
    ends = (_Endpoint(from_, from_generation), _Endpoint(to, to_generation))
    differences = run_async(_diff(connection, reference, ends))
    with tolerating_closed_output():
        if output == "table":
            _print(differences)
        else:
            print_structured(differences, output)
    return Exit.DIFFERENT if differences.changes else Exit.OK


def _diff_files(
    file: Files, resource: str | None, namespace: str | None, output: Format, connection: Connection
) -> int:
    from reconciler.cli.plan import plan  # noqa: PLC0415 - only for files

    if resource is not None:
        raise UsageError("-f: compares the manifests in files; remove the resource or -f")
    return plan(file=file, namespace=namespace or "default", output=output, connection=connection)


async def _diff(
    connection: Connection, reference: Reference, ends: tuple[_Endpoint, _Endpoint]
) -> Changes:
    async with bus(connection) as nc:
        key = await find_resource(nc, reference)
        past = await read_past(nc, key)
        since, until = [await _moment(nc, key, past, end) for end in ends]
    if past.damage is not None and past.damage.position <= max(since.position, until.position):
        damage = f"the log is damaged ({past.damage})"
        sys.stderr.write(f"{damage}; only the events before the damage are compared\n")
    old, new = past.until(since.position).events, past.until(until.position).events
    if past.events and not old and not new:
        first = past.events[0].position
        raise CommandError(f"{key} existed at neither time; its first event is at position {first}")
    return Changes(str(key), since, until, list(changes(key, old, new)))


async def _moment(nc: Client, key: ResourceKey, past: ResourceHistory, end: _Endpoint) -> Moment:
    if end.generation is None:
        return await moment(nc, end.when)
    return await moment(nc, Generations(key, past.events).end(end.generation))


def changes(
    key: ResourceKey, before: Sequence[StoredEvent], after: Sequence[StoredEvent]
) -> Iterator[Change]:
    """Yield the differences between the states after two prefixes of a resource's history."""
    old, new = _read_values(key, before), _read_values(key, after)
    for part, fields in old.items():
        new_fields = new[part]
        for path in [*fields, *(path for path in new_fields if path not in fields)]:
            old_value, new_value = (
                fields.get(path, msgspec.UNSET),
                new_fields.get(path, msgspec.UNSET),
            )
            if _encode(old_value) != _encode(new_value):  # in Python, 1, 1.0 and True are equal
                yield Change(part, path, old_value, new_value)


def _read_values(key: ResourceKey, history: Sequence[StoredEvent]) -> dict[Part, dict[str, Any]]:
    """Return all compared values, by part and path."""
    models, row = ReadModels(), StatusRow(key.namespace, key.kind, key.name)
    for position, event in history:
        # Keep the last row, even if it describes a deleted object.
        row = models.apply(position, event)
    declared, observation = last_declaration(history), last_observation(history)
    manifest: dict[str, Any] = {}
    if declared is not None:
        manifest = msgspec.to_builtins(build_manifest(key, declared))
    content = None if observation is None else observation.object
    ownership = ownership_of(row) or OwnershipRow()
    return {
        "declared": {
            path: value for path, value in _flatten(manifest) if path not in _IDENTITY_FIELDS
        },
        "object": {}
        if content is None
        else dict(_flatten(_to_fields(content, _IGNORED_OBJECT_FIELDS))),
        "status": dict(_flatten(_to_fields(row, _IGNORED_STATUS_FIELDS))),
        "ownership": dict(_flatten(_to_fields(ownership, frozenset()))),
    }


def _encode(value: Any) -> bytes:
    return b"" if value is msgspec.UNSET else msgspec.json.encode(value, order="deterministic")


def _to_fields(struct: ExternalObject | StatusRow | OwnershipRow, ignored: frozenset[str]) -> Any:
    """Return a struct's fields by JSON name, with conditions by type."""
    fields = {
        field.encode_name: msgspec.to_builtins(getattr(struct, field.name), str_keys=True)
        for field in msgspec.structs.fields(struct)
        if field.name not in ignored
    }
    if isinstance(struct, StatusRow):
        fields["conditions"] = {
            each.type: {"status": each.status, "reason": each.reason, "message": each.message}
            for each in struct.conditions
        }
    return fields


def _flatten(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        if isinstance(inner, dict) and inner:
            yield from _flatten(inner, f"{path}{name}.")  # pyright: ignore[reportUnknownArgumentType]
        elif inner not in _EMPTY_VALUES:
            yield f"{path}{name}", inner


def _print(differences: Changes) -> None:
    sys.stdout.write(
        f"{differences.resource}\nfrom {differences.since}\nto   {differences.until}\n"
    )
    if not differences.changes:
        sys.stdout.write("no differences\n")
        return
    rows = [
        (each.part, each.path, _format_value(each.before), _format_value(each.after))
        for each in differences.changes
    ]
    print_table(("PART", "FIELD", "BEFORE", "AFTER"), rows)


def _format_value(value: Any) -> str:
    return "not set" if value is msgspec.UNSET else format_short(value)
