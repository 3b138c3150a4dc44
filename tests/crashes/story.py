"""One case of the matrix: what is there before, what is asked for, and how it must end."""

from __future__ import annotations

from typing import Any

from events.log import ActionDecided, ActionSucceeded, LogEvent, Operation, Purpose
from reconciler.failpoints import Failpoint
from tests.crashes.cases import Case
from tests.crashes.lane import PREFIX, Lane, config_key, key

_BY_OBSERVATION = (
    Failpoint.OBSERVER_LISTED,
    Failpoint.OBSERVER_PUBLISHED,
    Failpoint.DECIDER_BATCH_HALF_SENT,  # what a look leads to is a turn of several events
)
_BY_SWEEP = (Failpoint.SWEEPER_FOUND, Failpoint.SWEEPER_WOKE)
METHODS: dict[Operation, str] = {"Create": "POST", "Update": "PUT", "Delete": "DELETE"}


class Story:
    """One case on its lane: its initial state, the request, and the required end.

    ``methods`` and ``actions``: the expected calls of the API, and the expected decisions.
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
        """The resources that it is about."""
        return [self.name]

    @property
    def kind(self) -> str:
        """What they are."""
        return "Shape"

    # --- before

    async def declare_existing(self) -> None:
        """Ask for what must be there before the case begins."""
        if self.case.point in _BY_SWEEP:
            await self.lane.configure(self.config, self.config)
        if self.case.operation != "Create" or self.case.point in _BY_OBSERVATION:
            await self.lane.declare(self.name, "Red", **self._policy)

    async def until_there(self) -> None:
        """Wait for that; a process runs."""
        if self.case.operation != "Create" or self.case.point in _BY_OBSERVATION:
            await self.lane.until_outcome(self.name, "Converged")
        if self.case.point in _BY_SWEEP:
            await self.lane.withdraw_config(self.config)
            # The two are of different partitions: asked before it is withdrawn, it would be done.
            await self.lane.until_outcome(config_key(self.config), "Deleted")
            await self.ask()
            await self.lane.until_outcome(self.name, "Held", self.generation)

    # --- the operation

    async def ask(self) -> None:
        """Ask for the operation."""
        if self.case.operation == "Delete":
            await self.lane.withdraw(self.name)
        else:
            await self.lane.declare(self.name, "Purple", **self._policy)

    async def cause(self) -> None:
        """Do what leads to the operation, while no process runs."""
        lane, name = self.lane, self.name
        if self.case.point in _BY_SWEEP:
            await lane.configure(self.config, self.config)
        elif self.case.point not in _BY_OBSERVATION:
            await self.ask()
        elif self.case.operation == "Create":
            await lane.delete_by_hand(name)
        elif self.case.operation == "Update":
            await lane.paint_by_hand(name, "Green")
        else:
            await lane.make_by_hand(name)

    # --- the end

    async def wait_until_done(self) -> None:
        """Wait until it is as it was asked for."""

        async def has_happened() -> bool:
            return (await self.new_effects())[-len(self.methods) :] == self.methods

        await self.lane.until(has_happened, f"{self.methods} of {self.name}")
        of = key(self.name, self.kind)
        await self.lane.until_outcome(of, self.outcome, self.generation)
        await self.lane.until_at_rest()

    async def begin(self) -> None:
        """Remember what happened until now."""
        self._effects_before = len(await self.lane.effects(*self.names))
        await self.remember_events()

    async def remember_events(self) -> None:
        """Remember what the log has until now."""
        self._events_before = {each.id for each in await self._history()}

    async def new_effects(self) -> list[str]:
        """What the product has done to the objects since then."""
        effects = (await self.lane.effects(*self.names))[self._effects_before :]
        return [each for each in effects if not each.startswith("human ")]

    async def assert_done_once(self) -> None:
        """See that there was one effect an action, and that the log tells each, and its end."""
        assert await self.new_effects() == self.methods
        await self.assert_recorded_once()
        await self.lane.assert_sound()

    async def assert_recorded_once(self) -> None:
        """See that the log tells each action, and its end."""
        history = await self._history()
        news = [each.data for each in history if each.id not in self._events_before]
        decided = [each.action for each in news if isinstance(each, ActionDecided)]
        succeeded = [each for each in news if isinstance(each, ActionSucceeded)]
        assert [(each.operation, each.purpose) for each in decided] == self.actions
        # A dead decider held the first report, so that of the second worker may overtake it.
        late = [each for each in succeeded if each.late]
        succeeded = [each for each in succeeded if not each.late]
        assert [each.action_id for each in succeeded] == [each.action_id for each in decided]
        assert all(each.outdated for each in late), "what is told late explains, and no more"
        if self.must_be_a_repeat():
            success = succeeded[self.case.arrival - 1]
            assert success.replayed or success.operation == "Delete", "the first answer came again"

    async def _history(self) -> list[LogEvent]:
        return [
            each for name in self.names for each in await self.lane.history(key(name, self.kind))
        ]

    def must_be_a_repeat(self) -> bool:
        """The call had its effect, and its answer died with the process or on its way."""
        case = self.case
        killed = case.trouble == "process killed"
        return case.point is Failpoint.WORKER_CALLED and (killed or case.lost_reply)
