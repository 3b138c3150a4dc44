"""Reports to a withdrawn ProviderConfig about the resources that use it (ADR 0086).

Other configurations receive no reports, so plain operation causes no messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

import msgspec

from events.excerpt import MAX_LISTED
from events.intake import UsersReported
from projections.read_models import ReadModels
from reconciler.roles.runtime.configurations import Configurations, WithdrawnConfig

SETTLE_SECONDS: Final = 5.0
"""Minimum time from reading a withdrawal to the report that nothing uses the configuration.

By then, the deciders have read the withdrawal, and start nothing new with the configuration.
"""

COUNT_SECONDS: Final = 60.0
"""Interval between reports of a new number of users, to bound the events of a large deletion."""


class _Withdrawal(msgspec.Struct):
    """A withdrawal that this process has read. Times are on the monotonic clock."""

    generation: int
    read_at: float
    count_at: float


class UserReports:
    """Compares the users of withdrawn configurations with those that the log records."""

    def __init__(
        self, configurations: Configurations, models: ReadModels, clock: Callable[[], float]
    ) -> None:
        self._configurations = configurations
        self._models = models
        self._clock = clock
        self._withdrawals: dict[str, _Withdrawal] = {}

    @property
    def is_any_unused(self) -> bool:
        """Whether a withdrawn configuration has no users."""
        return any(not self._models.users(name) for name in self._configurations.withdrawn)

    def find(self) -> Iterator[tuple[str, UsersReported]]:
        """Yield the withdrawn configurations whose recorded users are outdated, with a report."""
        withdrawn = self._configurations.withdrawn
        for name in self._withdrawals.keys() - withdrawn.keys():
            del self._withdrawals[name]
        for name, known in withdrawn.items():
            report = self._find(name, known)
            if report is not None:
                yield name, report

    def _find(self, name: str, known: WithdrawnConfig) -> UsersReported | None:
        now, last = self._clock(), self._withdrawals.get(name)
        if last is None or last.generation != known.generation:
            last = self._withdrawals[name] = _Withdrawal(known.generation, now, now)
        users, recorded = self._models.users(name), known.users
        if not users:
            is_settled = now >= last.read_at + SETTLE_SECONDS
            return UsersReported(known.generation, 0) if is_settled else None
        if recorded is not None and all(each in users for each in recorded.names):
            is_same = recorded.count == len(users)
            if is_same or now < last.count_at:
                return None
        last.count_at = now + COUNT_SECONDS
        return count_users(name, known.generation, self._models)


def count_users(name: str, generation: int, models: ReadModels) -> UsersReported:
    """Return the report about the resources that use a configuration."""
    users = models.users(name)
    return UsersReported(generation, len(users), tuple(islice(users, MAX_LISTED)))
