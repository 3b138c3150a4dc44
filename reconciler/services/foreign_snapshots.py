"""Takes in the snapshots that other teams' observers publish, by the same rules as our own."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import structlog

from events.intake import SnapshotBegan, SnapshotCompleted, SnapshotItem, SnapshotPart
from reconciler.errors import ConfigurationError, ProviderError
from reconciler.ports import SnapshotReader
from reconciler.services.configurations import Configurations
from reconciler.services.listing import SnapshotAssembler, SnapshotRefusedError, check_scope
from reconciler.services.observer import Observer
from reconciler.services.providers import ProviderPool

ABANDONED_SECONDS = 300.0
"""A snapshot that is not completed by then never will be."""

_MOST_OPEN = 256
_logger = structlog.get_logger(__name__)


class ForeignSnapshots:
    """Assembles snapshots from the bus; a broken one proves nothing, and is dropped."""

    def __init__(
        self,
        *,
        reader: SnapshotReader,
        observer: Observer,
        configurations: Configurations,
        providers: ProviderPool,
    ) -> None:
        self._reader = reader
        self._observer = observer
        self._configurations = configurations
        self._providers = providers
        self._open: dict[str, tuple[float, SnapshotAssembler]] = {}
        self.refused: list[tuple[str, str]] = []

    async def run(self) -> None:
        """Take parts for ever."""
        while True:
            for subject, part in await self._reader.next_batch():
                try:
                    await self.take(subject, part)
                except (SnapshotRefusedError, ConfigurationError, ProviderError) as error:
                    self._drop(subject, str(error))
                except Exception:
                    _logger.exception("a snapshot could not be taken in", subject=subject)

    async def take(self, subject: str, part: SnapshotPart | None) -> None:
        """Take one part; raises ``SnapshotRefusedError`` where it makes the whole useless."""
        match part:
            case SnapshotBegan():
                self._begin(subject, part)
            case SnapshotItem():
                self._assembler(subject).add([part.object])
            case SnapshotCompleted():
                await self._complete(subject, part)
            case None:
                raise SnapshotRefusedError("a part of it could not be read")

    def _begin(self, subject: str, part: SnapshotBegan) -> None:
        _snapshot, config_name, kind, _identifier = subject.split(".")
        if (part.provider_config, part.kind) != (config_name, kind):
            raise SnapshotRefusedError(f"it says {part.provider_config}.{part.kind} on {subject}")
        config = self._configurations.by_name.get(config_name)
        if config is None:
            raise SnapshotRefusedError(f"ProviderConfig {config_name!r} is not declared")
        check_scope(part, config)
        self._forget_abandoned()
        self._open[subject] = (time.monotonic(), SnapshotAssembler(part, datetime.now(UTC)))

    def _assembler(self, subject: str) -> SnapshotAssembler:
        opened = self._open.get(subject)
        if opened is None:
            raise SnapshotRefusedError("its beginning did not come, or it was dropped before")
        return opened[1]

    async def _complete(self, subject: str, part: SnapshotCompleted) -> None:
        snapshot = self._assembler(subject)
        del self._open[subject]
        objects = snapshot.complete(part.count)
        began = snapshot.began
        provider = self._providers.get(began.provider_config, began.kind)
        await self._observer.publish_changes(snapshot, objects, provider)

    def _forget_abandoned(self) -> None:
        oldest = time.monotonic() - ABANDONED_SECONDS
        for subject, (started, _snapshot) in list(self._open.items()):
            if started < oldest:
                self._drop(subject, "it was not completed in time")
        while len(self._open) >= _MOST_OPEN:
            self._drop(next(iter(self._open)), "too many snapshots are open at once")

    def _drop(self, subject: str, reason: str) -> None:
        self._open.pop(subject, None)
        self.refused = [*self.refused[-99:], (subject, reason)]
        _logger.warning("snapshot refused", subject=subject, reason=reason)
