"""`reconciler plan`: show the effects of manifests before you declare them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from cyclopts import Parameter
from nats.aio.client import Client
from rich.text import Text

from events.composition import CHILDREN, MANIFESTS
from events.manifest import Manifest
from events.names import ResourceKey
from infra.bus.event_log import open_log
from infra.named_files import read_at_most, write_atomically
from infra.secrets import open_stores
from reconciler.cli.connection import DEFAULT_CONNECTION, Connection, bus, run_async
from reconciler.cli.console import console, format_age
from reconciler.cli.errors import CommandError
from reconciler.cli.exits import Exit
from reconciler.cli.live_object import find_secrets_directory
from reconciler.cli.manifests import read_all
from reconciler.cli.naming import check_names
from reconciler.cli.options import Files, NamedPath, Output
from reconciler.cli.output import Format, print_structured
from reconciler.cli.standard_streams import tolerating_closed_output
from reconciler.errors import ConfigurationError, HostError, ProviderError
from reconciler.resource.expectation import UNKNOWN
from reconciler.roles.planning.foresight import Foresight, ListingTarget
from reconciler.roles.runtime.provider_pool import ProviderPool
from reconciler.sdk.plan import (
    PLAN_FORMAT,
    Plan,
    PlannedAction,
    PlannedChange,
    PlannedResource,
    compute_plan,
)

_SIGNS: Final = {"Create": ("+", "green"), "Update": ("~", "yellow"), "Delete": ("-", "red")}
_MAX_VALUE_CHARACTERS: Final = 120
_STEPS: Final = {"Declare": ("+", "green"), "Change": ("~", "yellow"), "Withdraw": ("-", "red")}
_MAX_PARTS: Final = 10
_MAX_PARTS_IN_FULL: Final = 3
_MAX_PLAN_BYTES: Final = 256 << 20


def plan(
    *,
    file: Files,
    namespace: Annotated[str, Parameter(name=("--namespace", "-n"))] = "default",
    out: NamedPath | None = None,
    refresh: bool = False,
    output: Output = "table",
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Show what `apply` would do with these files, and change nothing.

    For each resource, the plan shows the decider's actions. Later actions
    assume that earlier ones succeed. A value that only the API can supply
    is "(known after apply)". The plan also shows changes to other
    resources, adoptions, holds by a guard, and refused documents.

    Exit status: 0 no changes, 2 changes, 1 an error or an invalid document
    (the same as `terraform plan -detailed-exitcode`).

    For example:

        reconciler plan -f shapes/
        reconciler plan -f shapes/ --out today.plan
        reconciler apply --plan today.plan
        reconciler plan -f config.yaml --refresh
        reconciler plan -f shapes/ -o json

    Parameters
    ----------
    namespace
        Default namespace for documents. A ProviderConfig is always in namespace system.
    out
        Write the plan to this file, for `reconciler apply --plan`.
    refresh
        List the APIs of these resources first, from this machine. By default, the plan uses the
        state in the log, and shows its age for each object.
    """
    check_names(namespace=namespace)
    documents = read_all(file, namespace)
    manifests = [each.manifest for each in documents.good]
    new_plan = run_async(_plan(connection, manifests, refresh=refresh)) if manifests else None
    for problem in documents.problems():
        sys.stderr.write(f"error: {problem}\n")
    if new_plan is None:
        return Exit.FAILED
    if out is not None:
        _write_plan(out, new_plan)
    status = _show(new_plan, output)
    return Exit.FAILED if documents.bad else status


def show_withdrawals(connection: Connection, keys: Sequence[ResourceKey], output: Format) -> Exit:
    """Show the effects of withdrawals, and change nothing."""
    return _show(run_async(_plan(connection, (), withdraw=keys)), output)


def _show(new_plan: Plan, output: Format) -> Exit:
    with tolerating_closed_output():
        if output == "table":
            _print(new_plan)
        else:
            print_structured(new_plan, output)
    if any(each.says in ("Refused", "Unreadable") for each in new_plan.resources):
        return Exit.FAILED
    return Exit.DIFFERENT if new_plan.changes else Exit.OK


async def _plan(
    connection: Connection,
    manifests: Sequence[Manifest],
    *,
    withdraw: Sequence[ResourceKey] = (),
    refresh: bool = False,
) -> Plan:
    async with bus(connection) as nc:
        return await make_plan(nc, manifests, withdraw=withdraw, refresh=refresh)


async def make_plan(
    nc: Client,
    manifests: Sequence[Manifest],
    *,
    withdraw: Sequence[ResourceKey] = (),
    refresh: bool = False,
) -> Plan:
    """Predict the effects of manifests and withdrawals from the current log."""
    await open_log(nc)
    return await compute_plan(
        nc, manifests, withdraw=withdraw, listing=_list_objects if refresh else None
    )


async def _list_objects(foresight: Foresight, targets: Collection[ListingTarget]) -> None:
    """List the objects of each target with its planned config; raises ``CommandError``."""
    name = ""
    pool = ProviderPool(
        foresight.kinds, foresight.configurations, open_stores(find_secrets_directory())
    )
    try:
        for name, config in sorted(foresight.configurations.by_name.items()):
            for kind in foresight.kinds.of_provider(config.provider):
                if not kind.lists or ListingTarget(name, kind.name) not in targets:
                    continue
                provider = pool.get(name, kind.name)
                pages = provider.pages(config.scope, page_size=config.limits.page_size)
                listed = [each async for page in pages for each in page]
                objects = {f"{each.name}\n{each.uid}": each for each in listed}
                await foresight.observe(name, kind.name, objects)
    except (ProviderError, ConfigurationError) as error:
        problem = error.local_text if isinstance(error, HostError) else error
        raise CommandError(
            f"--refresh: cannot list the objects of ProviderConfig {name!r} from this machine: "
            f"{problem}"
        ) from None
    finally:
        await pool.close()


# --- plan files


def _write_plan(path: Path, new_plan: Plan) -> None:
    content = msgspec.json.format(msgspec.json.encode(new_plan), indent=1) + b"\n"
    try:
        write_atomically(path, content)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}; name another file") from None


def read_plan(path: Path) -> Plan:
    """Read a plan from a file; raises ``CommandError``."""
    try:
        stored = msgspec.json.decode(read_at_most(path, _MAX_PLAN_BYTES), type=Plan)
    except OSError as error:
        raise CommandError(
            f"cannot read {path}: {error.strerror}; create it with `reconciler plan --out`"
        ) from None
    except msgspec.DecodeError as error:
        raise CommandError(f"{path}: not a plan: {error}; create one with --out") from None
    if stored.format != PLAN_FORMAT:
        raise CommandError(
            f"{path}: the plan has format {stored.format}, which this release cannot read; plan "
            "again"
        )
    _check_manifests(path, stored)
    return stored


def _check_manifests(path: Path, stored: Plan) -> None:
    """Raise ``CommandError`` for a plan without manifests, or with mismatched names."""
    if not any(each.is_declared for each in stored.resources):
        raise CommandError(
            f"{path}: the plan contains no manifest, so it declares nothing; plan again"
        )
    for resource in stored.resources:
        if resource.manifest is None:
            continue
        metadata = resource.manifest.metadata
        name = f"{metadata.namespace}/{resource.manifest.kind}/{metadata.name}"
        if name != resource.resource:
            raise CommandError(
                f"{path}: {resource.resource}: its manifest has the name {name}; plan again"
            )


# --- tables


def _print(new_plan: Plan) -> None:
    out = console()
    changed = [each for each in new_plan.resources if each.says != "NoChange"]
    parts_shown: Counter[str] = Counter()
    for resource in sorted(changed, key=_is_unremarkable_part):
        if resource.part_of:
            parts_shown[resource.part_of] += 1
        if parts_shown[resource.part_of] <= _MAX_PARTS_IN_FULL or not resource.part_of:
            _print_resource(resource, new_plan.made_at)
    for parent, count in parts_shown.items():
        if count > _MAX_PARTS_IN_FULL:
            more = f"… and {count - _MAX_PARTS_IN_FULL} more parts of {parent}; -o json lists all"
            out.print(Text(more, "dim"))
    if changed:
        out.print()
    observed = [each.observed_at for each in changed if each.observed_at is not None]
    oldest = (
        f", oldest observation {format_age(min(observed), new_plan.made_at)} ago"
        if observed
        else ""
    )
    out.print(f"{_summary(new_plan.resources)} (as of log position {new_plan.position}{oldest})")


def _is_unremarkable_part(each: PlannedResource) -> bool:
    """Return whether a resource is a part that does not need attention, which is shown last."""
    return bool(each.part_of) and each.says not in ("Refused", "Unreadable", "Held", "Waiting")


def _summary(resources: Sequence[PlannedResource]) -> str:
    return f"Plan: {_counts(resources)}"


def _counts(resources: Sequence[PlannedResource]) -> str:
    new = [action for each in resources for action in each.actions if not action.under_way]
    actions = Counter(each.operation for each in new)
    texts = [f"{actions[each]} to {each.lower()}" for each in _SIGNS if actions[each]]
    waiting = sum(each.needs_approval for each in new)
    texts += [f"{waiting} of them after approval"] if waiting else []
    without_call = sum(each.says == "Change" and not each.actions for each in resources)
    texts += [f"{without_call} without a call"] if without_call else []
    states = Counter(each.says for each in resources)
    names = {"Refused": "refused", "Held": "held", "Waiting": "waiting", "Unreadable": "unreadable"}
    texts += [f"{states[each]} {name}" for each, name in names.items() if states[each]]
    if states["NoChange"]:
        texts.append(f"{states['NoChange']} unchanged")
    return ", ".join(texts) or "nothing to do"


def _print_resource(each: PlannedResource, now: datetime) -> None:
    out = console()
    heading = Text(f"{each.resource}")
    if each.part_of:
        heading.append(f"  (part of {each.part_of})", "dim")
    if each.withdrawn:
        heading.append("  (withdrawn)", "dim")
    elif not each.is_declared and not each.part_of:
        heading.append("  (affected)", "dim")
    if each.observed_at is not None and each.actions:
        heading.append(f"  observed {format_age(each.observed_at, now)} ago", "dim")
    out.print(heading, style="bold")
    for name in each.adopts:
        word = "Move" if each.moved_from else "Adopt"
        origin = f" from {each.moved_from}" if each.moved_from else ""
        out.print(Text(f"  = {word} {name.removesuffix(' (Moved)')}{origin}", "cyan"))
    for action in each.actions:
        _print_action(action)
    for name in each.releases:
        if each.moved_to:
            out.print(Text(f"  = Move {name.removesuffix(' (Moved)')} to {each.moved_to}", "cyan"))
            continue
        word = "Release" if name.endswith("(Orphaned)") else "Disown"
        out.print(Text(f"  = {word} {name}", "cyan"))
    if each.warning:
        out.print(Text(f"  ! warning: {each.warning}", "yellow"))
    if each.says in ("Refused", "Held", "Waiting", "Unreadable"):
        why = ": ".join(text for text in (each.reason, each.message) if text)
        color = "red" if each.says in ("Refused", "Unreadable") else "yellow"
        out.print(Text(f"  ! {each.says.lower()}: {why}", color))
    elif not each.actions and each.outcome:
        why = ": ".join(text for text in (each.reason, each.message) if text)
        out.print(Text(f"  → {each.outcome} {why}".rstrip(), "dim"))


def _print_action(action: PlannedAction) -> None:
    sign, color = _SIGNS[action.operation]
    text = f"  {sign} {action.operation} {action.external_name}"
    if action.purpose != "Converge":
        text += f" ({action.purpose})"
    if action.under_way:
        text += " (in progress)"
    if action.needs_approval:
        text += " (requires approval)"
    console().print(Text(text, color))
    for change in action.changes:
        # The plan shows the content of a composed object part by part.
        if not (action.parts and change.path.partition(".")[0] in (CHILDREN, MANIFESTS)):
            console().print(f"      {_format_planned_change(action, change)}")
    for part in action.parts[:_MAX_PARTS]:
        sign, color = _STEPS[part.step]
        text = ", ".join(f"{change.path}: {_format_change(change)}" for change in part.changes)
        text = f"  ({text})" if text else ""
        console().print(Text(f"      {sign} {part.resource}{text}", color))
    if len(action.parts) > _MAX_PARTS:
        more = Counter(each.step for each in action.parts[_MAX_PARTS:])
        text = ", ".join(f"{more[step]} to {step.lower()}" for step in _STEPS if more[step])
        console().print(Text(f"      … and {text}", "dim"))
    if action.goes_on:
        console().print(Text("      The next steps follow as the parts become ready.", "dim"))


def _format_planned_change(action: PlannedAction, each: PlannedChange) -> str:
    if action.operation == "Create":
        return f"{each.path}: {_format_value(each.wanted)}"
    applied = (
        "" if each.applied == each.observed else f"  (last applied: {_format_value(each.applied)})"
    )
    return f"{each.path}: {_format_change(each)}{applied}"


def _format_change(each: PlannedChange) -> str:
    return f"{_format_value(each.observed)} → {_format_value(each.wanted)}"


def _format_value(value: Any) -> str:
    if value is None:
        return "not set"
    if value == UNKNOWN:
        return UNKNOWN
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _MAX_VALUE_CHARACTERS else f"{text[:_MAX_VALUE_CHARACTERS]}…"


def describe_plan_changes(before: Plan, after: Plan) -> Iterable[str]:
    """Yield a line for each declared resource whose planned result has changed."""
    resources = {each.resource: each for each in after.resources}
    for planned in before.resources:
        if not planned.is_declared or planned.says in ("Refused", "Unreadable"):
            continue
        current = resources[planned.resource]
        if current.version != planned.version:
            yield (
                f"{planned.resource}: planned at version {planned.version}, but now at version "
                f"{current.version}"
            )
        elif current.digest != planned.digest:
            counts = _counts([current])
            yield f"{planned.resource}: the result would now differ from the plan: {counts}"
