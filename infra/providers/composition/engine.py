"""Engine for kinds that are composed of other resources (``composition``, ADR 0052).

Each part of the definition is a component, whose manifests the decider computes with CEL. The log
contains the result, so neither a replay nor a withdrawal evaluates an expression.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Final, cast

import msgspec

from events.composition import Child, children_of
from events.composition_definition import ComposedOutput, CompositionSpec
from events.external import ExternalObject
from events.kind_definition import KindDefinitionSpec
from events.manifest import Fields, InvalidManifestError
from events.names import ResourceKey
from infra.providers.composition.kind import composed_kind
from infra.providers.composition.parts import (
    RESOURCE_VARIABLES,
    Budget,
    PartTemplate,
    child_statuses,
    expression,
)
from infra.providers.composition.spec import MAX_NAME_CHARACTERS, name_problem
from infra.providers.rest.expressions import Expression, ExpressionError, Inputs
from infra.providers.rest.protocol import OUTPUT_TYPES
from reconciler.composites import components
from reconciler.composites.components import ComponentsOutputs
from reconciler.provider.kind import READY as IS_READY
from reconciler.provider.kind import Kind, Readiness

READY: Final = "ready"
PROBLEM: Final = "problem"

_INPUTS: Final = "given"
_CHILDREN: Final = "children"
_MAX_SET_NAME: Final = 63
_MAX_OUTPUT_BYTES: Final = 16 * 1024
_MAX_KEPT_BYTES: Final = 16 * 1024 * 1024
_ENTRY_BYTES: Final = 256  # of memory, in addition to the values
_LOCATION: Final = "spec.composition"
_encoder = msgspec.json.Encoder()


class _EmptySchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An empty schema, because the definition has its own."""


def composition_kind(name: str, spec: KindDefinitionSpec) -> Kind:
    """Build the kind for a definition with ``composition``. Raises ``InvalidManifestError``."""
    assert spec.composition is not None
    _check(spec)
    parts = _parts(name, spec.composition)
    longest = max([len(name), *(len(each.name) for each in parts if each.is_named_by_part)])
    max_characters = min(MAX_NAME_CHARACTERS, _MAX_SET_NAME - longest - len("-"))
    if max_characters < 1:
        raise InvalidManifestError(
            f"metadata.name: {name!r} is too long, because the names of sets contain it; use a "
            "shorter name"
        )
    defined_outputs = _DefinedOutputs(
        name, spec.composition, {each.name: each.is_many for each in parts}
    )
    kind = composed_kind(
        name,
        spec.api_version,
        _EmptySchema,
        compose=_Composer(parts, defined_outputs.input_names).compose,
        summary=defined_outputs.summary,
        ready=_ready,
        outputs=defined_outputs.outputs,
        extra="composition",
    )
    problem = partial(name_problem, max_characters=max_characters)
    return replace(kind, provider=spec.provider, name_problem=problem)


def _check(spec: KindDefinitionSpec) -> None:
    if spec.name_prefix:
        raise InvalidManifestError(
            "spec.namePrefix: not allowed with spec.composition; name the parts in their "
            "metadata.name"
        )
    if spec.constants:
        raise InvalidManifestError(
            "spec.constants: not allowed with spec.composition; put the values in the parts"
        )
    for name, field in spec.fields.items():
        if field.to is not None:
            raise InvalidManifestError(
                f"spec.fields.{name}.to: not allowed with spec.composition; omit it, and "
                "write the value in the parts"
            )


def _parts(name: str, spec: CompositionSpec) -> list[PartTemplate]:
    names = [each.name for each in spec.parts]
    parts: list[PartTemplate] = []
    for number, part in enumerate(spec.parts):
        location = f"{_LOCATION}.parts[{number}]"
        if part.name in names[:number]:
            raise InvalidManifestError(
                f"{location}.name: duplicate name {part.name!r}; give each part its own name"
            )
        if part.manifest.kind == name:
            raise InvalidManifestError(
                f"{location}.manifest.kind: a {name} cannot contain a {name}, because the "
                "nesting would never end; use another kind"
            )
        parts.append(PartTemplate(part, location, names))
    try:
        TopologicalSorter({each.name: each.dependencies for each in parts}).prepare()
    except CycleError as error:
        cycle = " → ".join(error.args[1])
        raise InvalidManifestError(
            f"{_LOCATION}.parts: the parts depend on each other in a cycle, {cycle}; remove "
            "children from one of them"
        ) from None
    return parts


class _Composer:
    """Computes the content of objects: the parts, and the inputs of the outputs' expressions.

    A decision composes the same declaration again after each step, so the last content is kept.
    """

    def __init__(self, parts: list[PartTemplate], input_names: frozenset[str]) -> None:
        self._parts = parts
        self._input_names = input_names
        self._last: tuple[ResourceKey, bytes, ExternalObject | None, Fields] | None = None

    def compose(self, key: ResourceKey, spec: Fields, observed: ExternalObject | None) -> Fields:
        """Return the content for a declaration and the observed object."""
        encoded = _encoder.encode(spec)  # compared as JSON, because Python equates 1 and True
        if self._last is not None:
            last_key, last_spec, last_observed, content = self._last
            if observed is last_observed and (key, encoded) == (last_key, last_spec):
                return content
        content = self._compute(key, spec, observed)
        self._last = (key, encoded, observed, content)
        return content

    def _compute(self, key: ResourceKey, spec: Fields, observed: ExternalObject | None) -> Fields:
        resource = {"spec": spec, "name": key.name, "namespace": key.namespace}
        observed_fields: Fields = {} if observed is None else observed.fields
        is_many_by_part = {each.name: each.is_many for each in self._parts}
        children = child_statuses(is_many_by_part, observed_fields, children_of(observed))
        budget, inputs = Budget(), Inputs({**resource, _CHILDREN: children})
        contents = [each.component(inputs, budget) for each in self._parts]
        content = components.compose_components(contents, observed)
        if self._input_names:
            content[_INPUTS] = {name: resource[name] for name in self._input_names}
        return content


class _KeptValues:
    """Encoded values by the digest of their inputs, up to a total size.

    When they are full, a new entry replaces a random one. Listings read all objects in order, so if
    it replaced the oldest one, too many objects would evict every entry before its next use.
    """

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._digests: list[bytes] = []
        self._bytes = 0

    def get(self, digest: bytes) -> Fields | None:
        encoded = self._values.get(digest)
        return None if encoded is None else msgspec.json.decode(encoded, type=Fields)

    def add(self, digest: bytes, values: Fields) -> None:
        encoded = _encoder.encode(values)
        self._values[digest] = encoded
        self._digests.append(digest)
        self._bytes += len(encoded) + _ENTRY_BYTES
        while self._bytes > _MAX_KEPT_BYTES:
            at = random.randrange(len(self._digests))  # noqa: S311 - a guess gains nothing
            self._digests[at], self._digests[-1] = self._digests[-1], self._digests[at]
            self._bytes -= len(self._values.pop(self._digests.pop())) + _ENTRY_BYTES


class _DefinedOutputs:
    """The outputs in a definition, computed by the provider and recorded with the object.

    Every listing computes them again, so the values for the same inputs are kept.
    """

    def __init__(
        self, name: str, spec: CompositionSpec, is_many_by_part: Mapping[str, bool]
    ) -> None:
        self._is_many_by_part = is_many_by_part
        variables = (*RESOURCE_VARIABLES, _CHILDREN)
        self._ready: Expression | None = None
        if spec.ready:
            self._ready = expression(spec.ready, f"{_LOCATION}.ready", variables)
        self._outputs = {
            each: (expression(output.value, f"{_LOCATION}.outputs.{each}.value", variables), output)
            for each, output in spec.outputs.items()
        }
        reserved = {READY, PROBLEM, *ComponentsOutputs.__struct_fields__}
        for output_name in spec.outputs:
            if output_name in reserved:
                raise InvalidManifestError(
                    f"{_LOCATION}.outputs.{output_name}: the name is reserved; use another name"
                )
        used_variables = [each.variables for each, _ in self._outputs.values()]
        used_variables += [] if self._ready is None else [self._ready.variables]
        self.input_names = frozenset(RESOURCE_VARIABLES) & frozenset[str]().union(*used_variables)
        self.outputs = _struct(name, spec.outputs)
        self._evaluated = _KeptValues()

    def summary(self, fields: Fields, children: Mapping[str, Child]) -> Fields:
        """Return the status of the components, and the values of the definition's expressions."""
        statuses = child_statuses(self._is_many_by_part, fields, children)
        inputs: object = fields.get(_INPUTS)
        resource = cast("Fields", inputs) if isinstance(inputs, dict) else {}
        variables = {**resource, _CHILDREN: statuses}
        digest = hashlib.blake2b(_encoder.encode(variables), digest_size=16).digest()
        values = self._evaluated.get(digest)
        if values is None:
            values = self._evaluate(variables)
            self._evaluated.add(digest, values)
        return {**components.summary(fields, children), **values}

    def _evaluate(self, variables: Fields) -> Fields:
        result: Fields = {}
        problems: list[str] = []
        expression_inputs = Inputs(variables)
        for name, (compiled, output) in self._outputs.items():
            try:
                value = compiled.evaluate(expression_inputs)
                result[name] = msgspec.convert(value, OUTPUT_TYPES[output.type])
            except (ExpressionError, msgspec.ValidationError) as error:
                problems.append(f"{_LOCATION}.outputs.{name}: {error}")
        size = len(_encoder.encode(result))
        if size > _MAX_OUTPUT_BYTES:
            result = {}
            problems = [
                f"{_LOCATION}.outputs: their values take up {size} bytes, more than the limit of "
                f"{_MAX_OUTPUT_BYTES}; shorten them"
            ]
        if self._ready is not None:
            result[READY] = False
            try:
                result[READY] = self._ready.evaluate(expression_inputs) is True
            except ExpressionError as error:
                problems.insert(0, f"{_LOCATION}.ready: {error}")
        return {**result, PROBLEM: problems[0]} if problems else result


def _ready(fields: Fields, observed: ExternalObject) -> Readiness:
    """Return the readiness that the read recorded, because the log contains no expressions."""
    by_parts, recorded = components.ready(fields, observed), observed.outputs.get(READY)
    if recorded is None:
        return by_parts
    if recorded is True:
        return IS_READY
    message = observed.outputs.get(PROBLEM) or by_parts.message or f"{_LOCATION}.ready is not true"
    return Readiness(False, "Progressing" if by_parts.is_ready else by_parts.reason, message)


def _struct(name: str, outputs: Mapping[str, ComposedOutput]) -> type[msgspec.Struct]:
    names = {f"output{number}": each for number, each in enumerate(outputs)}
    attributes: list[tuple[str, Any, Any]] = [
        (attribute, _type(outputs[each]), msgspec.UNSET) for attribute, each in names.items()
    ]
    return msgspec.defstruct(
        f"{name}Outputs",
        [*attributes, (READY, bool | msgspec.UnsetType, msgspec.UNSET), (PROBLEM, str, "")],
        bases=(ComponentsOutputs,),
        rename=names,
        frozen=True,
    )


def _type(output: ComposedOutput) -> Any:
    metadata = msgspec.Meta(description=output.about)
    return Annotated[OUTPUT_TYPES[output.type], metadata] | msgspec.UnsetType
