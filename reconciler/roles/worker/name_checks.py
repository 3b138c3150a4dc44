"""Ask before a creation whether another resource owns the name of the object (ADR 0084)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from events.names import ResourceKey
from projections.ownership import may_use
from projections.read_models import ReadModels
from reconciler.errors import NotCalledError
from reconciler.ports import ExternalName, NameDirectory

MAX_QUESTIONS: Final = 500
"""Limit on the questions of one request, because an answer may contain a name for each."""

MAX_QUESTION_BYTES: Final = 128 * 1024
"""Limit on their size, before JSON escapes."""

_logger = structlog.get_logger(__name__)


def search_names(models: ReadModels, name: ExternalName) -> str:
    """Return the resource other than the requester that owns a name, or "".

    For a use, return only an owner in another namespace that does not permit it.
    """
    config, kind, external_name, requester, is_path, is_use = name
    names = models.names
    if is_use and is_path and names.has(config, kind, external_name, requester):
        return ""  # a claim that it has already
    if is_use and not is_path:
        owners = names.find_used(config, kind, external_name, other_than=requester)
    else:
        owners = names.find_all(config, kind, external_name, other_than=requester, is_path=is_path)
    if is_use:
        user = ResourceKey.parse(requester)
        owners = (each for each in owners if not may_use(models.status[each], user))
    return min(owners, default="")


def _count_in_one_request(names: Sequence[ExternalName]) -> int:
    """Return how many of these questions one request may contain: at least one.

    One action may have thousands of claims. A message that is too large would fail for all.
    """
    size = 0
    for count, name in enumerate(names[:MAX_QUESTIONS]):
        size += sum(len(each.encode()) for each in name[:4])
        if size > MAX_QUESTION_BYTES and count:
            return count
    return min(len(names), MAX_QUESTIONS)


class NameChecks:
    """Asks the read models of this process, or else those of the observers, in batches."""

    def __init__(self, directory: NameDirectory, models: ReadModels | None) -> None:
        self._directory = directory
        self._models = models
        self._waiting: list[tuple[ExternalName, asyncio.Future[str]]] = []
        self._request: asyncio.Task[None] | None = None

    async def find_owners(self, names: Sequence[ExternalName]) -> list[str]:
        """Return the other resource that owns each name, or "".

        Raises ``NotCalledError`` if no observer answers.
        """
        if self._models is not None:
            return [search_names(self._models, each) for each in names]
        loop = asyncio.get_running_loop()
        questions = [(each, loop.create_future()) for each in names]
        self._waiting += questions
        if questions and self._request is None:
            self._request = asyncio.create_task(self._ask())
        return [await answer for _, answer in questions]

    async def _ask(self) -> None:
        """Ask for everything that waits, until nothing waits."""
        while self._waiting:
            count = _count_in_one_request([name for name, _ in self._waiting])
            batch, self._waiting = self._waiting[:count], self._waiting[count:]
            problem, owners = "", [""] * len(batch)
            try:
                owners = await self._directory.find_owners([name for name, _ in batch])
            except Exception as error:  # noqa: BLE001 - such as an unreachable bus
                problem = f"no observer answered whether the name belongs to another: {error}"
                _logger.warning("failed to check names", error=str(error), names=len(batch))
            for (_, answer), owner in zip(batch, owners, strict=True):
                if answer.done():
                    continue
                if problem:
                    answer.set_exception(NotCalledError(problem))
                else:
                    answer.set_result(owner)
        self._request = None
