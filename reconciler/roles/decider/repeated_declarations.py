"""First positions of declarations, which they keep when they are sent again (ADR 0016)."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from msgspec.structs import replace

from events.intake import Declared, Withdrawn
from reconciler.ports import IntakeDelivery
from reconciler.resource.turn import Command
from reconciler.roles.decider.refusals import decode_command


def with_first_positions(
    commands: Sequence[Command], declared: Sequence[IntakeDelivery]
) -> list[Command]:
    """Return the commands, with each declaration's first position by source and id.

    ``declared`` contains the resource's other declarations in the intake.
    """
    known = list(commands)
    for message in declared:
        with contextlib.suppress(ValueError):  # it becomes a dead letter
            known.append(decode_command(message)[1])
    first: dict[tuple[str, str], int] = {}
    for each in sorted(known, key=lambda command: command.position):
        first.setdefault((each.actor, each.message_id), each.position)
    return [_with_first_position(command, first) for command in commands]


def _with_first_position(command: Command, first: dict[tuple[str, str], int]) -> Command:
    if not isinstance(command.data, (Declared, Withdrawn)):
        return command
    return replace(command, first_position=first[command.actor, command.message_id])
