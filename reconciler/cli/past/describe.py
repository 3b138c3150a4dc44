"""`reconciler describe`: show everything about one resource."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from events.provider_config import config_key
from projections.ownership import OwnershipRow
from projections.read_models import rebuild
from projections.status import StatusRow
from reconciler.cli.api_standing import listing_failure, throttled, unobserved
from reconciler.cli.connection import HERE, Connection, bus, run_async
from reconciler.cli.console import coloured, console, print_table
from reconciler.cli.errors import CommandError, UsageError
from reconciler.cli.exits import Exit
from reconciler.cli.naming import Reference, parse_reference
from reconciler.cli.options import Integer, Name, Namespace, Resource, WideOutput
from reconciler.cli.output import TABLES, as_yaml, print_structured, single_line, time_text
from reconciler.cli.past.history import print_lines
from reconciler.cli.past.knowledge import KnownObject, known_object, past_of, whole_past
from reconciler.cli.past.summaries import Line, tell_all
from reconciler.cli.resource_table import owns_object
from reconciler.cli.search import find_resource
from reconciler.cli.when import At
from reconciler.ports import StoredEvent
from reconciler.process_secrets import OF_THIS_PROCESS
from reconciler.provider import MeasuredProvider
from reconciler.sdk.history import History
from reconciler.sdk.moments import Moment, When, moment
from reconciler.sdk.outcomes import SETTLED

_SHOWN_PARTS: Final = 20


class Part(msgspec.Struct, frozen=True, rename="camel"):
    """The state of a part of a composed resource, and since when it is not ready."""

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
    be outdated, if no listing of its kind completes.
    """

    resource: str
    spec: SpecDeclared | None
    status: StatusRow | None
    ownership: OwnershipRow | None
    observed: KnownObject | None
    action: Action | None
    events: list[Line]
    settled_generation: int = 0
    readings: Fields | None = None
    as_of: Moment | None = None
    part_of: str = ""
    parts: tuple[Part, ...] = ()
    listing_failure: ListingFailure | None = None


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
    connection: Connection = HERE,
) -> int:
    """Show everything about one resource.

    The output contains spec, status, ownership, the last observation, the action in
    flight, and the newest events (causes and actors with -o wide). It also
    shows how long each unmet condition has been unmet, and the parts of a
    composed resource.

    For example:

        reconciler describe Shape/foo
        reconciler describe payments/Shape/foo --events 50
        reconciler describe Shape/foo --at 2h    the state two hours ago
        reconciler describe Stream/orders --live
        reconciler describe Shape foo -o json

    Parameters
    ----------
    at
        Show a past state: at a log position (1234), a time (2026-01-31T12:00:05Z; UTC without a
        zone) or a time span before now (30m, 2h, 7d).
    events
        Number of newest events to show.
    live
        Also read values from the API that the log never contains: counters, ages, backlogs.
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
        then = None if at is None else await moment(nc, at)
        past = await whole_past(nc, key)
        past = past if then is None else past_of(past, then)
        description = description_of(key, past.events, events, past.damage)
        description.parts = await _with_parts(nc, description.parts, then)
        description.listing_failure = await _listing_failure(nc, description.status, then)
        description.as_of = then
        if live:
            description.readings = await _readings(nc, key)
    return description


async def _listing_failure(
    nc: Client, row: StatusRow | None, at: Moment | None
) -> ListingFailure | None:
    """Return the failure of the listings that observe the object, by its ProviderConfig."""
    if row is None or not row.provider_config:
        return None
    past = await History(nc).get(config_key(row.provider_config))
    past = past if at is None else past.until(at.position)
    return listing_failure(row, rebuild(past.events).status)


async def _readings(nc: Client, key: ResourceKey) -> Fields:
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
    return OF_THIS_PROCESS.hide_in(readings)


def description_of(
    key: ResourceKey, stored: Sequence[StoredEvent], events: int, damage: LogDamage | None = None
) -> Description:
    """Fold a resource's history into a description. Of a damaged history, use the valid part."""
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
        parts=tuple(_parts(status)),
        spec=spec,
        status=status,
        ownership=models.ownership.get(str(key)),
        observed=known_object(stored),
        action=None if status is None else _action(stored, status.action_id),
        events=tell_all(stored)[-events:] if events > 0 else [],
        settled_generation=0 if status is None else _settled(stored, status),
    )


def _parts(status: StatusRow | None) -> Iterator[Part]:
    """Yield a composed resource's parts at its last observation, withdrawn ones last."""
    if status is None or not isinstance(children := status.outputs.get(CHILDREN), dict):
        return
    for name, each in cast("dict[str, object]", children).items():
        try:
            key, child = ResourceKey.parse(name), msgspec.convert(each, Child)
        except (InvalidNameError, msgspec.ValidationError):
            return  # outputs of that name with another meaning
        yield Part(str(key), child.outcome, child.ready, child.reason, child.message)
    for name in status.outputs.get("leaving", ()):
        yield Part(str(name), "Leaving", ready=False)


async def _with_parts(nc: Client, parts: Sequence[Part], at: Moment | None) -> tuple[Part, ...]:
    """Return the current state of the parts that are shown, from their histories."""
    history = History(nc)
    ordered = sorted(parts, key=lambda each: each.ready)
    for number, each in enumerate(ordered[:_SHOWN_PARTS]):
        past = await history.get(ResourceKey.parse(each.resource))
        past = past if at is None else past.until(at.position)
        ordered[number] = _part_now(each, rebuild(past.events).status.get(each.resource))
    return tuple(ordered)


def _part_now(part: Part, row: StatusRow | None) -> Part:
    if row is None or not row.outcome or part.outcome == REFUSED:
        return part
    source = row.not_ready or row
    is_ready = row.outcome == "Converged" and row.not_ready is None
    outcome = row.outcome if row.declared else f"{row.outcome}, withdrawn"
    return Part(part.resource, outcome, is_ready, source.reason, source.message, row.waits_since)


def _settled(stored: Sequence[StoredEvent], row: StatusRow) -> int:
    """Return the newest settled generation. One with a new problem does not count."""
    if row.outcome in SETTLED:
        return row.observed_generation
    settled = [
        each.event.data.generation
        for each in stored
        if isinstance(each.event.data, OutcomeRecorded) and each.event.data.outcome in SETTLED
    ]
    return max((each for each in settled if each < row.observed_generation), default=0)


def _action(stored: Sequence[StoredEvent], action_id: str) -> Action | None:
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
        _section("Status", [*pairs, *_part_pairs(description.part_of)])
        _print_conditions(status)
    _print_parts(description.parts)
    if description.spec is not None:
        is_withdrawn = status is None or not status.declared
        _block("Spec (withdrawn)" if is_withdrawn else "Spec", _plain_spec(description.spec))
    if description.ownership is not None:
        _block("Ownership", msgspec.to_builtins(description.ownership))
    if description.observed is not None:
        _block("Object, as last observed", msgspec.to_builtins(description.observed))
    if description.readings is not None:
        _block("Readings, as of now", description.readings)
    if description.action is not None:
        _block("Action in progress", msgspec.to_builtins(description.action))
    if description.events:
        out.print_title("Last events")
        print_lines(description.events, wide=wide)


def _plain_spec(spec: SpecDeclared) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(spec, str_keys=True)
    plain.pop("event", None)
    return plain


def _status_pairs(row: StatusRow, settled: int, now: datetime) -> list[tuple[str, str | Text]]:
    reason = f"{row.reason}: {row.message}" if row.message else row.reason
    pairs: list[tuple[str, str | Text]] = [
        ("outcome", coloured(row.outcome or "Pending")),
        ("reason", reason),
        ("generation", f"{row.generation} declared, {settled or 'none'} settled"),
        ("owned", owns_object(row)),
        ("provider config", row.provider_config),
        ("external name", row.external_name),
        ("drifts", str(row.drifts)),
        ("version", f"{row.version}, log position {row.position}"),
    ]
    if row.finalizers:
        held = ", ".join(f"{name} (set by {holder})" for name, holder in row.finalizers.items())
        pairs.append(("finalizers", held))
    if row.references:
        held = ", ".join(f"{by} ({policy})" for by, policy in row.references.items())
        pairs.append(("referenced by", held))
    if row.refers:
        pairs.append(("references", ", ".join(each.target for each in row.refers)))
    if row.secrets:
        pairs.append(("secrets", ", ".join(row.secrets)))
    if row.action_id:
        pairs.append(("action", f"{row.operation}, attempt {row.attempt} ({row.action_id})"))
    if row.grace_seconds:
        late = "because the API returned its object with a delay"
        pairs.append(("grace", f"{row.grace_seconds:g} s after a write, {late}"))
    if row.throttled_until is not None and throttled(row, now):
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


def _block(title: str, plain: dict[str, Any]) -> None:
    out = console()
    out.print_title(title)
    for line in as_yaml(plain).splitlines():
        out.print(f"  {line}")


def _listing_pairs(failure: ListingFailure | None) -> list[tuple[str, str | Text]]:
    return [] if failure is None else [("observation", f"{unobserved(failure)}: {failure.message}")]


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
    """Print the state of the parts."""
    if not parts:
        return
    out = console()
    out.print_title("Parts")
    rows = [
        (
            each.resource,
            coloured(each.outcome),
            "yes" if each.ready else "no",
            time_text(each.since),
            "" if each.ready else each.reason,
            "" if each.ready else single_line(each.message),
        )
        for each in parts[:_SHOWN_PARTS]
    ]
    print_table(("NAME", "OUTCOME", "READY", "SINCE", "REASON", "MESSAGE"), rows)
    if len(parts) > _SHOWN_PARTS:
        more, ready = len(parts) - _SHOWN_PARTS, sum(each.ready for each in parts)
        out.print(f"… and {more} more; {ready} of {len(parts)} parts are ready")
