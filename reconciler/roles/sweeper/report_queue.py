"""Reports to resources: each is published once, and their number per namespace is limited.

A tenant's declarations cause reports: 2,000 resources with 64 references each need 128,000. A
namespace's quota does not apply to messages from roles, so the sweeper limits them itself.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Final

import msgspec
from msgspec.structs import replace

from events.intake import (
    DefinitionReported,
    IntakeData,
    Referenced,
    SecretReported,
    TargetReported,
    Unreferenced,
    UsersReported,
)
from events.log import (
    DefinitionObserved,
    LogEvent,
    ReferenceAdded,
    ReferenceRemoved,
    SecretObserved,
    SpecDeclared,
    SpecWithdrawn,
    TargetObserved,
    UsersCounted,
)
from reconciler.ports import IntakeMessageOut
from reconciler.roles.sweeper.reference_index import AffectedResources

MAX_UNPROCESSED_REPORTS: Final = 500
"""Limit on reports to a namespace that are published but not yet reflected in the log."""

REPEAT_SECONDS: Final = 15.0
"""Time after which a report is repeated if the log does not reflect it; doubles each time."""

MAX_REPEAT_SECONDS: Final = 300.0

_RESOURCE_COST: Final = 64
TURN_COST: Final = 2_048
"""Resources and references to check, in a few milliseconds, before yielding to the event loop."""

_DEFINITION = ("definition", "")
_USERS = ("users", "")

_Topic = tuple[str, str]
"""What a report is about, such as a target. A newer report on the same topic replaces it."""

_FindReports = Callable[[str, bool], tuple[Iterable[IntakeMessageOut], int]]
"""Checks a resource, as a target or as a referrer.

Returns its reports, and the number of references that were compared, which is unlimited for a
target.
"""


class _Published(msgspec.Struct):
    """The last report about a topic. ``content`` is None if the report must be repeated.

    ``unprocessed`` counts it and the reports that it replaced, until they are considered lost.
    """

    content: object
    unprocessed: int
    until: float  # on the monotonic clock
    pause_seconds: float


class ReportQueue:
    """The resources to check for reports, and the published reports."""

    event_types: ClassVar = frozenset(
        {
            TargetObserved,
            SecretObserved,
            ReferenceAdded,
            ReferenceRemoved,
            DefinitionObserved,
            SpecDeclared,
            SpecWithdrawn,
            UsersCounted,
        }
    )

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._to_check: dict[str, dict[tuple[str, bool], None]] = {}  # by namespace, oldest first
        self._published: dict[str, dict[_Topic, _Published]] = {}

    def add(self, affected: AffectedResources) -> None:
        """Add resources to check."""
        for name in sorted(affected.referrers):
            self._add(name, is_target=False)
        for name in sorted(affected.targets):
            self._add(name, is_target=True)

    async def take(
        self,
        find_reports: _FindReports,
        extra: Iterable[IntakeMessageOut],
    ) -> list[IntakeMessageOut]:
        """Check resources, and return the reports to publish, including ``extra`` up to the limit.

        The resources of a namespace stay in the queue while it has too many unprocessed reports.
        """
        self._expire()
        unprocessed: Counter[str] = Counter()  # reports by namespace
        for name, topics in self._published.items():
            unprocessed[_namespace(name)] += sum(each.unprocessed for each in topics.values())
        reports: list[IntakeMessageOut] = []
        cost = 0

        def accept(found: Iterable[IntakeMessageOut], namespace: str) -> bool:
            """Accept new reports up to the limit. Return whether all were accepted."""
            new = [each for each in found if not self._is_published(each)]
            free = max(MAX_UNPROCESSED_REPORTS - unprocessed[namespace], 0)
            reports.extend(new[:free])
            unprocessed[namespace] += len(new[:free])
            return len(new) <= free

        for each in extra:
            accept([each], each.key.namespace)
        for namespace, waiting in list(self._to_check.items()):
            for name, is_target in list(waiting):
                if unprocessed[namespace] >= MAX_UNPROCESSED_REPORTS:
                    break
                found, references = find_reports(name, is_target)
                if accept(found, namespace):
                    del waiting[name, is_target]
                cost += _RESOURCE_COST + references
                if cost >= TURN_COST:
                    await asyncio.sleep(0)
                    cost = 0
            if not waiting:
                del self._to_check[namespace]
        return reports

    def record_published(self, reports: Sequence[IntakeMessageOut]) -> None:
        """Remember reports that are stored in the intake."""
        now = self._clock()
        for report in reports:
            topics = self._published.setdefault(str(report.key), {})
            topic, content = _topic_and_content(report.data)
            last = topics.get(topic)
            count, pause = 1, REPEAT_SECONDS
            if last is not None:
                count += last.unprocessed
                is_repeated = not last.unprocessed
                pause = min(last.pause_seconds * (1 + is_repeated), MAX_REPEAT_SECONDS)
            topics[topic] = _Published(content, count, now + pause, pause)

    def handle_event(self, event: LogEvent) -> None:
        """Forget the reports that an event reflects, so that later differences are reported."""
        topics = self._published.get(event.subject)
        if topics is None:
            return
        match event.data:
            case TargetObserved(target):
                topics.pop(("target", target), None)
            case SecretObserved(secret):
                topics.pop(("secret", secret), None)
            case ReferenceAdded(by) | ReferenceRemoved(by):
                topics.pop(("reference", by), None)
            case DefinitionObserved():
                topics.pop(_DEFINITION, None)
            case UsersCounted():
                topics.pop(_USERS, None)
            case SpecDeclared() | SpecWithdrawn():
                # Earlier reports may not apply to this spec. They still count as unprocessed.
                for topic, last in topics.items():
                    topics[topic] = replace(last, content=None)
            case _:
                return
        if not topics:
            del self._published[event.subject]

    def _add(self, name: str, *, is_target: bool) -> None:
        self._to_check.setdefault(_namespace(name), {})[name, is_target] = None

    def _is_published(self, report: IntakeMessageOut) -> bool:
        topic, content = _topic_and_content(report.data)
        last = self._published.get(str(report.key), {}).get(topic)
        return last is not None and last.content == content

    def _expire(self) -> None:
        """Queue the resources whose reports are considered lost for another check."""
        now = self._clock()
        for name, topics in list(self._published.items()):
            for topic, last in list(topics.items()):
                if last.until > now:
                    continue
                if last.unprocessed:
                    self._add(name, is_target=topic[0] != "target")
                    # Its pause is forgotten later, if the report is no longer needed.
                    until = now + last.pause_seconds
                    topics[topic] = _Published(None, 0, until, last.pause_seconds)
                else:
                    del topics[topic]
            if not topics:
                del self._published[name]


def _topic_and_content(data: IntakeData) -> tuple[_Topic, object]:
    """Return a report's topic, and its content."""
    match data:
        case TargetReported(target, state):
            return ("target", target), state
        case SecretReported(secret, digest):
            return ("secret", secret), digest
        case Referenced(by, on_withdrawal):
            return ("reference", by), on_withdrawal
        case Unreferenced(by):
            return ("reference", by), "removed"
        case DefinitionReported(generation):
            return _DEFINITION, generation
        case UsersReported():
            return _USERS, data
        case _:
            raise TypeError(f"{type(data).__name__} is not a sweeper report")


def _namespace(name: str) -> str:
    return name.partition("/")[0]
