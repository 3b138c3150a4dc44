"""References of a spec to other resources and to secrets.

``{"$ref": "Database/orders", "field": "outputs.host"}`` stands for a value from another resource in
the namespace, and ``{"$secret": "db-password"}`` for a secret. The ``ShapeRef`` kind is a reference
without a value: a service declares that it depends on a resource of another service.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, Final, Literal, cast

import msgspec

from events.field_hints import field_error
from events.field_types import Target, description
from events.intake import OnWithdrawal, TargetState
from events.manifest import Fields, InvalidManifestError, ManifestStruct, Token
from events.names import SYSTEM_NAMESPACE, InvalidNameError, ResourceKey
from events.secret import SecretRef

REFERENCE_KIND: Final = "ShapeRef"
MAX_REFERENCES: Final = 64
MAX_SECRETS: Final = 64
"""Maximum number of secrets in a spec. Shared processes read each one every few seconds."""

MAX_FIELD_CHARACTERS: Final = 16 * 1024
"""Maximum total length of a spec's referenced fields, which rows and outcomes contain."""

_REF: Final = "$ref"
_SECRET: Final = "$secret"  # noqa: S105 - the mark of a name
_OUTPUTS: Final = "outputs."
_REFERENCE_MARKS: Final = frozenset((_REF,))
_MARKS: Final = frozenset((_REF, _SECRET))
_SCALARS: Final = frozenset[type]((str, int, float, bool, type(None)))


class Reference(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """A reference to a resource or its fields, and what happens when that resource is withdrawn."""

    target: Target
    fields: Annotated[tuple[str, ...], description("Fields whose values the spec uses.")] = ()
    on_withdrawal: Annotated[
        OnWithdrawal,
        description(
            "Effect when the referenced resource is withdrawn. Keep: its object stays. Release: "
            "Reconciler releases it. Ignore: no effect."
        ),
    ] = "Keep"


def may_refer(target: ResourceKey, namespace: str, permitted: Collection[str]) -> bool:
    """Return whether references from a namespace to a resource are permitted.

    References from its own namespace and from operators are always permitted. Others require the
    resource's permission, because a reference can prevent the deletion of a withdrawn resource.
    """
    return namespace in (target.namespace, SYSTEM_NAMESPACE, *permitted) or "*" in permitted


class FieldReference(ManifestStruct, frozen=True):
    """The written form of a reference."""

    target: str = msgspec.field(name=_REF)
    field: str


class ReferenceTarget(ManifestStruct, frozen=True):
    """The resource that a ``ShapeRef`` refers to."""

    kind: Annotated[Token, msgspec.Meta(description="Kind of the resource.")]
    name: Annotated[Token, msgspec.Meta(description="Name of the resource.")]
    namespace: Annotated[Token, msgspec.Meta(description="Namespace of the resource.")] = "default"


class ReferenceSpec(ManifestStruct, frozen=True):
    """A dependency on a resource of another service."""

    target: Annotated[ReferenceTarget, msgspec.Meta(description="Resource that you depend on.")]
    on_withdrawal: Annotated[
        Literal["Keep", "Release", "Ignore"],
        msgspec.Meta(
            description="Action when the resource is withdrawn. Keep: "
            "Reconciler keeps its object until this reference is withdrawn too. Release: "
            "Reconciler releases the object without deleting it. Ignore: no effect."
        ),
    ] = "Keep"


def shape_reference(fields: Fields, _namespace: str) -> tuple[Reference, ...]:
    """Return the reference in the checked fields of a ``ShapeRef``."""
    spec = msgspec.convert(fields, ReferenceSpec)
    target = ResourceKey(spec.target.namespace, spec.target.kind, spec.target.name)
    return (Reference(str(target), (), spec.on_withdrawal),)


def references_in(fields: Fields, namespace: str) -> tuple[Reference, ...]:
    """Return the references of a spec. Raises ``InvalidManifestError`` for an invalid one."""
    if not has_reference(fields):
        return ()
    fields_by_target: dict[str, list[str]] = {}
    for path, node in _find_marked(fields, _REF, "spec"):
        target, field = _read(path, node, namespace)
        if field not in fields_by_target.setdefault(target, []):
            fields_by_target[target].append(field)
    if len(fields_by_target) > MAX_REFERENCES:
        raise InvalidManifestError(
            f"spec: references more than {MAX_REFERENCES} resources; use fewer"
        )
    length = sum(len(field) for names in fields_by_target.values() for field in names)
    if length > MAX_FIELD_CHARACTERS:
        raise InvalidManifestError(
            f"spec: the fields of all references have {length} characters, more than the limit of "
            f"{MAX_FIELD_CHARACTERS}; reference fewer fields"
        )
    return tuple(Reference(target, tuple(names)) for target, names in fields_by_target.items())


def secrets_in(fields: Fields) -> tuple[str, ...]:
    """Return the secrets of a spec, each as its ``path``. Raises ``InvalidManifestError``."""
    secret_paths: dict[str, None] = {}
    for path, node in _find_marked(fields, _SECRET, "spec"):
        try:
            secret = msgspec.convert(node, SecretRef)
        except msgspec.ValidationError as error:
            raise InvalidManifestError(field_error(error, SecretRef, path)) from None
        if secret.digest:
            raise InvalidManifestError(
                f"{path}.digest: must not be declared; omit it, because Reconciler computes it"
            )
        secret_paths[secret.path] = None
    if len(secret_paths) > MAX_SECRETS:
        raise InvalidManifestError(f"spec: names more than {MAX_SECRETS} secrets; use fewer")
    return tuple(secret_paths)


def resolved_secrets_in(fields: Fields) -> tuple[SecretRef, ...]:
    """Return the secrets of resolved fields, each with the digest of its desired value."""
    return tuple(msgspec.convert(node, SecretRef) for _, node in _find_marked(fields, _SECRET, ""))


def has_reference(value: object) -> bool:
    """Return whether part of a spec contains a reference."""
    return _has_mark(value, _REFERENCE_MARKS)


def has_reference_or_secret(fields: Fields) -> bool:
    """Return whether a spec contains a reference or a secret. Most specs contain none."""
    return _has_mark(fields, _MARKS)


def _has_mark(value: object, marks: frozenset[str]) -> bool:
    if isinstance(value, dict):
        node = cast("dict[str, object]", value)
        if not marks.isdisjoint(node):
            return True
        nested = node.values()
    elif isinstance(value, list):
        nested = cast("list[object]", value)
    else:
        return False
    for each in nested:
        if type(each) in _SCALARS:
            continue
        if _has_mark(each, marks):
            return True
    return False


def fill_references(
    fields: Fields,
    namespace: str,
    targets: Mapping[str, TargetState],
    digests: Mapping[str, str],
) -> Fields:
    """Return a spec with the values of its references and the digests of its secrets."""

    def fill(value: Any) -> Any:
        if isinstance(value, list):
            return [fill(each) for each in cast("list[Any]", value)]
        if not isinstance(value, dict):
            return value
        node = cast("dict[str, Any]", value)
        if _REF in node:
            target, field = _read("", node, namespace)
            return targets[target].values[field]
        if _SECRET in node:
            secret = msgspec.convert(node, SecretRef)
            known = {_SECRET: secret.name, "store": secret.store, "digest": digests[secret.path]}
            return {**known, "namespace": secret.namespace} if secret.namespace else known
        return {name: fill(each) for name, each in node.items()}

    return fill(fields)


def value_of(field: str, external_name: str, uid: str | None, outputs: Fields) -> Any:
    """Return the value of a referenced field; None if it does not exist yet."""
    if field == "name":
        return external_name or None
    if field == "uid":
        return uid
    value: Any = outputs
    for name in field.removeprefix(_OUTPUTS).split("."):
        value = cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None
    return value


def _find_marked(value: object, mark: str, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, list):
        for number, each in enumerate(cast("list[object]", value)):
            yield from _find_marked(each, mark, f"{path}[{number}]")
    elif isinstance(value, dict):
        node = cast("dict[str, Any]", value)
        if mark in node:
            yield path, node
            return
        for name, each in node.items():
            yield from _find_marked(each, mark, f"{path}.{name}")


def _read(path: str, node: dict[str, Any], namespace: str) -> tuple[str, str]:
    try:
        reference = msgspec.convert(node, FieldReference)
    except msgspec.ValidationError as error:
        raise InvalidManifestError(field_error(error, FieldReference, path)) from None
    kind, _, name = reference.target.partition("/")
    try:
        target = ResourceKey.checked(namespace, kind, name)
    except InvalidNameError as error:
        raise InvalidManifestError(
            f'{path}: "$ref" must be KIND/NAME of a resource in the same namespace, such as '
            f'"Database/orders": {error}'
        ) from None
    if reference.field not in ("name", "uid") and not reference.field.startswith(_OUTPUTS):
        raise InvalidManifestError(f'{path}: "field" must be "name", "uid" or "outputs.NAME"')
    return str(target), reference.field
