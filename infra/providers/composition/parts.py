"""A part of a defined composition: its condition and its manifests, computed with CEL (ADR 0052).

If an expression reads a missing value of another part that is not ready, the part stays unchanged
until that part is ready. Any other failure is an error in the definition or the spec.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, cast

import msgspec

from events.composition import Child
from events.composition_definition import PartDefinition, PartState
from events.excerpt import list_first
from events.field_hints import field_error
from events.manifest import Fields, InvalidManifestError, Manifest
from infra.providers.rest.expressions import (
    Expression,
    ExpressionError,
    ExpressionWorkError,
    Inputs,
)
from infra.providers.rest.json_paths import Template
from reconciler.composites.components import Component, CompositionRecord, Part, is_usable

MAX_RESOURCES: Final = 500
CHILDREN: Final = "children"
ITEM: Final = "item"
RESOURCE_VARIABLES: Final = ("name", "namespace", "spec")

_REFERENCE: Final = re.compile(
    r"(?<![\w.])children\s*\[\s*(?:'([^'\\]*)'|\"([^\"\\]*)\")\s*\]"
    r"|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'"  # a string literal is not a reference
    r"|(?<![\w.])(children)\b(?:\s*\.\s*([A-Za-z_]\w*))?",
    re.DOTALL,
)


class Budget:
    """The remaining resources of an object. Their time is limited by the ``Work`` of its inputs."""

    def __init__(self) -> None:
        self._resources = MAX_RESOURCES

    def count_resources(self, location: str, resources: int) -> None:
        """Count resources. Raises ``InvalidManifestError`` if there are too many."""
        self._resources -= resources
        if self._resources < 0:
            raise InvalidManifestError(
                f"{location}: exceeds the limit of {MAX_RESOURCES} resources; split the resource"
            )


class PartTemplate:
    """Builds the resources of a part from the spec and the status of the other parts."""

    def __init__(self, part: PartDefinition, location: str, names: Collection[str]) -> None:
        """Compile a part. Raises ``InvalidManifestError``."""
        self.name = part.name
        self._state: PartState = part.state
        self._location = f"{location} ({part.name})"
        variables = (*RESOURCE_VARIABLES, CHILDREN)
        self._when = _optional(part.when, f"{self._location}.when", variables)
        self._for_each = _optional(part.for_each, f"{self._location}.forEach", variables)
        self.is_many = self._for_each is not None
        metadata = part.manifest.metadata
        self.is_named_by_part = not metadata.name
        if self.is_many:
            variables = (*variables, ITEM)
            if self.is_named_by_part:
                raise InvalidManifestError(
                    f"{self._location}.manifest.metadata.name: required with forEach; give each "
                    "item's resource a name, such as = name + '-' + item"
                )
        tree: Fields = msgspec.to_builtins(part.manifest)
        self._template = Template(tree, f"{self._location}.manifest", variables, (CHILDREN,))
        switches = [each for each in (self._when, self._for_each) if each is not None]
        expressions = [*self._template.expressions.values(), *switches]
        self._references = {
            each.text: frozenset(self._find_mentions(each, names)) for each in expressions
        }

    @property
    def dependencies(self) -> frozenset[str]:
        """The parts that its expressions reference."""
        return frozenset[str]().union(*self._references.values())

    def _find_mentions(self, expression: Expression, names: Collection[str]) -> Iterator[str]:
        if CHILDREN not in expression.variables:
            return
        for match in _REFERENCE.finditer(expression.text):
            part: str = match[1] or match[2] or match[4] or ""
            if not part and match[3] is None:
                continue
            if part not in names:
                raise InvalidManifestError(
                    f"{self._location}: {expression.text!r}: must reference a part as "
                    f"children.NAME or children['NAME']; the parts are {list_first(list(names))}"
                )
            yield part

    def component(self, inputs: Inputs, budget: Budget) -> Component:
        """Return the part as a component.

        Raises ``InvalidManifestError``, which names the part and the expression.
        """
        try:
            return self._component(inputs, budget)
        except ExpressionWorkError as error:
            raise InvalidManifestError(
                f"{self._location}: its expressions would take too long, at {error.text!r}; read "
                "fewer values, such as only item, or match simpler patterns"
            ) from None
        except ExpressionError as error:
            children: Mapping[str, Any] = inputs.variables[CHILDREN]
            referenced = self._references.get(error.text, ())
            unready = sorted(each for each in referenced if not _is_ready(children[each]))
            if not unready:
                raise InvalidManifestError(f"{self._location}: {error}") from None
            waiting = f"waiting for {list_first(unready)}: {error}"
            return Component(self.name, _no_parts, waiting_for=waiting)

    def _component(self, inputs: Inputs, budget: Budget) -> Component:
        is_enabled: Any = True if self._when is None else self._when.evaluate(inputs)
        if not isinstance(is_enabled, bool):
            raise self._build_type_error("when", self._when, is_enabled, "true or false")
        if not is_enabled or self._state == "Absent":
            return Component(self.name, _no_parts, enabled=False)
        items: list[Any] = [None]
        if self._for_each is not None:
            value: Any = self._for_each.evaluate(inputs)
            if not isinstance(value, list):
                raise self._build_type_error("forEach", self._for_each, value, "a list")
            items = cast("list[Any]", value)
        budget.count_resources(self._location, len(items))
        parts = [self._part(inputs, item) for item in items]
        return Component(self.name, lambda _values: parts)

    def _part(self, inputs: Inputs, item: Any) -> Part:
        if self.is_many:
            inputs.replace(ITEM, item)
        variables = inputs.variables
        fields: Fields = self._template.build(inputs)
        metadata: Fields = {**fields.get("metadata", {}), "namespace": variables["namespace"]}
        if self.is_named_by_part:
            metadata["name"] = f"{variables['name']}-{self.name}"
        try:
            manifest = msgspec.convert({**fields, "metadata": metadata}, Manifest)
        except msgspec.ValidationError as error:
            location = f"{self._location}.manifest"
            raise InvalidManifestError(field_error(error, Manifest, location)) from None
        return Part(manifest, self._state)

    def _build_type_error(
        self, field: str, expression: Expression | None, value: object, expected: str
    ) -> InvalidManifestError:
        text = "" if expression is None else expression.text
        kind = type(value).__name__
        return InvalidManifestError(
            f"{self._location}.{field}: {text!r} returns {kind}, but must return {expected}"
        )


def expression(text: str, location: str, variables: Collection[str]) -> Expression:
    """Compile an expression, with or without a leading =."""
    return Expression(text.strip().removeprefix("="), location, variables)


def child_statuses(
    is_many_by_part: Mapping[str, bool], fields: Fields, children: Mapping[str, Child]
) -> dict[str, Any]:
    """Return each part's status as expressions read it, by resource for a part with forEach."""
    components = CompositionRecord.of(fields).components
    result: dict[str, Any] = {}
    for part, is_many in is_many_by_part.items():
        names = components.get(part, [])
        statuses = {name.rpartition("/")[2]: _child_status(children.get(name)) for name in names}
        result[part] = statuses if is_many else next(iter(statuses.values()), _child_status(None))
    return result


def _child_status(child: Child | None) -> Fields:
    if child is None:
        return {"ready": False, "outcome": "", "reason": "", "message": "", "outputs": {}}
    return {
        "ready": is_usable(child),
        "outcome": child.outcome,
        "reason": child.reason,
        "message": child.message,
        "outputs": child.outputs,
    }


def _is_ready(status: Mapping[str, Any]) -> bool:
    """Return whether a part has resources, and all of them are ready."""
    if "ready" in status and isinstance(status["ready"], bool):
        return status["ready"]
    return bool(status) and all(each["ready"] for each in status.values())


def _optional(text: str, location: str, variables: Collection[str]) -> Expression | None:
    return expression(text, location, variables) if text else None


def _no_parts(_values: Fields) -> list[Part]:
    return []
