"""While an API is silent, its resources are shown with unknown readiness."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from events.log import Condition
from events.names import ResourceKey
from events.provider_config import config_key
from projections.readiness import API_SILENT, find_silent_api, show_readiness
from projections.status import StatusRow

SINCE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = datetime(2026, 1, 2, 4, 4, 5, tzinfo=UTC)
TRUE = (Condition("Converged", "True", "AsDeclared"), Condition("Ready", "True", "Ready"))


def _row(key: ResourceKey, **more: Any) -> StatusRow:
    return StatusRow(key.namespace, key.kind, key.name, declared=True, **more)


def row(key: str, config: str = "", **more: Any) -> StatusRow:
    name = ResourceKey.parse(key)
    return StatusRow(
        name.namespace,
        name.kind,
        name.name,
        declared=True,
        outcome="Converged",
        conditions=TRUE,
        provider_config=config,
        **more,
    )


def config(name: str, since: datetime | None = None) -> StatusRow:
    return _row(config_key(name), silent_since=since, conditions=TRUE)


def by_key(*rows: StatusRow) -> dict[str, StatusRow]:
    return {str(each.key): each for each in rows}


def ready(shown: StatusRow) -> Condition:
    return next(each for each in shown.conditions if each.type == "Ready")


def test_only_the_resources_of_the_silent_api_are_affected() -> None:
    foo, bar = row("default/Shape/foo", "billing"), row("default/Shape/bar", "other")
    rows = by_key(foo, bar, config("billing", SINCE), config("other"))
    shown = show_readiness(foo, rows)
    assert (ready(shown).status, ready(shown).reason) == ("Unknown", API_SILENT)
    assert ready(shown).message.startswith("last seen 2026-01-02T03:04:05Z: ")
    assert (shown.outcome, shown.conditions[0], shown.waiting_since) == (
        "Converged",
        TRUE[0],
        SINCE,
    )
    assert shown.not_ready == ready(shown)
    assert show_readiness(bar, rows) is bar
    assert ready(foo).status == "True", "the row is unchanged"


def test_the_configuration_itself_is_not_ready() -> None:
    billing = config("billing", SINCE)
    assert ready(show_readiness(billing, by_key(billing))).status == "Unknown"


def test_an_object_that_was_not_ready_keeps_its_reason() -> None:
    starting = row("default/Shape/foo", "billing")
    starting.conditions = (TRUE[0], Condition("Ready", "False", "Starting"))
    assert show_readiness(starting, by_key(starting, config("billing", SINCE))) is starting


def test_a_composed_resource_depends_on_the_apis_of_its_parts_at_any_depth() -> None:
    outer = row("default/Deployment/a", "parts", outputs={"children": {"default/Deployment/b": {}}})
    inner = row("default/Deployment/b", "parts", outputs={"children": {"default/Shape/c": {}}})
    part = row("default/Shape/c", "billing")
    rows = by_key(outer, inner, part, config("parts", LATER), config("billing", SINCE))
    api = find_silent_api(outer, rows)
    assert api is not None
    assert (api.config, api.since) == ("billing", SINCE), "the oldest one"
    rows[str(config_key("parts"))].silent_since = None
    assert ready(show_readiness(outer, rows)).status == "Unknown"
    part.declared = False
    assert show_readiness(outer, rows) is outer


def test_outputs_with_the_name_of_parts_but_another_meaning_are_ignored() -> None:
    values: list[Any] = [{"not a key": 1}, {"default/Shape/foo": {}}, ["default/Shape/foo"], "x"]
    for children in values:
        foo = row("default/Shape/foo", "billing", outputs={"children": children})
        rows = by_key(foo, config("billing", SINCE))
        assert ready(show_readiness(foo, rows)).status == "Unknown"
