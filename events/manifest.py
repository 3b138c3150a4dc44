"""Manifests: the written form of declarations, as in Kubernetes.

A manifest has ``apiVersion``, ``kind``, ``metadata`` and ``spec``. Two fields of ``spec`` belong to
Reconciler, ``providerConfigRef`` and ``policy``. All others belong to the kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Annotated, Any, Final, Literal, get_args

import msgspec

from events.field_hints import field_error
from events.field_types import description
from events.names import DEFAULT_NAMESPACE, ResourceKey, check_token

EXTERNAL_NAME_ANNOTATION = "reconciler/external-name"
"""Annotation with the name of the object in the external API, if it is not ``metadata.name``."""

MOVED_FROM_ANNOTATION = "reconciler/moved-from"
"""Former name of the resource, whose object it takes over instead of creating one."""

REASON_ANNOTATION = "reconciler/reason"
"""Annotation with the reason for a declaration, for the history. It is not desired state."""

DEFAULT_PROVIDER_CONFIG = "default"
RECONCILER_API_VERSION = "reconciler/v1"
"""API version of Reconciler's own kinds."""


_RESERVED_LABELS = frozenset({"reconciler/owner", "reconciler/key"})

MAX_LABEL_BYTES = 8 * 1024
"""Maximum size of all labels of a resource, in bytes. One listing contains the labels of all
objects."""

MAX_POLICY_ENTRIES = 256
"""Maximum number of entries in a policy's list, because the resource's row contains them."""

Fields = dict[str, Any]
Token = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,63}(?!\n)$")]
TokenOrAll = Annotated[str, msgspec.Meta(pattern=r"^(\*|[A-Za-z0-9_-]{1,63})(?!\n)$")]


class InvalidManifestError(ValueError):
    """A manifest is invalid. The message states the field, the problem and the allowed values."""


class ManifestStruct(
    msgspec.Struct,
    frozen=True,
    gc=False,
    rename="camel",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Base of all structs that users write: camelCase, and unknown fields are errors."""


class Metadata(ManifestStruct, frozen=True):
    """Name, namespace, labels and annotations of a resource."""

    name: Annotated[str, description("Name of the resource.")]
    namespace: Annotated[str, description("Namespace of the resource.")] = DEFAULT_NAMESPACE
    labels: Annotated[
        dict[str, str], description("Labels, which Reconciler also writes to the object.")
    ] = {}
    annotations: Annotated[
        dict[str, str], description("Annotations, for clients and for Reconciler.")
    ] = {}


class Manifest(ManifestStruct, frozen=True):
    """A declaration of one resource."""

    api_version: Annotated[str, description("API version of the kind.")]
    kind: Annotated[str, description("Kind of the resource.")]
    metadata: Annotated[Metadata, description("Identity, labels and annotations.")]
    spec: Annotated[
        Fields, description("Desired state: providerConfigRef, policy and the fields of the kind.")
    ] = {}

    @property
    def key(self) -> ResourceKey:
        """Identity of the resource. Raises ``InvalidNameError``."""
        return ResourceKey.checked(self.metadata.namespace, self.kind, self.metadata.name)

    @property
    def moved_from(self) -> str:
        """The resource whose object it takes over, unchecked; empty if none."""
        name = self.metadata.annotations.get(MOVED_FROM_ANNOTATION)
        return "" if name is None else f"{self.metadata.namespace}/{self.kind}/{name}"


class ProviderConfigRef(ManifestStruct, frozen=True):
    """Reference to the ``ProviderConfig`` of a resource."""

    name: Annotated[str, msgspec.Meta(description="Name of a ProviderConfig.")]


Deletion = Literal["Delete", "Orphan"]
Mode = Literal["Present", "Absent", "CreateOnly", "ObserveOnly"]
Adoption = Literal["Adopt", "Refuse"]
ApprovalLevel = Literal["Never", "Deletions", "Always"]
"""Actions that require approval, from the least strict to the strictest level."""


class Policy(ManifestStruct, frozen=True):
    """Rules for managing the object of a resource."""

    deletion: Annotated[
        Deletion,
        msgspec.Meta(
            description="Effect on the object when the resource is withdrawn. Delete: "
            "Reconciler deletes it. Orphan: Reconciler releases it."
        ),
    ] = "Delete"
    mode: Annotated[
        Mode,
        msgspec.Meta(
            description="Present: keep the object as declared. Absent: keep it deleted. "
            "CreateOnly: create it once, and then only report. ObserveOnly: never write."
        ),
    ] = "Present"
    adoption: Annotated[
        Adoption,
        msgspec.Meta(
            description="Action when an object with this name already exists. Adopt: take "
            "ownership of it. Refuse: report a Conflict."
        ),
    ] = "Refuse"
    ignore_fields: Annotated[
        tuple[str, ...],
        msgspec.Meta(
            description="Paths of fields that other clients may change, such as color, size.width "
            "or labels.team."
        ),
    ] = ()
    paused: Annotated[
        bool,
        msgspec.Meta(description="Whether Reconciler stops all actions, and only reports."),
    ] = False
    owner_label: Annotated[
        Literal["Restore", "Report"],
        msgspec.Meta(
            description="Action when another client removes the owner label. Restore: "
            "write it again. Report: report Disputed."
        ),
    ] = "Restore"
    approve: Annotated[
        ApprovalLevel,
        msgspec.Meta(
            description="Actions that need approval, in addition to those of the "
            "ProviderConfig. Deletions: deletions and replacements. Always: all."
        ),
    ] = "Never"
    referenced_from: Annotated[
        tuple[TokenOrAll, ...],
        msgspec.Meta(
            description="Other namespaces that may reference this resource. * means every "
            "namespace."
        ),
    ] = ()


def stricter_level(first: ApprovalLevel, second: ApprovalLevel) -> ApprovalLevel:
    """Return the stricter of two approval levels."""
    return first if _STRICTNESS[first] >= _STRICTNESS[second] else second


_STRICTNESS: Final[Mapping[ApprovalLevel, int]] = {
    level: rank for rank, level in enumerate(get_args(ApprovalLevel))
}


class Declaration(msgspec.Struct, frozen=True, gc=False):
    """A manifest, divided into Reconciler's own fields and those of the kind."""

    provider_config: str
    policy: Policy
    external_name: str
    fields: Fields
    labels: dict[str, str]


def config_named_in(spec: Fields) -> str:
    """Return the name of a spec's ProviderConfig, or the default; empty if it is invalid."""
    reference = spec.get("providerConfigRef")
    if reference is None:
        return DEFAULT_PROVIDER_CONFIG
    name = reference.get("name") if isinstance(reference, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return name if isinstance(name, str) else ""


def split_manifest(manifest: Manifest) -> Declaration:
    """Return a manifest, divided into Reconciler's own fields and those of the kind.

    Raises ``InvalidManifestError``.
    """
    fields = dict(manifest.spec)
    reference = fields.pop("providerConfigRef", None)
    declared_policy = fields.pop("policy", None)
    try:
        config = (
            DEFAULT_PROVIDER_CONFIG
            if reference is None
            else msgspec.convert(reference, ProviderConfigRef).name
        )
        check_token(config, what="spec.providerConfigRef.name")
    except msgspec.ValidationError as error:
        path = "spec.providerConfigRef"
        raise InvalidManifestError(field_error(error, ProviderConfigRef, path)) from None
    except ValueError as error:
        raise InvalidManifestError(f"spec.providerConfigRef: {error}") from None
    policy = Policy() if declared_policy is None else _check_policy(declared_policy)
    external_name = manifest.metadata.annotations.get(
        EXTERNAL_NAME_ANNOTATION, manifest.metadata.name
    )
    labels = dict(manifest.metadata.labels)
    if labels:
        _check_labels(labels)
    return Declaration(config, policy, external_name, fields, labels)


def _check_policy(declared: object) -> Policy:
    try:
        policy = msgspec.convert(declared, Policy)
    except msgspec.ValidationError as error:
        raise InvalidManifestError(field_error(error, Policy, "spec.policy")) from None
    for name, entries in (
        ("ignoreFields", policy.ignore_fields),
        ("referencedFrom", policy.referenced_from),
    ):
        if len(entries) > MAX_POLICY_ENTRIES:
            raise InvalidManifestError(
                f"spec.policy.{name}: has {len(entries)} entries, more than the limit of "
                f"{MAX_POLICY_ENTRIES}; declare fewer"
            )
    return policy


def _check_labels(labels: dict[str, str]) -> None:
    for name in sorted(_RESERVED_LABELS & labels.keys()):
        raise InvalidManifestError(
            f"metadata.labels: Reconciler itself sets {name!r} on each object; remove it"
        )
    label_bytes = sum(len(each.encode("utf-8", "surrogatepass")) for each in chain(*labels.items()))
    if label_bytes > MAX_LABEL_BYTES:
        raise InvalidManifestError(
            f"metadata.labels: {label_bytes} bytes exceed the limit of {MAX_LABEL_BYTES}; declare "
            "fewer or shorter ones, or use annotations"
        )
