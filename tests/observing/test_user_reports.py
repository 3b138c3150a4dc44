"""The sweeper reports to a withdrawn ProviderConfig which resources use it (ADR 0086)."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from events.intake import UsersReported
from events.log import (
    OutcomeRecorded,
    ReleaseForced,
    ResourceEvent,
    SpecDeclared,
    SpecWithdrawn,
    UsersCounted,
)
from events.names import ResourceKey
from events.provider_config import config_key
from projections.read_models import ReadModels, rebuild
from reconciler.provider.kind import KindRegistry
from reconciler.roles.runtime.configurations import Configurations
from reconciler.roles.runtime.runtime import Runtime
from reconciler.roles.sweeper.sweeper import SWEEP_SECONDS, Sweeper
from reconciler.roles.sweeper.user_reports import COUNT_SECONDS, SETTLE_SECONDS
from shapes_api.kinds.shapes import SHAPE
from tests.bus.histories import event
from tests.observing.test_sweeper import Intake

CONFIG = config_key("billing")
FOO, BAR, BAZ = (ResourceKey("default", "Shape", name) for name in ("foo", "bar", "baz"))
FIELDS = {"provider": "shapes", "endpoint": "http://billing"}
DECLARED = SpecDeclared(1, "reconciler/v1", "", "billing", FIELDS)
WITHDRAWN = SpecWithdrawn(2, until_unused=True)
USES = SpecDeclared(1, "shapes/v1", "billing", "any", {})


class Scene:
    """A sweeper with its read models, and a clock."""

    def __init__(self) -> None:
        self.seconds, self.position, self.is_behind = 0.0, 0, False
        self.intake, self.models = Intake(), ReadModels()
        self.configurations = Configurations()
        self.sweeper = Sweeper(
            intake=self.intake,
            configurations=self.configurations,
            kinds=KindRegistry([SHAPE]),
            models=self.models,
            bus_time=self.bus_time,
            catch_up=self.catch_up,
            runtime=Runtime(clock=lambda: self.seconds),
        )

    async def bus_time(self) -> float:
        return datetime(2026, 1, 1, tzinfo=UTC).timestamp() + self.seconds

    async def catch_up(self, _seconds: float) -> None:
        if self.is_behind:
            raise TimeoutError

    def append(self, key: ResourceKey, data: ResourceEvent) -> None:
        self.position += 1
        log_event = event(key, self.models.known_version(key) + 1, data)
        self.models.apply(self.position, log_event)
        if key == CONFIG:
            self.configurations.apply(log_event)
        self.sweeper.handle_event(self.position, log_event)

    async def sweep(self, seconds: float = 0.0) -> list[UsersReported]:
        """Return the reports of a sweep after some time, and record them as the decider does."""
        self.seconds += seconds
        await self.sweeper.sweep()
        reports = [each.data for each in self.intake.published]
        self.intake.published.clear()
        users = [each for each in reports if isinstance(each, UsersReported)]
        assert len(users) == len(reports)
        for each in users:
            self.append(CONFIG, UsersCounted(each.count, each.names))
        return users


def withdrawn_scene(*users: ResourceKey) -> Scene:
    scene = Scene()
    scene.append(CONFIG, DECLARED)
    for each in users:
        scene.append(each, USES)
    scene.append(CONFIG, WITHDRAWN)
    return scene


async def test_a_declared_configuration_receives_no_report() -> None:
    scene = Scene()
    scene.append(CONFIG, DECLARED)
    scene.append(FOO, USES)
    assert await scene.sweep() == await scene.sweep(600) == []


async def test_the_users_are_reported_once_and_their_end_at_once() -> None:
    scene = withdrawn_scene(FOO)
    assert await scene.sweep() == [UsersReported(2, 1, (str(FOO),))]
    assert await scene.sweep(600) == []
    scene.append(FOO, SpecWithdrawn(2))
    assert await scene.sweep() == [UsersReported(2, 0)]
    assert "billing" not in scene.configurations.by_name
    assert await scene.sweep(600) == []


async def test_an_unused_configuration_ends_only_after_all_deciders_have_read_its_withdrawal() -> (
    None
):
    scene = withdrawn_scene()
    assert await scene.sweep() == await scene.sweep(SETTLE_SECONDS - 0.1) == []
    assert "billing" in scene.configurations.by_name
    assert await scene.sweep(0.1) == [UsersReported(2, 0)]


async def test_a_sweeper_that_has_not_read_the_log_does_not_report_that_nothing_uses_it() -> None:
    scene = withdrawn_scene()
    await scene.sweep()
    scene.is_behind = True
    assert await scene.sweep(SETTLE_SECONDS) == []
    scene.is_behind = False
    assert await scene.sweep(SWEEP_SECONDS) == [UsersReported(2, 0)]


async def test_a_new_number_of_users_is_reported_at_intervals() -> None:
    scene = withdrawn_scene(FOO, BAR, BAZ)
    assert [each.count for each in await scene.sweep()] == [3]
    scene.append(ResourceKey("default", "Shape", "qux"), USES)
    assert await scene.sweep(COUNT_SECONDS - 1) == []
    assert [each.count for each in await scene.sweep(1)] == [4]


async def test_other_users_are_named_when_a_named_one_ends() -> None:
    scene = withdrawn_scene(FOO, BAR)
    await scene.sweep()
    scene.append(FOO, SpecWithdrawn(2))
    assert await scene.sweep() == [UsersReported(2, 1, (str(BAR),))]


async def test_a_second_withdrawal_settles_again() -> None:
    scene = withdrawn_scene()
    await scene.sweep()
    scene.append(CONFIG, SpecDeclared(3, "reconciler/v1", "", "billing", FIELDS))
    assert await scene.sweep(SETTLE_SECONDS) == []
    scene.append(CONFIG, SpecWithdrawn(4, until_unused=True))
    assert await scene.sweep() == []
    assert await scene.sweep(SETTLE_SECONDS) == [UsersReported(4, 0)]


def test_a_withdrawn_configuration_keeps_its_row_until_it_ends() -> None:
    events = [DECLARED, WITHDRAWN, OutcomeRecorded("Waiting", 2, "UsersUnknown"), UsersCounted(0)]
    history = list(enumerate((event(CONFIG, n, each) for n, each in enumerate(events, 1)), 1))
    assert rebuild(history[:3]).status.keys() == {str(CONFIG)}
    assert not rebuild(history).status


@pytest.mark.parametrize("end", [UsersCounted(0), ReleaseForced("INC-42")])
def test_every_process_folds_the_end_of_a_configuration(end: ResourceEvent) -> None:
    """A decider may read its own newest event before the earlier ones of others."""
    history = [event(CONFIG, n, each) for n, each in enumerate((DECLARED, WITHDRAWN, end), 1)]
    in_order, own_first = Configurations(), Configurations()
    for each in history[:2]:
        in_order.apply(each)
    assert in_order.by_name.keys() == in_order.withdrawn.keys() == {"billing"}
    in_order.apply(history[2])
    for each in (history[2], *history, *history):
        own_first.apply(each)
    for each in (in_order, own_first):
        assert not each.by_name
        assert not each.withdrawn


def test_a_process_that_reads_its_own_withdrawal_first_uses_the_declaration_before_it() -> None:
    newer = SpecDeclared(2, "reconciler/v1", "", "billing", {**FIELDS, "endpoint": "http://new"})
    withdrawn = SpecWithdrawn(3, until_unused=True)
    configurations = Configurations()
    configurations.apply(event(CONFIG, 3, withdrawn))
    for number, each in enumerate((DECLARED, newer, withdrawn, UsersCounted(1)), 1):
        configurations.apply(event(CONFIG, number, each))
    assert configurations.by_name["billing"].endpoint == "http://new"
    again = SpecDeclared(4, "reconciler/v1", "", "billing", FIELDS)
    configurations.apply(event(CONFIG, 5, again))
    assert configurations.by_name["billing"].endpoint == "http://billing"
    assert not configurations.withdrawn


def test_a_withdrawal_by_an_earlier_release_ends_a_configuration_immediately() -> None:
    configurations = Configurations()
    for number, each in enumerate((DECLARED, SpecWithdrawn(2)), 1):
        configurations.apply(event(CONFIG, number, each))
    assert not configurations.by_name
