"""`reconciler describe`: show everything about one resource."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, cast

import msgspec
from nats.aio.client import Client
from rich.text import Text

from events.composition import CHILDREN, REFUSED, Child, parent_in
from events.intake import ListingFailure
from events.integrity import LogDamage
from events.log import Action, ActionDecided, ActionRetried, OutcomeRecorded, SpecDeclared
from events.manifest import Fields
from events.names import InvalidNameError, ResourceKey
from projections.ownership import OwnershipRow
from projections.read_models import rebuild
from projections.readiness import show_readiness
from projections.status import StatusRow
from reconciler.cli.api_state import (
    describe_listing_failure,
    describe_throttling,
    find_listing_failure,
)
from reconciler.cli.connection import DEFAULT_CONNECTION, Connection, bus, run_async
from reconciler.cli.console import colored, console, print_table
from reconciler.cli.errors import CommandError, UsageError
from reconciler.cli.exits import Exit
from reconciler.cli.naming import Reference, parse_reference
from reconciler.cli.options import Integer, Name, Namespace, Resource, WideOutput
from reconciler.cli.output import TABLES, as_yaml, print_structured, single_line, time_text
from reconciler.cli.past.approval_command import find_approval_command
from reconciler.cli.past.dependencies import read_dependencies
from reconciler.cli.past.exchanges import explain_exchange
from reconciler.cli.past.history import print_lines
from reconciler.cli.past.past_state import LastObservation, last_observation, past_until, read_past
from reconciler.cli.past.summaries import Line, describe_history
from reconciler.cli.resource_table import format_owned
from reconciler.cli.search import find_resource
from reconciler.cli.when import At
from reconciler.ports import StoredEvent
from reconciler.process_secrets import PROCESS_SECRETS
from reconciler.provider import MeasuredProvider
from reconciler.sdk.moments import Moment, When, moment
from reconciler.sdk.outcomes import SETTLED

_MAX_SHOWN_PARTS: Final = 20


class Part(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a composed resource: its state, and how long it has not been ready."""

    resource: str
    outcome: str
    ready: bool
    reason: str = ""
    message: str = ""
    since: datetime | None = None


class Description(msgspec.Struct, rename="camel"):
    """Everything that the log contains about one resource.

    ``part_of``: the composed resource that declares it. ``parts``: its own parts, starting with
    those that were not ready at its last observation. ``listing_failure``: why the observation may
    be outdated, if no listing of its kind completes. ``exchange``: the resources with which it
    exchanges a value, if the API refuses that.
    """

    resource: str
    spec: SpecDeclared | None
    status: StatusRow | None
    ownership: OwnershipRow | None
    observed: LastObservation | None
    action: Action | None
    events: list[Line]
    settled_generation: int = 0
    readings: Fields | None = None
    as_of: Moment | None = None
    part_of: str = ""
    parts: tuple[Part, ...] = ()
    listing_failure: ListingFailure | None = None
    exchange: str = ""


def describe(
    resource: Resource,
    name: Name = None,
    /,
    *,
    namespace: Namespace = None,
    at: At = None,
    events: Integer = 10,
    live: bool = False,
    output: WideOutput = "table",
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Show everything about one resource.

    The output contains the spec, status, ownership, last observation, action
    in flight, and newest events (-o wide adds causes and actors). It also shows
    how long each unmet condition has been unmet, and the parts of a composed
    resource.

    For example:

        reconciler describe Shape/foo
        reconciler describe payments/Shape/foo --events 50
        reconciler describe Shape/foo --at 2h    the state two hours ago
        reconciler describe Stream/orders --live
        reconciler describe Shape foo -o json

    Parameters
    ----------
    at
        Show a past state: at a log position (1234), a time (2026-01-31T12:00:05Z; UTC if no
        zone is given) or a duration before now (30m, 2h, 7d).
    events
        Number of newest events to show.
    live
        Also read values that only the API has: counters, ages, backlogs.
    """
    if live and at is not None:
        raise UsageError(
            "--live: not allowed with --at, because it reads the current object from the API"
        )
    reference = parse_reference(resource, namespace, name)
    description = run_async(_describe(connection, reference, events, at, live=live))
    if output in TABLES:
        _print(description, wide=output == "wide")
    else:
        print_structured(description, output)
    return Exit.OK


async def _describe(
    connection: Connection, reference: Reference, events: int, at: When | None, *, live: bool
) -> Description:
    async with bus(connection) as nc:
        key = await find_resource(nc, reference)
        as_of = None if at is None else await moment(nc, at)
        past = await read_past(nc, key)
        past = past if as_of is None else past_until(past, as_of)
        description = build_description(key, past.events, events, past.damage)
        status = description.status
        rows = {} if status is None else await read_dependencies(nc, status, as_of)
        description.parts = _update_parts(description.parts, rows)
        if status is not None:
            description.status = show_readiness(status, rows)
            description.listing_failure = find_listing_failure(status, rows)
            if as_of is None:
                description.exchange = await explain_exchange(nc, status, past.events)
        description.as_of = as_of
        if live:
            description.readings = await _read_live_values(nc, key)
    return description


async def _read_live_values(nc: Client, key: ResourceKey) -> Fields:
    from reconciler.cli.live_object import live_object  # noqa: PLC0415 - only with --live

    async with live_object(nc, key) as live:
        if not isinstance(live.provider, MeasuredProvider):
            raise CommandError(
                f"{key} has no live values, because kind {key.kind} provides none; omit --live"
            )
        readings = await live.provider.readings(live.name)
    if readings is None:
        raise CommandError(
            f"{key}: its object {live.name!r} does not exist; omit --live to show the last "
            "observation"
        )
    return PROCESS_SECRETS.hide_in(readings)


def build_description(
    key: ResourceKey, stored: Sequence[StoredEvent], events: int, damage: LogDamage | None = None
) -> Description:
    """Fold a resource's history, or the valid part of a damaged one, into a description."""
    models = rebuild(stored)
    if damage is not None:
        models.mark_damage(damage)
    status = models.status.get(str(key))
    declared = (each.event.data for each in reversed(stored))
    spec = next((each for each in declared if isinstance(each, SpecDeclared)), None)
    parent = None if spec is None or status is None else parent_in(status.labels)
    return Description(
        resource=str(key),
        part_of="" if parent is None else str(parent),
        parts=tuple(_parts_from_status(status)),
        spec=spec,
        status=status,
        ownership=models.ownership.get(str(key)),
        observed=last_observation(stored),
        action=None if status is None else _find_action(stored, status.action_id),
        events=describe_history(stored)[-events:] if events > 0 else [],
        settled_generation=0 if status is None else _settled_generation(stored, status),
    )


def _parts_from_status(status: StatusRow | None) -> Iterator[Part]:
    """Yield the parts in a composed resource's last observation, withdrawn parts last."""
    if status is None or not isinstance(children := status.outputs.get(CHILDREN), dict):
        return
    for name, each in cast("dict[str, object]", children).items():
        try:
            key, child = ResourceKey.parse(name), msgspec.convert(each, Child)
        except (InvalidNameError, msgspec.ValidationError):
            return  # outputs with the same name but a different meaning
        yield Part(str(key), child.outcome, child.ready, child.reason, child.message)
    for name in status.outputs.get("leaving", ()):
        yield Part(str(name), "Leaving", ready=False)


def _update_parts(parts: Sequence[Part], rows: Mapping[str, StatusRow]) -> tuple[Part, ...]:
    """Return the parts in the state of their own rows."""
    ordered = sorted(parts, key=lambda each: each.ready)
    for number, each in enumerate(ordered[:_MAX_SHOWN_PARTS]):
        row = rows.get(each.resource)
        ordered[number] = _update_part(each, None if row is None else show_readiness(row, rows))
    return tuple(ordered)


def _update_part(part: Part, row: StatusRow | None) -> Part:
    if row is None or not row.outcome or part.outcome == REFUSED:
        return part
    source = row.not_ready or row
    is_ready = row.outcome == "Converged" and row.not_ready is None
    outcome = row.outcome if row.declared else f"{row.outcome}, withdrawn"
    return Part(part.resource, outcome, is_ready, source.reason, source.message, row.waiting_since)


def _settled_generation(stored: Sequence[StoredEvent], row: StatusRow) -> int:
    """Return the newest settled generation. The current one counts only while settled."""
    if row.outcome in SETTLED:
        return row.observed_generation
    settled = [
        each.event.data.generation
        for each in stored
        if isinstance(each.event.data, OutcomeRecorded) and each.event.data.outcome in SETTLED
    ]
    return max((each for each in settled if each < row.observed_generation), default=0)


def _find_action(stored: Sequence[StoredEvent], action_id: str) -> Action | None:
    for each in reversed(stored):
        data = each.event.data
        if isinstance(data, (ActionDecided, ActionRetried)) and data.action.action_id == action_id:
            return data.action
    return None


def _print(description: Description, *, wide: bool) -> None:
    out = console()
    out.print(description.resource, style="bold")
    if description.as_of is not None:
        out.print(f"as of {description.as_of}")
    status = description.status
    if status is None:
        out.print("  The resource no longer exists. Its history remains.")
    else:
        now = datetime.now(UTC) if description.as_of is None else description.as_of.time
        pairs = _status_pairs(status, description.settled_generation, now)
        pairs += _listing_pairs(description.listing_failure)
        pairs += [("exchange", description.exchange)] if description.exchange else []
        _section("Status", [*pairs, *_part_pairs(description.part_of)])
        _print_conditions(status)
    _print_parts(description.parts)
    if description.spec is not None:
        is_withdrawn = status is None or not status.declared
        _block("Spec (withdrawn)" if is_withdrawn else "Spec", _spec_fields(description.spec))
    if description.ownership is not None:
        _block("Ownership", msgspec.to_builtins(description.ownership))
    if description.observed is not None:
        _block("Object, as last observed", msgspec.to_builtins(description.observed))
    if description.readings is not None:
        _block("Live values", description.readings)
    if description.action is not None:
        _block("Action in progress", msgspec.to_builtins(description.action))
    if description.events:
        out.print_title("Last events")
        print_lines(description.events, wide=wide)


def _spec_fields(spec: SpecDeclared) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(spec, str_keys=True)
    fields.pop("event", None)
    return fields


def _status_pairs(row: StatusRow, settled: int, now: datetime) -> list[tuple[str, str | Text]]:
    reason = f"{row.reason}: {row.message}" if row.message else row.reason
    pairs: list[tuple[str, str | Text]] = [
        ("outcome", colored(row.outcome or "Pending")),
        ("reason", reason),
        ("to approve", find_approval_command(row)),
        ("generation", f"{row.generation} declared, {settled or 'none'} settled"),
        ("owned", format_owned(row)),
        ("provider config", row.provider_config),
        ("external name", row.external_name),
        ("drifts", str(row.drifts)),
        ("version", f"{row.version}, log position {row.position}"),
    ]
    if row.finalizers:
        finalizers = ", ".join(
            f"{name} (set by {holder})" for name, holder in row.finalizers.items()
        )
        pairs.append(("finalizers", finalizers))
    if row.references:
        references = ", ".join(f"{by} ({policy})" for by, policy in row.references.items())
        pairs.append(("referenced by", references))
    if row.refers:
        pairs.append(("references", ", ".join(each.target for each in row.refers)))
    if row.secrets:
        pairs.append(("secrets", ", ".join(row.secrets)))
    if row.action_id:
        pairs.append(("action", f"{row.operation}, attempt {row.attempt} ({row.action_id})"))
    if row.grace_seconds:
        reason = "because the API returned the object with a delay"
        pairs.append(("grace", f"{row.grace_seconds:g} s after a write, {reason}"))
    if row.throttled_until is not None and describe_throttling(row, now):
        pairs.append(("throttled until", time_text(row.throttled_until)))
    if row.breaker_until is not None:
        pairs.append(("breaker open until", f"{time_text(row.breaker_until)}, then one probe"))
    if row.retry_at is not None:
        pairs.append(("next attempt", time_text(row.retry_at)))
    return [(name, value) for name, value in pairs if value]


def _section(title: str, pairs: Sequence[tuple[str, str | Text]]) -> None:
    out = console()
    out.print_title(title)
    for name, value in pairs:
        out.print(Text(f"  {name:<16} "), value, sep="", end="\n")


def _block(title: str, fields: dict[str, Any]) -> None:
    out = console()
    out.print_title(title)
    for line in as_yaml(fields).splitlines():
        out.print(f"  {line}")


def _listing_pairs(failure: ListingFailure | None) -> list[tuple[str, str | Text]]:
    return (
        []
        if failure is None
        else [("observation", f"{describe_listing_failure(failure)}: {failure.message}")]
    )


def _part_pairs(part_of: str) -> list[tuple[str, str | Text]]:
    return [("part of", part_of)] if part_of else []


def _print_conditions(status: StatusRow) -> None:
    if not status.conditions:
        return
    console().print_title("Conditions")
    since = status.unmet_since or {}
    rows = [
        (
            each.type,
            each.status,
            time_text(since.get(each.type)),
            each.reason,
            single_line(each.message),
        )
        for each in status.conditions
    ]
    print_table(("TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"), rows)


def _print_parts(parts: Sequence[Part]) -> None:
    """Print a table of the parts."""
    if not parts:
        return
    out = console()
    out.print_title("Parts")
    rows = [
        (
            each.resource,
            colored(each.outcome),
            "yes" if each.ready else "no",
            time_text(each.since),
            "" if each.ready else each.reason,
            "" if each.ready else single_line(each.message),
        )
        for each in parts[:_MAX_SHOWN_PARTS]
    ]
    print_table(("NAME", "OUTCOME", "READY", "SINCE", "REASON", "MESSAGE"), rows)
    if len(parts) > _MAX_SHOWN_PARTS:
        more, ready = len(parts) - _MAX_SHOWN_PARTS, sum(each.ready for each in parts)
        out.print(f"… and {more} more; {ready} of {len(parts)} parts are ready")
