"""One run of a plan: setup, the steps of the plan, and the end of all faults."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable, Generator, MutableMapping
from contextlib import contextmanager
from typing import Any

import structlog

from events.log import event_id
from events.names import ResourceKey
from reconciler.provider.kind import KindRegistry
from reconciler.resource.attempt import idempotency_key
from reconciler.resource.owner_label import OWNER_LABEL, owner
from reconciler.resource.state import NEW
from reconciler.roles.decider import decider as decider_module
from tests.judge.from_simulation import Witness
from tests.memory_bus.bus import MemoryBus
from tests.memory_bus.log import LOG_ID
from tests.memory_bus.loop import Process, VirtualLoop
from tests.simulation import plan as p
from tests.simulation.api import Api
from tests.simulation.cast import Actor, Stage
from tests.simulation.provider import ListingFaults, simulated_kind
from tests.simulation.publishing import DEFINITION_KEY, Publisher, resource_key
from tests.simulation.vault import Vault

_VERSIONS_AHEAD = 150  # more than our log adds in a run

_BUS_ERRORS = frozenset({"failed to store dead letters; retrying later"})
"""Errors that a service may report because the bus is unavailable."""

_DAMAGE_ERRORS = _BUS_ERRORS | {"a history is damaged; its resource is held", "the log is damaged"}


_FOREVER_SECONDS = 1_000_000.0
"""Objects written after the faults stop do not expire: otherwise nothing would come to rest."""


class World:
    """The simulated world in which a plan runs."""

    def __init__(self, plan: p.Plan, *, trace: Callable[[str], None] | None = None) -> None:
        seed = str(plan.seed)
        self.plan = plan
        self.loop = VirtualLoop(f"{seed}/loop")
        self.start_time = self.loop.time()
        limits = plan.limits
        self.bus = MemoryBus(
            self.loop,
            seed,
            max_unacknowledged=limits.max_ack_pending,
            max_actions_leased=limits.max_actions_pending,
            max_actions=limits.max_actions,
            rows_per_save=limits.rows_per_save,
            may_be_damaged=_is_damaged(plan),
        )
        self.network, self.log, self.intake = self.bus.network, self.bus.log, self.bus.intake
        self.actions, self.decisions = self.bus.actions, self.bus.decisions
        self.listings, self.rows = self.bus.listings, self.bus.rows
        time = self.loop.time
        self.api = Api(plan.api, time)
        self.listing_faults = ListingFaults(time)
        self.vault = Vault()
        kind = simulated_kind(self.api, self.network, self.listing_faults, seed)
        self.kinds = KindRegistry([kind])
        stage = Stage(self.bus, self.kinds, self.vault)
        self.actors = {each.name: Actor(each, stage) for each in plan.processes}
        self.damaged: set[ResourceKey] = set()
        self.checks = Witness(
            self.log,
            self.intake,
            self.decisions,
            self.api,
            self.listing_faults,
            self.vault,
            kinds=self.kinds,
            damaged=self.damaged,
            stop=self._stop,
        )
        self.publisher = Publisher(
            plan.api,
            network=self.network,
            intake=self.intake,
            listings=self.listings,
            api=self.api,
            states=self.checks.turns.states,
            time=time,
        )
        self.step_counts: Counter[str] = Counter()
        self._trace = trace
        self.network.crash = self._crash_at_once
        self.network.pause = self._pause_at_once
        self.network.trace = trace and self.trace
        if trace is not None:
            self._trace_log()

    # --- playing the plan

    def play(self) -> None:
        """Play every step of the plan; ``heal`` then stops the faults."""
        for actor in self.actors.values():
            actor.start()
        for step in self.plan.steps:
            self.network.call_later(step.at, lambda step=step: self._apply(step))
        self.loop.run_until(self.start_time + self.plan.seconds)

    def heal(self) -> None:
        """End all faults: killed processes start, and stopped ones continue."""
        self.trace("--- the faults stop")
        self.network.heal()
        self.log.heal()
        for capacity in (
            self.log.capacity,
            self.intake.capacity,
            self.decisions.dead_letter_capacity,
        ):
            capacity.set_remaining(None)
        self.decisions.heal()
        self.listing_faults.heal()
        self.vault.restore_removed()
        self.api.away_until = 0.0
        self.api.lifetime_seconds = _FOREVER_SECONDS
        self.network.call_later(2.0, self._declare_final_config)  # after all requests in transit
        for actor in self.actors.values():
            if actor.process is not None:
                self.loop.resume(actor.process)
            actor.start()
        self.intake.serve()
        self.actions.serve()

    def _declare_final_config(self) -> None:
        """Declare the configuration once its kind is defined: before that, it would be refused."""
        if self.step_counts["Define"] and DEFINITION_KEY not in self.checks.turns.states:
            self.network.call_later(2.0, self._declare_final_config)
        else:
            self.publisher.configure(p.Configure(at=0.0, resync_seconds=2.5))

    def run_for(self, seconds: float) -> None:
        """Let time pass."""
        self.loop.run_until(self.loop.time() + seconds)

    def close(self) -> None:
        """Drop all tasks."""
        self.loop.close()

    def _apply(self, step: p.Step) -> None:
        name = type(step).__name__
        self.step_counts[name] += 1
        if self._trace is not None:
            self.trace(f"STEP {p.describe_step(step)}")
        if not self.publisher.apply(step):
            _HANDLERS[type(step)](self, step)

    def _stop(self) -> None:
        self.loop.stopped = True

    # --- humans

    def _human_creates(self, step: p.HumanCreates) -> None:
        labels: dict[str, str] = {}
        if step.label_of:
            labels[OWNER_LABEL] = owner(LOG_ID, resource_key(step.label_of))
        self.api.human_creates(step.name, step.fields, labels)

    def _copy_writes(self, step: p.CopyWrites) -> None:
        key = resource_key(step.shape)
        state = self.checks.turns.states.get(key, NEW)
        written_by = idempotency_key(LOG_ID, event_id(key, state.version + _VERSIONS_AHEAD))
        labels = {OWNER_LABEL: owner(LOG_ID, key)}
        self.api.copy_writes(step.shape, step.fields, labels, written_by)

    def _human_edits(self, step: p.HumanEdits) -> None:
        self.api.human_edits(step.name, step.fields)

    def _human_deletes(self, step: p.HumanDeletes) -> None:
        self.api.human_deletes(step.name)

    def _human_wipes(self, _step: p.HumanWipes) -> None:
        for name in list(self.api.objects):
            self.api.human_deletes(name)

    def _human_replaces(self, step: p.HumanReplaces) -> None:
        self.api.human_deletes(step.name)
        self.api.human_creates(step.name, step.fields, {})

    def _human_fills(self, step: p.HumanFills) -> None:
        self.api.human_fills(step.name)

    def _human_strips_labels(self, step: p.HumanStripsLabels) -> None:
        if step.empties:
            self.api.human_labels(step.name, {OWNER_LABEL: ""})
        else:
            self.api.human_strips_labels(step.name)

    # --- faults

    def _on_request(self, step: p.OnRequest) -> None:
        self.network.arm(step)

    def _crash(self, step: p.Crash) -> None:
        actor = self.actors.get(step.process)
        if actor is not None:
            actor.kill()
            self.network.call_later(step.down_seconds, actor.start)

    def _pause(self, step: p.Pause) -> None:
        actor = self.actors.get(step.process)
        if actor is not None and actor.process is not None:
            self._pause_at_once(actor.process, step.seconds)

    def _crash_at_once(self, process: Process) -> None:
        for actor in self.actors.values():
            if actor.process is process:
                self.trace(f"CRASH {process.name}")
                actor.kill()
                self.network.call_later(1.0, actor.start)

    def _pause_at_once(self, process: Process, seconds: float) -> None:
        self.trace(f"PAUSE {process.name} for {seconds:g} s")
        self.loop.pause(process)
        self.network.call_later(seconds, lambda: self.loop.resume(process))

    def _erase(self, step: p.Erase) -> None:
        if step.what == "rows":
            self._erase_rows()
        elif step.what == "states":
            self.log.erase_states()
        else:
            self.decisions.lose_timers()

    def _erase_rows(self) -> None:
        """Follow the operating guide: stop the processes with rows in memory first."""
        for actor in self.actors.values():
            if {"projector", "observer"} & set(actor.plan.roles):
                actor.kill()
                self.network.call_later(0.5, actor.start)
        self.rows.clear()

    def _bus_away(self, step: p.BusAway) -> None:
        self.network.go_away(step.seconds)
        self.network.call_later(step.seconds + 0.001, self.intake.serve)
        self.network.call_later(step.seconds + 0.001, self.actions.serve)

    def _full(self, step: p.Full) -> None:
        capacity = {
            "log": self.log.capacity,
            "intake": self.intake.capacity,
            "dead letters": self.decisions.dead_letter_capacity,
        }[step.what]
        times = int(step.seconds / step.again_seconds) if step.again_seconds else 0
        for number in range(times + 1):
            self.network.call_later(
                number * step.again_seconds,
                lambda: None if self.network.is_healed else capacity.set_remaining(step.room),
            )
        self.network.call_later(step.seconds, lambda: capacity.set_remaining(None))

    def _followers_lag(self, step: p.FollowersLag) -> None:
        self.log.let_followers_lag(step.seconds)

    def _repin(self, _step: p.Repin) -> None:
        self.intake.unpin()

    def _timers_fail(self, step: p.TimersFail) -> None:
        self.decisions.fail(step)

    def _redeliver(self, step: p.Redeliver) -> None:
        if step.what == "intake":
            self.intake.deliver_again(step.count)
        else:
            self.actions.deliver_again(step.count)

    def _api_away(self, step: p.ApiAway) -> None:
        self.api.away_until = max(self.api.away_until, self.loop.time() + step.seconds)

    def _listing_fails(self, step: p.ListingFails) -> None:
        self.listing_faults.arm(step)

    def _put_secret(self, step: p.PutSecret) -> None:
        self.vault.put(step.name, step.value)

    def _damage(self, step: p.DamageLog) -> None:
        key = resource_key(step.shape)
        assert self.log.recorded is not None
        if self.log.recorded.damage(key, step):
            self.damaged.add(key)

    # --- the trace

    def trace(self, what: str) -> None:
        """Write a line of the trace, if there is one."""
        if self._trace is not None:
            self._trace(f"{self.loop.time() - self.start_time:9.3f}  {what}")

    def _trace_log(self) -> None:
        def trace_events(_append: Any, events: Any) -> None:
            for position, event in events:
                self.trace(f"LOG {position} {event.id} {event.data!r}")

        self.log.after_store.append(trace_events)


_HANDLERS: dict[type[p.Step], Callable[[World, Any], None]] = {
    p.HumanCreates: World._human_creates,  # pyright: ignore[reportPrivateUsage]
    p.CopyWrites: World._copy_writes,  # pyright: ignore[reportPrivateUsage]
    p.HumanEdits: World._human_edits,  # pyright: ignore[reportPrivateUsage]
    p.HumanDeletes: World._human_deletes,  # pyright: ignore[reportPrivateUsage]
    p.PutSecret: World._put_secret,  # pyright: ignore[reportPrivateUsage]
    p.DamageLog: World._damage,  # pyright: ignore[reportPrivateUsage]
    p.HumanWipes: World._human_wipes,  # pyright: ignore[reportPrivateUsage]
    p.HumanReplaces: World._human_replaces,  # pyright: ignore[reportPrivateUsage]
    p.HumanFills: World._human_fills,  # pyright: ignore[reportPrivateUsage]
    p.HumanStripsLabels: World._human_strips_labels,  # pyright: ignore[reportPrivateUsage]
    p.OnRequest: World._on_request,  # pyright: ignore[reportPrivateUsage]
    p.Crash: World._crash,  # pyright: ignore[reportPrivateUsage]
    p.Pause: World._pause,  # pyright: ignore[reportPrivateUsage]
    p.Erase: World._erase,  # pyright: ignore[reportPrivateUsage]
    p.BusAway: World._bus_away,  # pyright: ignore[reportPrivateUsage]
    p.Full: World._full,  # pyright: ignore[reportPrivateUsage]
    p.FollowersLag: World._followers_lag,  # pyright: ignore[reportPrivateUsage]
    p.Repin: World._repin,  # pyright: ignore[reportPrivateUsage]
    p.TimersFail: World._timers_fail,  # pyright: ignore[reportPrivateUsage]
    p.Redeliver: World._redeliver,  # pyright: ignore[reportPrivateUsage]
    p.ApiAway: World._api_away,  # pyright: ignore[reportPrivateUsage]
    p.ListingFails: World._listing_fails,  # pyright: ignore[reportPrivateUsage]
}


def _is_damaged(plan: p.Plan) -> bool:
    return any(isinstance(step, p.DamageLog) for step in plan.steps)


@contextmanager
def watch_services(world: World) -> Generator[None]:
    """Pass the decider's turns to the checks, and report the services' errors as violations."""

    def process_record(
        _logger: object, method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        if world._trace is not None:  # pyright: ignore[reportPrivateUsage]
            world.trace(f"{method} {dict(event)!r}")
        is_expected = event["event"] in (_DAMAGE_ERRORS if world.damaged else _BUS_ERRORS)
        if method in ("error", "exception", "critical") and not is_expected:
            why = f", {sys.exc_info()[1]!r}" if event.get("exc_info") else ""
            world.checks.fail(f"a service reported an error: {dict(event)!r}{why}")
        raise structlog.DropEvent

    previous_config = structlog.get_config()
    level = logging.ERROR if world._trace is None else logging.DEBUG  # pyright: ignore
    structlog.configure(
        processors=[process_record], wrapper_class=structlog.make_filtering_bound_logger(level)
    )
    originals = decider_module.decide, decider_module.continue_turn
    turns = world.checks.turns
    decider_module.decide, decider_module.continue_turn = turns.decide, turns.continue_turn
    try:
        yield
    finally:
        decider_module.decide, decider_module.continue_turn = originals
        structlog.configure(**previous_config)
