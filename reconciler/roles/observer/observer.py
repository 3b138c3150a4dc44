"""The observer: lists each external API's scope at a jittered interval, and reports changes.

An idle fleet costs only listings, because known states are not reported again. If an API provides a
change feed, changes cause earlier listings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import ClassVar

import structlog
from msgspec.structs import replace

from events.external import ExternalObject
from events.intake import ListingBegan, LossCount, Observed
from events.log import ListingsResumed, LogEvent, OutcomeRecorded, ReconcileAccepted
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec, is_config
from projections.read_models import ReadModels
from projections.status import StatusRow
from reconciler.errors import ConfigurationError, ProviderError, UnreadableObjectsError
from reconciler.failpoints import Failpoint, reach
from reconciler.ports import DecisionSink, IntakeMessageOut, IntakeWriter
from reconciler.provider import IdentifiedProvider, ProbedProvider, Provider, VolatileProvider
from reconciler.provider.kind import KindRegistry
from reconciler.resource.new_scope import is_count_news
from reconciler.resource.observation import AWAITING_READ
from reconciler.roles.gate.api_gate import CHECK_SECONDS, GateClosedError
from reconciler.roles.gate.api_gates import ApiGates
from reconciler.roles.objects.object_secrets import hide_and_digest
from reconciler.roles.objects.oversize import build_size_letter, is_too_large, store_size_letters
from reconciler.roles.objects.twins import Suspect, TwinDetector
from reconciler.roles.observer.change_feed import ChangeFeed, can_cause_listing
from reconciler.roles.observer.listing import (
    Findings,
    ListingAssembler,
    ListingRefusedError,
    check_scope,
    compare_listing,
)
from reconciler.roles.observer.listing_reports import ListingReports, ListingTarget, is_observed
from reconciler.roles.observer.next_listing import NextListing
from reconciler.roles.observer.object_reads import MAX_CONCURRENT_READS, ObjectReads, is_news
from reconciler.roles.observer.publication import MAX_WAIT_SECONDS, Publication
from reconciler.roles.observer.recent_deletions import RecentDeletions
from reconciler.roles.observer.restarts import Restarts, contains_objects
from reconciler.roles.observer.silence_reports import SilenceReports
from reconciler.roles.runtime.cancellation import is_being_canceled
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.runtime.pauses import in_slices
from reconciler.roles.runtime.provider_pool import ProviderPool
from reconciler.roles.runtime.runtime import REAL, Runtime
from reconciler.roles.runtime.search_turns import SearchTurns

JITTER = 0.1
"""Relative jitter of each interval, so that observers do not list at the same time."""

AWAITED_LISTING_SECONDS = 5.0
"""Minimum time between listings that resources wait for, because many may begin to wait."""

CATCH_UP_SECONDS = 10.0
"""Time for which a listing waits for the log's events about its objects."""

_MAX_RETRY_SECONDS = 5.0
_HALF_MILLISECOND = 0.0005
_logger = structlog.get_logger(__name__)


class Observer:
    """Lists every declared API periodically."""

    event_types: ClassVar = (
        RecentDeletions.event_types
        | Publication.event_types
        | {ListingsResumed, OutcomeRecorded, ReconcileAccepted}
    )

    def __init__(
        self,
        *,
        intake: IntakeWriter,
        configurations: Configurations,
        providers: ProviderPool,
        kinds: KindRegistry,
        models: ReadModels,
        log_id: str,
        gates: ApiGates,
        name: str = "observer",
        reads: ObjectReads | None = None,
        sink: DecisionSink | None = None,
        catch_up: Callable[[float], Awaitable[None]] | None = None,
        twins: TwinDetector | None = None,
        runtime: Runtime = REAL,
    ) -> None:
        self._intake = intake
        self._twins = twins
        self._configurations = configurations
        self._providers = providers
        self._kinds = kinds
        self._models = models
        self._log_id = log_id
        self._sink = sink
        self._catch_up = catch_up
        self._now = runtime.now
        self._clock = runtime.clock
        self._gates = gates
        self._reads = reads or ObjectReads(
            intake=intake,
            configurations=configurations,
            providers=providers,
            models=models,
            log_id=log_id,
            gates=gates,
            runtime=runtime,
        )
        self._reads.request_listing = self._start_listing
        self._reports = ListingReports(
            name=name,
            intake=intake,
            models=models,
            secrecy=providers.searches.secrecy,
            runtime=runtime,
        )
        self._silence = SilenceReports(
            name=name, intake=intake, models=models, gates=gates, runtime=runtime
        )
        self._jitter = runtime.jitter
        self._new_id = runtime.new_id
        self._watches: dict[ListingTarget, asyncio.Task[None]] = {}
        self._feeds: dict[ListingTarget, asyncio.Task[None]] = {}
        self._next: dict[ListingTarget, NextListing] = {}
        self._empty: set[ListingTarget] = set()  # kinds without listings, and without objects
        self._changed = asyncio.Event()
        self._deletions = RecentDeletions(self._clock)
        self._publication = Publication(self._clock)
        self._restarts = Restarts(self._clock)
        self.listings = 0

    async def run(self) -> None:
        """List until canceled, following changes to the configurations."""
        self._configurations.listen(self._handle_config_change)
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    self._update_watches(tasks)
                    await self._changed.wait()
                    self._changed.clear()
        finally:
            self._watches.clear()
            self._feeds.clear()

    def _handle_config_change(self, name: str) -> None:
        self._reports.reset(name)
        for (config, _kind), listing in self._next.items():
            if config == name:
                listing.end_wait()
        self._changed.set()

    def handle_event(self, _position: int, event: LogEvent) -> None:
        """Process a log event: hint at or start a listing, or record a deletion."""
        self._publication.handle_event(event)
        match event.data:
            case ReconcileAccepted() if is_config(event.key):
                for (config, _kind), listing in self._next.items():
                    if config == event.key.name:
                        listing.end_wait()
            case OutcomeRecorded(reason=reason):
                if reason == AWAITING_READ:
                    self._hint_listing(event.key)
            case ListingsResumed():
                self._reports.handle_event(event)
            case _:
                self._deletions.handle_event(event)

    def _hint_listing(self, key: ResourceKey) -> None:
        """List soon, because a resource waits for a listing that begins after its outcome."""
        row = self._models.status.get(str(key))
        listing = None if row is None else self._next.get((row.provider_config, key.kind))
        if listing is not None:
            listing.hint()

    def _start_listing(self, config_name: str, kind: str) -> None:
        listing = self._next.get((config_name, kind))
        if listing is not None:
            listing.end_wait()

    def handle_kind_change(self, _name: str) -> None:
        """Update the listed scopes after a kind was defined or removed."""
        self._changed.set()

    def _update_watches(self, tasks: asyncio.TaskGroup) -> None:
        targets = {
            (name, kind)
            for name, config in self._configurations.by_name.items()
            for kind in self._watched_kinds(config)
        }
        for watch in self._watches.keys() - targets:
            self._watches.pop(watch).cancel()
            self._next.pop(watch, None)
            self._empty.discard(watch)
            tasks.create_task(self._reports.remove(watch))
        for watch in targets - self._watches.keys():
            self._next[watch] = NextListing()
            self._watches[watch] = tasks.create_task(self._watch(*watch))
        self._update_feeds(tasks, {watch for watch in targets if self._has_feed(*watch)})

    def _update_feeds(self, tasks: asyncio.TaskGroup, targets: set[ListingTarget]) -> None:
        for target in self._feeds.keys() - targets:
            self._feeds.pop(target).cancel()
        for target in targets - self._feeds.keys():
            self._feeds[target] = tasks.create_task(self._feed(*target).run())

    def _has_feed(self, config_name: str, kind: str) -> bool:
        config = self._configurations.by_name[config_name]
        return self._kinds[kind].watches and can_cause_listing(config)

    def _feed(self, config_name: str, kind: str) -> ChangeFeed:
        return ChangeFeed(
            config_name,
            kind,
            configurations=self._configurations,
            providers=self._providers,
            gates=self._gates,
            hint=self._next[config_name, kind].hint,
            clock=self._clock,
            jitter=self._jitter,
        )

    def _watched_kinds(self, config: ProviderConfigSpec) -> list[str]:
        known = [kind.name for kind in self._kinds.of_provider(config.provider)]
        return [kind for kind in known if not config.kinds or kind in config.kinds]

    async def _watch(self, config_name: str, kind: str) -> None:
        listing = self._next[config_name, kind]
        while True:
            listing.start()
            wait = await self._try_to_list(config_name, kind)
            await self._silence.update(config_name, is_read=self._reads_objects(config_name))
            seconds = wait * (1 + JITTER * (2 * self._jitter() - 1))
            await listing.wait(seconds, self._min_hint_seconds(config_name, kind))

    def _reads_objects(self, config_name: str) -> bool:
        """Return whether the observer calls an API, to list it or to read single objects."""
        return any(name == config_name for name, _kind in self._watches.keys() - self._empty)

    def _min_hint_seconds(self, config_name: str, kind: str) -> float:
        """Return the minimum time before a hint counts, with jitter if the API has a feed."""
        config = self._configurations.by_name.get(config_name)
        if config is None or (config_name, kind) not in self._feeds:
            return AWAITED_LISTING_SECONDS
        return config.least_resync_seconds * (1 + JITTER * self._jitter())

    async def _try_to_list(self, config_name: str, kind: str) -> float:
        """List once, and return the seconds until the next listing."""
        config = self._configurations.by_name.get(config_name)
        if config is None:
            return _MAX_RETRY_SECONDS  # just withdrawn: this task ends soon
        health = self._reports.get_health((config_name, kind))
        try:
            await self.list_once(config_name, kind)
        except GateClosedError as error:
            health.record_postponement()
            _logger.info("listing postponed", config=config_name, kind=kind, reason=error.message)
            # Jitter must not shorten the wait.
            wait = (error.retry_after_seconds or 0.0) / (1 - JITTER)
            return max(wait, min(config.resync_seconds, _MAX_RETRY_SECONDS))
        except (ProviderError, ConfigurationError, ListingRefusedError) as error:
            reason = str(error)
        except asyncio.CancelledError:
            if is_being_canceled():
                raise
            reason = "the provider canceled its own call"
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            _logger.debug("listing failed", exc_info=True)
        else:
            health.record_success()
            return config.resync_seconds
        _logger.warning("listing failed", config=config_name, kind=kind, error=reason)
        known = self._kinds.find(kind)
        if known is not None and known.lists:
            await self._reports.record_failure((config_name, kind), config, reason)
        return min(config.resync_seconds, _MAX_RETRY_SECONDS)

    async def list_once(self, config_name: str, kind: str) -> int:
        """List a scope completely, and publish changes. Return the number of observations.

        Raises:
            ProviderError, ConfigurationError, ListingRefusedError: nothing was published.
        """
        config = self._configurations.by_name[config_name]
        if not self._kinds[kind].lists:
            return await self._read_each(config_name, kind, config)
        provider = self._providers.get(config_name, kind)
        as_of = await self._intake.last_position()
        began = ListingBegan(config_name, kind, as_of, config.scope.prefix, config.scope.labels)
        capabilities = self._kinds[kind].capabilities
        listing = ListingAssembler(
            began,
            self._now(),
            self._clock(),
            unique_names=capabilities is None or capabilities.deterministic_names,
            path_names=capabilities is not None and capabilities.path_names,
            find_uses=self._kinds[kind].find_uses,
        )
        count, unreadable = 0, UnreadableObjectsError("", ())
        gate = self._gates.of(config_name)
        is_probe = await gate.enter(config_name)
        with gate.calls(config_name, is_probe=is_probe):
            try:
                async for page in provider.pages(config.scope, page_size=config.limits.page_size):
                    gate.record_response()
                    listing.add(page)
                    count += len(page)
            except UnreadableObjectsError as error:
                unreadable = error
                _logger.warning(
                    "objects unreadable", config=config_name, kind=kind, error=error.message
                )
            except ProviderError as error:
                error.responded = not error.proves_failure or await _responds(provider)
                raise
        self.listings += 1
        if self._configurations.by_name.get(config_name) != config:
            raise ListingRefusedError("its ProviderConfig was changed during the listing")
        objects = listing.complete(count)
        listing.exclude_unreadable(unreadable.objects, unreadable.groups)
        return await self.publish_changes(listing, objects, provider)

    async def _read_each(self, config_name: str, kind: str, config: ProviderConfigSpec) -> int:
        """Read each object of an API without listings."""
        await self._wait_for_log()
        target, rows = (config_name, kind), list[StatusRow]()
        async for chunk in in_slices(list(self._models.status.values())):
            rows += [row for row in chunk if is_observed(row, target)]
        (self._empty.discard if rows else self._empty.add)(target)
        count = await self._reads.read_all(rows, config)
        self.listings += 1
        return count

    async def publish_changes(
        self,
        listing: ListingAssembler,
        objects: Mapping[str, ExternalObject],
        provider: Provider,
        *,
        waits: bool = True,
    ) -> int:
        """Publish the differences between a complete listing and the log. Return their number.

        If there is no room within the limits for the API, wait for some time, or not at all without
        `waits`. The next listing publishes the remaining differences.

        Raises:
            ListingRefusedError: this process has not read the log to the end, or the scope has
                changed.
        """
        began = listing.began
        await self._wait_for_log()
        config = self._configurations.by_name.get(began.provider_config)
        if config is None:
            raise ListingRefusedError("its ProviderConfig was withdrawn during the listing")
        check_scope(began, config)
        rows, damage = self._models.status, self._models.damage.values()
        findings = await compare_listing(
            listing,
            objects,
            rows,
            config,
            self._log_id,
            damage,
            names=self._models.names,
            searches=self._providers.searches,
            known_position=self._models.position,
            deleted_ids=self._deletions.ids(
                began.provider_config,
                began.kind,
                started_at=listing.began_monotonic,
                grace_seconds=config.consistency_grace_seconds,
            ),
            late_ids=self._deletions.ids(
                began.provider_config,
                began.kind,
                started_at=None,
                grace_seconds=config.consistency_grace_seconds,
            ),
        )
        system_id = await self._read_system_id(findings.losses, listing, provider)
        findings = await self._explain_losses(
            findings, listing, provider, config, system_id=system_id
        )
        unfiltered = findings.observed
        unfiltered += await self._read_unlisted(findings, listing, provider, config)
        observations = [each for each in unfiltered if not is_too_large(each[1].object)]
        if len(observations) < len(unfiltered):
            letters = [
                build_size_letter(*each) for each in unfiltered if is_too_large(each[1].object)
            ]
            await store_size_letters(self._sink, letters)
        if self._configurations.by_name.get(began.provider_config) != config:
            raise ListingRefusedError("its ProviderConfig was changed during the listing")
        observations = await self._withhold_unclear(began, observations)
        reach(Failpoint.OBSERVER_LISTED)
        publication_began = self._clock()
        slices = self._publication.slices(
            began.provider_config,
            observations,
            is_undeclared=self._is_undeclared,
            max_wait_seconds=min(MAX_WAIT_SECONDS, config.resync_seconds) if waits else 0.0,
        )
        async for each in slices:
            if self._configurations.by_name.get(began.provider_config) != config:
                raise ListingRefusedError("its ProviderConfig was changed during publication")
            await self._publish(listing, each)
        next_listing = self._next.get((began.provider_config, began.kind))
        if waits and next_listing is not None:
            next_listing.record_publication(self._clock() - publication_began)
        reach(Failpoint.OBSERVER_PUBLISHED)
        await self._reports.record_completion(
            (began.provider_config, began.kind),
            system_id if contains_objects(findings.losses, config) else "",
        )
        await self._report_undeclared(began, findings)
        self._restarts.record_listing(listing, findings.losses, config)
        return len(observations)

    async def _explain_losses(
        self,
        findings: Findings,
        listing: ListingAssembler,
        provider: Provider,
        config: ProviderConfigSpec,
        *,
        system_id: str,
    ) -> Findings:
        """Mark the losses of a listing if its system is the recorded one, or has restarted."""
        if not config.loss_guard.doubts(findings.losses.missing, findings.losses.owned):
            return findings
        name, kind = listing.began.provider_config, listing.began.kind
        same_system = system_id == self._reports.recorded_system((name, kind)) != ""
        restarted = not same_system and await self._has_restarted(listing, provider, config)
        if not (same_system or restarted):
            return findings
        losses = replace(findings.losses, same_system=same_system, restarted=restarted)
        _logger.warning(
            "the API has lost its objects",
            config=name,
            kind=kind,
            missing=losses.missing,
        )
        observed = [
            (key, each if each.losses is None else replace(each, losses=losses))
            for key, each in findings.observed
        ]
        return Findings(observed, findings.uncertain, losses, findings.undeclared)

    async def _read_system_id(
        self, losses: LossCount, listing: ListingAssembler, provider: Provider
    ) -> str:
        """Return the id of the system that this process has listed, or "" if it has none."""
        is_own = losses.owned > 0 and listing.began_monotonic is not None
        if not (is_own and isinstance(provider, IdentifiedProvider)):
            return ""
        name = listing.began.provider_config
        with self._gates.of(name).calls(name):
            return await provider.system_id() or ""

    async def _has_restarted(
        self, listing: ListingAssembler, provider: Provider, config: ProviderConfigSpec
    ) -> bool:
        """Return whether the API's process is younger than the last complete listing."""
        if not isinstance(provider, VolatileProvider):
            return False
        name = listing.began.provider_config
        with self._gates.of(name).calls(name):
            uptime_seconds = await provider.uptime_seconds()
        return self._restarts.is_younger(uptime_seconds, listing, config)

    async def _report_undeclared(self, began: ListingBegan, findings: Findings) -> None:
        """Report the undeclared objects of a new scope, if the log does not contain their count."""
        counts = self._configurations.new_scopes.get(began.provider_config)
        if counts is None or findings.undeclared is None:
            return
        if is_count_news(counts.get(began.kind), findings.undeclared.count):
            target = (began.provider_config, began.kind)
            await self._reports.report_undeclared(target, findings.undeclared)

    def _is_undeclared(self, key: ResourceKey) -> bool:
        row = self._models.status.get(str(key))
        return row is None or row.is_foreign

    async def _publish(
        self, listing: ListingAssembler, observations: Sequence[tuple[ResourceKey, Observed]]
    ) -> None:
        age = self._age(listing)
        await self._intake.publish(
            [
                IntakeMessageOut(
                    "observed", key, replace(observed, age_seconds=age), self._new_id()
                )
                for key, observed in observations
                if str(key) not in self._models.damage  # held: the decider skips it
            ]
        )

    async def _read_unlisted(
        self,
        findings: Findings,
        listing: ListingAssembler,
        provider: Provider,
        config: ProviderConfigSpec,
    ) -> list[tuple[ResourceKey, Observed]]:
        """Read objects that the listing neither contains nor proves to be absent."""
        name, searches = listing.began.provider_config, self._providers.searches
        slots = asyncio.Semaphore(min(config.limits.concurrency, MAX_CONCURRENT_READS))

        async def read(row: StatusRow) -> list[tuple[ResourceKey, Observed]]:
            async with slots:
                with self._gates.of(name).calls(name, proves_failure=False):
                    return await _read_one(provider, row, listing, findings.losses, searches)

        observations: list[tuple[ResourceKey, Observed]] = []
        async for rows in in_slices(findings.uncertain):  # all rows after an empty listing
            for chunk in await asyncio.gather(*(read(row) for row in rows)):
                observations += chunk
        return observations

    async def _withhold_unclear(
        self, began: ListingBegan, observations: list[tuple[ResourceKey, Observed]]
    ) -> list[tuple[ResourceKey, Observed]]:
        """Exclude observations of objects that may be newer than the log.

        Raises:
            ListingRefusedError: the listing must wait until its API is held.
        """
        if self._twins is None:
            return observations
        suspects = [
            Suspect(key, each.object) for key, each in observations if each.object is not None
        ]
        known_version = self._models.known_version
        comparison = await self._twins.report(
            began.provider_config, began.kind, suspects, known_version
        )
        if comparison.must_wait:
            raise ListingRefusedError(
                "the API has objects that are newer than this log; the listing waits until its "
                "ProviderConfig is held"
            )
        return [each for each in observations if each[0] not in comparison.unclear]

    def _age(self, listing: ListingAssembler) -> float | None:
        if listing.began_monotonic is None:
            return None
        return round(self._clock() - listing.began_monotonic + _HALF_MILLISECOND, 3)

    async def _wait_for_log(self) -> None:
        """Wait until the rows include all declarations and actions that led to the listed objects.

        With stale rows, an object that another resource has just created would count as unmanaged,
        and an exclusive scope would delete it.
        """
        if self._catch_up is None:
            return
        try:
            await self._catch_up(CATCH_UP_SECONDS)
        except TimeoutError:
            raise ListingRefusedError("this process has not yet read the log to the end") from None


async def _responds(provider: Provider) -> bool:
    """Return whether an API responds to a call without objects, although a listing has failed.

    One tenant may have so many objects, or such slow ones, that no listing completes.
    """
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return isinstance(provider, ProbedProvider) and await provider.probe()
    except (ProviderError, ConfigurationError, TimeoutError):
        return False


async def _read_one(
    provider: Provider,
    row: StatusRow,
    listing: ListingAssembler,
    losses: LossCount,
    searches: SearchTurns,
) -> list[tuple[ResourceKey, Observed]]:
    uid = row.read_uid(unique_names=listing.unique_names)
    external_name = row.external_name  # the projection may update the row during the read
    try:
        existing = await provider.read(external_name, uid)
    except ProviderError as error:
        _logger.warning("failed to read an object", resource=str(row.key), error=str(error))
        return []
    recorded = None
    if existing is not None:
        recorded = await searches.complete(hide_and_digest(existing, searches.secrecy, [row]))
    if existing is not None and (recorded is None or not is_news(recorded[1], row)):
        return []
    observed = Observed(
        listing.began.provider_config,
        external_name,
        None if recorded is None else recorded[0],
        "Read",
        listing.began.as_of,
        listing.began_at,
        losses=losses,
        absent_uid=uid if existing is None else None,
    )
    return [(row.key, observed)]
