"""`reconciler kinds`: which kinds can be declared."""

from __future__ import annotations

import sys

import msgspec

from infra.jetstream.errors import BusUnavailableError
from reconciler.cli.connection import HERE, Connection, run_async
from reconciler.cli.console import print_table
from reconciler.cli.explain import KindExplanation, explanation_of, with_definitions
from reconciler.cli.options import Output
from reconciler.cli.output import print_structured
from reconciler.provider import Capabilities
from reconciler.provider.kind import Kind, installed_kinds


class KnownKind(msgspec.Struct, frozen=True, rename="camel"):
    """A kind that can be declared; ``defined``: at run time, by a KindDefinition."""

    kind: str
    api_version: str
    provider: str
    defined: bool
    capabilities: Capabilities | None
    about: str


def kinds(*, output: Output = "table", connection: Connection = HERE) -> int:
    """List the kinds that can be declared: those installed here, and those defined at run time.

    Without a server only the former. `reconciler explain KIND` tells a kind's fields.

    For example:

        reconciler kinds
        reconciler kinds -o json | jq '.[] | select(.capabilities.watch)'

    Parameters
    ----------
    output
        A table for people, or for programs.
    """
    known = installed_kinds()
    try:
        known = run_async(with_definitions(connection, known))
    except BusUnavailableError as error:
        sys.stderr.write(f"kinds that were defined at run time are not shown: {error}\n")
    found = [_known(kind, explanation_of(kind)) for _, kind in sorted(known.items())]
    if output == "table":
        print_table(("KIND", "API VERSION", "PROVIDER", "CAN", "ABOUT"), map(_row, found))
    else:
        print_structured(found, output)
    return 0


def _known(kind: Kind, explanation: KindExplanation) -> KnownKind:
    return KnownKind(
        kind=kind.name,
        api_version=kind.api_version,
        provider=kind.provider,
        defined=kind.definition is not None,
        capabilities=kind.capabilities,
        about=explanation.about,
    )


def _row(each: KnownKind) -> tuple[str, str, str, str, str]:
    able = () if each.capabilities is None else msgspec.structs.asdict(each.capabilities).items()
    words = [name.replace("_", "-") for name, value in able if value is True]
    return each.kind, each.api_version, each.provider, ",".join(words), each.about
