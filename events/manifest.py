"""Manifests: what people declare, in the form they know.

``apiVersion``, ``kind``, ``metadata`` and ``spec``. In ``spec`` two fields are the reconciler's
own, ``providerConfigRef`` and ``policy``; all others belong to the kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from events.names import ResourceKey, check_token

EXTERNAL_NAME_ANNOTATION = "reconciler/external-name"
"""Annotation with the name of the object in the external API, where it is not ``metadata.name``."""

DEFAULT_PROVIDER_CONFIG = "default"
PROVIDER_CONFIG_KIND = "ProviderConfig"
PROVIDER_CONFIG_API_VERSION = "reconciler/v1"
SHAPE_REF_KIND = "ShapeRef"

Fields = dict[str, Any]


class InvalidManifestError(ValueError):
    """A manifest that cannot be used; the message says what, where and what is allowed."""


class _Declared(
    msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """How every struct that people write is read: camelCase, and an unknown field is an error."""


class Metadata(_Declared, frozen=True):
    """Who the resource is, and what is attached to it."""

    name: str
    namespace: str = "default"
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Manifest(_Declared, frozen=True):
    """A declaration of one resource."""

    api_version: str
    kind: str
    metadata: Metadata
    spec: Fields = {}

    @property
    def key(self) -> ResourceKey:
        """The identity; raises ``InvalidNameError``."""
        return ResourceKey.checked(self.metadata.namespace, self.kind, self.metadata.name)


class ProviderConfigRef(_Declared, frozen=True):
    """Which ``ProviderConfig`` a resource uses."""

    name: str


Deletion = Literal["Delete", "Orphan"]
Mode = Literal["Present", "Absent", "CreateOnly", "ObserveOnly"]
Adoption = Literal["Adopt", "Refuse"]


class Policy(_Declared, frozen=True):
    """What the reconciler may do to one resource.

    ``deletion``: what happens to the external object at withdrawal. ``mode``: ``Present`` keeps it
    as declared, ``Absent`` keeps it away, ``CreateOnly`` makes it once and then only reports,
    ``ObserveOnly`` never writes. ``adoption``: what to do with an object of that name that is there
    already and is not ours. ``ignore_fields``: paths (``color``, ``size.width``, ``labels.team``)
    that are left to others. ``paused``: report, but do nothing. ``owner_label``: whether our label
    is put back when somebody takes it off, or that is only reported.
    """

    deletion: Deletion = "Delete"
    mode: Mode = "Present"
    adoption: Adoption = "Refuse"
    ignore_fields: tuple[str, ...] = ()
    paused: bool = False
    owner_label: Literal["Restore", "Report"] = "Restore"


class Declaration(msgspec.Struct, frozen=True):
    """A manifest taken apart: the reconciler's own fields, and those of the kind."""

    provider_config: str
    policy: Policy
    external_name: str
    fields: Fields
    labels: dict[str, str]


def take_apart(manifest: Manifest) -> Declaration:
    """Split a manifest's spec into the reconciler's fields and the kind's.

    Raises ``InvalidManifestError``.
    """
    fields = dict(manifest.spec)
    reference = fields.pop("providerConfigRef", None)
    policy = fields.pop("policy", None)
    try:
        config = (
            DEFAULT_PROVIDER_CONFIG
            if reference is None
            else msgspec.convert(reference, ProviderConfigRef).name
        )
        check_token(config, what="spec.providerConfigRef.name")
    except (msgspec.ValidationError, ValueError) as error:
        raise InvalidManifestError(f"spec.providerConfigRef: {error}") from None
    try:
        decided = Policy() if policy is None else msgspec.convert(policy, Policy)
    except msgspec.ValidationError as error:
        raise InvalidManifestError(f"spec.policy: {error}") from None
    external_name = manifest.metadata.annotations.get(
        EXTERNAL_NAME_ANNOTATION, manifest.metadata.name
    )
    return Declaration(config, decided, external_name, fields, dict(manifest.metadata.labels))


LEAST_SECONDS = 0.01
"""Shorter intervals make hot loops."""

MAX_SECONDS = 366 * 86_400
"""Longer ones are more than some timers can count."""

_Seconds = Annotated[float, msgspec.Meta(ge=LEAST_SECONDS, le=MAX_SECONDS)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
_Token = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,63}(?!\n)$")]


class ReferenceTarget(_Declared, frozen=True):
    """The resource that a ``ShapeRef`` refers to."""

    kind: _Token
    name: _Token
    namespace: _Token = "default"


class ShapeRefSpec(_Declared, frozen=True):
    """The spec of a ``ShapeRef``: somebody relies on a resource of somebody else.

    ``on_withdrawal`` is what happens when that is withdrawn all the same: ``Keep`` holds the
    external object until the reference is withdrawn, ``Release`` lets it go without deleting it,
    ``Ignore`` has it deleted; the reference then dangles, and says so.
    """

    target: ReferenceTarget
    on_withdrawal: Literal["Keep", "Release", "Ignore"] = "Keep"


def target_of(fields: Fields) -> ResourceKey:
    """Read the target out of the checked fields of a ``ShapeRef``."""
    target = fields["target"]
    return ResourceKey(target.get("namespace", "default"), target["kind"], target["name"])


class CredentialsRef(_Declared, frozen=True):
    """Where the credentials are: an environment variable or a file. The secret stays there."""

    env: str | None = None
    file: str | None = None


class Tls(_Declared, frozen=True):
    """TLS to an API: files where the worker and the observer run. Verification is always on.

    ``ca_file``: certificates of the authorities to trust, in the place of the system's.
    ``certificate_file`` and ``key_file``: who we are, where the API asks for a certificate.
    """

    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None


class Scope(_Declared, frozen=True):
    """Which objects of the external API this configuration looks at, and whether all are ours."""

    mode: Literal["Shared", "Exclusive"] = "Shared"
    prefix: str | None = None
    labels: dict[str, str] = {}
    namespace: _Token = "default"

    def has(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether an object of this name and these labels is one of them."""
        return is_within(self.prefix, self.labels, name, labels)


def is_within(
    prefix: str | None, wanted: Mapping[str, str], name: str, labels: Mapping[str, str]
) -> bool:
    """Return whether an object has a scope's prefix, if there is one, and all of its labels."""
    return name.startswith(prefix or "") and wanted.items() <= labels.items()


Ownership = Literal["Log", "Prefix", "Label", "Union"]
"""What is believed about whose an object is (docs/ownership.md); the log is believed always."""


class LossGuard(_Declared, frozen=True):
    """When a listing that misses many of our objects is not believed before people are asked.

    Both must be reached: so many, and more than so many percent of all that is ours there. Such a
    listing is more likely of another API, or of an empty one, than the truth.
    """

    min_count: Annotated[int, msgspec.Meta(ge=1)] = 10
    max_percent: Annotated[int, msgspec.Meta(ge=0, le=100)] = 50


class DeletionGuard(_Declared, frozen=True):
    """How many undeclared objects one listing may remove before people are asked.

    ``max_percent`` counts in scopes of ten objects and more.
    """

    max_count: Annotated[int, msgspec.Meta(ge=0)] = 10
    max_percent: Annotated[int, msgspec.Meta(ge=0, le=100)] = 30


class Retry(_Declared, frozen=True):
    """Back-off between attempts, in seconds: doubled each time, with jitter."""

    initial_seconds: _Seconds = 1.0
    max_seconds: _Seconds = 300.0


class Limits(_Declared, frozen=True):
    """What the external API may be asked at most.

    ``concurrency`` counts in each process. ``requests_per_second`` and ``burst`` hold for all
    processes together, and for all configurations of one API and account; without the first there
    is no such limit.
    """

    concurrency: _Count = 64
    request_timeout_seconds: _Seconds = 10.0
    page_size: _Count = 1000
    requests_per_second: Annotated[float, msgspec.Meta(ge=0.001, le=1_000_000)] | None = None
    burst: _Count = 1


class Breaker(_Declared, frozen=True):
    """When an API that fails is left alone: after so many failures in a row.

    It stays open for ``initial_seconds``, doubled each time its probe fails, with jitter.
    """

    failures: _Count = 5
    initial_seconds: _Seconds = 2.0
    max_seconds: _Seconds = 300.0


class ProviderConfigSpec(_Declared, frozen=True):
    """The spec of a ``ProviderConfig``: one external API, and how to treat it.

    ``resync_seconds`` is between two listings. Where the API tells of changes, its word brings the
    next one forward, but not nearer than ``least_resync_seconds``; if that is not less than the
    other, nobody asks the API for changes.
    """

    provider: str
    endpoint: str
    credentials_ref: CredentialsRef | None = None
    tls: Tls | None = None
    kinds: tuple[str, ...] = ()
    scope: Scope = Scope()
    ownership: Ownership = "Log"
    owner_prefix: str | None = None
    resync_seconds: _Seconds = 30.0
    least_resync_seconds: _Seconds = 5.0
    limits: Limits = Limits()
    retry: Retry = Retry()
    breaker: Breaker = Breaker()
    deletion_guard: DeletionGuard = DeletionGuard()
    loss_guard: LossGuard = LossGuard()
    consistency_grace_seconds: Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)] = 0.0
