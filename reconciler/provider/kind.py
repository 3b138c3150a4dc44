"""Kinds: what can be declared, and the registry that finds them.

A *kind* is one small module: the schema of its fields as a ``msgspec`` struct, a factory for its
provider, and pure functions with the rules of the kind. It is registered as an entry point in the
``reconciler.kinds`` group. No other part of the project refers to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from importlib.metadata import entry_points
from typing import Any, NamedTuple, cast

import msgspec

from events.allow import Allow, check_allow
from events.composition import COMPOSED_SET_KIND, ComposedSetSpec
from events.external import ExternalObject
from events.field_hints import closest_hint, field_error, unknown_field
from events.kind_definition import DefinitionRef, KindDefinitionSpec
from events.manifest import (
    EXTERNAL_NAME_ANNOTATION,
    RECONCILER_API_VERSION,
    Fields,
    InvalidManifestError,
    Manifest,
    split_manifest,
)
from events.names import (
    KIND_DEFINITION_KIND,
    PROVIDER_CONFIG_KIND,
    SYSTEM_NAMESPACE,
    ResourceKey,
)
from events.provider_config import ProviderConfigSpec
from events.reference import (
    REFERENCE_KIND,
    Reference,
    ReferenceSpec,
    has_reference,
    has_reference_or_secret,
    references_in,
    secrets_in,
    shape_reference,
)
from events.stored_content import COMPOSED_CONTENT_KIND, ComposedContentSpec
from reconciler.errors import ConfigurationError, UnknownKindError
from reconciler.provider import Capabilities, ProviderFactory
from reconciler.provider.host_access import HostUse, no_host_uses

ENTRY_POINT_GROUP = "reconciler.kinds"

MAX_GROWTH_BYTES = 64 * 1024
"""Maximum number of bytes that references, values and a definition may add to declared fields."""

_HINT_INTERVAL = timedelta(seconds=5)
_NEWLY_INSTALLED = "restart the roles, because these kinds were installed after they started"
_NOT_INSTALLED = "install its package where the roles run, then restart the roles"


class Readiness(NamedTuple):
    """Whether an object can be used, with a one-word reason and a message for users."""

    is_ready: bool
    reason: str
    message: str = ""


READY = Readiness(True, "Ready")

STALLED = "Stalled"
"""Reason for an object that cannot become ready by itself, or has made no progress for too long."""

IS_STALLED = "stalled"
"""Output of a composed object whose deadline for progress has passed; only in decisions."""


class Progress(NamedTuple):
    """Progress of an object that is not ready. A changed ``mark`` means progress.

    Without progress for ``deadline_seconds``, the object is stalled.
    """

    mark: str
    deadline_seconds: float


class ObjectUse(NamedTuple):
    """A use of another object of the same API: the field, and the kind and name of the object."""

    path: str
    kind: str
    name: str


def no_claims(_external_name: str, _fields: Fields) -> Sequence[str]:
    """Return no claims: the default for a kind."""
    return ()


def no_uses(_external_name: str, _fields: Fields) -> Sequence[ObjectUse]:
    """Return no uses of other objects: the default for a kind."""
    return ()


def _unchanged(fields: Fields) -> Fields:
    return fields


def _any_name(_name: str) -> str | None:
    return None


def always_ready(_fields: Fields, _observed: ExternalObject) -> Readiness:
    """Return that the object is ready, because its API reports no readiness."""
    return READY


class Removal(NamedTuple):
    """Number of resources that a composed object would lose, and the author of the change."""

    lost_count: int = 0
    total: int = 0
    changed_by: str = ""


class Inheritance(NamedTuple):
    """What a new object takes over from the one that it replaces.

    ``fields`` are added to its creation. ``loss`` describes the data that it does not take over.
    """

    fields: Fields
    loss: str = ""


def no_removal(_fields: Fields, _observed: ExternalObject) -> Removal:
    """Return zero counts, because the author of the change named the removed parts."""
    return Removal()


def _no_followed_inputs(_existing: ExternalObject, _written: ExternalObject) -> Collection[str]:
    return ()


def _nothing_settled(
    _desired: Fields, _applied: Fields, _observed: ExternalObject
) -> Collection[str]:
    return ()


def no_data_loss(_fields: Fields | None, _observed: ExternalObject) -> str:
    """Return that nothing is lost, because the kind describes no data."""
    return ""


def _no_explanation(_fields: Fields, _observed: ExternalObject) -> str:
    return ""


def _always_guarded(_fields: Fields) -> bool:
    return True


Overlap = Callable[[Any, Any], bool]
"""Returns whether an API accepts only one of two values."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of resource, as the author of its module defines it. All functions are pure."""

    name: str
    """Name of the kind in manifests, such as ``Volume``."""

    api_version: str
    """Group and version in manifests, such as ``docker/v1``."""

    schema: type[msgspec.Struct]
    """Struct of the fields that the kind adds to ``spec``. It should forbid unknown fields."""

    provider: str = ""
    """Name of the API family, which ``ProviderConfig.spec.provider`` selects."""

    namespace: str | None = None
    """The only namespace in which it may be declared; None if any is allowed."""

    capabilities: Capabilities | None = None
    """What the API can do; None if there is no external API."""

    connect: ProviderFactory | None = None
    """Builds the client of the API; None if there is no external API. See ``lazy``."""

    normalize: Callable[[Fields], Fields] = field(default=_unchanged)
    """Returns the canonical form of fields, so that two spellings of one value are equal."""

    comparable: Callable[[Fields], Fields] | None = None
    """Returns the part of desired or observed fields to compare, such as a digest of the content.

    If it is None, all fields are compared.
    """

    name_problem: Callable[[str], str | None] = field(default=_any_name)
    """Describes why the API cannot have an object with this external name; None if it can."""

    outputs: type[msgspec.Struct] | None = None
    """Struct of the outputs, which other resources can reference."""

    find_references: Callable[[Fields, str], Sequence[Reference]] | None = field(
        default=references_in
    )
    """Returns the references in a spec, for a resource in a namespace.

    It is None if the references in a spec belong to the parts of a composition.
    """

    ready: Callable[[Fields, ExternalObject], Readiness] = field(default=always_ready)
    """Decides whether an object that matches its declaration can be used."""

    unique: Mapping[str, Overlap] = field(default_factory=dict[str, Overlap], hash=False)
    """Paths of the fields whose values, or whose elements, the API accepts for one object only.

    Each has a function that returns whether two values conflict, such as ``operator.eq``. A plan
    warns of resources that exchange such values, because the API refuses their updates.
    """

    keeps_readiness: bool = False
    """Whether a ready object stays ready unless a fault or a declaration changes that.

    Otherwise it must stay ready for some seconds before another resource that waits for it is
    created, because its process may exit.
    """

    renewal_time: Callable[[Fields, ExternalObject], datetime | None] | None = None
    """Returns when a matching object, such as a certificate, must be written again."""

    settled_paths: Callable[[Fields, Fields, ExternalObject], Collection[str]] = field(
        default=_nothing_settled
    )
    """Returns the paths that the object changed by itself, as its declaration expects.

    They are neither compared nor written, such as ``running`` of a process that has finished. The
    arguments are the desired fields, those of the last write, and the object.
    """

    follows_input: Callable[[ExternalObject, ExternalObject], Collection[str]] = field(
        default=_no_followed_inputs
    )
    """Returns the paths that differ only because an input outside the API changed, such as a file.

    Such a difference is not drift: no other client has changed the object. The arguments are the
    object, and the object as the last write left it.
    """

    progress: Callable[[Fields, ExternalObject], Progress | None] | None = None
    """Returns the progress of an object that is not ready; None if it has no deadline."""

    immutable: frozenset[str] = frozenset()
    """Paths of the fields that the API cannot change in place, and ``labels`` for the labels.

    A change to one of them replaces the object.
    """

    has_second_name: bool = False
    """Whether an object and its replacement can exist at the same time, under different names."""

    describe_data_loss: Callable[[Fields | None, ExternalObject], str] = field(default=no_data_loss)
    """Describes the data that an object loses when the fields are written; None is a deletion.

    An action that destroys data requires approval. Describe which data it is, not its amount: if
    the description of the object differs when the worker reads it before its call, the call is not
    made, and the action is decided again.
    """

    explain_kept: Callable[[Fields, ExternalObject], str] = field(default=_no_explanation)
    """Explains why the API keeps values that differ from the fields; empty if that is unknown."""

    guards_data: Callable[[Fields], bool] = field(default=_always_guarded)
    """Returns whether a deletion that loses data requires approval, given the desired fields."""

    inherit: Callable[[Fields, ExternalObject], Inheritance] | None = None
    """Returns what a new object takes over from the one that it replaces.

    If this field is None, a replacement loses the same data as a deletion.
    """

    find_claims: Callable[[str, Fields], Sequence[str]] = field(default=no_claims)
    """Returns what only this object of its API has, such as a port, given its name and fields.

    A resource keeps it from those in other namespaces, as it keeps its name (ADR 0084). A claim is
    a path, and includes those above and below it: ``tcp/80`` is port 80 of all addresses. The
    fields may be those of an object of another client.
    """

    find_uses: Callable[[str, Fields], Sequence[ObjectUse]] = field(default=no_uses)
    """Returns the other objects that an object uses, given its external name and fields.

    A listing knows only the name, and calls it without fields.
    An object of a resource in another namespace requires the permission of that resource.
    """

    find_host_uses: Callable[[Fields], Sequence[HostUse]] = field(default=no_host_uses)
    """Returns the host access that fields need, which ``ProviderConfig.spec.allow`` must permit."""

    @property
    def definition(self) -> DefinitionRef | None:
        """The ``KindDefinition`` of a `DefinedKind`, or None for an installed kind."""
        return None

    @property
    def composition(self) -> ComposedKind | None:
        """How the object is composed of other resources; None if it is not."""
        return None

    @property
    def visible_paths(self) -> frozenset[str]:
        """Paths that its provider shows in every object, as null if they have no value.

        An object without them was read under an older definition, and is not compared.
        """
        return frozenset()

    @property
    def protocol(self) -> str:
        """Digest of the definition that describes the calls to its API; empty for a module."""
        return ""

    @property
    def has_unmapped_spec(self) -> bool:
        """Whether ``spec`` has the fields of the object itself, without a mapping."""
        return True

    @property
    def is_readiness_momentary(self) -> bool:
        """Whether an object that is ready may stop being ready by itself."""
        return self.ready is not always_ready and not self.keeps_readiness

    def may_lose_readiness(self, existing: ExternalObject) -> bool:
        """Return whether the object may be ready for a moment only."""
        del existing
        return self.ready is not always_ready

    @property
    def is_external(self) -> bool:
        """Whether resources of this kind live in an external API."""
        return self.connect is not None

    @property
    def extra(self) -> str:
        """The extra that its provider requires; empty if it requires none."""
        return str(getattr(self.connect, "extra", ""))

    def references(self, fields: Fields, namespace: str) -> Sequence[Reference]:
        """Return the references in a spec, except those of its parts.

        Raises ``InvalidManifestError``.
        """
        return () if self.find_references is None else self.find_references(fields, namespace)

    @property
    def describes_data(self) -> bool:
        """Whether the kind can describe the data of its objects."""
        return self.describe_data_loss is not no_data_loss

    @property
    def watches(self) -> bool:
        """Whether its API reports changes."""
        return self.capabilities is not None and self.capabilities.watch

    @property
    def lists(self) -> bool:
        """Whether its API can list. Otherwise its objects are read one by one."""
        return self.capabilities is None or self.capabilities.listing

    def check_fields(self, fields: Fields) -> Fields:
        """Validate and canonicalize the kind's fields. Raises ``InvalidManifestError``."""
        try:
            struct = msgspec.convert(fields, self.schema)
        except msgspec.ValidationError as error:
            raise InvalidManifestError(field_error(error, self.schema, "spec")) from None
        try:
            # In the form that the log returns: a tuple would differ from the list read back.
            canonical: Fields = msgspec.json.decode(msgspec.json.encode(struct))
            canonical = self.normalize(canonical) if self.has_unmapped_spec else canonical
        except OverflowError as error:  # a time near the year 1 or 9999, in another zone
            raise InvalidManifestError(f"spec: {error}") from None
        check_growth(fields, canonical)
        return canonical

    def check_namespace(self, namespace: str) -> None:
        """Raise ``InvalidManifestError`` for a namespace in which it cannot be declared."""
        if self.namespace not in (None, namespace):
            raise InvalidManifestError(
                f"namespace {namespace!r}: not allowed for {self.name}; use namespace "
                f"{self.namespace!r}"
            )

    def object_name(self, namespace: str, name: str) -> str:
        """Return the external name of a resource's object, given the declared name."""
        del namespace
        return name

    def object_fields(self, fields: Fields) -> Fields:
        """Return the object's fields for checked fields. Raises ``InvalidManifestError``."""
        return fields

    def check_declared(self, fields: Fields) -> Fields:
        """Validate declared fields, and canonicalize those without references.

        A defined kind also refuses what its underlying kind refuses. Raises
        ``InvalidManifestError``.
        """
        if (
            self.find_references is not None
            and has_reference_or_secret(fields)
            and (secrets_in(fields) or has_reference(fields))
        ):
            return self.check_with_references(fields)
        return self.check_plain(fields)

    def check_plain(self, fields: Fields) -> Fields:
        """Validate and canonicalize declared fields without references and secrets.

        Raises ``InvalidManifestError``.
        """
        canonical = self.check_fields(fields)
        self.object_fields(canonical)
        return canonical

    def check_with_references(self, fields: Fields) -> Fields:
        """Validate the fields whose values are already known. Raises ``InvalidManifestError``.

        Fields with references are checked when their values are known.
        """
        schema_fields = {each.encode_name: each for each in msgspec.structs.fields(self.schema)}
        for name, value in fields.items():
            if name not in schema_fields:
                raise InvalidManifestError(unknown_field(f"spec.{name}", name, schema_fields))
            if has_reference(value):
                continue
            try:
                msgspec.convert(value, schema_fields[name].type)
            except msgspec.ValidationError as error:
                location = f"spec.{name}"
                raise InvalidManifestError(
                    field_error(error, schema_fields[name].type, location)
                ) from None
        for name, each in schema_fields.items():
            if each.required and name not in fields:
                raise InvalidManifestError(f"spec.{name}: required")
        return fields


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposedKind(Kind):
    """A kind whose object is a set of other resources (ADR 0050)."""

    compose: Callable[[ResourceKey, Fields, ExternalObject | None], Fields]
    """Returns the set for a spec and the current object, whose outputs are the parts' states."""

    min_ready_seconds: Callable[[Fields], float] | None = None
    """Returns for how long a part must be ready without interruption to be ``available``.

    If this field is None, the statuses of the parts do not contain their availability.
    """

    count_removed: Callable[[Fields, ExternalObject], Removal] = field(default=no_removal)
    """Counts the resources that this set would withdraw; the deletion guard may hold them."""

    @property
    def composition(self) -> ComposedKind | None:
        """This kind."""
        return self

    @property
    def is_readiness_momentary(self) -> bool:
        """Whether a ready object may stop being ready before its parts are available."""
        return self.min_ready_seconds is None

    @property
    def has_unmapped_spec(self) -> bool:
        """Always false, because the set is composed from ``spec``."""
        return False

    def object_name(self, namespace: str, name: str) -> str:
        """Return the name of the set, which is unique across namespaces."""
        return f"{namespace}.{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind(Kind):
    """A kind that an engine provides. Its ``KindDefinition`` describes how to call the API."""

    map_fields: Callable[[Fields], Fields]
    """Maps the spec's fields to the object's fields."""

    shown_paths: frozenset[str]
    """See ``visible_paths``."""

    protocol_digest: str
    """See ``protocol``."""

    @property
    def visible_paths(self) -> frozenset[str]:
        """Paths that its provider shows in every object."""
        return self.shown_paths

    @property
    def protocol(self) -> str:
        """Digest of its protocol."""
        return self.protocol_digest

    @property
    def has_unmapped_spec(self) -> bool:
        """Always false, because the fields are mapped."""
        return False

    def object_fields(self, fields: Fields) -> Fields:
        """Map the fields. Raises ``InvalidManifestError`` if the result is too large."""
        return _map_fields(self.map_fields, fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinedKind(Kind):
    """A kind that a ``KindDefinition`` describes, based on an installed kind or an engine."""

    underlying: Kind
    """The underlying kind, with the same objects, provider and capabilities."""

    source: DefinitionRef
    """Generation and digest of its definition."""

    map_fields: Callable[[Fields], Fields]
    """Maps the spec's fields to the object's fields."""

    name_prefix: str = ""
    """Prefix of each object's name."""

    is_withdrawn: bool = False
    """Whether its definition was withdrawn, so that resources can only be withdrawn."""

    @property
    def definition(self) -> DefinitionRef | None:
        """Generation and digest of its definition."""
        return self.source

    @property
    def composition(self) -> ComposedKind | None:
        """How the object is composed of other resources; None if it is not."""
        return self.underlying.composition

    @property
    def visible_paths(self) -> frozenset[str]:
        """Paths that its provider shows in every object."""
        return self.underlying.visible_paths

    @property
    def protocol(self) -> str:
        """Digest of the protocol of the underlying kind."""
        return self.underlying.protocol

    @property
    def has_unmapped_spec(self) -> bool:
        """Always false, because the fields are mapped."""
        return False

    def object_name(self, namespace: str, name: str) -> str:
        """Return the name of the underlying kind's object."""
        return self.underlying.object_name(namespace, self.name_prefix + name)

    def object_fields(self, fields: Fields) -> Fields:
        """Map the fields. Raises ``InvalidManifestError`` if the result is too large."""
        return _map_fields(self.map_fields, fields)


def _map_fields(map_fields: Callable[[Fields], Fields], fields: Fields) -> Fields:
    mapped = map_fields(fields)
    check_growth(fields, mapped)
    return mapped


def check_growth(declared: Fields, resolved: Fields) -> None:
    """Raise ``InvalidManifestError`` for fields that are much larger than their declaration.

    Events and calls contain them. Hundreds of short declarations, each with the same value in many
    places, would fill a decider's memory.
    """
    try:
        growth = len(msgspec.json.encode(resolved)) - len(msgspec.json.encode(declared))
    # other code refuses values that JSON cannot represent
    except (OverflowError, TypeError, ValueError):
        return
    if growth > MAX_GROWTH_BYTES:
        raise InvalidManifestError(
            f"spec: its values make it {growth} bytes larger, more than the limit of "
            f"{MAX_GROWTH_BYTES}; use fewer or shorter values"
        )


_MAY_HOLD_A_SECRET = re.compile(r"(?:[^/?#]*//)?[^/?#]*@|.*[?#]", re.DOTALL)

# In a URL with this scheme, a single word before the @ is a role's name. In HTTP and NATS it may be
# a token, so no other scheme is allowed.
_NAMES_A_ROLE = re.compile(r"\Apostgresql://[A-Za-z_][A-Za-z0-9_.-]{0,62}@")


_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,127}")


def _check_config(fields: Fields) -> Fields:
    """Refuse what may be a secret, and paths that would allow more than they name."""
    check_allow(msgspec.convert(fields.get("allow") or {}, Allow))
    return _refuse_secret(fields)


def _refuse_secret(fields: Fields) -> Fields:
    """Return a ProviderConfig's fields, unless one may be a secret instead of a reference to one.

    Accepted fields stay in the log permanently. Therefore, an endpoint's URL must have no password,
    no query, and no user except a PostgreSQL role. The name of a variable or file must look like
    one, because tokens contain other characters. The refusal does not repeat the value.
    """
    reference = cast("dict[str, str | None]", fields.get("credentialsRef") or {})
    env, file = reference.get("env"), reference.get("file")
    if env is not None and _VARIABLE.fullmatch(env) is None:
        raise InvalidManifestError(
            "spec.credentialsRef.env: must be the name of an environment variable (characters "
            "A-Z 0-9 _), never the secret itself"
        )
    if file is not None and not file.startswith("/"):
        raise InvalidManifestError(
            "spec.credentialsRef.file: must be the path of a file that starts with /, never "
            "the secret itself"
        )
    if _MAY_HOLD_A_SECRET.match(_NAMES_A_ROLE.sub("//", fields["endpoint"], count=1)):
        raise InvalidManifestError(
            "spec.endpoint: the URL must not contain credentials or a query, because the log "
            "keeps it; use spec.credentialsRef"
        )
    return fields


PROVIDER_CONFIG = Kind(
    name=PROVIDER_CONFIG_KIND,
    api_version=RECONCILER_API_VERSION,
    schema=ProviderConfigSpec,
    namespace=SYSTEM_NAMESPACE,
    normalize=_check_config,
)
"""The configuration of an external API. It is a kind, and declared like any other."""

COMPOSED_SET = Kind(
    name=COMPOSED_SET_KIND,
    api_version=RECONCILER_API_VERSION,
    schema=ComposedSetSpec,
    find_references=None,
)
"""The parts of a composed resource, written by its provider. It exists only in the log."""

COMPOSED_CONTENT = Kind(
    name=COMPOSED_CONTENT_KIND,
    api_version=RECONCILER_API_VERSION,
    schema=ComposedContentSpec,
    find_references=None,
)
"""A chunk of the parts of a large composed resource; see ``ComposedSet``."""

KIND_DEFINITION = Kind(
    name=KIND_DEFINITION_KIND,
    api_version=RECONCILER_API_VERSION,
    schema=KindDefinitionSpec,
    namespace=SYSTEM_NAMESPACE,
    find_references=None,
)
"""A kind that is defined at run time. It is itself a kind, and declared like any other."""

REFERENCE = Kind(
    name=REFERENCE_KIND,
    api_version=RECONCILER_API_VERSION,
    schema=ReferenceSpec,
    find_references=shape_reference,
)
"""A client's dependency on another client's resource."""


class KindRegistry(Mapping[str, Kind]):
    """The kinds of this process, by name: installed kinds, and kinds that the log defines."""

    def __init__(
        self,
        kinds: Iterable[Kind],
        *,
        installed: Callable[[], Collection[str]] | None = None,
        at_start: frozenset[str] | None = None,
    ) -> None:
        built_in = (PROVIDER_CONFIG, KIND_DEFINITION, REFERENCE, COMPOSED_SET, COMPOSED_CONTENT)
        self._kinds = {kind.name: kind for kind in (*built_in, *kinds)}
        self._find_providers()
        self._definitions: dict[tuple[str, str], Kind] = {}
        self._installed = installed
        if at_start is None:
            at_start = frozenset(() if installed is None else installed())
        self._at_start = at_start
        self._checked_at: datetime | None = None
        self._hint = ""

    def copy(self) -> KindRegistry:
        """Return a separate registry for a process, without defined kinds."""
        installed = (kind for kind in self._kinds.values() if kind.definition is None)
        return KindRegistry(installed, installed=self._installed, at_start=self._at_start)

    def define(self, kind: Kind) -> None:
        """Add a defined kind, and replace its older definition."""
        self._kinds[kind.name] = kind
        if kind.protocol:
            self._definitions[kind.name, kind.protocol] = kind
        self._find_providers()

    def with_definition(self, name: str, digest: str) -> Kind:
        """Return a kind whose API calls follow the definition with this digest.

        Without a digest, or if an installed kind makes the calls, return the newest kind. Raises
        ``UnknownKindError`` for a definition that this process has not read yet.
        """
        newest = self[name]
        if not digest or digest == newest.protocol or not newest.protocol:
            return newest
        kind = self._definitions.get((name, digest))
        if kind is None:
            raise UnknownKindError(
                f"kind {name!r}: this process has not read its definition {digest} yet; it retries"
            )
        return kind

    def _find_providers(self) -> None:
        names = sorted({kind.provider for kind in self._kinds.values()} - {""})
        self.providers = {
            provider: tuple(kind.name for kind in self.of_provider(provider)) for provider in names
        }

    def __getitem__(self, name: str) -> Kind:
        kind = self._kinds.get(name)
        if kind is None:
            hint = closest_hint(name, self._kinds) or "; `reconciler kinds` lists the kinds"
            raise UnknownKindError(f"kind {name!r} is unknown{hint}")
        return kind

    def find(self, name: str) -> Kind | None:
        """Return a kind, or None if no such kind is registered here."""
        return self._kinds.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._kinds

    def __iter__(self):
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)

    def check(self, manifest: Manifest) -> None:
        """Check a manifest against its kind.

        Raises ``InvalidManifestError`` or ``UnknownKindError``.
        """
        kind = self[manifest.kind]
        if manifest.api_version != kind.api_version:
            raise InvalidManifestError(
                f"apiVersion: {manifest.api_version!r} is unsupported for {kind.name}; use "
                f"{kind.api_version!r}"
            )
        kind.check_namespace(manifest.metadata.namespace)
        declaration = split_manifest(manifest)
        kind.check_declared(declaration.fields)
        kind.references(declaration.fields, manifest.metadata.namespace)
        self.check_name(manifest)

    def check_name(self, manifest: Manifest) -> None:
        """Check the name of a manifest that otherwise equals a checked one.

        Raises the same errors as `check`.
        """
        kind, metadata = self[manifest.kind], manifest.metadata
        external_name = metadata.annotations.get(EXTERNAL_NAME_ANNOTATION, metadata.name)
        name = kind.object_name(metadata.namespace, external_name)
        problem = kind.name_problem(name)
        if problem is not None:
            raise InvalidManifestError(f"external name {name!r}: {problem}")

    def may_lose_readiness(self, name: str) -> bool:
        """Return whether a ready object of this kind may stop being ready by itself."""
        kind = self.find(name)
        return kind is not None and kind.is_readiness_momentary

    def missing_hint(self, now: datetime) -> str:
        """Describe the remedy for a kind or a provider that is not registered here.

        It depends on whether the kind was installed after this process started.
        """
        checked_at = self._checked_at
        # Any client can cause this often, and a clock may be set back.
        if checked_at is None or abs(now - checked_at) >= _HINT_INTERVAL:
            self._checked_at = now
            installed = frozenset(() if self._installed is None else self._installed())
            newer = ", ".join(sorted(installed - self._at_start))
            self._hint = f"{_NEWLY_INSTALLED}: {newer}" if newer else _NOT_INSTALLED
        return self._hint

    def of_provider(self, provider: str) -> list[Kind]:
        """Return all kinds of one provider."""
        return [
            kind for kind in self._kinds.values() if kind.is_external and kind.provider == provider
        ]


def _installed_names() -> frozenset[str]:
    return frozenset(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP))


def installed_kinds() -> KindRegistry:
    """Load every kind that an installed distribution registers.

    Raises ``TypeError`` for an entry point that is not a ``Kind``, which is a packaging error.
    Raises ``ConfigurationError`` if none is registered, because the installation is incomplete.
    """
    kinds: list[Kind] = []
    entries = entry_points(group=ENTRY_POINT_GROUP)
    for entry in entries:
        kind = entry.load()
        if not isinstance(kind, Kind):
            raise TypeError(
                f"entry point {entry.name} = {entry.value}: must be a reconciler.provider.kind.Kind"
            )
        kinds.append(kind)
    if not kinds:
        raise ConfigurationError(
            f"no kind is registered in the entry point group {ENTRY_POINT_GROUP!r}; reinstall "
            "the package"
        )
    return KindRegistry(kinds, installed=_installed_names, at_start=frozenset(entries.names))
