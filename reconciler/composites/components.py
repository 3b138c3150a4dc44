"""Components and parts, from which a composed kind is built.

A part is a manifest with a desired state and optional hooks. A component has a name, a flag, values
and a function that returns its parts. `compose_components` returns the content of an object with
these components. `summary` and `ready` compute its outputs and its readiness (ADR 0052).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Annotated, Any, Final, cast

import msgspec

from events.composition import (
    CHILDREN,
    COMPOSED_SET_KIND,
    REFUSED,
    STUCK,
    Child,
    children_of,
    content_of,
    manifests_of,
)
from events.composition_definition import PartState
from events.external import ExternalObject
from events.manifest import RECONCILER_API_VERSION, Fields, InvalidManifestError, Manifest
from events.names import InvalidNameError
from reconciler.provider.kind import READY, Readiness

COMPONENTS: Final = "components"

_CREATE_ONLY: Final = "CreateOnly"


@dataclass(frozen=True, slots=True)
class Part:
    """One resource of a composed object.

    ``state``: ``Present`` keeps the resource as the manifest declares, ``Absent`` withdraws it, and
    ``Created`` creates it once and then leaves it unchanged. The hooks are pure, and must not
    change the namespace, kind or name. ``before_create`` changes the manifest of a missing
    resource. ``before_update`` changes the declaration of an existing one, and also receives its
    declared manifest. Their result is kept until the manifest changes.
    """

    manifest: Manifest
    state: PartState = "Present"
    before_create: Callable[[Manifest], Manifest] | None = None
    before_update: Callable[[Manifest, Manifest], Manifest] | None = None


@dataclass(frozen=True, slots=True)
class Component:
    """Parts that are enabled and disabled together.

    ``waiting_for``: a missing prerequisite without which the parts cannot be computed. Until it is
    met, they stay unchanged.
    """

    name: str
    parts: Callable[[Fields], Iterable[Part]]
    enabled: bool = True
    values: Fields = field(default_factory=dict[str, Any])
    waiting_for: str = ""


class ComponentStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Numbers of required and ready parts of a component, and the reason why it is not ready."""

    parts: Annotated[int, msgspec.Meta(description="Number of parts that must exist.")]
    ready: Annotated[int, msgspec.Meta(description="Number of parts that are ready.")]
    blocked_by: Annotated[
        str, msgspec.Meta(description="Reason why the component is not ready.")
    ] = ""


class ComponentsOutputs(msgspec.Struct, frozen=True):
    """Status of each component. ``leaving``: withdrawn parts that still exist."""

    components: Annotated[
        dict[str, ComponentStatus],
        msgspec.Meta(description="Status of each component."),
    ] = {}
    children: Annotated[dict[str, Any], msgspec.Meta(description="Outcome of each part.")] = {}
    leaving: Annotated[
        list[str],
        msgspec.Meta(description="Withdrawn parts that still exist."),
    ] = []


class _HookDigests(msgspec.Struct, frozen=True, rename={"source": "from", "result": "as"}):
    """Digests of a manifest before and after its hooks."""

    source: str
    result: str


class CompositionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Data that an object's content holds in addition to its resources."""

    components: dict[str, list[str]] = {}
    hooked: dict[str, _HookDigests] = {}
    waiting: dict[str, str] = {}

    @classmethod
    def of(cls, fields: Fields) -> CompositionRecord:
        """Return the recorded data; empty if another client made it invalid."""
        try:
            return msgspec.convert(fields, cls)
        except msgspec.ValidationError:
            return cls()


def compose_components(components: Iterable[Component], observed: ExternalObject | None) -> Fields:
    """Return the content of an object with these components, given its observed state.

    Raises ``InvalidManifestError``, which names the component.
    """
    content = _Content(_Current(observed))
    for each in components:
        content.add(each)
    return content.fields()


def is_usable(child: Child) -> bool:
    """Return whether a resource is ready. With mode CreateOnly, it is ready once created."""
    return child.ready or (child.outcome, child.reason) == ("Drifted", _CREATE_ONLY)


def summary(fields: Fields, children: Mapping[str, Child]) -> Fields:
    """Return the status of each component, for the outputs."""
    recorded = CompositionRecord.of(fields)
    statuses = {
        name: _component_status(names, children, recorded.waiting.get(name, ""))
        for name, names in recorded.components.items()
    }
    return {COMPONENTS: msgspec.to_builtins(statuses)}


def ready(fields: Fields, existing: ExternalObject) -> Readiness:
    """Return whether all parts are usable, and all withdrawn parts are deleted."""
    children, recorded = children_of(existing), CompositionRecord.of(fields)
    blocked: list[tuple[bool, str]] = []
    for component, names in recorded.components.items():
        status = _component_status(names, children, recorded.waiting.get(component, ""))
        is_stuck = any(children.get(name, Child()).outcome in STUCK for name in names)
        if status.blocked_by:
            blocked.append((not is_stuck, f"{component}: {status.blocked_by}"))
    usable = sum(is_usable(children.get(name, Child())) for name in fields[CHILDREN])
    progress = f"{usable} of {len(fields[CHILDREN])} parts are ready"
    if blocked:
        is_progressing, why = min(blocked, key=itemgetter(0))  # prefers a stuck component
        reason = "Progressing" if is_progressing else "Stalled"
        return Readiness(False, reason, f"{progress}; {why}")
    if leaving := existing.outputs.get("leaving"):
        return Readiness(False, "Progressing", f"{progress}; {leaving[0]} is still being deleted")
    return READY


def _component_status(
    names: Iterable[str], children: Mapping[str, Child], waiting_for: str
) -> ComponentStatus:
    """Return the counts of a component's parts, and its first blocker."""
    known = {name: children.get(name) for name in names}
    blocked = [
        (child is None or child.outcome not in STUCK, _blocker(name, child))
        for name, child in known.items()
        if child is None or not is_usable(child)
    ]
    blocker = min(blocked)[1] if blocked else ""  # stuck parts first
    return ComponentStatus(len(known), len(known) - len(blocked), blocker or waiting_for)


def _blocker(name: str, child: Child | None) -> str:
    if child is None:
        return f"{name} has not been declared yet"
    why = child.message or child.reason
    return f"{name} is {child.outcome}" + (f": {why}" if why else "")


class _Current:
    """The observed parts: digests of all declarations, and manifests of our own declarations."""

    def __init__(self, observed: ExternalObject | None) -> None:
        fields: Fields = {} if observed is None else observed.fields
        digests: Mapping[str, str] = fields.get(CHILDREN, {})
        statuses = children_of(observed)
        self.children = {  # refused parts were never created
            name: digest
            for name, digest in digests.items()
            if name not in statuses or statuses[name].outcome != REFUSED
        }
        recorded = CompositionRecord.of(fields)
        self.components, self.hooked = recorded.components, recorded.hooked
        ours = {name: each.result for name, each in self.hooked.items()}
        # A digest other than ours belongs to another client's declaration.
        self._declared = {
            str(each.key): each
            for children in (ours, digests)
            for each in manifests_of({**fields, CHILDREN: children})
        }

    def declared(self, name: str) -> Manifest | None:
        """Return the manifest that Reconciler declared, or None if it is unknown."""
        return self._declared.get(name)


class _Content:
    """The desired content of an object, built component by component."""

    def __init__(self, current: _Current) -> None:
        self._current = current
        self._component_of: dict[str, str] = {}
        self._manifests: list[Manifest] = []
        self._unchanged: dict[str, str] = {}
        self._components: dict[str, list[str]] = {}
        self._hooked: dict[str, _HookDigests] = {}
        self._waiting: dict[str, str] = {}
        self._names: set[str] = set()

    def fields(self) -> Fields:
        """Return the complete content."""
        content = content_of(self._manifests)
        content[CHILDREN] |= self._unchanged
        components = {name: sorted(each) for name, each in self._components.items()}
        recorded = CompositionRecord(components, self._hooked, self._waiting)
        return {**content, **msgspec.to_builtins(recorded)}

    def add(self, component: Component) -> None:
        """Add the parts of a component, if it is enabled."""
        name = component.name
        if name in self._names:
            raise InvalidManifestError(
                f"component {name!r}: duplicate name; give each component its own name"
            )
        self._names.add(name)
        if not component.enabled:
            return
        self._components[name] = []
        if component.waiting_for:
            self._waiting[name] = component.waiting_for
            for child in self._current.components.get(name, []):
                self._assign(child, component)
                self._keep(child)
            return
        for part in _parts_of(component):
            if part.state != "Absent":
                self._add_part(part, component)

    def _add_part(self, part: Part, component: Component) -> None:
        name = _name_of(part.manifest, component)
        self._assign(name, component)
        if part.state != "Created":
            self._manifests.append(self._desired_manifest(part, name, component))
        elif name in self._current.children:
            self._keep(name)
        else:
            created = _call_hook("before_create", part.before_create, component, part.manifest)
            self._manifests.append(_with_create_only(created))

    def _assign(self, name: str, component: Component) -> None:
        """Assign a resource to a component.

        Raises ``InvalidManifestError`` if it is already assigned.
        """
        other = self._component_of.setdefault(name, component.name)
        if name in self._components[component.name]:
            raise InvalidManifestError(
                f"component {component.name!r}: duplicate part {name}; remove one, or rename it"
            )
        if other != component.name:
            raise InvalidManifestError(
                f"components {other!r} and {component.name!r} both contain part {name}; "
                "rename it in one of them"
            )
        self._components[component.name].append(name)

    def _keep(self, name: str) -> None:
        """Keep the current declaration of a resource, whether it is ours or another client's."""
        digest, declared = self._current.children.get(name), self._current.declared(name)
        if declared is not None and (digest is None or _digest(declared, name) == digest):
            self._manifests.append(declared)
        elif digest is not None:
            self._unchanged[name] = digest
        if name in self._current.hooked:
            self._hooked[name] = self._current.hooked[name]

    def _desired_manifest(self, part: Part, name: str, component: Component) -> Manifest:
        """Return the manifest of a part after its hooks, which run once for each change."""
        if part.before_create is None and part.before_update is None:
            return part.manifest
        source, digests = _digest(part.manifest, name), self._current.hooked.get(name)
        declared = self._current.declared(name)
        if name not in self._current.children or declared is None:
            manifest = _call_hook("before_create", part.before_create, component, part.manifest)
        elif digests is not None and digests.source == source:
            # A hook runs once for each change to the manifest. Otherwise, its own result would
            # trigger it again.
            manifest = declared
        else:
            manifest = _call_hook(
                "before_update", part.before_update, component, part.manifest, declared
            )
        self._hooked[name] = _HookDigests(source, _digest(manifest, name))
        return manifest


def _parts_of(component: Component) -> list[Part]:
    try:
        return list(component.parts(component.values))
    except InvalidManifestError as error:
        raise InvalidManifestError(f"component {component.name!r}: {error}") from None
    except Exception as error:  # an error in the author's code must fail only this resource
        raise InvalidManifestError(
            f"component {component.name!r}: cannot compute its parts: {_describe_error(error)}"
        ) from error


def _call_hook(
    hook_name: str, hook: Callable[..., Manifest] | None, component: Component, *inputs: Manifest
) -> Manifest:
    """Return the result of a hook for a manifest, or the manifest itself if there is no hook."""
    manifest = inputs[0]
    if hook is None:
        return manifest
    location = f"component {component.name!r}: {hook_name} of {manifest.key}"
    try:
        result = hook(*inputs)
        key = result.key
    except Exception as error:  # an error in the author's code must fail only this resource
        raise InvalidManifestError(f"{location} failed: {_describe_error(error)}") from error
    if key != manifest.key:
        raise InvalidManifestError(
            f"{location} returned {key}; a hook must not change the namespace, kind or name"
        )
    return result


def _describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _name_of(manifest: Manifest, component: Component) -> str:
    try:
        key = manifest.key
    except InvalidNameError as error:
        raise InvalidManifestError(f"component {component.name!r}: {error}") from None
    if key.kind == COMPOSED_SET_KIND:
        raise InvalidManifestError(
            f"component {component.name!r}: must not declare a {COMPOSED_SET_KIND}; only "
            "providers write it"
        )
    return str(key)


def _with_create_only(manifest: Manifest) -> Manifest:
    """Return a manifest whose object is created once and then left unchanged."""
    declared_policy: object = manifest.spec.get("policy", {})
    if manifest.api_version == RECONCILER_API_VERSION or not isinstance(declared_policy, dict):
        return manifest  # it has no object, or will be rejected
    policy = {"mode": _CREATE_ONLY, **cast("Fields", declared_policy)}
    return msgspec.structs.replace(manifest, spec={**manifest.spec, "policy": policy})


def _digest(manifest: Manifest, name: str) -> str:
    return content_of([manifest])[CHILDREN][name]
