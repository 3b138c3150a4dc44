"""`reconciler explain`: show a kind's fields, and the outputs of its objects."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

import msgspec
from cyclopts import Parameter
from rich.text import Text

from events.manifest import DEFAULT_PROVIDER_CONFIG, Policy, ProviderConfigRef
from infra.bus.event_log import open_log
from infra.jetstream.errors import BusUnavailableError
from reconciler.cli.completion import complete_kinds
from reconciler.cli.connection import DEFAULT_CONNECTION, Connection, NoBusError, bus, run_async
from reconciler.cli.console import console
from reconciler.cli.errors import CommandError
from reconciler.cli.naming import is_same_kind
from reconciler.cli.options import Output
from reconciler.cli.output import print_structured
from reconciler.provider.kind import Kind, KindRegistry, installed_kinds
from reconciler.roles.runtime.definitions import Definitions

_DEFINITIONS: Final = "#/$defs/"
_LABELS: Final = "labels"
_COLUMNS: Final = 80
_ANY_NAME: Final = "NAME"
"""Placeholder for a map's keys in a path."""

_INDENT: Final = " " * 4
_NO_DEFAULT: Final[tuple[Any, ...]] = (msgspec.UNSET, None, "", (), [], {})


class _CommonFields(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The fields that every spec has, and that Reconciler itself reads."""

    provider_config_ref: Annotated[
        ProviderConfigRef,
        msgspec.Meta(description="ProviderConfig for the object's API. Default: default."),
    ] = ProviderConfigRef(DEFAULT_PROVIDER_CONFIG)
    policy: Annotated[
        Policy,
        msgspec.Meta(
            description="Rules for managing the object. `reconciler explain KIND.policy` "
            "shows the fields."
        ),
    ] = Policy()


class FieldExplanation(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One field. ``replaces``: whether a change replaces the object."""

    field: str
    type: str
    required: bool = False
    default: Any = msgspec.UNSET
    replaces: bool = False
    about: str = ""


class KindExplanation(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The fields of a kind, and the outputs of its objects."""

    kind: str
    api_version: str
    provider: str
    about: str
    spec: list[FieldExplanation]
    common: list[FieldExplanation] = []
    outputs: list[FieldExplanation] = []
    labels_replace: bool = False


def explain(
    kind: Annotated[str, Parameter(completer=complete_kinds)],
    /,
    *,
    output: Output = "table",
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Show the fields of a kind: types, allowed values, defaults, meaning.

    "replaces" marks a field that the API cannot change in place. Changing it
    replaces the object. The command needs a server only for a kind that a
    KindDefinition defines. `reconciler kinds` lists the kinds.

    For example:

        reconciler explain File
        reconciler explain Container.healthCheck
        reconciler explain Container.policy
        reconciler explain Container -o json

    Parameters
    ----------
    kind
        A kind (Shape, shape and shapes are equivalent), or KIND.FIELD for one field.
    """
    kind, _, path = kind.partition(".")
    kinds = installed_kinds()
    if not any(is_same_kind(kind, each) for each in kinds):
        try:
            kinds = run_async(load_definitions(connection, kinds))
        except (BusUnavailableError, NoBusError) as error:
            raise CommandError(f"kind {kind!r} is not installed here, and {error}") from None
    name = next((each for each in kinds if is_same_kind(kind, each)), kind)
    explanation = _select_field(explain_kind(kinds[name]), path)
    if output == "table":
        _print(explanation)
    else:
        print_structured(explanation, output)
    return 0


def _select_field(explanation: KindExplanation, path: str) -> KindExplanation:
    """Return a field with its subfields; raises ``CommandError`` if it does not exist."""
    path = path.removeprefix("spec.")
    if not path:
        return explanation

    def select(fields: list[FieldExplanation]) -> list[FieldExplanation]:
        return [each for each in fields if f"{each.field}.".startswith(f"{path}.")]

    spec, common = select(explanation.spec), select(explanation.common)
    outputs = select(explanation.outputs)
    if not spec and not common and not outputs:
        known = [
            each.field for each in (*explanation.spec, *explanation.common, *explanation.outputs)
        ]
        close = difflib.get_close_matches(path, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(known)}"
        raise CommandError(f"{explanation.kind} has no field {path!r}: {hint}")
    return msgspec.structs.replace(explanation, spec=[*spec, *common], common=[], outputs=outputs)


async def load_definitions(connection: Connection, kinds: KindRegistry) -> KindRegistry:
    """Add the kinds that were defined at run time; raises ``BusError``."""
    async with bus(connection) as nc:
        await Definitions(kinds).load(await open_log(nc))
    return kinds


def explain_kind(kind: Kind) -> KindExplanation:
    """Return a kind's explanation, derived from its structs."""
    schema = msgspec.json.schema(kind.schema)
    outputs = [] if kind.outputs is None else [*_fields(msgspec.json.schema(kind.outputs), kind)]
    return KindExplanation(
        kind=kind.name,
        api_version=kind.api_version,
        provider=kind.provider,
        about=_describe(schema, kind),
        spec=[*_fields(schema, kind)],
        common=[
            each
            for each in _fields(msgspec.json.schema(_CommonFields), kind)
            if kind.is_external or each.field.startswith("policy")
        ],
        outputs=outputs,
        labels_replace=_LABELS in kind.immutable,
    )


def _describe(schema: Any, kind: Kind) -> str:
    if kind.definition is not None:
        return "Defined by a KindDefinition."
    paragraphs = str(_resolve(schema, schema).get("description", "")).split("\n\n")
    return "\n\n".join(" ".join(each.replace("``", "").split()) for each in paragraphs)


def _fields(schema: Any, kind: Kind) -> Iterator[FieldExplanation]:
    yield from _struct_fields(schema, _resolve(schema, schema), kind, "", ())


def _struct_fields(
    schema: Any, struct: Any, kind: Kind, prefix: str, ancestors: tuple[str, ...]
) -> Iterator[FieldExplanation]:
    required = struct.get("required", ())
    for name, part in struct.get("properties", {}).items():
        path = f"{prefix}{name}"
        nested = _find_struct(schema, part)
        yield FieldExplanation(
            path,
            _format_type(schema, part),
            required=name in required,
            default=part.get("default", msgspec.UNSET) if name not in required else msgspec.UNSET,
            replaces=any(path == each or path.startswith(f"{each}.") for each in kind.immutable),
            about=" ".join(str(part.get("description", "")).split()),
        )
        title = "" if nested is None else str(nested.get("title"))
        if nested is not None and title not in ancestors:
            inner = f"{path}.{_ANY_NAME}." if "additionalProperties" in part else f"{path}."
            yield from _struct_fields(schema, nested, kind, inner, (*ancestors, title))


def _resolve(schema: Any, part: Any) -> Any:
    reference = part.get("$ref", "")
    if reference.startswith(_DEFINITIONS):
        return schema["$defs"][reference.removeprefix(_DEFINITIONS)]
    return part


def _find_struct(schema: Any, part: Any) -> Any:
    """Return the struct of a field or of its items, or None if it has no subfields."""
    resolved = _resolve(schema, part)
    if "properties" in resolved:
        return None if resolved.get("title") == "SecretRef" else resolved
    for inner in ("items", "additionalProperties"):
        if isinstance(resolved.get(inner), dict):
            return _find_struct(schema, resolved[inner])
    variants = [_find_struct(schema, each) for each in resolved.get("anyOf", ())]
    return next((each for each in variants if each is not None), None)


def _format_type(schema: Any, part: Any) -> str:
    part = _resolve(schema, part)
    if "enum" in part:
        return " | ".join(str(each) for each in part["enum"])
    if "anyOf" in part:
        kinds = [_format_type(schema, each) for each in part["anyOf"]]
        return " | ".join(dict.fromkeys(each for each in kinds if each != "null"))
    if part.get("title") == "SecretRef":
        return "secret"
    match part.get("type"):
        case "array":
            return f"list of {_format_type(schema, part.get('items') or {})}"
        case "object" if "properties" in part:
            return "object"
        case "object":
            values = part.get("additionalProperties")
            return f"map of {_format_type(schema, values)}" if isinstance(values, dict) else "map"
        case "string" | "integer" | "number" as plain:
            return plain + _format_bounds(part)
        case str(plain):
            return plain
        case _:
            return "any"


def _format_bounds(part: Any) -> str:
    low, high = part.get("minimum"), part.get("maximum")
    if low is None and high is None:
        return ""
    if high is None:
        return f" >= {low}"
    return f" <= {high}" if low is None else f" {low}..{high}"


def _print(explanation: KindExplanation) -> None:
    out = console()
    out.print(f"{explanation.kind} ({explanation.api_version})", style="bold")
    if explanation.provider:
        out.print(f"provider {explanation.provider}")
    for paragraph in explanation.about.split("\n\n"):
        out.print()
        for line in textwrap.wrap(paragraph, _COLUMNS):
            out.print(line)
    if explanation.spec:
        out.print_title("Spec:")
    for each in explanation.spec:
        _print_field(each, [each.type, *_rules(each)])
    common = [each for each in explanation.common if "." not in each.field]
    if common:
        out.print_title("In the spec of every kind:")
    for each in common:
        _print_field(each, [each.type, *_rules(each)])
    if explanation.outputs:
        out.print_title("Outputs:")
    for each in explanation.outputs:
        _print_field(each, [each.type])
    if explanation.labels_replace:
        out.print()
        out.print("Changing the labels also replaces the object.")


def _rules(field: FieldExplanation) -> Iterator[str]:
    if field.required:
        yield "required"
    elif field.default not in _NO_DEFAULT and field.type != "object":
        yield f"default {msgspec.json.encode(field.default).decode()}"
    if field.replaces:
        yield "replaces"


def _print_field(field: FieldExplanation, rules: Sequence[str]) -> None:
    """Print a field's type and rules, and then its description, in 80 columns."""
    heading = f"{field.field}  {', '.join(rules)}"
    first, *more = textwrap.wrap(heading, _COLUMNS, subsequent_indent=_INDENT)
    title = Text(first)
    title.stylize("bold", 0, len(field.field))
    about = textwrap.wrap(field.about, _COLUMNS, initial_indent=_INDENT, subsequent_indent=_INDENT)
    for line in (title, *more, *about):
        console().print(line)
