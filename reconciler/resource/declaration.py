"""Events that a declaration or withdrawal causes: a new generation, or a refusal."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from events.intake import Declared, Reply, Withdrawn
from events.log import (
    DeclarationSuperseded,
    GenerationSuperseded,
    ResourceEvent,
    SpecDeclared,
    SpecWithdrawn,
)
from events.manifest import (
    MOVED_FROM_ANNOTATION,
    REASON_ANNOTATION,
    Declaration,
    InvalidManifestError,
    split_manifest,
)
from events.names import KIND_DEFINITION_KIND, InvalidNameError, ResourceKey
from events.provider_config import is_config
from events.reference import has_reference_or_secret, secrets_in
from reconciler.provider.kind import DefinedKind, Kind
from reconciler.resource.cycle import find_cycle
from reconciler.resource.difference import value_at
from reconciler.resource.evolve import spec_of
from reconciler.resource.new_scope import undeclared_for
from reconciler.resource.state import ResourceState, Spec
from reconciler.resource.turn import (
    Command,
    CommandResult,
    Context,
    accept,
    refuse,
)

_DEFAULT_POLICY = SpecDeclared(0, "", "", "", {}).policy  # the default, which events omit


def declare(
    data: Declared, command: Command, state: ResourceState, context: Context
) -> CommandResult:
    """Accept a declaration as a new generation, or refuse it."""
    rejection = _reject_outdated(data.expected_generation, command, state)
    if rejection is not None:
        return rejection
    if context.kind is None:
        hint = context.missing_hint(context.now)
        message = f"kind {context.key.kind!r} is not registered; {hint}"
        return refuse(state, command, "UnknownKind", message)
    if isinstance(context.kind, DefinedKind) and context.kind.is_withdrawn:
        message = f"kind {context.key.kind!r}: its KindDefinition was withdrawn; declare it again"
        return refuse(state, command, "UnknownKind", message)
    try:
        event = _build_spec_declared(data, context, context.kind, state.desired.generation + 1)
    except (InvalidManifestError, InvalidNameError) as error:
        return refuse(state, command, "Invalid", str(error))
    desired, spec = state.desired, spec_of(event)
    # A declaration that changes nothing is not recorded. A repeat therefore has the content of an
    # earlier generation.
    may_be_repeated = bool(desired.contents) and spec.digest in desired.contents
    if _repeats_older_message(command, state):
        # Another decider may still process the first copy. Record the id, because the content will
        # not identify the next repeat.
        traces = () if may_be_repeated else (DeclarationSuperseded(by=desired.generation),)
        return accept(state, command, *traces, reason="Duplicate")
    if desired.is_declared and desired.spec == spec:
        return accept(state, command, reason="Unchanged")
    if is_config(context.key):
        event = replace(event, undeclared=undeclared_for(event.fields, state))
    cycle = _describe_cycle(event, state, context) if event.references else ""
    if cycle:
        return refuse(state, command, "DependencyCycle", cycle)
    conflict = None
    if desired.spec is not None:
        conflict = (
            _explain_move(desired.spec, state, event)
            or _explain_takeover(desired.spec, state, event, context)
            or _explain_redefinition(desired.spec, context, event)
        )
    if conflict is not None:
        return refuse(state, command, "Immutable", conflict)
    return _next_generation(event, command, state, may_be_repeated=may_be_repeated)


def withdraw(
    data: Withdrawn, command: Command, state: ResourceState, context: Context
) -> CommandResult:
    """Accept a withdrawal as a new generation, or refuse it."""
    rejection = _reject_outdated(data.expected_generation, command, state)
    if rejection is not None:
        return rejection
    if _repeats_older_message(command, state):
        return accept(state, command, reason="Duplicate")
    if not state.desired.is_declared:
        return accept(state, command, reason="Unchanged")
    generation, until_unused = state.desired.generation + 1, is_config(context.key)
    event = SpecWithdrawn(generation, data.reason, until_unused)
    return _next_generation(event, command, state, may_be_repeated=True)


def _next_generation(
    event: SpecDeclared | SpecWithdrawn,
    command: Command,
    state: ResourceState,
    *,
    may_be_repeated: bool,
) -> CommandResult:
    """Return the events of a new generation, which supersedes an unsettled one."""
    last = state.desired.generation
    events: list[ResourceEvent] = [event]
    if 0 < last != state.desired.completed_generation:
        events.append(GenerationSuperseded(last, by=event.generation))
    reply = Reply(True, "Accepted", event.generation, command.position)
    # the position of the first copy was not looked up
    may_be_repeat = may_be_repeated and command.first_position is None
    return CommandResult(tuple(events), reply, may_be_repeat=may_be_repeat)


def _reject_outdated(
    expected: int | None, command: Command, state: ResourceState
) -> CommandResult | None:
    """Return the refusal of an outdated message, or None if it is current.

    It is outdated if a newer generation was accepted first, or expects a different generation.
    """
    desired = state.desired
    if command.position < desired.position:
        message = "a newer declaration was accepted before this one arrived"
        # Record the id: a redelivery would get a later position, and would not be recognized as
        # outdated.
        superseded = DeclarationSuperseded(by=desired.generation)
        return refuse(state, command, "Superseded", message, superseded)
    is_expected = expected is None or expected == desired.generation
    if not is_expected and not _repeats_older_message(command, state):
        message = (
            f"expected generation {expected}, but the resource is at generation "
            f"{desired.generation}; read it again and retry"
        )
        return refuse(state, command, "StaleGeneration", message)
    return None


def _repeats_older_message(command: Command, state: ResourceState) -> bool:
    """Return whether a message repeats one that is older than the newest declaration."""
    first = command.first_position
    return first is not None and first < state.desired.position


def _build_spec_declared(
    data: Declared, context: Context, kind: Kind, generation: int
) -> SpecDeclared:
    """Return the event for a declaration. Raises `InvalidManifestError` or `InvalidNameError`."""
    manifest, metadata, key = data.manifest, data.manifest.metadata, context.key
    # The server checked permissions for the subject only, so the manifest must name the same
    # resource, whose names are checked.
    if (metadata.namespace, manifest.kind, metadata.name) != (key.namespace, key.kind, key.name):
        raise InvalidManifestError(
            f"the manifest is for {manifest.key}, but its subject is for {key}; "
            "publish it on its own subject"
        )
    if manifest.api_version != kind.api_version:
        raise InvalidManifestError(
            f"apiVersion {manifest.api_version!r}: unsupported for {kind.name}; use "
            f"{kind.api_version!r}"
        )
    if kind.is_external:
        declaration = split_manifest(manifest)
        name = kind.object_name(key.namespace, declaration.external_name)
        if name != declaration.external_name:
            declaration = replace(declaration, external_name=name)
        _check_external_name(declaration, kind, context)
    else:
        kind.check_namespace(key.namespace)
        labels = dict(metadata.labels)
        declaration = Declaration("", _DEFAULT_POLICY, metadata.name, dict(manifest.spec), labels)
        _check_provider(declaration, context)
        context.check_definition(key, declaration.fields)
    annotations = dict(metadata.annotations)
    annotation_reason = annotations.pop(REASON_ANNOTATION, "")  # the reason is not desired state
    if kind.find_references is not None and has_reference_or_secret(declaration.fields):
        fields, secrets = kind.check_declared(declaration.fields), secrets_in(declaration.fields)
    else:
        fields, secrets = kind.check_plain(declaration.fields), ()
    references = tuple(kind.references(fields, key.namespace))
    if references and any(each.target == str(key) for each in references):
        raise InvalidManifestError("spec: references the resource itself; remove the reference")
    return SpecDeclared(
        generation=generation,
        api_version=manifest.api_version,
        provider_config=declaration.provider_config,
        external_name=declaration.external_name,
        fields=fields,
        labels=declaration.labels,
        annotations=annotations,
        policy=declaration.policy,
        references=references,
        secrets=secrets,
        definition=kind.definition,
        reason=data.reason or annotation_reason,
        moved_from=_read_former_name(annotations, declaration, kind, context),
    )


def _read_former_name(
    annotations: Mapping[str, str], declaration: Declaration, kind: Kind, context: Context
) -> str:
    """Return the resource that the annotation names, or an empty string.

    Raises `InvalidManifestError` or `InvalidNameError`.
    """
    name, key = annotations.get(MOVED_FROM_ANNOTATION), context.key
    if name is None:
        return ""
    former = ResourceKey.parse(f"{key.namespace}/{key.kind}/{name}")
    problem = ""
    if former == key:
        problem = "is the name of the resource itself; use its former name"
    elif not kind.is_external or kind.composition is not None:
        problem = f"{kind.name} objects cannot be moved; remove the annotation"
    elif declaration.policy.mode not in ("Present", "CreateOnly"):
        problem = f"spec.policy.mode {declaration.policy.mode} owns no object; use Present"
    if problem:
        raise InvalidManifestError(f"annotation {MOVED_FROM_ANNOTATION} {name!r}: {problem}")
    return str(former)


def _check_external_name(declaration: Declaration, kind: Kind, context: Context) -> None:
    """Raise `InvalidManifestError` for a name that the kind or the owner prefix forbids."""
    problem = kind.name_problem(declaration.external_name)
    if problem is not None:
        raise InvalidManifestError(f"name {declaration.external_name!r}: {problem}")
    config = context.configs.get(declaration.provider_config)
    if config is None or config.ownership not in ("Prefix", "Strict"):
        return
    prefix = config.owner_prefix or ""
    if not declaration.external_name.startswith(prefix):
        raise InvalidManifestError(
            f"name {declaration.external_name!r}: must start with {prefix!r}, because "
            f"ProviderConfig {declaration.provider_config!r} determines ownership by name"
        )


def _check_provider(declaration: Declaration, context: Context) -> None:
    """Raise `InvalidManifestError` for a ProviderConfig that no role could use.

    No later event would report the mistake.
    """
    provider, known = declaration.fields.get("provider"), context.providers
    if not is_config(context.key) or known is None or not isinstance(provider, str):
        return
    if provider not in known:
        raise InvalidManifestError(
            f"spec.provider: provider {provider!r} has no registered kind (known providers: "
            f"{', '.join(known)}); {context.missing_hint(context.now)}"
        )
    for kind in declaration.fields.get("kinds") or ():
        if kind not in known[provider]:
            raise InvalidManifestError(
                f"spec.kinds: provider {provider!r} has no kind {kind!r}; use one of "
                f"{', '.join(known[provider])}"
            )


def _explain_move(spec: Spec, state: ResourceState, event: SpecDeclared) -> str | None:
    """Explain why a declaration cannot change an object's name or API; None if it can."""
    if state.owned is None and state.actions.in_flight is None:
        return None
    if (spec.provider_config, spec.external_name) == (event.provider_config, event.external_name):
        return None
    return (
        f"the resource already owns object {spec.external_name!r} in {spec.provider_config!r}; "
        "withdraw it before you change its external name or ProviderConfig"
    )


def _explain_takeover(
    spec: Spec, state: ResourceState, event: SpecDeclared, context: Context
) -> str | None:
    """Explain why a resource with an object takes over no other one; None if it need not.

    The annotation stays in the manifest after the move.
    """
    if state.owned is None and state.actions.in_flight is None:
        return None
    name = event.annotations.get(MOVED_FROM_ANNOTATION)
    if not event.moved_from or name == spec.annotations.get(MOVED_FROM_ANNOTATION):
        return None
    return (
        f"annotation {MOVED_FROM_ANNOTATION} {name!r}: the resource still owns object "
        f"{spec.external_name!r}, so it cannot take over another one; remove the annotation, or "
        f"rename this resource first: declare its new name with {MOVED_FROM_ANNOTATION}: "
        f"{context.key.name}, and withdraw {context.key} (to exchange two names, use a third one)"
    )


def _explain_redefinition(spec: Spec, context: Context, event: SpecDeclared) -> str | None:
    """Explain why a changed definition would lose track of objects; None if it would not."""
    if context.key.kind != KIND_DEFINITION_KIND:
        return None
    for name in ("over", "provider", "namePrefix", "rest.name", "rest.uid", "rest.metadata"):
        before, after = (value_at(name, fields, {}) for fields in (spec.fields, event.fields))
        if before != after:
            return f"spec.{name}: cannot be changed from {before!r}; define a kind with a new name"
    return None


def _describe_cycle(event: SpecDeclared, state: ResourceState, context: Context) -> str:
    """Return a message about the reference cycle that a declaration would close; empty if none."""
    targets = [each.target for each in event.references]
    cyclic = next((target for target in targets if target in state.holds.references), None)
    if cyclic is not None:
        return (
            f"{cyclic} already references this resource, so each would wait for the other; remove "
            "one of the references"
        )
    path = find_cycle(str(context.key), targets, lambda name: context.reference_graph.get(name, ()))
    return f"the references form a cycle, {' → '.join(path)}; remove one of them" if path else ""
