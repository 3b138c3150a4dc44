"""The inputs to the rules in `next_step`, for one step of a resource."""

from __future__ import annotations

import msgspec

from events.provider_config import ProviderConfigSpec
from reconciler.provider.kind import Kind
from reconciler.resource.difference import Comparison
from reconciler.resource.ownership import Evidence, Verdict, collect_evidence, verdict
from reconciler.resource.state import ResourceState
from reconciler.resource.turn import Context


class Situation(msgspec.Struct, gc=False):
    """A resource without an action in flight, whose kind and configuration are known.

    Evidence and verdict are computed on first access, and then cached.
    """

    state: ResourceState
    context: Context
    kind: Kind
    config: ProviderConfigSpec
    comparison: Comparison
    _evidence: Evidence | None = None
    _verdict: Verdict | None = None

    @property
    def evidence(self) -> Evidence:
        """Evidence about the existing object, which must exist."""
        if self._evidence is None:
            existing = self.comparison.existing
            assert existing is not None
            self._evidence = collect_evidence(existing, self.state, self.context, self.config)
        return self._evidence

    @property
    def verdict(self) -> Verdict:
        """Verdict about the existing object."""
        if self._verdict is None:
            self._verdict = verdict(self.evidence, self.config.ownership)
        return self._verdict
