"""A resource's permission to use its ``ProviderConfig`` and parts of the host (ADR 0060).

Only creations and updates require it. A resource that loses its permission keeps its object, which
a withdrawal can still delete.
"""

from __future__ import annotations

from events.hold import Hold
from events.provider_config import ProviderConfigSpec
from reconciler.provider.host_access import find_refused_use, no_host_uses
from reconciler.resource.state import ResourceState
from reconciler.resource.turn import Conclusion, Context, on_hold


def hold_for_namespace(name: str, context: Context) -> Conclusion:
    """Return the hold for a resource whose namespace may not use a configuration."""
    namespace = context.key.namespace
    return on_hold(
        Hold.NOT_PERMITTED,
        f"namespace {namespace!r} may not use ProviderConfig {name!r}; use another one, or ask an "
        "operator to add the namespace to its spec.namespaces",
    )


def hold_for_host_access(
    state: ResourceState, context: Context, config: ProviderConfigSpec
) -> Conclusion | None:
    """Return the hold for a resource whose fields use more of the host than is allowed, or None."""
    kind, spec = context.kind, state.desired.spec
    # Most kinds have no uses of the host.
    if kind is None or spec is None or kind.find_host_uses is no_host_uses:
        return None
    if spec.policy.mode not in ("Present", "CreateOnly"):
        return None
    fields = spec.fields if kind.composition is not None else state.desired.fields
    refused = find_refused_use(kind.find_host_uses(fields), config.allow)
    if refused is None:
        return None
    hint = f" {refused.hint}" if refused.hint else ""
    return on_hold(
        Hold.NOT_PERMITTED,
        f"{refused.path}: {refused.value!r} is not allowed by ProviderConfig "
        f"{spec.provider_config!r};{hint or ' change it'}, or ask an operator to add it to "
        f"spec.allow.{refused.category}",
    )
