"""The situation of a resource at one step: what the rules of `next_step` decide by."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from events.external import ExternalObject
from events.provider_config import ProviderConfigSpec
from reconciler.provider.kind import Kind
from reconciler.resource import ownership
from reconciler.resource.difference import Comparison
from reconciler.resource.ownership import Evidence, Verdict
from reconciler.resource.state import ResourceState
from reconciler.resource.turn import Context


@dataclass(frozen=True, eq=False)
class Situation:
    """A resource without an action in flight, whose kind and configuration are known.

    Each result is computed when a rule first reads it, and then kept for the other rules.
    """

    state: ResourceState
    context: Context
    kind: Kind
    config: ProviderConfigSpec
    compared: Comparison

    @property
    def seen(self) -> ExternalObject | None:
        """The object in question: the one that was observed last, or that a report has shown."""
        return self.compared.seen

    @cached_property
    def evidence(self) -> Evidence:
        """What the witnesses say of the object that is seen; there must be one."""
        assert self.seen is not None
        return ownership.evidence(self.seen, self.state, self.context, self.config)

    @cached_property
    def verdict(self) -> Verdict:
        """Who owns the object that is seen."""
        return ownership.verdict(self.evidence, self.config.ownership)
