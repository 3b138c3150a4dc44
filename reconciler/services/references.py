"""References: tells shapes who refers to them, and ``ShapeRef``s whether their target is declared.

A ``ShapeRef`` and its target are two aggregates, and neither sees the other. This compares the read
models' rows of both, level-triggered: whatever was lost or came twice, the next look finds the same
difference. Until it is told, a target that is withdrawn at the same moment may go: the reference
then says that it dangles.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

from events.intake import Referenced, TargetSeen, Unreferenced
from events.manifest import SHAPE_REF_KIND
from events.names import ShapeKey
from projections.status import StatusRow
from reconciler.ports import IntakeMessageOut


def reference_messages(
    rows: Iterable[StatusRow], damaged: Container[str] = ()
) -> list[IntakeMessageOut]:
    """Give what is still to be told about references, from the rows of the whole fleet.

    Nothing is told to or about the ``damaged``, whose rows are left out: what cannot be read may
    still be declared, and a target that was kept for it would be let go.
    """
    by_name = {
        str(row.key): row for row in rows if _is_concerned(row) and str(row.key) not in damaged
    }
    wanted = _wanted(by_name)
    messages = [*_to_references(by_name, damaged)]
    for target, references in wanted.items():
        if target in damaged:
            continue
        row = by_name.get(target)
        known = {} if row is None else row.references
        for by, reference in references.items():
            if known.get(by) != reference.on_withdrawal:
                messages.append(_add(target, by, reference, 0 if row is None else row.version))
    for target, row in by_name.items():
        for by in row.references.keys() - wanted.get(target, {}).keys():
            if by in damaged:
                continue
            data = Unreferenced(by)
            messages.append(_message(row.key, data, f"{by}/{row.version}"))
    return messages


def _is_concerned(row: StatusRow) -> bool:
    return row.kind == SHAPE_REF_KIND or row.declared or bool(row.references)


def _wanted(by_name: Mapping[str, StatusRow]) -> dict[str, dict[str, StatusRow]]:
    wanted: dict[str, dict[str, StatusRow]] = {}
    for name, row in by_name.items():
        if row.declared and row.target:
            wanted.setdefault(row.target, {})[name] = row
    return wanted


def _to_references(
    by_name: Mapping[str, StatusRow], damaged: Container[str]
) -> Iterator[IntakeMessageOut]:
    for row in by_name.values():
        if not row.declared or not row.target or row.target in damaged:
            continue
        target = by_name.get(row.target)
        declared = target is not None and target.declared
        if row.target_declared != declared:
            yield _message(row.key, TargetSeen(row.target, declared), str(row.version))


def _add(target: str, by: str, reference: StatusRow, version: int) -> IntakeMessageOut:
    """Tell a target, under a new id once it is at another version.

    An older message about the same reference may come late and undo what this one said; under its
    old id, the bus would take the repetition for a duplicate for as long as its window is.
    """
    data = Referenced(by, reference.on_withdrawal)
    return _message(ShapeKey.parse(target), data, f"{by}/{reference.version}/{version}")


def _message(
    key: ShapeKey, data: Referenced | Unreferenced | TargetSeen, basis: str
) -> IntakeMessageOut:
    """Make a message whose id says what it rests on: several observers tell the same once."""
    return IntakeMessageOut("reference", key, data, f"{type(data).__name__}/{key}/{basis}")
