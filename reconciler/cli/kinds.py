"""`reconciler kinds`: list the kinds that can be declared."""

from __future__ import annotations

import sys
from typing import Annotated, Final, Literal

import msgspec
from cyclopts import Parameter

from events.stored_content import COMPOSED_KINDS
from infra.jetstream.errors import BusUnavailableError
from reconciler.cli.connection import DEFAULT_CONNECTION, Connection, NoBusError, run_async
from reconciler.cli.console import print_table
from reconciler.cli.explain import KindExplanation, explain_kind, load_definitions
from reconciler.cli.output import print_structured
from reconciler.provider import Capabilities
from reconciler.provider.kind import Kind, installed_kinds

_WIDE: Final = ("KIND", "API VERSION", "EXTRA", "PURPOSE", "PROVIDER", "CAPABILITIES")


class KnownKind(msgspec.Struct, frozen=True, rename="camel"):
    """A kind that can be declared.

    ``defined``: whether a KindDefinition defines it at run time. ``extra``: the extra of this
    distribution that its provider requires, or "".
    """

    kind: str
    api_version: str
    provider: str
    extra: str
    defined: bool
    capabilities: Capabilities | None
    about: str


def kinds(
    *,
    everything: Annotated[bool, Parameter(name="--all")] = False,
    output: Annotated[
        Literal["table", "wide", "json", "yaml"], Parameter(name=("--output", "-o"))
    ] = "table",
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """List the kinds that you can declare, and what each is for.

    Without a server, the list does not include kinds that a KindDefinition
    defines. Wherever a process calls a kind's API, install its EXTRA with
    pip install 'event-sourced-reconciler[EXTRA]'. `reconciler explain KIND`
    shows the fields of a kind.

    For example:

        reconciler kinds
        reconciler kinds -o wide      also API versions and capabilities
        reconciler kinds -o json | jq '.[] | select(.capabilities.watch)'

    Parameters
    ----------
    everything
        Also list the internal kinds, which only Reconciler declares.
    output
        Output format: a table, a table with more columns, JSON or YAML.
    """
    known = installed_kinds()
    try:
        known = run_async(load_definitions(connection, known))
    except (BusUnavailableError, NoBusError) as error:
        sys.stderr.write(f"kinds from KindDefinitions are not shown: {error}\n")
    found = [
        _build_known_kind(kind, explain_kind(kind))
        for name, kind in sorted(known.items())
        if everything or name not in COMPOSED_KINDS
    ]
    if output == "table":
        print_table(
            ("KIND", "EXTRA", "PURPOSE"),
            ((each.kind, each.extra, each.about) for each in found),
        )
    elif output == "wide":
        print_table(_WIDE, map(_wide_row, found))
    else:
        print_structured(found, output)
    return 0


def _build_known_kind(kind: Kind, explanation: KindExplanation) -> KnownKind:
    return KnownKind(
        kind=kind.name,
        api_version=kind.api_version,
        provider=kind.provider,
        extra=kind.extra,
        defined=kind.definition is not None,
        capabilities=kind.capabilities,
        about=explanation.about.partition("\n\n")[0],
    )


def _wide_row(each: KnownKind) -> tuple[str, ...]:
    fields = {} if each.capabilities is None else msgspec.structs.asdict(each.capabilities)
    words = [name.replace("_", "-") for name, value in fields.items() if value is True]
    return each.kind, each.api_version, each.extra, each.about, each.provider, ",".join(words)
