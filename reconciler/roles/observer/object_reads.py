"""Read individual objects: those that are not ready, and those of APIs without listings.

An object that is not ready is read after 1, 2, 4, … seconds, up to the listing interval, so that
its readiness is reported before the next listing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import structlog
from msgspec.structs import replace

from events.external import ExternalObject
from events.intake import LossCount, Observed
from events.log import LogEvent, ReconcileAccepted
from events.provider_config import ProviderConfigSpec
from projections.read_models import ReadModels
from projections.status import StatusRow
from reconciler.errors import ConfigurationError, ProviderError
from reconciler.failpoints import Failpoint, reach
from reconciler.ports import IntakeMessageOut, IntakeWriter
from reconciler.resource.observation import AWAITING_LISTING, AWAITING_READ
from reconciler.resource.owner_label import OWNER_LABEL, resource_of
from reconciler.roles.gate.api_gates import ApiGates
from reconciler.roles.objects.object_secrets import hide_and_digest
from reconciler.roles.objects.oversize import is_too_large
from reconciler.roles.objects.twins import Suspect, TwinDetector
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.runtime.provider_pool import ProviderPool
from reconciler.roles.runtime.runtime import REAL, Runtime

FIRST_DELAY_SECONDS = 1.0
MAX_CONCURRENT_READS = 16

_logger = structlog.get_logger(__name__)


def is_news(object_digest: str, row: StatusRow, belongs_to: str | None = None) -> bool:
    """Return whether an object with this digest differs from what is recorded or is awaited.

    ``belongs_to``: the other resource that owns the name, "" if none does, None if unknown.
    """
    is_awaited = row.doubted or row.reason in (AWAITING_READ, AWAITING_LISTING)
    has_new_owner = belongs_to not in (None, row.belongs_to)
    return is_awaited or has_new_owner or object_digest != row.observed_digest


_Location = tuple[str, str, str | None]
"""Kind, name and uid of an object in one API."""


class _Read(NamedTuple):
    """The result of a read without its age, and the read's start on the monotonic clock."""

    row: StatusRow
    observed: Observed
    began_monotonic: float


class ObjectReads:
    """Reads individual objects, and publishes observations that are not in the log."""

    def __init__(
        self,
        *,
        intake: IntakeWriter,
        configurations: Configurations,
        providers: ProviderPool,
        models: ReadModels,
        log_id: str,
        gates: ApiGates,
        twins: TwinDetector | None = None,
        runtime: Runtime = REAL,
    ) -> None:
        self.request_listing: Callable[[str, str], None] = lambda _config, _kind: None
        self._intake = intake
        self._twins = twins
        self._configurations = configurations
        self._providers = providers
        self._models = models
        self._log_id = log_id
        self._gates = gates
        self._now = runtime.now
        self._clock = runtime.clock
        self._new_id = runtime.new_id
        self._has_work = asyncio.Event()
        self._requested: dict[str, None] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}

    def handle_event(self, _position: int, event: LogEvent) -> None:
        """Schedule the read of an object that is requested or not ready; a log subscriber."""
        if type(event.data) is ReconcileAccepted and event.data.reads:
            self._requested[event.subject] = None
            self._has_work.set()
        if self._models.is_unready(event.subject):
            self._has_work.set()

    async def run(self) -> None:
        """Read requested objects and those that are not ready, independently per API."""
        self._has_work.set()
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._has_work.wait()
                self._has_work.clear()
                for config_name, rows in self._take_requested().items():
                    tasks.create_task(self.read(rows, self._configurations.by_name[config_name]))
                for config_name in {row.provider_config for row in self._unready()}:
                    if config_name not in self._reading:
                        task = tasks.create_task(self._read_until_ready(config_name))
                        self._reading[config_name] = task

    def _take_requested(self) -> dict[str, list[StatusRow]]:
        """Return the resources with a requested read, by configuration."""
        requested, self._requested = self._requested, {}
        rows = [row for name in requested if (row := self._models.status.get(name)) is not None]
        by_config: dict[str, list[StatusRow]] = {}
        for row in rows:
            if row.doubted and row.provider_config in self._configurations.by_name:
                by_config.setdefault(row.provider_config, []).append(row)
        return by_config

    def _unready(self) -> list[StatusRow]:
        return [self._models.status[name] for name in self._models.unready]

    async def _read_until_ready(self, config_name: str) -> None:
        """Read an API's objects that are not ready, at increasing intervals."""
        next_reads: dict[str, tuple[float, float]] = {}
        try:
            while rows := [row for row in self._unready() if row.provider_config == config_name]:
                config = self._configurations.by_name.get(config_name)
                if config is None:
                    return
                await asyncio.sleep(FIRST_DELAY_SECONDS)
                now = self._clock()
                ready_to_read = [
                    row for row in rows if next_reads.get(str(row.key), (0.0,))[0] <= now
                ]
                await self.read(ready_to_read, config)
                for row in ready_to_read:
                    _, pause = next_reads.get(str(row.key), (0.0, FIRST_DELAY_SECONDS))
                    pause = min(2 * pause, max(config.resync_seconds, FIRST_DELAY_SECONDS))
                    next_reads[str(row.key)] = (self._clock() + pause, pause)
        finally:
            del self._reading[config_name]

    async def read(self, rows: Iterable[StatusRow], config: ProviderConfigSpec) -> int:
        """Read the objects of resources from one API. Return the number of observations.

        A failed read is repeated later. A missing owned object is not reported, because only a
        listing shows whether many are missing. It triggers a listing instead, which the loss guard
        checks.
        """
        count, missing = await self._read_some(rows, config)
        for name, kind in {(each.row.provider_config, each.row.kind) for each in missing}:
            self.request_listing(name, kind)
        return count

    async def read_all(self, rows: Iterable[StatusRow], config: ProviderConfigSpec) -> int:
        """Read all objects of an API without listings. Return the number of observations."""
        rows = list(rows)
        owners = {_location(row, row.uid): str(row.key) for row in rows if row.owned}
        count, missing = await self._read_some(rows, config, owners)
        losses = LossCount(len(missing), sum(row.owned for row in rows))
        for each in missing:
            await self._publish(each._replace(observed=replace(each.observed, losses=losses)))
        return count + len(missing) + await self._read_late(rows)

    async def _read_late(self, rows: Iterable[StatusRow]) -> int:
        """Read the objects that late creation calls may have created under other names.

        Return the number of observations.
        """
        count = 0
        for row in rows:
            names = row.uncertain_names if row.is_unconfirmed and not row.action_id else ()
            for name in names:
                if name != row.external_name and (read := await self._read_one(row, name)):
                    await self._publish(read)
                    count += 1
        return count

    async def _read_some(
        self,
        rows: Iterable[StatusRow],
        config: ProviderConfigSpec,
        owners: Mapping[_Location, str] | None = None,
    ) -> tuple[int, list[_Read]]:
        """Publish observations. Return their number, and the reads of missing owned objects.

        ``owners``: the resource that owns each object, if ``rows`` are all resources of the API.
        """
        slots = asyncio.Semaphore(min(config.limits.concurrency, MAX_CONCURRENT_READS))
        missing: list[_Read] = []

        async def read_row(row: StatusRow) -> int:
            is_owned = row.owned
            async with slots:
                read = await self._read_one(row, owners=owners)
                if read is None:
                    return 0
                if read.observed.object is None and is_owned:
                    missing.append(read)
                    return 0
                await self._publish(read)
                return 1

        readable = [row for row in rows if not (row.action_id or self._needs_others(row, owners))]
        return sum(await asyncio.gather(*map(read_row, readable))), missing

    async def _publish(self, read: _Read) -> None:
        age = round(self._clock() - read.began_monotonic, 3)
        observed = replace(read.observed, age_seconds=age)
        reach(Failpoint.OBSERVER_LISTED)
        await self._intake.publish(
            [IntakeMessageOut("observed", read.row.key, observed, self._new_id())]
        )
        reach(Failpoint.OBSERVER_PUBLISHED)

    def _needs_others(self, row: StatusRow, owners: Mapping[_Location, str] | None) -> bool:
        """Return whether only the rows of other resources show which one owns a row's object.

        Without labels, a read could report the object of another resource as unowned. A listing
        compares the rows, and so does a read of all objects.
        """
        capabilities = self._providers.capabilities(row.kind)
        if capabilities is None or capabilities.labels or row.owned:
            return False
        return capabilities.listing or owners is None

    async def _read_one(
        self,
        row: StatusRow,
        late_name: str | None = None,
        owners: Mapping[_Location, str] | None = None,
    ) -> _Read | None:
        """Read a row's object, or an object that a late call created as ``late_name``."""
        name = row.provider_config
        capabilities = self._providers.capabilities(row.kind)
        unique_names = capabilities is None or capabilities.deterministic_names
        uid = row.read_uid(unique_names=unique_names) if late_name is None else None
        # The projection may update the row during the read.
        external_name = row.external_name if late_name is None else late_name
        try:
            as_of = await self._intake.last_position()
            began_at, began_monotonic = self._now(), self._clock()
            provider = self._providers.get(name, row.kind)
            gate = self._gates.of(name)
            is_probe = await gate.enter(name)
            # Where the API can be listed, only a failed listing shows that it is down.
            proves_failure = capabilities is None or not capabilities.listing
            with gate.calls(name, is_probe=is_probe, proves_failure=proves_failure):
                existing = await provider.read(external_name, uid)
        except (ProviderError, ConfigurationError) as error:
            _logger.info("failed to read an object", resource=str(row.key), reason=str(error))
            return None
        except Exception as error:  # noqa: BLE001 - a defect in one kind must not end the role
            reason = f"{type(error).__name__}: {error}"
            _logger.warning("failed to read an object", resource=str(row.key), reason=reason)
            return None
        if late_name is not None and not self._is_labeled(existing, row):
            return None
        object_digest = ""
        if existing is not None:
            searches = self._providers.searches
            recorded = await searches.complete(hide_and_digest(existing, searches.secrecy, [row]))
            if recorded is None:
                return None
            existing, object_digest = recorded
        is_late = late_name is not None
        other_owner = None if owners is None else _find_owner(row, existing, owners)
        if existing is None and unique_names and row.declared and not row.owned:
            names = self._models.names
            is_path = capabilities is not None and capabilities.path_names
            other_owner = names.find(
                name, row.kind, external_name, other_than=str(row.key), is_path=is_path
            )
        if not (is_late or is_news(object_digest, row, other_owner)) or is_too_large(existing):
            return None
        if existing is not None and self._twins is not None:
            suspects, known_version = [Suspect(row.key, existing)], self._models.known_version
            comparison = await self._twins.report(name, row.kind, suspects, known_version)
            if not comparison.allows(row.key):
                return None  # it is read again once its ProviderConfig is held
        observed = Observed(
            name,
            external_name,
            existing,
            "Read",
            as_of,
            began_at,
            absent_uid=uid if existing is None else None,
            belongs_to=other_owner,
        )
        return _Read(row, observed, began_monotonic)

    def _is_labeled(self, existing: ExternalObject | None, row: StatusRow) -> bool:
        label = "" if existing is None else existing.labels.get(OWNER_LABEL, "")
        return resource_of(label, self._log_id) == str(row.key)


def _location(row: StatusRow, uid: str | None) -> _Location:
    return (row.kind, row.external_name, uid)


def _find_owner(
    row: StatusRow, existing: ExternalObject | None, owners: Mapping[_Location, str]
) -> str:
    """Return another resource that owns the object that was read, or an empty string."""
    if existing is None or row.owned:
        return ""
    return owners.get(_location(row, existing.uid), "")
