"""Declare and withdraw the children of a set, in batches of one message per child.

Message ids derive from the action's key and the child, so a retry continues where the last attempt
stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Final

from events.composition import PART_OF_LABEL, describe_part_conflict
from events.intake import Declared, Withdrawn
from events.log import Action
from events.manifest import Manifest
from events.names import ResourceKey, system_rank
from events.stored_content import Part
from infra.providers.composition.messages import Publish, build_message
from infra.providers.composition.moves import Moves, is_part
from infra.providers.composition.state_reader import Declaration, StateReader
from reconciler.errors import NotDoneError
from reconciler.ports import IntakeMessageOut

MAX_CHILDREN_PER_BATCH: Final = 500

_POLL_SECONDS: Final = 0.1
_WAIT_SECONDS: Final = 0.5
"""Time for which a call waits for children whose deletion has not been reported as blocked."""

_MAX_NAMED_CHILDREN: Final = 3
_MAX_ORIGIN_CHARACTERS: Final = 300


class Children:
    """Declares and withdraws the children of a parent, for one action."""

    def __init__(
        self,
        state_reader: StateReader,
        publish: Publish,
        action: Action,
        parent: str,
        *,
        source: str,
        moves: Moves,
    ) -> None:
        self._state_reader = state_reader
        self._moves = moves
        self._publish = publish
        self._action = action
        self._parent = parent
        self._source = source

    async def check_names_free(self, manifests: Sequence[Manifest]) -> dict[str, int]:
        """Return the generations of unused names. Raises ``NotDoneError`` if a name is in use.

        A part that its former set no longer contains is not in use. Reads the log before anything
        is declared, because status rows lag behind.
        """
        declared = await self._state_reader.declarations([str(each.key) for each in manifests])
        generations: dict[str, int] = {}
        for manifest in manifests:
            name = str(manifest.key)
            declaration = declared[name]
            generations[name] = declaration.generation
            part_of = manifest.metadata.labels[PART_OF_LABEL]
            if not declaration.is_declared:
                continue
            conflict = describe_part_conflict(name, declaration.labels, part_of)
            if conflict and not await self._moves.others.is_given_up(name, declaration.labels):
                raise NotDoneError(conflict, status=HTTPStatus.CONFLICT)
        return generations

    async def declare(
        self, parts: Sequence[Part], new: Mapping[str, int]
    ) -> tuple[dict[str, int], dict[str, str]]:
        """Declare children in batches. Return their generations, and the reasons for refusals.

        Definitions and configurations come first. New children are declared only if their names are
        still free.
        """
        generations: dict[str, int] = {}
        refusals: dict[str, str] = {}
        for batch in _batches(parts):
            replies = await self._publish(
                [self._declaration(each, new.get(str(each.manifest.key))) for each in batch]
            )
            for (manifest, _), reply in zip(batch, replies, strict=True):
                name = str(manifest.key)
                generations[name] = reply.generation if reply.accepted else 0
                if not reply.accepted:
                    refusals[name] = f"{reply.reason}: {reply.message}"
        return generations, refusals

    def _declaration(self, part: Part, expected: int | None) -> IntakeMessageOut:
        reasons = (f"part of {self._parent}", part.origin[-_MAX_ORIGIN_CHARACTERS:], self._source)
        data = Declared(part.manifest, expected, reason=": ".join(filter(None, reasons)))
        return build_message(self._action, part.manifest.key, data, "declared")

    async def withdraw(self, names: Sequence[str]) -> None:
        """Withdraw children. Configurations and definitions follow the resources that use them."""
        ranks = {name: system_rank(ResourceKey.parse(name).kind) for name in names}
        for rank in sorted(set(ranks.values()), reverse=True):
            wave = [name for name in names if ranks[name] == rank]
            is_last = rank == min(ranks.values())
            await (self._withdraw(wave) if is_last else self._remove(wave))

    async def remove(self, names: Sequence[str]) -> None:
        """Withdraw children. Raises ``NotDoneError`` unless all of them are then deleted."""
        ranks = {name: system_rank(ResourceKey.parse(name).kind) for name in names}
        for rank in sorted(set(ranks.values()), reverse=True):
            await self._remove([name for name in names if ranks[name] == rank])

    async def _remove(self, names: Sequence[str]) -> None:
        await self._check_removed(names, await self._withdraw(names))

    async def _withdraw(self, names: Sequence[str]) -> Mapping[str, Declaration] | None:
        """Withdraw the children that still belong to the parent, unless another set wants them.

        If there are none, return the declarations. Raises ``NotDoneError`` if another client
        declared one of them at the same time.
        """
        declared = await self._state_reader.declarations(names)
        if any(is_part(each, self._parent) for each in declared.values()):
            await self._moves.wait_for_takeover(
                self._parent, [name for name in names if is_part(declared[name], self._parent)]
            )
            declared = await self._state_reader.declarations(names)
        generations = {
            ResourceKey.parse(name): each.generation
            for name, each in declared.items()
            if is_part(each, self._parent)
        }
        keys = [*generations]
        reason = ": ".join(filter(None, (f"no longer part of {self._parent}", self._source)))
        for start in range(0, len(keys), MAX_CHILDREN_PER_BATCH):
            batch = keys[start : start + MAX_CHILDREN_PER_BATCH]
            replies = await self._publish(
                [
                    build_message(
                        self._action, key, Withdrawn(generations[key], reason), "withdrawn"
                    )
                    for key in batch
                ]
            )
            for key, reply in zip(batch, replies, strict=True):
                if reply.reason == "StaleGeneration":
                    raise NotDoneError(
                        f"{key} was declared again while it was withdrawn",
                        status=HTTPStatus.CONFLICT,
                    )
        return None if keys else declared

    async def _check_removed(
        self, names: Sequence[str], declared: Mapping[str, Declaration] | None
    ) -> None:
        """Raise ``NotDoneError``, which names the children that remain, unless all are deleted.

        Most deletions end quickly, so this waits briefly, but not for a child that is blocked. A
        call that waits would delay those of other resources. ``declared``: the declarations, if
        they were just read.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + _WAIT_SECONDS
        while True:
            declared = declared or await self._state_reader.declarations(names)
            # Resources that another client has since declared are kept.
            remaining = {
                name: each
                for name, each in declared.items()
                if not (each.is_removed or each.is_declared)
            }
            if not remaining:
                return
            if clock() > deadline or any(map(_is_blocked, remaining.values())):
                blocked_first = sorted(remaining.items(), key=lambda each: not _is_blocked(each[1]))
                described = [_describe_remaining(*each) for each in blocked_first]
                raise NotDoneError(
                    f"waiting for {', '.join(_limit_names(described))} to be deleted",
                    status=HTTPStatus.CONFLICT,
                )
            await asyncio.sleep(_POLL_SECONDS)
            declared = None


def _batches(parts: Sequence[Part]) -> Iterator[Sequence[Part]]:
    """Divide parts into batches: definitions and configurations before others."""
    for rank in sorted({system_rank(each.manifest.kind) for each in parts}):
        group = [each for each in parts if system_rank(each.manifest.kind) == rank]
        for start in range(0, len(group), MAX_CHILDREN_PER_BATCH):
            yield group[start : start + MAX_CHILDREN_PER_BATCH]


def _is_blocked(withdrawn: Declaration) -> bool:
    """Return whether the outcome of a withdrawn child is that it cannot be deleted now."""
    outcome = withdrawn.outcome
    return outcome is not None and outcome.generation == withdrawn.generation


def _describe_remaining(name: str, withdrawn: Declaration) -> str:
    outcome = withdrawn.outcome
    if outcome is None or not _is_blocked(withdrawn):
        return name
    return f"{name} ({outcome.outcome}: {outcome.message or outcome.reason})"


def _limit_names(names: Sequence[str]) -> list[str]:
    rest = len(names) - _MAX_NAMED_CHILDREN
    return [*names[:_MAX_NAMED_CHILDREN], *([f"{rest} more"] if rest > 0 else [])]
