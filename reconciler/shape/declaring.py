"""What a declaration or a withdrawal adds to the history: a new generation, or a refusal."""

from __future__ import annotations

from events.intake import Answer, Declared, Withdrawn
from events.log import (
    DeclarationSuperseded,
    GenerationSuperseded,
    ShapeEvent,
    SpecDeclared,
    SpecWithdrawn,
)
from events.manifest import (
    PROVIDER_CONFIG_KIND,
    Declaration,
    InvalidManifestError,
    take_apart,
)
from events.names import InvalidNameError
from reconciler.shape.answering import known_already, refused
from reconciler.shape.folds.declarations import spec_of
from reconciler.shape.inputs import Command, Context, Record
from reconciler.shape.state import ShapeState, content_digest


def declare(state: ShapeState, command: Command, context: Context, record: Record) -> Answer:
    """Accept a declaration as a new generation, or refuse it."""
    data: Declared = command.data  # pyright: ignore[reportAssignmentType] - by _HANDLERS
    known = _known_already(state, command)
    if known is not None:
        return _answered(known, state, record)
    refusal = _refusal(state, data.expected_generation, command)
    if refusal is not None:
        return refusal
    if context.kind is None:
        missing = (
            f"kind {context.key.kind!r} is not registered here: {context.missing_hint(context.now)}"
        )
        return refused(state, command, "UnknownKind", missing)
    try:
        event = _spec_event(data, context, state.generation + 1)
    except (InvalidManifestError, InvalidNameError) as error:
        return refused(state, command, "Invalid", str(error))
    if _is_unchanged(state, event):
        return Answer(True, "Unchanged", state.generation, command.position)
    immutable = _immutable_problem(state, event)
    if immutable is not None:
        return refused(state, command, "Immutable", immutable)
    return _next_generation(state, event, command, record)


def withdraw(state: ShapeState, command: Command, _context: Context, record: Record) -> Answer:
    """Accept a withdrawal as a new generation, or refuse it."""
    data: Withdrawn = command.data  # pyright: ignore[reportAssignmentType] - by _HANDLERS
    known = _known_already(state, command)
    if known is not None:
        return _answered(known, state, record)
    refusal = _refusal(state, data.expected_generation, command)
    if refusal is not None:
        return refusal
    if not state.declared:
        return Answer(True, "Unchanged", state.generation, command.position)
    return _next_generation(state, SpecWithdrawn(state.generation + 1), command, record)


def _next_generation(
    state: ShapeState, event: SpecDeclared | SpecWithdrawn, command: Command, record: Record
) -> Answer:
    record(event)
    if 0 < state.generation != state.settled_generation:
        record(GenerationSuperseded(state.generation, by=event.generation))
    return Answer(True, "Accepted", event.generation, command.position)


def _known_already(state: ShapeState, command: Command) -> Answer | None:
    known = known_already(state, command)
    if known is not None:
        return known
    if command.position < state.declared_position:
        return refused(
            state, command, "Superseded", "a newer declaration was accepted before this one came"
        )
    first = command.first_position
    if first is not None and first < state.declared_position:
        return Answer(True, "Duplicate", state.generation, command.position)
    return None


def _answered(known: Answer, state: ShapeState, record: Record) -> Answer:
    """Remember what is refused because it comes late: sent again, it would not look late."""
    if known.reason == "Superseded":
        record(DeclarationSuperseded(by=state.generation))
    return known


def may_be_old(state: ShapeState, event: ShapeEvent) -> bool:
    """Tell whether a new generation may come of an old declaration that was sent again.

    One that changed nothing when it came left no trace; so it can only say what was declared
    before, or that nothing is. The intake tells, which keeps what came in.
    """
    match event:
        case SpecDeclared():
            return bool(state.contents) and content_digest(spec_of(event)) in state.contents
        case SpecWithdrawn():
            return True
        case _:
            return False


def _refusal(state: ShapeState, expected: int | None, command: Command) -> Answer | None:
    if expected is None or expected == state.generation:
        return None
    return refused(
        state,
        command,
        "StaleGeneration",
        f"expected generation {expected}, but the shape is at {state.generation}: "
        "read it again and repeat",
    )


def _spec_event(data: Declared, context: Context, generation: int) -> SpecDeclared:
    manifest, kind = data.manifest, context.kind
    assert kind is not None
    if manifest.key != context.key:
        raise InvalidManifestError(
            f"the manifest is of {manifest.key}, but was published for {context.key}"
        )
    if manifest.api_version != kind.api_version:
        raise InvalidManifestError(
            f"apiVersion {manifest.api_version!r} is not known for {kind.name}: "
            f"use {kind.api_version!r}"
        )
    if kind.is_external:
        taken = take_apart(manifest)
        problem = kind.name_problem(taken.external_name)
        if problem is not None:
            raise InvalidManifestError(f"name {taken.external_name!r}: {problem}")
        _check_prefix(taken, context)
    else:
        if kind.namespace not in (None, context.key.namespace):
            raise InvalidManifestError(
                f"a {kind.name} lives in namespace {kind.namespace!r}, "
                f"not in {context.key.namespace!r}"
            )
        taken = Declaration("", _NO_POLICY, manifest.metadata.name, dict(manifest.spec), {})
        _check_provider(taken, context)
    return SpecDeclared(
        generation=generation,
        api_version=manifest.api_version,
        provider_config=taken.provider_config,
        external_name=taken.external_name,
        fields=kind.checked_fields(taken.fields),
        labels=taken.labels,
        annotations=dict(manifest.metadata.annotations),
        policy=taken.policy,
    )


def _check_prefix(taken: Declaration, context: Context) -> None:
    """Where names say whose an object is, ours must say so."""
    config = context.configs.get(taken.provider_config)
    if config is None or config.ownership not in ("Prefix", "Union"):
        return
    prefix = config.owner_prefix or ""
    if not taken.external_name.startswith(prefix):
        raise InvalidManifestError(
            f"name {taken.external_name!r}: in {taken.provider_config!r} names say whose an object "
            f"is, so it must begin with {prefix!r}"
        )


def _check_provider(taken: Declaration, context: Context) -> None:
    """Refuse a configuration that nobody here could use: it would wait, and look well, for ever."""
    provider, known = taken.fields.get("provider"), context.providers
    if context.key.kind != PROVIDER_CONFIG_KIND or known is None or not isinstance(provider, str):
        return
    if provider not in known:
        raise InvalidManifestError(
            f"spec.provider: no kind of provider {provider!r} is registered here, only of "
            f"{', '.join(known)}: {context.missing_hint(context.now)}"
        )
    for kind in taken.fields.get("kinds") or ():
        if kind not in known[provider]:
            raise InvalidManifestError(
                f"spec.kinds: {kind!r} is no kind of provider {provider!r}, "
                f"whose kinds are {', '.join(known[provider])}"
            )


_NO_POLICY = SpecDeclared(0, "", "", "", {}).policy


def _is_unchanged(state: ShapeState, event: SpecDeclared) -> bool:
    spec = state.spec
    return (
        state.declared
        and spec is not None
        and spec.fields == event.fields
        and spec.labels == event.labels
        and spec.policy == event.policy
        and spec.annotations == event.annotations
        and spec.provider_config == event.provider_config
        and spec.external_name == event.external_name
        and spec.api_version == event.api_version
    )


def _immutable_problem(state: ShapeState, event: SpecDeclared) -> str | None:
    spec = state.spec
    if spec is None or (state.owned is None and state.in_flight is None):
        return None
    if (spec.provider_config, spec.external_name) == (event.provider_config, event.external_name):
        return None
    return (
        f"the shape lives as {spec.external_name!r} in {spec.provider_config!r}: "
        "withdraw it there before it moves"
    )
