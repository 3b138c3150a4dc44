"""A kind made of resources, on the whole loop: its API is the reconciler that runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec
import pytest
from nats.aio.client import Client

from events.composition import COMPOSED_SET_KIND, PART_OF_LABEL
from events.intake import (
    FinalizerReleased,
    FinalizerRequested,
    ReconcileRequested,
    Reply,
    Withdrawn,
)
from events.log import (
    ActionDecided,
    ActionRetried,
    BreakerOpened,
    ProgressNoted,
    RenewalScheduled,
    SpecDeclared,
    SpecWithdrawn,
)
from events.manifest import Fields, InvalidManifestError, Manifest, Metadata
from events.names import ResourceKey
from events.provider_config import Limits, Retry, config_key
from events.stored_content import COMPOSED_CONTENT_KIND
from infra.bus.streams import INTAKE
from infra.embedded import EmbeddedServer
from infra.jetstream.reads import read_subject
from infra.providers.composition.contents import Contents
from infra.providers.composition.state_reader import Declaration, StateReader, set_of
from reconciler.ports import IntakeMessageOut
from reconciler.provider.kind import COMPOSED_SET
from reconciler.wiring import ROLES, initialize, open_connection
from tests.composites.conftest import WARM, colors, until_ready
from tests.composites.palette import CONFIG, KIND, palette
from tests.scenarios.harness import World, api_config, every, manifest, shape


async def test_a_composite_is_created_changed_and_deleted_with_its_parts(world: World):
    await world.declare_all([palette("warm", "Red", "Yellow")])
    await until_ready(world, WARM)
    assert await colors(world) == {"warm-red": "Red", "warm-yellow": "Yellow"}
    row = await world.client.status(shape("warm-red"))
    assert row is not None
    assert row.labels == {"palette": "warm", PART_OF_LABEL: "default.Palette.warm"}

    await world.declare_all([palette("warm", "Red", "White")])
    await until_ready(world, WARM)

    async def is_changed() -> bool:
        return await colors(world) == {"warm-red": "Red", "warm-white": "White"}

    await world.until(is_changed, "one part is replaced")
    red = [event for event in await world.facts(shape("warm-red")) if type(event) is SpecDeclared]
    assert len(red) == 1, "the kept part is not touched"

    await world.publish(WARM, Withdrawn())
    await world.until_outcome(WARM, "Deleted")
    assert await colors(world) == {}
    await world.until_outcome(ResourceKey("default", COMPOSED_SET_KIND, "Palette-warm"), "Deleted")


async def test_nothing_is_declared_on_the_bus_of_another_reconciler(world: World, tmp_path: Path):
    other = EmbeddedServer()
    await other.start(tmp_path / "other")
    async with open_connection(other.url) as nc:
        await initialize(nc)
        await world.configure(api_config(other.url, provider="composition"), CONFIG)
        await world.until_settled()

        await world.declare_all([palette("warm", "Red")])

        refused = await world.until_outcome(WARM, "Failed", reason="Refused")
        assert "the bus of another reconciler, whose log has the id" in refused.message
        assert not await read_subject(nc, INTAKE, "in.>")
    await other.stop()


async def test_an_idle_composite_writes_no_event(world: World):
    await world.declare_all([palette("warm", "Red", "Yellow")])
    await until_ready(world, WARM)
    await world.until_observed_again(3)
    position_before = await world.log.last_position()
    await world.until_observed_again(4)
    assert await world.log.last_position() == position_before


async def test_a_part_that_is_edited_withdrawn_or_drifts_is_restored(world: World):
    await world.declare_all([palette("warm", "Red", "Yellow")])
    await until_ready(world, WARM)

    await world.declare("warm-red", color="Blue")

    async def is_red_again() -> bool:
        return (await colors(world)).get("warm-red") == "Red" and not await edit_part(world)

    await world.until(is_red_again, "the part's declaration is restored")

    await world.withdraw("warm-yellow")
    await world.until_outcome("warm-yellow", "Deleted")

    async def is_declared_again() -> bool:
        return (await colors(world)).get("warm-yellow") == "Yellow"

    await world.until(is_declared_again, "the part is declared again")
    await world.human.update("warm-red", color="Green")

    async def is_painted() -> bool:
        return (await colors(world)).get("warm-red") == "Red"

    await world.until(is_painted, "the drift of the part is reverted")


async def edit_part(world: World) -> bool:
    row = await world.client.status(shape("warm-red"))
    return row is None or PART_OF_LABEL not in row.labels


async def test_only_one_of_two_composites_with_the_same_part_owns_it(
    world: World,
):
    other_key = ResourceKey("default", KIND, "other")
    await world.declare_all([palette("warm", "Red")])
    await until_ready(world, WARM)
    await world.declare_all([palette("other", "Red", "Blue", prefix="warm")])
    outcome = await world.until_outcome(other_key, "Degraded")
    assert "default/Shape/warm-red is already part of default.Palette.warm" in outcome.message
    assert "warm-blue" not in await colors(world), "no part of the other one is declared"

    await world.declare("mine", color="Green")
    await world.until_outcome("mine", "Converged")
    await world.publish(WARM, Withdrawn())
    await until_ready(world, other_key)
    assert (await colors(world)).keys() == {"warm-red", "warm-blue", "mine"}


async def test_a_resource_that_another_client_declares_does_not_become_a_part(world: World):
    await world.declare("warm-red", color="Green")
    await world.until_outcome("warm-red", "Converged")
    await world.declare_all([palette("warm", "Red")])
    outcome = await world.until_outcome(WARM, "Degraded")
    assert "default/Shape/warm-red is already declared separately" in outcome.message
    assert await colors(world) == {"warm-red": "Green"}


async def test_part_conflicts_of_one_tenant_do_not_open_the_breaker_for_others(world: World):
    await world.declare("taken-red", color="Green")
    await world.until_outcome("taken-red", "Converged")
    manifests = [palette(f"mine{number}", "Red", prefix="taken") for number in range(8)]
    await world.declare_all(manifests)
    for each in manifests:
        await world.until_outcome(each.key, "Degraded")
    await world.declare_all([palette("warm", "Red")])
    await until_ready(world, WARM)
    assert not every(BreakerOpened, await world.facts(config_key(CONFIG)))


async def test_missing_replies_for_parts_do_not_open_the_breaker(world: World):
    """Messages may wait behind others from their tenant; the bus serves all others."""
    keys = [palette(f"late{number}", "Red").key for number in range(8)]
    await world.stop_reconciler()
    await world.start_reconciler([role for role in ROLES if role != "worker"])
    await world.declare_all([palette(key.name, "Red") for key in keys])

    async def are_all_decided() -> bool:
        return all([every(ActionDecided, await world.facts(key)) for key in keys])

    await world.until(are_all_decided, "every action is decided")
    await world.stop_reconciler()
    await world.start_reconciler(["worker"])

    async def are_all_reported() -> bool:
        results = await read_subject(world.reconciler_nc, INTAKE, "in.*.result.default.Palette.*")
        return len({message.subject for message in results}) == len(keys)

    await world.until(are_all_reported, "every attempt has failed")
    await world.restart_reconciler()
    for key in keys:
        await until_ready(world, key)
    assert all([every(ActionRetried, await world.facts(key)) for key in keys])
    assert not every(BreakerOpened, await world.facts(config_key(CONFIG)))


def test_an_invalid_set_belongs_to_no_resource_and_does_not_fail_a_listing():
    """The log may contain a forged set, or one from another release."""
    key = ResourceKey("default", COMPOSED_SET_KIND, f"{KIND}-warm")
    fields: Fields = {"parent": str(WARM), "uid": "u", "key": "k"}
    assert set_of(key, Declaration(1, fields=fields)).spec is not None
    assert set_of(key, Declaration(1, fields={**fields, "leaving": ["a/Shape/c"]})).spec is None
    assert set_of(key, Declaration(1, fields={"parent": 5})).spec is None


@pytest.mark.parametrize("field", ["generations", "refused", "leaving", "children"])
def test_a_set_cannot_name_resources_in_other_namespaces(field: str):
    """It shows the outputs of its parts, so a forged one would show those of other tenants."""

    def spec(parent: str, part: str) -> Fields:
        named: Fields = {"generations": {part: 1}, "refused": {part: "why"}, "leaving": [part]}
        shown_fields: Fields = {"fields": {"children": {part: "digest"}}}
        set_fields = shown_fields if field == "children" else {field: named[field]}
        return {"parent": parent, "uid": "u", "key": "k", **set_fields}

    COMPOSED_SET.check_declared(spec("acme/Palette/warm", "acme/Shape/red"))
    COMPOSED_SET.check_declared(spec("system/Palette/warm", "other/Shape/red"))
    with pytest.raises(InvalidManifestError, match="must be in the namespace of its set, 'acme'"):
        COMPOSED_SET.check_declared(spec("acme/Palette/warm", "other/Shape/red"))


async def test_the_parts_that_a_withdrawn_resource_waits_for_are_named(world: World):
    await world.declare_all([palette("warm", "Red", "Yellow")])
    await until_ready(world, WARM)
    await world.publish(shape("warm-red"), FinalizerRequested("billing"), "finalizer")
    await world.publish(WARM, Withdrawn())

    async def is_named() -> bool:
        row = await world.client.status(WARM)
        return row is not None and "default/Shape/warm-red" in row.message

    await world.until(is_named, "the status names the blocker")
    assert set(await colors(world)) == {"warm-red"}
    await world.publish(shape("warm-red"), FinalizerReleased("billing"), "finalizer")
    await world.until_outcome(WARM, "Deleted")
    assert await colors(world) == {}


async def test_deletions_that_wait_for_finalizers_delay_no_other_namespace(world: World):
    limits = Limits(concurrency=4, request_timeout_seconds=10)
    retry = Retry(initial_seconds=0.2, max_seconds=5.0)
    config = api_config(
        world.server.url, provider="composition", limits=limits, retry=retry, resync=0.5
    )
    await world.configure(config, CONFIG)
    names = [f"set{number}" for number in range(20)]
    await world.declare_all([palette(name, "Red", namespace="busy") for name in names])
    for name in names:
        await world.until_outcome(ResourceKey("busy", KIND, name), "Converged")
        shape_key = ResourceKey("busy", "Shape", f"{name}-red")
        await world.publish(shape_key, FinalizerRequested("hold"), "finalizer")
    for name in names:
        await world.publish(ResourceKey("busy", KIND, name), Withdrawn())
    await world.until_outcome(ResourceKey("busy", "Shape", "set19-red"), "Held")

    started_at = asyncio.get_running_loop().time()
    await world.declare_all([palette("warm", "Yellow")])
    await until_ready(world, WARM)
    assert asyncio.get_running_loop().time() - started_at < 4

    blocked = await world.client.status(ResourceKey("busy", KIND, "set0"))
    assert blocked is not None
    assert "busy/Shape/set0-red (Held: " in blocked.message


async def test_an_invalid_part_prevents_the_creation_of_all_parts(world: World):
    await world.declare_all([palette("warm", "Red", "Nocolour")])
    outcome = await world.until_outcome(WARM, "Failed")
    assert outcome.message.startswith("default/Shape/warm-nocolour: spec.color: ")
    assert await colors(world) == {}

    await world.declare_all([palette("warm", "Red")])
    await until_ready(world, WARM)
    assert await colors(world) == {"warm-red": "Red"}


async def test_two_namespaces_may_have_composites_with_the_same_name(world: World):
    await world.declare_all([palette("warm", "Red"), palette("warm", "Blue", namespace="b")])
    await until_ready(world, WARM)
    await until_ready(world, ResourceKey("b", KIND, "warm"))
    assert await colors(world) == {"warm-red": "Red", "warm-blue": "Blue"}


async def refuse_parts(world: World, retry: Retry) -> None:
    """Use part names that the kind accepts and the decider refuses, because of their prefix."""
    await world.configure(
        api_config(world.human.url, ownership="Prefix", owner_prefix="x-", retry=retry)
    )
    palettes = api_config(world.server.url, provider="composition", retry=retry)
    await world.configure(palettes, CONFIG)
    await world.declare_all([palette("warm", "Red")])

    async def is_refused() -> bool:
        reason, message = await why_not_ready(world)
        return reason == "Progressing" and "warm-red: Refused: Invalid: name 'warm-red'" in message

    await world.until(is_refused, "the part is named")


async def waits_after_actions(world: World) -> list[float]:
    """Return the seconds from the first two actions to the times that their results scheduled.

    A later read of the object may bring the next action forward.
    """
    decided_at: datetime | None = None
    waits: list[float] = []
    for event in await world.history(WARM):
        if type(event.data) is ActionDecided:
            decided_at = event.time
        elif type(event.data) is RenewalScheduled and decided_at is not None:
            waits.append((event.data.renewal_time - decided_at).total_seconds())
            decided_at = None
    return waits[:2]


async def test_a_refused_part_is_declared_again_with_backoff(world: World):
    await refuse_parts(world, Retry(initial_seconds=0.2, max_seconds=0.8))

    async def count_attempts() -> int:
        return len(every(ActionDecided, await world.facts(WARM)))

    async def has_three_attempts() -> bool:
        return await count_attempts() >= 3

    await world.until(has_three_attempts, "the part is attempted again")
    actions = [each.action for each in every(ActionDecided, await world.facts(WARM))]
    assert [each.purpose for each in actions[:3]] == ["Converge", "Renew", "Renew"]
    first, second = await waits_after_actions(world)
    assert first >= 0.4
    assert second >= 0.8, "the delays grow"
    await world.configure(api_config(world.human.url))
    await until_ready(world, WARM)
    attempts = await count_attempts()
    await world.until_observed_again(3)
    assert await count_attempts() == attempts
    row = await world.client.status(WARM)
    assert row is not None
    assert "retryAt" not in row.outputs


async def test_a_refused_part_is_declared_again_on_a_requested_refresh(world: World):
    await refuse_parts(world, Retry(initial_seconds=3600, max_seconds=3600))
    await world.configure(api_config(world.human.url))
    await world.publish(WARM, ReconcileRequested("the prefix was removed"))
    await until_ready(world, WARM)
    assert await colors(world) == {"warm-red": "Red"}


async def withdraw_set_by_hand(world: World) -> None:
    """Withdraw the palette's set out of band."""
    await world.declare_all([palette("warm", "Red", "Yellow")])
    await until_ready(world, WARM)
    await world.stop_reconciler()
    await world.publish(ResourceKey("default", COMPOSED_SET_KIND, "Palette-warm"), Withdrawn())


async def test_a_set_withdrawn_out_of_band_leaves_no_unmanaged_part(world: World):
    await withdraw_set_by_hand(world)
    await world.declare_all([palette("warm", "Red", "White")])
    await world.start_reconciler()

    async def is_followed() -> bool:
        return await colors(world) == {"warm-red": "Red", "warm-white": "White"}

    await world.until(is_followed, "the yellow part is deleted")
    await until_ready(world, WARM)
    red = [event for event in await world.facts(shape("warm-red")) if type(event) is SpecDeclared]
    assert len(red) == 1, "the kept part is not touched"


async def test_deleting_a_composite_deletes_the_parts_of_a_set_withdrawn_out_of_band(world: World):
    await withdraw_set_by_hand(world)
    await world.publish(WARM, Withdrawn())
    await world.start_reconciler()
    await world.until_outcome(WARM, "Deleted")
    assert await colors(world) == {}


async def test_an_observe_only_part_is_ready_when_its_object_exists(world: World):
    observed = palette("warm", "Red", parts_policy={"mode": "ObserveOnly"})
    await world.declare_all([observed])

    async def is_missing() -> bool:
        return "ObserveOnly" in (await why_not_ready(world))[1]

    await world.until(is_missing, "its object does not exist yet")
    await world.human.create("warm-red", labels={"palette": "warm"})
    await until_ready(world, WARM)
    assert await world.human.effects() == ["human POST"]


async def why_not_ready(world: World) -> tuple[str, str]:
    row = await world.client.status(WARM)
    not_ready = None if row is None else row.not_ready
    return ("", "") if not_ready is None else (not_ready.reason, not_ready.message)


async def test_37_a_rollout_without_progress_stays_stalled_across_a_restart(
    world: World,
):
    await world.human.inject_faults(error_rate=1.0)
    await world.declare_all([palette("warm", "Red", deadline=2.0)])

    async def is_stalled() -> bool:
        return (await why_not_ready(world))[0] == "Stalled"

    async def is_in_progress() -> bool:
        return (await why_not_ready(world))[0] == "Progressing"

    await world.until(is_in_progress, "the rollout is in progress")
    await world.restart_reconciler()
    await world.until(is_stalled, "the rollout is stalled")
    assert "no progress since 20" in (await why_not_ready(world))[1]
    assert "waiting for default/Shape/warm-red" in (await why_not_ready(world))[1]

    await world.human.clear_faults()
    await until_ready(world, WARM)
    stall_events = every(ProgressNoted, await world.facts(WARM))
    assert [bool(each.at) for each in stall_events] == [True, False, False]
    assert [bool(each.mark) for each in stall_events] == [True, True, False]


async def test_a_replay_needs_no_composing_code(world: World):
    await world.declare_all([palette("warm", "Red")])
    await until_ready(world, WARM)
    events = await world.facts(WARM)
    [action] = [each.action for each in every(ActionDecided, events)]
    assert list(action.fields["children"]) == ["default/Shape/warm-red"]
    assert not every(SpecWithdrawn, events)
    _ = manifest


def with_policy(created_manifest: Manifest, **policy: object) -> Manifest:
    return msgspec.structs.replace(
        created_manifest, spec={**created_manifest.spec, "policy": policy}
    )


async def test_a_part_that_a_user_declared_does_not_delay_its_parents_deletion(world: World):
    await world.declare_all([with_policy(palette("warm", "Red", "Yellow"), mode="CreateOnly")])
    await until_ready(world, WARM)
    await world.declare("warm-red", color="Green")
    await world.until_outcome("warm-red", "Converged", generation=2)
    await world.publish(WARM, Withdrawn())
    await world.until_outcome(WARM, "Deleted")
    assert await colors(world) == {"warm-red": "Green"}


async def test_a_released_composite_keeps_its_parts_including_an_edited_one(world: World):
    policy = {"mode": "CreateOnly", "deletion": "Orphan"}
    await world.declare_all([with_policy(palette("warm", "Red", "Yellow"), **policy)])
    await until_ready(world, WARM)
    labels = {"palette": "warm", PART_OF_LABEL: "default.Palette.warm"}
    spec = {"type": "Square", "color": "Green"}
    edited = Manifest("shapes/v1", "Shape", Metadata("warm-red", labels=labels), spec)
    await world.declare_all([edited])
    await world.until_outcome("warm-red", "Converged", generation=2)
    await world.until_outcome(WARM, "Drifted")
    await world.publish(WARM, Withdrawn())
    await world.until_outcome(WARM, "Released")
    await world.until_observed_again(2)
    assert await colors(world) == {"warm-red": "Green", "warm-yellow": "Yellow"}


async def test_the_surplus_parts_of_an_adopted_set_are_deleted(world: World):
    await world.declare_all([with_policy(palette("warm", "Red", "Yellow"), deletion="Orphan")])
    await until_ready(world, WARM)
    await world.publish(WARM, Withdrawn())
    await world.until_outcome(WARM, "Released")
    await world.declare_all([with_policy(palette("warm", "Red"), adoption="Adopt")])

    async def is_followed() -> bool:
        return await colors(world) == {"warm-red": "Red"}

    await world.until(is_followed, "the yellow part is deleted")


@pytest.mark.parametrize("parent", ["x", "default/Palette", "default/Palette/other"])
async def test_a_set_written_by_another_client_does_not_hide_other_objects(
    world: World, parent: str
):
    await world.declare_all([palette("warm", "Red")])
    await until_ready(world, WARM)
    spec = {"parent": parent, "uid": "u", "key": "k", "fields": {"children": {"x": "y"}}}
    metadata = Metadata("bad")
    await world.declare_all([Manifest("reconciler/v1", COMPOSED_SET_KIND, metadata, spec)])
    await world.withdraw("warm-red")
    await world.until_outcome("warm-red", "Deleted")

    async def is_restored() -> bool:
        return await colors(world) == {"warm-red": "Red"}

    await world.until(is_restored, "drift is still detected")


def many_sets(namespace: str, count: int) -> list[Manifest]:
    return [
        Manifest(
            "reconciler/v1",
            COMPOSED_SET_KIND,
            Metadata(f"{KIND}-many{number}", namespace),
            {"parent": f"{namespace}/{KIND}/many{number}", "uid": "u", "key": "k"},
        )
        for number in range(count)
    ]


async def test_the_sets_of_one_tenant_do_not_hide_those_of_another(world: World):
    """The server returns the last messages of at most 1,024 subjects."""
    await world.declare_all([palette("warm", "Red")])
    await until_ready(world, WARM)
    sets = many_sets("mallory", 1_100)
    await world.declare_all(sets)
    for each in sets[:-10]:  # the log keeps the subjects
        await world.publish(each.key, Withdrawn())
    await world.until_settled()
    await world.withdraw("warm-red")  # only a listing of the sets detects it
    await world.until_outcome("warm-red", "Deleted")

    async def is_restored() -> bool:
        return await colors(world) == {"warm-red": "Red"}

    await world.until(is_restored, "drift is detected")


class Bus:
    """The connection of a world."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def connection(self) -> Client:
        return self._world.nc


async def test_sets_are_read_in_pages_by_kind_and_prefix(world: World):
    await world.declare_all(many_sets("acme", 250) + many_sets("other", 3))
    await world.publish(ResourceKey("acme", COMPOSED_SET_KIND, f"{KIND}-many7"), Withdrawn())
    await world.until_settled()
    reader = StateReader(Bus(world))

    async def names(kind: str, prefix: str) -> list[list[str]]:
        pages = [page async for page in reader.sets(kind, prefix)]
        assert all(each.spec is not None for page in pages for each in page)
        return [[str(each.key) for each in page] for page in pages]

    everything = await names(KIND, "")
    assert sum(map(len, everything)) == 252
    assert max(map(len, everything)) <= 100
    assert sum(map(len, await names(KIND, "acme."))) == 249
    assert sum(map(len, await names(KIND, "ac"))) == 249
    [ones] = await names(KIND, "other.many1")
    assert ones == [f"other/{COMPOSED_SET_KIND}/{KIND}-many1"]
    for kind, prefix in (("Pal", ""), (KIND, "*."), (KIND, ">."), (KIND, "."), (KIND, "none.")):
        assert await names(kind, prefix) == []


async def test_the_former_contents_of_a_namespace_may_be_many(world: World):
    """Each commit of a GitSource stores contents, and the log keeps their subjects."""
    contents = [
        Manifest(
            "reconciler/v1",
            COMPOSED_CONTENT_KIND,
            Metadata(f"{number:x}"),
            {"parent": f"default/{KIND}/{'warm' if number < 3 else 'cold'}"}
            | ({"chunks": ["1"]} if number == 0 else {}),
        )
        for number in range(1_030)
    ]
    await world.declare_all(contents)
    await world.until_settled()
    withdrawn: list[str] = []

    async def publish(messages: Sequence[IntakeMessageOut]) -> Sequence[Reply]:
        withdrawn.extend(each.key.name for each in messages)
        return []

    storage = Contents(StateReader(Bus(world)), publish)
    await storage.withdraw_others(f"default/{KIND}/warm", "default", ["0"])
    assert withdrawn == ["2"]


async def test_a_removed_part_that_a_user_declares_again_belongs_to_the_user(world: World):
    await world.declare_all([palette("warm", "Red", "Yellow")])
    await until_ready(world, WARM)
    await world.publish(shape("warm-red"), FinalizerRequested("billing"), "finalizer")
    await world.declare_all([palette("warm", "Yellow")])
    await world.until_outcome("warm-red", "Held")
    await world.declare("warm-red", color="Green")
    await world.until_outcome("warm-red", "Converged", generation=3)

    async def has_no_pending_deletions() -> bool:
        row = await world.client.status(WARM)
        return row is not None and "leaving" not in row.outputs

    await world.until(has_no_pending_deletions, "the user owns the resource", seconds=20)
    assert (await colors(world))["warm-red"] == "Green"
