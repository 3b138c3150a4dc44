"""`reconciler explain`: what can be declared of a kind, and what its objects give."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from infra.jetstream.errors import BusUnavailableError
from reconciler.cli.connection import HERE, Connection, bus, run_async
from reconciler.cli.console import console, print_table
from reconciler.cli.errors import CommandError
from reconciler.cli.log_replay import log_of
from reconciler.cli.naming import same_kind
from reconciler.cli.options import Output
from reconciler.cli.output import print_structured
from reconciler.provider.kind import Kind, KindRegistry, installed_kinds
from reconciler.roles.definitions import Definitions

_DEFINITIONS: Final = "#/$defs/"
_LABELS: Final = "labels"


class FieldExplanation(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One field: ``replaces`` says that a change of it needs another object."""

    field: str
    type: str
    required: bool = False
    default: Any = msgspec.UNSET
    replaces: bool = False
    about: str = ""


class KindExplanation(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What can be declared of a kind, and what its objects give to others."""

    kind: str
    api_version: str
    provider: str
    about: str
    spec: list[FieldExplanation]
    outputs: list[FieldExplanation] = []
    labels_replace: bool = False


def explain(kind: str, /, *, output: Output = "table", connection: Connection = HERE) -> int:
    """Show what can be declared of a kind: fields, types, allowed values, defaults.

    A kind that is installed here needs no server; one that was defined at run
    time is asked for. Fields that the API cannot change in place are marked: a
    change of one replaces the object. `reconciler kinds` lists the kinds.

    For example:

        reconciler explain File
        reconciler explain Container.health
        reconciler explain Container -o json

    Parameters
    ----------
    kind
        The kind, as in a manifest or in small letters; or KIND.FIELD for a part of it.
    output
        A table for people, or for programs.
    """
    kind, _, path = kind.partition(".")
    kinds = installed_kinds()
    if not any(same_kind(kind, each) for each in kinds):
        try:
            kinds = run_async(with_definitions(connection, kinds))
        except BusUnavailableError as error:
            raise CommandError(f"kind {kind!r} is not installed here, and {error}") from None
    name = next((each for each in kinds if same_kind(kind, each)), kind)
    explanation = _part(explanation_of(kinds[name]), path)
    if output == "table":
        _print(explanation)
    else:
        print_structured(explanation, output)
    return 0


def _part(explanation: KindExplanation, path: str) -> KindExplanation:
    """Keep one field and all within it; raises ``CommandError`` for one that is not there."""
    path = path.removeprefix("spec.")
    if not path:
        return explanation

    def chosen(fields: list[FieldExplanation]) -> list[FieldExplanation]:
        return [each for each in fields if f"{each.field}.".startswith(f"{path}.")]

    spec, outputs = chosen(explanation.spec), chosen(explanation.outputs)
    if not spec and not outputs:
        known = [each.field for each in (*explanation.spec, *explanation.outputs)]
        close = difflib.get_close_matches(path, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(known)}"
        raise CommandError(f"{explanation.kind} has no field {path!r}: {hint}")
    return msgspec.structs.replace(explanation, spec=spec, outputs=outputs)


async def with_definitions(connection: Connection, kinds: KindRegistry) -> KindRegistry:
    """Add the kinds that were defined at run time; raises ``BusError``."""
    async with bus(connection) as nc:
        await Definitions(kinds).load(await log_of(nc))
    return kinds


def explanation_of(kind: Kind) -> KindExplanation:
    """Explain a kind by its structs."""
    schema = msgspec.json.schema(kind.schema)
    outputs = [] if kind.outputs is None else [*_fields(msgspec.json.schema(kind.outputs), kind)]
    return KindExplanation(
        kind=kind.name,
        api_version=kind.api_version,
        provider=kind.provider,
        about=_about(schema, kind),
        spec=[*_fields(schema, kind)],
        outputs=outputs,
        labels_replace=_LABELS in kind.immutable,
    )


def _about(schema: Any, kind: Kind) -> str:
    if kind.definition is not None:
        return "It was defined at run time."
    lines = str(_resolved(schema, schema).get("description", "")).split("\n\n")
    return " ".join(lines[0].replace("``", "").split())


def _fields(schema: Any, kind: Kind) -> Iterator[FieldExplanation]:
    yield from _of_struct(schema, _resolved(schema, schema), kind, "", ())


def _of_struct(
    schema: Any, struct: Any, kind: Kind, prefix: str, above: tuple[str, ...]
) -> Iterator[FieldExplanation]:
    required = struct.get("required", ())
    for name, part in struct.get("properties", {}).items():
        path = f"{prefix}{name}"
        nested = _nested(schema, part)
        yield FieldExplanation(
            path,
            _type(schema, part),
            required=name in required,
            default=part.get("default", msgspec.UNSET) if name not in required else msgspec.UNSET,
            replaces=any(path == each or path.startswith(f"{each}.") for each in kind.immutable),
            about=" ".join(str(part.get("description", "")).split()),
        )
        title = "" if nested is None else str(nested.get("title"))
        if nested is not None and title not in above:
            yield from _of_struct(schema, nested, kind, f"{path}.", (*above, title))


def _resolved(schema: Any, part: Any) -> Any:
    reference = part.get("$ref", "")
    if reference.startswith(_DEFINITIONS):
        return schema["$defs"][reference.removeprefix(_DEFINITIONS)]
    return part


def _nested(schema: Any, part: Any) -> Any:
    """Return the struct within a field, also of a list or an optional one; None for none."""
    resolved = _resolved(schema, part)
    if "properties" in resolved:
        return None if resolved.get("title") == "SecretRef" else resolved
    if "items" in resolved and isinstance(resolved["items"], dict):
        return _nested(schema, resolved["items"])
    found = [_nested(schema, each) for each in resolved.get("anyOf", ())]
    return next((each for each in found if each is not None), None)


def _type(schema: Any, part: Any) -> str:
    part = _resolved(schema, part)
    if "enum" in part:
        return " | ".join(str(each) for each in part["enum"])
    if "anyOf" in part:
        kinds = [_type(schema, each) for each in part["anyOf"]]
        return " | ".join(dict.fromkeys(each for each in kinds if each != "null"))
    if part.get("title") == "SecretRef":
        return "secret"
    match part.get("type"):
        case "array":
            return f"list of {_type(schema, part.get('items') or {})}"
        case "object" if "properties" in part:
            return "object"
        case "object":
            values = part.get("additionalProperties")
            return f"map of {_type(schema, values)}" if isinstance(values, dict) else "map"
        case "string" | "integer" | "number" as plain:
            return plain + _bounds(part)
        case str(plain):
            return plain
        case _:
            return "any"


def _bounds(part: Any) -> str:
    low, high = part.get("minimum"), part.get("maximum")
    if low is None and high is None:
        return ""
    return f" {'' if low is None else low}..{'' if high is None else high}"


def _print(explanation: KindExplanation) -> None:
    out = console()
    out.print(f"{explanation.kind} ({explanation.api_version})", style="bold")
    if explanation.provider:
        out.print(f"  provider {explanation.provider}")
    out.print(f"  {explanation.about}")
    for title, fields in (("Spec", explanation.spec), ("Outputs", explanation.outputs)):
        if fields:
            out.print(f"\n{title}", style="bold")
            print_table(("FIELD", "TYPE", "DEFAULT", "A CHANGE", "ABOUT"), map(_row, fields))
    if explanation.labels_replace:
        out.print("\nA change of its labels replaces the object, too.")


def _row(each: FieldExplanation) -> tuple[str, str, str, str, str]:
    default = "required" if each.required else ""
    if each.default is not msgspec.UNSET:
        default = msgspec.json.encode(each.default).decode()
    return each.field, each.type, default, "replaces" if each.replaces else "", each.about
