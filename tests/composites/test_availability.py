"""A Deployment whose containers exit: whole rollouts, decision by decision, in virtual time."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

import msgspec
import pytest

from events.composition import CHILDREN, Child, manifests_of
from events.external import ExternalObject
from events.intake import TimerFired
from events.log import AvailabilityNoted, SpecResolved
from events.manifest import Fields
from events.names import ResourceKey
from events.provider_config import ProviderConfigSpec
from infra.providers.deployment import DEPLOYMENT
from projections.read_models import rebuild
from reconciler.composites.deployment import summary
from reconciler.resource.decide import decide
from reconciler.resource.turn import ApiSilence
from tests.projections.logs import interleave
from tests.resource.building import BLOCK, CONFIG, START, Story, every, names

WEB: Final = ResourceKey("default", "Deployment", "web")
BACKOFF_SECONDS: Final = 0.1
STEP_SECONDS: Final = 0.5


class Engine:
    """Containers by name, each with its start. An image ``exits:6`` exits after 6 s, repeatedly."""

    def __init__(self) -> None:
        self.now = 0.0
        self.starts: dict[str, tuple[str, float]] = {}

    def keep(self, images: dict[str, str]) -> None:
        """Create the missing containers, and delete all others."""
        self.starts = {
            name: self.starts.get(name, (image, self.now)) for name, image in images.items()
        }

    def status(self, name: str) -> Child:
        image, start = self.starts[name]
        kind, _, seconds = image.partition(":")
        if kind == "never":
            return Child("Converged", reason="Starting", message="it starts")
        if kind == "exits":
            period = float(seconds) + BACKOFF_SECONDS
            start += (self.now - start) // period * period
            if self.now - start >= float(seconds):
                return Child("Converged", reason="Restarting", message="it exited")
        return Child("Converged", ready=True, outputs={"startedAt": f"{start:.1f}"})


class UncheckedStory(Story):
    """A story that checks its replay once, at the end, because these are long."""

    def _check_replay(self) -> None:
        pass

    def check_replay(self) -> None:
        super()._check_replay()


class Rollout:
    """A Deployment, its Engine and the bus, whose clock is the only one that counts."""

    def __init__(self, listing_seconds: float = STEP_SECONDS) -> None:
        self.engine, self.listing_seconds = Engine(), listing_seconds
        config = ProviderConfigSpec(
            provider=BLOCK.provider,
            endpoint="http://localhost",
            least_resync_seconds=listing_seconds,
        )
        kind = replace(DEPLOYMENT, provider=BLOCK.provider)
        self.story = UncheckedStory(kind=kind, key=WEB, configs={CONFIG: config})
        self.story.stored_at = START
        self.serving: list[int] = []
        self.counts: list[int] = []
        self._next_listing = 0.0

    def declare(self, image: str, **fields: object) -> None:
        spec: Fields = {"replicas": 3, "template": {"spec": {"image": image}}, **fields}
        self.story.declare(spec, api_version="composition/v1")

    def run(self, seconds: float) -> None:
        """Let time pass. A call takes no time; listings and timers occur when they are due."""
        self.serving, self.counts = [], []
        end = self.engine.now + seconds
        while self.engine.now < end:
            self._call()
            self.engine.now += STEP_SECONDS
            self.story.stored_at = START + timedelta(seconds=self.engine.now)
            self._fire_timers()
            if self.engine.now >= self._next_listing:
                self._next_listing = self.engine.now + self.listing_seconds
                self._list()
            self.counts.append(len(self.engine.starts))
            self.serving.append(sum(map(self._is_healthy, self.engine.starts)))
        self.story.check_replay()

    def images(self) -> list[str]:
        return sorted(image for image, _ in self.engine.starts.values())

    @property
    def ready(self) -> tuple[str, str]:
        assert self.story.state.outcome is not None
        [ready] = [each for each in self.story.state.outcome.conditions if each.type == "Ready"]
        return ready.reason, ready.message

    def _is_healthy(self, name: str) -> bool:
        return self.engine.starts[name][0].startswith("web") and self.engine.status(name).ready

    def _call(self) -> None:
        while not self.story.idle:
            action = self.story.action
            specs = {str(each.key): each.spec["image"] for each in manifests_of(action.fields)}
            self.engine.keep(specs)
            result = self.story.object_after(action)
            self.story.report(existing=self._object(result))

    def _list(self) -> None:
        if self.story.state.owned is not None and self.story.idle:
            shown = self._object(self.story.existing)
            if shown != self.story.existing:
                self.story.observe(shown, name=shown.name)

    def _object(self, existing: ExternalObject) -> ExternalObject:
        children = {name: self.engine.status(name) for name in existing.fields[CHILDREN]}
        outputs = {CHILDREN: msgspec.to_builtins(children), **summary(existing.fields, children)}
        return msgspec.structs.replace(existing, outputs=outputs)

    def _fire_timers(self) -> None:
        due: dict[str, datetime] = {purpose: at for at, purpose in self.story.timers}
        assert self.story.stored_at is not None
        for purpose, at in due.items():
            if at <= self.story.stored_at:
                self.story.timers = [each for each in self.story.timers if each[1] != purpose]
                self.story.turn(TimerFired(purpose))  # type: ignore[arg-type]


def healthy(listing_seconds: float = STEP_SECONDS, **fields: object) -> Rollout:
    rollout = Rollout(listing_seconds)
    rollout.declare("web:1", **fields)
    rollout.run(60)
    assert rollout.ready[0] == "Ready"
    assert rollout.story.existing.outputs["available"] == 3
    return rollout


@pytest.mark.parametrize("listing_seconds", [0.5, 5])
@pytest.mark.parametrize("seconds", ["1", "2.9", "4.5"])
def test_43_a_crashing_template_stops_with_all_old_containers_and_stalls(
    listing_seconds: float, seconds: str
) -> None:
    rollout = healthy(listing_seconds)
    existing = set(rollout.engine.starts)
    rollout.declare(f"exits:{seconds}")
    rollout.run(620)
    assert (min(rollout.serving), max(rollout.counts)) == (3, 4)
    assert existing < set(rollout.engine.starts)
    reason, message = rollout.ready
    assert reason == "Stalled"
    assert "0 of 3 containers are available, 3 with the old template remain" in message
    assert rollout.story.existing.outputs["updated"] == 1

    rollout.declare("web:1")
    rollout.run(60)
    assert min(rollout.serving) == 3
    assert (set(rollout.engine.starts), rollout.ready[0]) == (existing, "Ready")


@pytest.mark.parametrize("seconds", ["6", "9", "14"])
def test_43_a_template_that_exits_after_the_interval_does_not_replace_all_containers(
    seconds: str,
) -> None:
    """Each interruption doubles the interval, so a flapping container is not available again."""
    rollout = healthy()
    rollout.declare(f"exits:{seconds}")
    rollout.run(3000)
    assert rollout.images().count("web:1") >= 1
    assert rollout.ready[0] == "Stalled"
    rollout.declare("web:1")
    rollout.run(120)
    assert (rollout.images(), rollout.ready[0]) == (["web:1"] * 3, "Ready")


def test_43_a_healthy_template_replaces_one_container_per_interval() -> None:
    rollout = healthy()
    rollout.declare("web:2")
    rollout.run(5)
    assert rollout.images() == ["web:1"] * 3 + ["web:2"]
    [name] = [name for name, (image, _) in rollout.engine.starts.items() if image == "web:2"]
    assert rollout.ready == (
        "Progressing",
        "0 of 3 containers are available, 3 with the old template remain; "
        f"waiting for {name} to stay ready",
    )
    rollout.run(60)
    assert (rollout.images(), rollout.ready[0]) == (["web:2"] * 3, "Ready")
    assert (min(rollout.serving), max(rollout.counts)) == (3, 4)
    log_length = len(rollout.story.log)
    rollout.run(600)
    assert len(rollout.story.log) == log_length, "an idle Deployment causes no events"


def test_a_rollout_continues_only_after_the_api_of_its_containers_responds() -> None:
    rollout = healthy()
    rollout.declare("web:2")
    rollout.run(3)
    assert rollout.story.stored_at is not None
    silent = ApiSilence(2, "fell-silent@2", since=rollout.story.stored_at)
    rollout.story.silences[CONFIG] = silent
    rollout.run(60)
    assert rollout.images() == ["web:1"] * 3 + ["web:2"]
    count = len(every(AvailabilityNoted, [event.data for event in rollout.story.log]))
    rollout.run(600)
    events = [event.data for event in rollout.story.log]
    assert len(every(AvailabilityNoted, events)) == count, "the outage adds no more events"
    ended = ApiSilence(3, "ended@3", ended_at=rollout.story.stored_at)
    rollout.story.silences[CONFIG] = ended
    rollout.story.turn(TimerFired("Sweep"))
    rollout.run(60)
    assert (rollout.images(), rollout.ready[0]) == (["web:2"] * 3, "Ready")
    noted = every(AvailabilityNoted, [event.data for event in rollout.story.log])
    used = [part.api_event for each in noted for part in each.parts.values() if part is not None]
    assert {each for each in used if each} == {"fell-silent@2", "ended@3"}


def test_a_restart_between_two_listings_interrupts_the_interval() -> None:
    """Both listings show a running container: only its start time has changed."""
    rollout = healthy(listing_seconds=2)
    rollout.declare("web:2")
    rollout.run(4)
    [name] = [name for name, (image, _) in rollout.engine.starts.items() if image == "web:2"]
    rollout.engine.starts[name] = ("web:2", rollout.engine.now)
    rollout.run(8)
    assert rollout.images() == ["web:1"] * 3 + ["web:2"]
    assert rollout.ready[1].endswith(
        f"waiting for {name} to stay ready (it exited or stopped being ready 1 time)"
    )
    rollout.run(60)
    assert (rollout.images(), rollout.ready[0]) == (["web:2"] * 3, "Ready")


def test_a_new_rollout_keeps_the_good_containers_and_not_the_flapping_ones() -> None:
    """Three containers flap, and are ready at the moment of the next declaration."""
    strategy = {"maxSurge": 3, "maxUnavailable": 0}
    rollout = healthy(strategy=strategy)
    rollout.declare("exits:2", strategy=strategy)
    rollout.run(20)
    assert rollout.images() == ["exits:2"] * 3 + ["web:1"] * 3
    rollout.declare("never:1", strategy=strategy)
    rollout.run(60)
    assert min(rollout.serving) == 3


def test_a_paused_rollout_is_not_ready_and_continues() -> None:
    rollout = healthy()
    rollout.declare("web:2", paused=True)
    rollout.run(30)
    assert rollout.ready[0] == "Paused"
    assert rollout.story.existing.outputs["updated"] == 0
    rollout.declare("web:2")
    rollout.run(60)
    assert (rollout.images(), rollout.ready[0]) == (["web:2"] * 3, "Ready")


def test_without_an_interval_a_ready_container_is_available() -> None:
    rollout = Rollout()
    rollout.declare("web:1", minReadySeconds=0)
    rollout.run(1)
    assert rollout.ready[0] == "Ready"
    assert {purpose for _, purpose in rollout.story.timers} <= {"Progress"}


def test_the_local_clock_does_not_make_a_container_available() -> None:
    rollout = Rollout()
    rollout.declare("web:1")
    rollout.run(2)
    rollout.story.now += timedelta(days=365)
    rollout.story.turn(TimerFired("Sweep"))
    assert rollout.ready[0] == "Progressing"


def test_a_lost_timer_is_found_by_the_sweeper() -> None:
    rollout = Rollout()
    rollout.declare("web:1")
    rollout.run(2)
    row = rebuild(interleave(rollout.story)).status[str(WEB)]
    noted = every(AvailabilityNoted, [each.data for each in rollout.story.log])[-1]
    assert row.available_at == noted.at
    assert row.next_deadline == noted.at
    assert row.is_swept
    rollout.run(30)
    assert rebuild(interleave(rollout.story)).status[str(WEB)].available_at is None


def test_a_repeated_decision_yields_the_recorded_events() -> None:
    rollout = Rollout()
    rollout.declare("web:1")
    rollout.run(2)
    assert rollout.story.stored_at is not None
    rollout.story.stored_at += timedelta(seconds=60)
    command = rollout.story.command(TimerFired("Availability"))
    turns = [decide(rollout.story.state, [command], rollout.story.context) for _ in range(2)]
    assert turns[0] == turns[1]
    assert names([each.data for each in turns[0].events])[:2] == [
        AvailabilityNoted.__name__,
        SpecResolved.__name__,
    ]


def test_an_interval_that_exceeds_the_deadline_is_refused() -> None:
    rollout = Rollout()
    rollout.declare("web:1", minReadySeconds=600)
    assert not rollout.story.reply.accepted
    assert "progressDeadlineSeconds: must be greater than minReadySeconds" in (
        rollout.story.reply.message
    )


@pytest.mark.parametrize(
    "strategy",
    [{}, {"maxSurge": 0, "maxUnavailable": 1}, {"maxSurge": 0, "maxUnavailable": 3}],
)
def test_43_a_failed_update_returns_to_the_last_ready_template(strategy: Fields) -> None:
    options: Fields = {"strategy": strategy, "progressDeadlineSeconds": 60, "autoRollback": True}
    rollout = healthy(**options)
    rollout.declare("exits:1", **options)
    rollout.run(40)
    assert "exits:1" in rollout.images()
    rollout.run(200)
    assert rollout.images() == ["web:1"] * 3
    reason, message = rollout.ready
    assert reason == "RolledBack"
    assert message.startswith("rolled back, because the update failed: no progress for 60 s; ")
    assert message.endswith(
        "; 3 of 3 containers of the last ready template are available; declare a corrected template"
    )
    events = len(rollout.story.log)
    rollout.run(600)
    assert (rollout.images(), len(rollout.story.log)) == (["web:1"] * 3, events)

    rollout.declare("exits:1", **{**options, "replicas": 5})
    rollout.run(60)
    assert rollout.images() == ["web:1"] * 5, "a failed template is not tried again"
    rollout.declare("never", **options)
    rollout.run(30)
    assert "never" in rollout.images(), "another template is tried"
    rollout.run(200)
    assert (rollout.images(), rollout.ready[0]) == (["web:1"] * 3, "RolledBack")
    rollout.declare("web:2", **options)
    rollout.run(60)
    assert (rollout.images(), rollout.ready[0]) == (["web:2"] * 3, "Ready")


def test_43_a_first_template_that_fails_has_nothing_to_return_to() -> None:
    rollout = Rollout()
    rollout.declare("exits:1", progressDeadlineSeconds=60, autoRollback=True)
    rollout.run(200)
    assert (rollout.images(), rollout.ready[0]) == (["exits:1"] * 3, "Stalled")


def test_43_a_rollback_during_a_pause_waits_for_its_end() -> None:
    options: Fields = {"progressDeadlineSeconds": 60, "autoRollback": True}
    rollout = healthy(**options)
    rollout.declare("exits:1", **options)
    rollout.run(30)
    rollout.declare("exits:1", paused=True, **options)
    rollout.run(300)
    assert "exits:1" in rollout.images()
    rollout.declare("exits:1", **options)
    rollout.run(200)
    assert (rollout.images(), rollout.ready[0]) == (["web:1"] * 3, "RolledBack")
    rollout.declare("exits:1", progressDeadlineSeconds=60)
    rollout.run(30)
    assert "exits:1" in rollout.images(), "without autoRollback, it is tried again"
