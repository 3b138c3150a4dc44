"""Ask before a creation whether another resource owns the name of the object (ADR 0084)."""

from __future__ import annotations

import asyncio

import structlog

from events.log import Action
from events.names import ResourceKey
from projections.read_models import ReadModels
from reconciler.errors import NotCalledError
from reconciler.ports import ExternalName, NameDirectory

_logger = structlog.get_logger(__name__)


def search_names(models: ReadModels, name: ExternalName) -> str:
    """Return the resource other than the requester that owns a name, or ""."""
    config, kind, external_name, requester, is_path = name
    return models.names.find(config, kind, external_name, other_than=requester, is_path=is_path)


class NameChecks:
    """Asks the read models of this process, or else those of the observers, in batches."""

    def __init__(self, directory: NameDirectory, models: ReadModels | None) -> None:
        self._directory = directory
        self._models = models
        self._waiting: list[tuple[ExternalName, asyncio.Future[str]]] = []
        self._request: asyncio.Task[None] | None = None

    async def find_owner(self, key: ResourceKey, action: Action, *, is_path: bool) -> str:
        """Return the other resource that owns the name of a creation, or "".

        Raises ``NotCalledError`` if no observer answers.
        """
        name = ExternalName(
            action.provider_config, key.kind, action.external_name, str(key), is_path
        )
        if self._models is not None:
            return search_names(self._models, name)
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((name, answer))
        if self._request is None:
            self._request = asyncio.create_task(self._ask())
        return await answer

    async def _ask(self) -> None:
        """Ask for everything that waits, until nothing waits."""
        while self._waiting:
            batch, self._waiting = self._waiting, []
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
