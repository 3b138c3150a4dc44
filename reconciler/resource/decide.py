"""Makes the decisions for one resource: derives log events from commands and state.

Everything that could differ between two runs (clock, jitter, policy, ids) is an input. Repeating a
recorded decision therefore yields the same events (invariant 10).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from events.intake import (
    ApiReported,
    Approved,
    Declared,
    DefinitionReported,
    FinalizerReleased,
    FinalizerRequested,
    ForcedRelease,
    Observed,
    PlanRef,
    ReconcileRequested,
    Referenced,
    Reply,
    Reported,
    SecretReported,
    TargetReported,
    TimerFired,
    Unreferenced,
    UsersReported,
    Withdrawn,
)
from events.log import (
    SOURCE,
    ActionDecided,
    ActionRetried,
    LogEvent,
    OutcomeRecorded,
    OwnershipClaimed,
    ResourceEvent,
    event_id,
    event_type,
)
from reconciler.resource import (
    api_health,
    declaration,
    holds,
    observation,
    result,
    withdrawn_config,
)
from reconciler.resource.approval import require_approval
from reconciler.resource.difference import Comparison
from reconciler.resource.evolve import evolve
from reconciler.resource.expectation import turn_digest
from reconciler.resource.next_step import next_step
from reconciler.resource.outcome import outcome_to_record
from reconciler.resource.rules import apply_rules
from reconciler.resource.state import PLAN_OUTDATED, ResourceState
from reconciler.resource.turn import (
    NOTHING_NEW,
    Command,
    CommandResult,
    Conclusion,
    Context,
    NothingToReport,
    Turn,
    accept,
    is_handled,
    refuse,
)
from reconciler.resource.twin import hold_for_twin
from reconciler.resource.withdrawn_config import hold_for_withdrawn_config

_MAX_STEPS = 16  # a turn takes at most four steps; more indicate an endless loop


class UnstableDecisionError(RuntimeError):
    """A turn did not end. This is a bug in `next_step`, reported instead of looping forever."""


def decide(state: ResourceState, commands: Sequence[Command], context: Context) -> Turn:
    """Fold the commands, and derive the next steps from the state alone (pure).

    `commands` are in intake order, and there is at least one. Raises `UnstableDecisionError`.
    """
    history = _History(state, context)
    replies: list[Reply | None] = []
    repeats: list[Command] = []
    for command in commands:
        known = history.state.observed.object
        command_result = handle_command(command, history.state, context)
        history.record(command_result.events, command)
        if command_result.shows_object:
            events = observation.detect_loss_and_drift(
                command, history.state, context, history.comparison, known
            )
            history.record(events, command)
        replies.append(command_result.reply)
        if command_result.may_be_repeat:
            repeats.append(command)
        # A result ends an action, so its next steps are decided before the next command is folded.
        if context.takes_steps and (command is commands[-1] or isinstance(command.data, Reported)):
            _take_steps(history, command)
    return Turn(history.state, history.events, replies, repeats)


def handle_command(  # noqa: C901, PLR0911, PLR0912 - one exhaustive match
    command: Command, state: ResourceState, context: Context
) -> CommandResult:
    """Return the new events of a command. Duplicate and stale commands have none."""
    match command.data:
        case Reported() as data:
            return result.report(data, command, state, context)
        case Observed() as data:
            return observation.observe(data, command, state, context)
        case TimerFired():
            return NOTHING_NEW  # a timer only triggers a decision; the state determines the result
        case (
            Declared()
            | Withdrawn()
            | ReconcileRequested()
            | FinalizerRequested()
            | FinalizerReleased()
            | ForcedRelease()
            | Approved()
        ) if is_handled(command, state):
            return accept(state, command, reason="Duplicate")
        case Declared() as data:
            declared = declaration.declare(data, command, state, context)
            if data.plan is None:
                return declared
            return _reject_outdated_plan(declared, data.plan, command, state, context)
        case Withdrawn() as data:
            return declaration.withdraw(data, command, state, context)
        case ApiReported() as data:
            return api_health.report(data, state, context)
        case ReconcileRequested() as data:
            return holds.request_reconcile(data, command, state, context)
        case FinalizerRequested() as data:
            return holds.request_finalizer(data, command, state)
        case FinalizerReleased() as data:
            return holds.release_finalizer(data, command, state)
        case ForcedRelease() as data:
            return holds.force_release(data, command, state, context)
        case Approved() as data:
            return holds.approve(data, command, state)
        case Referenced() as data:
            return holds.add_reference(data, state)
        case Unreferenced() as data:
            return holds.remove_reference(data, state)
        case TargetReported() as data:
            return holds.record_target(data, state)
        case SecretReported() as data:
            return holds.record_secret(data, state)
        case DefinitionReported() as data:
            return holds.record_definition(data, state)
        case UsersReported() as data:
            return withdrawn_config.record_users(data, state)


def _reject_outdated_plan(
    command_result: CommandResult,
    plan: PlanRef,
    command: Command,
    state: ResourceState,
    context: Context,
) -> CommandResult:
    """Return the result, or refuse a declaration whose result would differ from its plan."""
    if command_result.reply is None or not command_result.reply.accepted:
        return command_result  # already refused for a more specific reason
    if state.version != plan.version:
        mismatch = (
            f"the plan is for version {plan.version}, but the resource is at version "
            f"{state.version}"
        )
        return refuse(state, command, PLAN_OUTDATED, f"{mismatch}; plan again")
    expected = _History(state, context)
    expected.record(command_result.events, command)
    if context.takes_steps:
        _take_steps(expected, command)
    if turn_digest(expected.events) == plan.digest:
        return command_result
    actual_steps = ", ".join(_describe(each) for each in expected.events) or "nothing"
    message = f"the result would now differ from the plan ({actual_steps}); plan again"
    return refuse(state, command, PLAN_OUTDATED, message)


def _describe(event: LogEvent) -> str:
    match event.data:
        case ActionDecided(action):
            return action.operation
        case OutcomeRecorded(outcome=outcome, reason=reason):
            return f"{outcome} {reason}".strip()
        case _:
            return event_type(event.data)


def continue_turn(
    state: ResourceState, events: Sequence[ResourceEvent], cause: Command, context: Context
) -> Turn:
    """Record events that involve another resource, and derive the next steps from them (pure)."""
    history = _History(state, context)
    history.record(events, cause)
    _take_steps(history, cause)
    return Turn(history.state, history.events, (), ())


def _take_steps(history: _History, cause: Command) -> None:
    context = history.context
    for _ in range(_MAX_STEPS):
        state, comparison = history.state, history.comparison
        step = next_step(state, context, comparison)
        if isinstance(step, (ActionDecided, OwnershipClaimed)):
            step = hold_for_withdrawn_config(step, state, context)
        if isinstance(step, (ActionDecided, ActionRetried)):
            step = require_approval(hold_for_twin(step, context), state, context, comparison)
        match step:
            case NothingToReport():
                return
            case Conclusion():
                outcome = outcome_to_record(state, step, context)
                if outcome is not None:
                    history.record((outcome,), cause)
                return
            case _:
                history.record((step,), cause)
    raise UnstableDecisionError(
        f"{history.subject}: the decision did not settle after {_MAX_STEPS} steps: "
        + ", ".join(event.type for event in history.events)
    )


class _History:
    """The state of a resource, and the events of this turn that led to it."""

    __slots__ = ("_comparison", "context", "events", "state", "subject")

    def __init__(self, state: ResourceState, context: Context) -> None:
        self.state = state
        self.context = context
        self.subject = str(context.key)
        self.events: list[LogEvent] = []
        self._comparison: Comparison | None = None

    @property
    def comparison(self) -> Comparison:
        """Comparison of the current state, computed again only when an event changes an input."""
        if self._comparison is None or not self._comparison.applies_to(self.state):
            self._comparison = Comparison.of(self.state, self.context)
        return self._comparison

    def record(self, events: Iterable[ResourceEvent], cause: Command) -> None:
        state, now, position = self.state, self.context.now, cause.effective_position
        for data in events:
            version = state.version + 1
            event = LogEvent(
                id=event_id(self.subject, version),
                source=SOURCE,
                type=event_type(data),
                subject=self.subject,
                time=now,
                resourceversion=version,
                data=apply_rules(data, state, now),
                causationid=cause.message_id,
                causationposition=position,
                actor=cause.actor,
            )
            state = evolve(state, event)
            self.events.append(event)
        self.state = state
