"""`apply --set`: declare files as one set, and withdraw resources that they no longer contain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from events.excerpt import list_first
from events.manifest import InvalidManifestError
from events.names import InvalidNameError, ResourceKey
from events.provider_config import DeletionGuard
from events.stored_content import Part
from infra.jetstream.errors import BusDeniedError
from reconciler.cli.client import connect_client
from reconciler.cli.connection import Connection, run_async
from reconciler.cli.console import console
from reconciler.cli.errors import CommandError, UsageError
from reconciler.cli.exits import Exit
from reconciler.cli.manifests import Documents
from reconciler.cli.output import Format
from reconciler.cli.results import Result, exit_status, print_results, wait_for_results
from reconciler.cli.standard_streams import tolerating_closed_output
from reconciler.errors import DeclarationRefusedError
from reconciler.sdk.manifest_sets import MANIFEST_SET_KIND, ManifestSets, SetChange

_GOOD: Final = ("Converged",)
_MAX_SHOWN_NAMES: Final = 20
_PRUNE_LIMIT: Final = DeletionGuard()


def apply_set(
    connection: Connection,
    documents: Documents,
    *,
    name: str,
    namespace: str,
    prune: bool,
    confirmed: bool,
    dry_run: Literal["client", "server"] | bool,
    reason: str,
    wait_seconds: float | None,
    output: Format,
) -> Exit:
    """Declare all documents as one set, or declare nothing and raise ``CommandError``."""
    if documents.bad:
        problems = documents.problems()
        raise CommandError(f"nothing was declared: {list_first(problems, '; ')}")
    try:
        key = ResourceKey.checked(namespace, MANIFEST_SET_KIND, name)
    except InvalidNameError as error:
        raise UsageError(f"--set: {error}") from None
    parts = [Part(each.manifest, each.source.location) for each in documents.good]
    result, change = run_async(
        _apply(
            connection,
            key,
            parts,
            prune=prune,
            confirmed=confirmed,
            dry_run=bool(dry_run),
            reason=reason,
            wait_seconds=wait_seconds,
            output=output,
        )
    )
    print_results([result], output, good=_GOOD, dry_run=bool(dry_run))
    if dry_run == "server" and not change.is_empty:
        return Exit.DIFFERENT
    return exit_status([result], None if wait_seconds is None or dry_run else _GOOD)


async def _apply(
    connection: Connection,
    key: ResourceKey,
    parts: Sequence[Part],
    *,
    prune: bool,
    confirmed: bool,
    dry_run: bool,
    reason: str,
    wait_seconds: float | None,
    output: Format,
) -> tuple[Result, SetChange]:
    async with connect_client(connection, sends=not dry_run) as client:
        sets: ManifestSets = client.manifest_sets()
        try:
            change, content = await sets.change(key, parts, prune=prune)
        except InvalidManifestError as error:
            raise CommandError(f"nothing was declared: {error}") from None
        except BusDeniedError as error:
            raise CommandError(
                "nothing was declared: --set reads the members of the set from the log, so it "
                f"requires an operator's permissions: {error}"
            ) from None
        # The guard of a GitSource counts in the same way.
        withdrawn = (*change.removed, *change.moved_out, *change.renamed.values())
        if not confirmed and not dry_run and not _PRUNE_LIMIT.allows(len(withdrawn), change.total):
            raise CommandError(
                f"nothing was declared: {len(withdrawn)} of the {change.total} resources "
                f"of {key} would be withdrawn: {_format_names(withdrawn)}; use --yes to "
                "withdraw them"
            )
        if output == "table":
            with tolerating_closed_output():
                _print(change)
        if dry_run:
            return Result(str(key), True, "Valid", message=str(change)), change
        try:
            reply = await sets.declare(change, content, reason=reason)
        except DeclarationRefusedError as refused:
            return Result(str(key), False, refused.reason, message=refused.message), change
        result = Result(str(key), True, reply.reason, reply.generation, message=str(change))
        if wait_seconds is not None:
            await wait_for_results(client, [result], wait_seconds)
        return result, change


def _print(change: SetChange) -> None:
    out = console()
    for word, names, rest, style in (
        ("add", change.added, "", "green"),
        ("change", change.changed, "", "yellow"),
        ("move", _format_moves(change.moved_in, "from"), " once it leaves that set", "yellow"),
        ("move", _format_moves(change.moved_out, "to"), "", "yellow"),
        ("move", _format_moves(change.renamed, "from"), "", "yellow"),
        ("withdraw", change.removed, "", "red"),
        ("keep", change.unnamed, ", which no file declares", "dim"),
    ):
        for name in names[:_MAX_SHOWN_NAMES]:
            out.print(f"{word} {name}{rest}", style=style, markup=False, highlight=False)
        if len(names) > _MAX_SHOWN_NAMES:
            out.print(f"{word} {len(names) - _MAX_SHOWN_NAMES} more", style=style)


def _format_moves(moves: Mapping[str, str], preposition: str) -> list[str]:
    return [f"{name} {preposition} {other}" for name, other in moves.items()]


def _format_names(names: Sequence[str]) -> str:
    rest = len(names) - _MAX_SHOWN_NAMES
    return ", ".join([*names[:_MAX_SHOWN_NAMES], *([f"{rest} more"] if rest > 0 else [])])
