"""One case of the matrix: the initial state, the operation, and the required result."""

from __future__ import annotations

from typing import Any

from events.log import ActionDecided, ActionSucceeded, LogEvent, Operation, Purpose
from reconciler.failpoints import Failpoint
from tests.crashes.cases import Case
from tests.crashes.lane import PREFIX, Lane, config_key, key

_BY_OBSERVATION = (
    Failpoint.OBSERVER_LISTED,
    Failpoint.OBSERVER_PUBLISHED,
    Failpoint.DECIDER_BATCH_HALF_SENT,  # an observation leads to a batch of several events
)
_BY_SWEEP = (Failpoint.SWEEPER_FOUND, Failpoint.SWEEPER_WOKE)
METHODS: dict[Operation, str] = {"Create": "POST", "Update": "PUT", "Delete": "DELETE"}


class Story:
    """One case on its lane: the initial state, the operation, and the required result.

    ``methods`` are the expected API calls, ``actions`` the expected decisions.
    """

    def __init__(self, lane: Lane, case: Case, number: int) -> None:
        self.lane = lane
        self.case = case
        late = case.point in _BY_SWEEP
        self.config = f"late-{number}" if late else "default"
        self.name = f"{self.config if late else PREFIX + 'foo'}-{number}"
        self.outcome = "Deleted" if case.operation == "Delete" else "Converged"
        self.methods = [METHODS[case.operation]]
        self.actions: list[tuple[Operation, Purpose]] = [(case.operation, "Converge")]
        self.lost_methods = ["POST", "PUT", "DELETE"]
        self.generation = 1 if case.operation == "Create" else 2
        self._policy: dict[str, Any] = {}
        if late:
            self._policy["providerConfigRef"] = {"name": self.config}
        if case.point in _BY_OBSERVATION:
            self.generation = 1
            if case.operation == "Delete":
                self.outcome = "Converged"
                self._policy["policy"] = {"mode": "Absent", "adoption": "Adopt"}

    @property
    def names(self) -> list[str]:
        """The names of the story's resources."""
        return [self.name]

    @property
    def kind(self) -> str:
        """The kind of the resources."""
        return "Shape"

    # --- the initial state

    async def declare_existing(self) -> None:
        """Declare the initial state of the case."""
        if self.case.point in _BY_SWEEP:
            await self.lane.configure(self.config, self.config)
        if self.case.operation != "Create" or self.case.point in _BY_OBSERVATION:
            await self.lane.declare(self.name, "Red", **self._policy)

    async def wait_until_prepared(self) -> None:
        """Wait until a running process has created the initial state."""
        if self.case.operation != "Create" or self.case.point in _BY_OBSERVATION:
            await self.lane.wait_for_outcome(self.name, "Converged")
        if self.case.point in _BY_SWEEP:
            await self.lane.withdraw_config(self.config)
            # Their partitions differ: an earlier request could be executed before the withdrawal.
            await self.lane.wait_for_outcome(config_key(self.config), "Deleted")
            await self.request_operation()
            await self.lane.wait_for_outcome(self.name, "Held", self.generation)

    # --- the operation

    async def request_operation(self) -> None:
        """Declare or withdraw the resource."""
        if self.case.operation == "Delete":
            await self.lane.withdraw(self.name)
        else:
            await self.lane.declare(self.name, "Purple", **self._policy)

    async def trigger(self) -> None:
        """Trigger the operation while no process is running."""
        lane, name = self.lane, self.name
        if self.case.point in _BY_SWEEP:
            await lane.configure(self.config, self.config)
        elif self.case.point not in _BY_OBSERVATION:
            await self.request_operation()
        elif self.case.operation == "Create":
            await lane.delete_object(name)
        elif self.case.operation == "Update":
            await lane.recolor_object(name, "Green")
        else:
            await lane.create_object(name)

    # --- the result

    async def wait_until_done(self) -> None:
        """Wait until the resource is as requested."""

        async def has_effects() -> bool:
            return (await self.new_effects())[-len(self.methods) :] == self.methods

        await self.lane.wait_until(has_effects, f"{self.methods} of {self.name}")
        resource = key(self.name, self.kind)
        await self.lane.wait_for_outcome(resource, self.outcome, self.generation)
        await self.lane.wait_until_idle()

    async def record_baseline(self) -> None:
        """Record the effects and events so far."""
        self._effects_before = len(await self.lane.effects(*self.names))
        await self.record_event_baseline()

    async def record_event_baseline(self) -> None:
        """Record the events so far."""
        self._events_before = {each.id for each in await self._history()}

    async def new_effects(self) -> list[str]:
        """Return the product's writes to the objects since the baseline."""
        effects = (await self.lane.effects(*self.names))[self._effects_before :]
        return [each for each in effects if not each.startswith("human ")]

    async def assert_done_once(self) -> None:
        """Assert that each action had one effect, and that the log contains it and its end."""
        assert await self.new_effects() == self.methods
        await self.assert_recorded_once()
        await self.lane.assert_sound()

    async def assert_recorded_once(self) -> None:
        """Assert that the log contains each action and its end once."""
        history = await self._history()
        new_events = [each.data for each in history if each.id not in self._events_before]
        decided = [each.action for each in new_events if isinstance(each, ActionDecided)]
        succeeded = [each for each in new_events if isinstance(each, ActionSucceeded)]
        assert [(each.operation, each.purpose) for each in decided] == self.actions
        # A dead decider held the first report, so the second worker's report may overtake it.
        late = [each for each in succeeded if each.late]
        succeeded = [each for each in succeeded if not each.late]
        assert [each.action_id for each in succeeded] == [each.action_id for each in decided]
        assert all(each.outdated for each in late), "a late report must not change the state"
        if self.must_be_replayed():
            success = succeeded[self.case.arrival - 1]
            assert success.replayed or success.operation == "Delete", (
                "the API must repeat the first response"
            )

    async def _history(self) -> list[LogEvent]:
        return [
            each for name in self.names for each in await self.lane.history(key(name, self.kind))
        ]

    def must_be_replayed(self) -> bool:
        """Whether the call took effect, but its response was lost."""
        case = self.case
        was_killed = case.fault == "process killed"
        return case.point is Failpoint.WORKER_CALLED and (was_killed or case.lost_reply)
