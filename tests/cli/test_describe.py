"""`describe`: the last known object with its source, and the settled generation."""

from __future__ import annotations

from datetime import UTC, datetime

import httpx
import pytest

from events.external import ExternalObject
from events.intake import ActionError
from events.log import (
    Action,
    ActionDecided,
    ActionFailed,
    ActionSucceeded,
    ExternalObserved,
    LogEvent,
    Operation,
    ResourceEvent,
    SpecDeclared,
)
from projections.status import StatusRow
from reconciler.cli.past import describe
from reconciler.cli.past.approval_command import find_approval_command
from reconciler.cli.past.past_state import LastObservation, last_observation
from reconciler.ports import StoredEvent
from reconciler.resource.rules import apply_rules
from reconciler.resource.state import NEW
from tests.cli.runner import Cli, Up, shape

FOO = ExternalObject("foo", {"color": "Red"}, "u1", "1")
OTHER_OBJECT = ExternalObject("foo", {"color": "Blue"}, "u2", "1")
DECLARED = SpecDeclared(1, "shapes/v1", "default", "foo", {"color": "Red"})
OTHER_DECLARATION = SpecDeclared(2, "shapes/v1", "default", "bar", {"color": "Red"})


def build_decision(operation: Operation) -> ActionDecided:
    return ActionDecided(Action("a", "k", operation, 1, "default", "foo", (), {"color": "Red"}))


def build_failure(error: ActionError, existing: ExternalObject | None = None) -> ActionFailed:
    data = apply_rules(ActionFailed("a", "Create", 1, error, existing), NEW, datetime.now(UTC))
    assert isinstance(data, ActionFailed)
    return data


def known_object_after(*data: ResourceEvent) -> LastObservation | None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    return last_observation(
        [
            StoredEvent(10 + n, LogEvent(f"e{n}", "r", "t", "d/Shape/foo", at, n, event, actor="w"))
            for n, event in enumerate(data, 1)
        ]
    )


LISTED_ABSENCE = ExternalObserved("default", "foo", None, "CompleteListing", 1)
READ_OBJECT = ExternalObserved("default", "foo", FOO, "Read", 1)
CREATION = ActionSucceeded("a", "Create", 1, FOO)
DELETION = ActionSucceeded("a", "Delete", 1)


@pytest.mark.parametrize(
    ("history", "existing", "source"),
    [
        ([LISTED_ABSENCE, DECLARED], None, "a complete listing"),
        (
            [LISTED_ABSENCE, DECLARED, build_decision("Create"), CREATION],
            FOO,
            "the API's response to the Create action",
        ),
        ([DECLARED, build_decision("Create"), CREATION, READ_OBJECT], FOO, "a read by an observer"),
        (
            [
                DECLARED,
                build_decision("Create"),
                CREATION,
                build_decision("Delete"),
                ActionSucceeded("a", "Delete", 1),
            ],
            None,
            "the result of the Delete action",
        ),
        (
            [
                DECLARED,
                build_decision("Create"),
                build_failure(ActionError("Conflict", "taken"), OTHER_OBJECT),
            ],
            OTHER_OBJECT,
            "the API's error response to the Create action",
        ),
        (
            [
                LISTED_ABSENCE,
                DECLARED,
                build_decision("Create"),
                build_failure(ActionError("NotDone", "no")),
            ],
            None,
            "a complete listing",
        ),
    ],
)
def test_the_known_object_names_its_source(
    history: list[ResourceEvent], existing: ExternalObject | None, source: str
) -> None:
    last_known = known_object_after(*history)
    assert last_known is not None
    assert last_known.object == existing
    assert last_known.source.startswith(source)


@pytest.mark.parametrize(
    ("hold", "generation", "command"),
    [
        ("DataLoss", 3, "reconciler approve d/Shape/foo --hold DataLoss --generation 3"),
        ("DeletionGuard", 0, "reconciler approve d/Shape/foo --hold DeletionGuard"),
        ("Approval", 3, "reconciler approve d/Shape/foo --plan 0123456789ab"),
        ("Twin", 3, "reconciler approve system/ProviderConfig/billing --hold Twin"),
        ("Finalizers", 3, ""),
        ("NotApproved", 3, ""),
        ("DataOfANewerRelease", 3, ""),
    ],
)
def test_the_command_that_approves_a_hold_names_what_the_operator_has_seen(
    hold: str, generation: int, command: str
) -> None:
    row = StatusRow("d", "Shape", "foo", provider_config="billing", outcome="Held", reason=hold)
    row.generation = row.observed_generation = generation
    row.pending_plan = "0123456789abcdef"
    assert find_approval_command(row) == command
    row.generation += 1
    assert find_approval_command(row) == "", "the hold of the new generation is not known yet"
    row.generation, row.outcome = generation, "Degraded"
    assert find_approval_command(row) == ""


def test_an_increased_grace_period_is_shown_with_its_reason() -> None:
    row = StatusRow("d", "Shape", "foo", grace_seconds=10.0)
    pairs = vars(describe)["_status_pairs"](row, 1, datetime.now(UTC))
    expected = "10 s after a write, because the API returned the object with a delay"
    assert ("grace", expected) in pairs


def test_an_object_in_another_configuration_is_unknown() -> None:
    assert known_object_after(DECLARED) is None
    assert known_object_after(DECLARED, READ_OBJECT, OTHER_DECLARATION) is None


def test_an_object_created_after_a_listing_is_not_reported_missing(
    live: Cli, running_up: tuple[Cli, Up]
) -> None:
    live.ok("apply", "-f", "-", "--wait", text=shape("known"))
    description = live.ok("describe", "Shape", "known").out
    assert "object: null" not in description
    observed = live.ok("describe", "Shape", "known", "-o", "json").json["observed"]
    created_shape = httpx.get(f"{running_up[1].ready['apiUrl']}/shapes/known").json()
    assert observed["object"]["uid"] == created_shape["uid"]
    assert observed["source"] == "the API's response to the Create action"
    assert observed["actor"].startswith("reconciler@")
    assert observed["position"] > 0
    assert "generation       1 declared, 1 settled" in description
    refused = live.run("describe", "Shape", "known", "--live")
    assert refused.err == (
        "error: default/Shape/known has no live values, because kind Shape provides none; "
        "omit --live\n"
    )

    live.ok("delete", "Shape", "known", "--wait")


def test_a_degraded_generation_is_not_settled(live: Cli) -> None:
    config = (
        "apiVersion: reconciler/v1\nkind: ProviderConfig\nmetadata: {name: far}\n"
        "spec: {provider: shapes, endpoint: 'http://127.0.0.1:1', resyncSeconds: 3600}\n"
    )
    unsettled = shape("unsettled").replace("spec: {", "spec: {providerConfigRef: {name: far}, ")
    live.run("apply", "-f", "-", "--wait", "--timeout", "1s", text=f"{config}---\n{unsettled}")
    while live.ok("describe", "Shape", "unsettled", "-o", "json").json["status"].get("outcome") != (
        "Degraded"
    ):
        pass  # each command takes long enough
    description = live.ok("describe", "Shape", "unsettled").out
    live.ok("delete", "Shape", "unsettled")
    live.ok("delete", "ProviderConfig", "far")
    assert "generation       1 declared, none settled" in description
