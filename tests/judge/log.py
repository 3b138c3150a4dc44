"""Rules about the log itself."""

from __future__ import annotations

from collections.abc import Iterator

from events.intake import Answer
from events.log import SpecDeclared, SpecWithdrawn
from tests.judge.history import Recorded
from tests.judge.ledger import Ledger, Resource
from tests.judge.rule import Breach, on_event

_MADE_NO_GENERATION = ("Unchanged", "Superseded", "Duplicate")


@on_event()
def versions(ledger: Ledger, resource: Resource, recorded: Recorded) -> Iterator[Breach]:
    """The versions of a resource's events have no gap and no duplicate (invariant 5)."""
    version = recorded.event.resourceversion
    if version != resource.version + 1:
        yield (
            resource.key,
            f"version {version} follows version {resource.version} at position {recorded.position}",
        )


@on_event()
def generations(ledger: Ledger, resource: Resource, recorded: Recorded) -> Iterator[Breach]:
    """One message makes at most one generation, whenever it is redelivered (invariant 4).

    It may be decided again at its first position, after one that it has overtaken.
    """
    event = recorded.event
    if isinstance(event.data, SpecDeclared | SpecWithdrawn):
        first = ledger.generations.get((event.key, event.actor, event.causeid))
        if first not in (None, event.data.generation):
            yield event.key, f"{event.id}: message {event.causeid} made generation {first} already"


@on_event("answers")
def repetitions(ledger: Ledger, resource: Resource, recorded: Recorded) -> Iterator[Breach]:
    """A message that was answered as making no generation makes none when sent again (invariant 4).

    Except where it is handled before the message that it had overtaken is redelivered.
    """
    event = recorded.event
    if not isinstance(event.data, SpecDeclared | SpecWithdrawn):
        return
    for inbox, answer in ledger.history.answers or ():
        is_its_own = inbox == f"_INBOX.{event.causeid}" and answer.reason in _MADE_NO_GENERATION
        is_repeated = is_its_own and answer.position < event.causeposition
        if is_repeated and not _has_overtaken(answer, resource):
            yield event.key, f"{event.id}: message {event.causeid} was {answer.reason} before"


def _has_overtaken(answer: Answer, resource: Resource) -> bool:
    """Return whether the newest generation is of a message that another one has overtaken."""
    is_older = resource.position < answer.position
    return is_older and answer.generation < resource.generation
