"""References: tells resources who refers to them, and ``ShapeRef``s if their target is declared.

A ``ShapeRef`` and its target are two aggregates, and neither sees the other. This compares the read
models' rows of both, level-triggered: whatever was lost or came twice, the next look finds the same
difference. Until it is told, a target that is withdrawn at the same moment may go: the reference
then says that it dangles.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

from events.intake import Referenced, TargetSeen, Unreferenced
from events.names import ResourceKey
from projections.status import StatusRow
from reconciler.ports import IntakeMessageOut


def reference_messages(
    concerned: Iterable[StatusRow],
    every_row: Mapping[str, StatusRow],
    damaged: Container[str] = (),
) -> list[IntakeMessageOut]:
    """Return what is still to be told about references.

    ``concerned`` are the rows of those that refer, or know that they are referred to. Nothing is
    told to or about the ``damaged``: what cannot be read may still be declared, and a target that
    was kept for it would be let go.
    """
    rows = [row for row in concerned if str(row.key) not in damaged]
    wanted = _wanted(rows)
    messages = [*_to_references(rows, every_row, damaged)]
    for target, references in wanted.items():
        if target in damaged:
            continue
        row = every_row.get(target)
        known = {} if row is None else row.references
        for by, reference in references.items():
            if known.get(by) != reference.on_withdrawal:
                messages.append(_add(target, by, reference, 0 if row is None else row.version))
    for row in rows:
        for by in row.references.keys() - wanted.get(str(row.key), {}).keys():
            if by in damaged:
                continue
            data = Unreferenced(by)
            messages.append(_message(row.key, data, f"{by}/{row.version}"))
    return messages


def _wanted(rows: Iterable[StatusRow]) -> dict[str, dict[str, StatusRow]]:
    wanted: dict[str, dict[str, StatusRow]] = {}
    for row in rows:
        if row.declared and row.target:
            wanted.setdefault(row.target, {})[str(row.key)] = row
    return wanted


def _to_references(
    rows: Iterable[StatusRow], every_row: Mapping[str, StatusRow], damaged: Container[str]
) -> Iterator[IntakeMessageOut]:
    for row in rows:
        if not row.declared or not row.target or row.target in damaged:
            continue
        target = every_row.get(row.target)
        declared = target is not None and target.declared
        if row.target_declared != declared:
            yield _message(row.key, TargetSeen(row.target, declared), str(row.version))


def _add(target: str, by: str, reference: StatusRow, version: int) -> IntakeMessageOut:
    """Tell a target, under a new id once it is at another version.

    An older message about the same reference may come late and undo what this one said; under its
    old id, the bus would take the repetition for a duplicate for as long as its window is.
    """
    data = Referenced(by, reference.on_withdrawal)
    return _message(ResourceKey.parse(target), data, f"{by}/{reference.version}/{version}")


def _message(
    key: ResourceKey, data: Referenced | Unreferenced | TargetSeen, basis: str
) -> IntakeMessageOut:
    """Make a message whose id says what it rests on: several observers tell the same once."""
    return IntakeMessageOut("reference", key, data, f"{type(data).__name__}/{key}/{basis}")
