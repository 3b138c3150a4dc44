"""One idempotent function creates and upgrades the streams."""

import pytest
from nats.aio.client import Client

from infra.bus import streams
from infra.bus.event_log import open_log
from infra.bus.log_watch import watch_log
from infra.bus.streams import (
    FORMAT_METADATA,
    INTAKE,
    LOG,
    LOG_FORMAT,
    LOG_ID_METADATA,
    REJECTIONS,
    ROWS_PREFIX,
    STATES,
    SUBJECTS,
    TIMERS,
    LogIdentity,
    begin_restoration,
    decider_consumers,
    end_restoration,
    ensure_topology,
    ensure_worker_consumer,
    existing_log,
    find_log,
    find_log_id,
    follower_names,
    prepare_restoration,
    service_consumers,
    topology_differences,
)
from infra.jetstream.connection import api_request, connect
from infra.jetstream.errors import IncompatibleStreamError, NotFoundOnBusError
from infra.jetstream.follow import follow
from infra.jetstream.publish import publish
from infra.jetstream.reads import stream_state
from infra.jetstream.topology import consumer_infos, delete_consumer, delete_stream
from reconciler.cli.checks.bus import check_streams
from reconciler.errors import ConfigurationError
from reconciler.ports import ResourceAppend
from tests.bus.histories import event, new_key, remove_metadata


async def test_a_second_init_changes_nothing_and_keeps_the_log_id(fresh_bus_url: str) -> None:
    nc = await connect(fresh_bus_url, name="test")
    try:
        with pytest.raises(NotFoundOnBusError):
            await find_log_id(nc)
        first = await ensure_topology(nc)
        assert set(first.changes.values()) == {"created"}
        changes = list(first.changes)
        assert changes.index(REJECTIONS) < changes.index(LOG), (
            "a log with a format has all streams of that format"
        )
        second = await ensure_topology(nc)
        assert set(second.changes.values()) == {"unchanged"}
        assert second.log_id == first.log_id == await find_log_id(nc)
    finally:
        await nc.close()


async def test_replicas_on_a_single_server_are_refused_without_changes(bus: Client) -> None:
    previous_state = await stream_state(bus, LOG)
    with pytest.raises(ConfigurationError, match=r"3 replicas require a cluster.*Nothing was"):
        await ensure_topology(bus, replicas=3)
    with pytest.raises(ConfigurationError, match="3 replicas require a cluster"):
        await prepare_restoration(bus, replicas=3)
    assert await stream_state(bus, LOG) == previous_state


async def test_messages_are_redelivered_until_they_are_acknowledged(
    fresh_bus_url: str,
) -> None:
    """The server silently drops a message after ``max_deliver`` deliveries."""
    nc = await connect(fresh_bus_url, name="test")
    try:
        await ensure_topology(nc)
        worker = await ensure_worker_consumer(nc, "default")
        consumers = [(INTAKE, name) for name in decider_consumers()] + [(LOG, worker)]
        for stream, name in consumers:
            config = (await api_request(nc, f"CONSUMER.INFO.{stream}.{name}", None))["config"]
            assert config["max_deliver"] == -1, name
            changed_config = {"stream_name": stream, "config": {**config, "max_deliver": 8}}
            await api_request(nc, f"CONSUMER.CREATE.{stream}.{name}", changed_config)
        differences = await topology_differences(nc)
        for stream, name in consumers:
            assert differences[f"{stream}/{name}"] == {"max_deliver": (-1, 8)}
        changed = (await ensure_topology(nc)).changes
        assert {changed[f"{stream}/{name}"] for stream, name in consumers} == {"updated"}
    finally:
        await nc.close()


_CHANGED_STREAM = {
    "max_age": 300_000_000_000,
    "max_msgs": 10,
    "max_msgs_per_subject": 3,
    "max_msg_size": 1_000,
    "max_bytes": 1_000,
    "max_consumers": 100,
    "discard": "old",
    "no_ack": True,
    "allow_direct": False,
    "allow_atomic": False,
    "republish": {"src": ">", "dest": "copied.>"},
    "consumer_limits": {"inactive_threshold": 5_000_000_000},
}
_CHANGED_CONSUMER = {
    "headers_only": True,
    "max_batch": 1,
    "max_bytes": 100,
    "max_expires": 1_000_000_000,
    "inactive_threshold": 5_000_000_000,
    "backoff": [1_000_000_000],
    "ack_wait": 1_000_000_000,
    "max_ack_pending": 1,
    "num_replicas": 1,
}


@pytest.mark.parametrize("field", [*_CHANGED_STREAM, "subject_transform"])
async def test_a_changed_field_of_the_intake_is_reported_and_restored(
    fresh_bus_url: str, field: str
) -> None:
    """A library that redeclares its streams drops the fields that it does not support."""
    nc = await connect(fresh_bus_url, name="test")
    try:
        await ensure_topology(nc)
        info_before = (await api_request(nc, f"STREAM.INFO.{INTAKE}", None))["config"]
        changed = {**info_before, field: _CHANGED_STREAM.get(field)}
        await api_request(nc, f"STREAM.UPDATE.{INTAKE}", changed)
        assert any(each.startswith(field) for each in (await topology_differences(nc))[INTAKE])
        assert (await ensure_topology(nc)).changes[INTAKE] == "updated"
        assert (await api_request(nc, f"STREAM.INFO.{INTAKE}", None))["config"] == info_before
    finally:
        await nc.close()


@pytest.mark.parametrize("field", [*_CHANGED_CONSUMER, "pause_until"])
async def test_a_consumer_that_delivers_less_is_reported_and_restored(
    fresh_bus_url: str, field: str
) -> None:
    nc = await connect(fresh_bus_url, name="test")
    try:
        await ensure_topology(nc)
        worker = await ensure_worker_consumer(nc, "default")
        info_subject = f"CONSUMER.INFO.{LOG}.{worker}"
        before = (await api_request(nc, info_subject, None))["config"]
        if field == "pause_until":
            pause = {field: "2099-01-01T00:00:00Z"}
            await api_request(nc, f"CONSUMER.PAUSE.{LOG}.{worker}", pause)
        else:
            config = {**before, field: _CHANGED_CONSUMER[field]}
            body = {"stream_name": LOG, "config": config}
            await api_request(nc, f"CONSUMER.CREATE.{LOG}.{worker}", body)
        assert field in (await topology_differences(nc))[f"{LOG}/{worker}"]
        assert (await ensure_topology(nc)).changes[f"{LOG}/{worker}"] == "updated"
        after = await api_request(nc, info_subject, None)
        assert without_metadata(after["config"]) == without_metadata(before)
        assert not after.get("paused")
    finally:
        await nc.close()


async def test_a_roles_paused_consumer_is_reported(fresh_bus_url: str) -> None:
    """Its name is random, so `init` cannot resume it."""
    nc = await connect(fresh_bus_url, name="test")
    try:
        await ensure_topology(nc)
        async with follow(nc, LOG):
            [consumer] = await consumer_infos(nc, LOG)
            pause = {"pause_until": "2099-01-01T00:00:00Z"}
            await api_request(nc, f"CONSUMER.PAUSE.{LOG}.{consumer['name']}", pause)
            [finding] = await check_streams(nc)
            assert (finding.verdict, finding.remedy) == (
                "fail",
                "Restart the roles, which create new ones.",
            )
            assert f"LOG_1/{consumer['name']}" in finding.details
    finally:
        await nc.close()


@pytest.mark.parametrize("is_follower", [False, True])
async def test_a_services_changed_consumer_is_reported_and_restored(
    fresh_bus_url: str, is_follower: bool
) -> None:
    """A paused consumer delivers nothing, and a headers-only consumer delivers no outcome."""
    nc = await connect(fresh_bus_url, name="test")
    try:
        await ensure_topology(nc, namespaces=["shop"])
        assert [each.verdict for each in await check_streams(nc)] == ["ok"]
        name = follower_names("shop")[0] if is_follower else "shop"
        before = (await api_request(nc, f"CONSUMER.INFO.{LOG}.{name}", None))["config"]
        pause = {"pause_until": "2099-01-01T00:00:00Z"}
        await api_request(nc, f"CONSUMER.PAUSE.{LOG}.{name}", pause)
        body = {"stream_name": LOG, "config": {**before, **pause, "headers_only": True}}
        await api_request(nc, f"CONSUMER.CREATE.{LOG}.{name}", body)
        differences = (await topology_differences(nc))[f"{LOG}/{name}"]
        assert set(differences) == {"headers_only", "pause_until"}
        assert (await ensure_topology(nc)).changes[f"{LOG}/{name}"] == "updated"
        after = await api_request(nc, f"CONSUMER.INFO.{LOG}.{name}", None)
        assert without_metadata(after["config"]) == without_metadata(before)
        assert not after.get("paused")
    finally:
        await nc.close()


@pytest.mark.parametrize(
    ("stream", "changed"),
    [
        (TIMERS, {"max_bytes": 1_000_000}),
        (STATES, {"max_bytes": 1_000_000}),
        (TIMERS, {"subject_delete_marker_ttl": 60_000_000_000}),
    ],
)
async def test_a_changed_limit_of_another_stream_is_reported_and_restored(
    fresh_bus_url: str, stream: str, changed: dict[str, int]
) -> None:
    nc = await connect(fresh_bus_url, name="test")
    try:
        await ensure_topology(nc)
        info_before = (await api_request(nc, f"STREAM.INFO.{stream}", None))["config"]
        await api_request(nc, f"STREAM.UPDATE.{stream}", {**info_before, **changed})
        assert set((await topology_differences(nc))[stream]) == set(changed)
        assert (await ensure_topology(nc)).changes[stream] == "updated"
        assert (await api_request(nc, f"STREAM.INFO.{stream}", None))["config"] == info_before
    finally:
        await nc.close()


async def test_a_change_that_the_server_cannot_revert_does_not_block_other_corrections(
    fresh_bus_url: str,
) -> None:
    nc = await connect(fresh_bus_url, name="test")
    try:
        await ensure_topology(nc)
        for stream, changed in ((REJECTIONS, {"deny_purge": True}), (INTAKE, {"max_msgs": 9})):
            config = (await api_request(nc, f"STREAM.INFO.{stream}", None))["config"]
            await api_request(nc, f"STREAM.UPDATE.{stream}", {**config, **changed})
        decider = decider_consumers()[0]
        pause = {"pause_until": "2099-01-01T00:00:00Z"}
        await api_request(nc, f"CONSUMER.PAUSE.{INTAKE}.{decider}", pause)
        with pytest.raises(IncompatibleStreamError, match=r"deny_purge.*reconciler restore"):
            await ensure_topology(nc)
        differences = {
            name: fields for name, fields in (await topology_differences(nc)).items() if fields
        }
        assert differences == {REJECTIONS: {"deny_purge": (False, True)}}
    finally:
        await nc.close()


async def test_a_consumer_with_few_pull_requests_is_reported(fresh_bus_url: str) -> None:
    """The server cannot change the number, so a client recreated the consumer."""
    nc = await connect(fresh_bus_url, name="test")
    try:
        await ensure_topology(nc)
        decider = f"{INTAKE}.{decider_consumers()[0]}"
        config = (await api_request(nc, f"CONSUMER.INFO.{decider}", None))["config"]
        await api_request(nc, f"CONSUMER.DELETE.{decider}", None)
        changed_config = {"stream_name": INTAKE, "config": {**config, "max_waiting": 1}}
        await api_request(nc, f"CONSUMER.CREATE.{decider}", changed_config)
        differences = (await topology_differences(nc))[decider.replace(".", "/")]
        assert differences == {"max_waiting": (512, 1)}
        with pytest.raises(IncompatibleStreamError, match="Delete it, and run the command again"):
            await ensure_topology(nc)
    finally:
        await nc.close()


async def test_pull_requests_to_a_services_consumer_are_limited(fresh_bus_url: str) -> None:
    """The server sends heartbeats at the requested interval, such as every nanosecond."""
    nc = await connect(fresh_bus_url, name="test")
    try:
        await ensure_topology(nc, namespaces=["billing"])
        inbox = nc.new_inbox()
        await nc.subscribe(inbox)  # pyright: ignore[reportUnknownMemberType]
        for stream, config in service_consumers("billing"):
            consumer = f"{stream}.{config['durable_name']}"
            for _ in range(40):
                pull = b'{"batch": 1, "expires": 30000000000}'
                await nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.{consumer}", pull, reply=inbox)
            await nc.flush()
            info = await api_request(nc, f"CONSUMER.INFO.{consumer}", None)
            assert info["num_waiting"] == 16
    finally:
        await nc.close()


async def test_the_stream_check_reports_a_missing_intake_and_the_remedy(
    fresh_bus_url: str,
) -> None:
    """An `init` in an account without enough storage leads to this state."""
    nc = await connect(fresh_bus_url, name="test")
    try:
        await ensure_topology(nc)
        await delete_stream(nc, INTAKE)
        [finding] = await check_streams(nc)
        assert f"{INTAKE} (" in finding.details
        assert finding.remedy == "Run `reconciler init`, which restores them."
    finally:
        await nc.close()


async def test_a_new_log_begins_with_a_random_epoch_that_init_keeps(fresh_bus_url: str) -> None:
    nc = await connect(fresh_bus_url, name="test")
    try:
        await ensure_topology(nc)
        identity = await find_log(nc)
        assert identity.epoch.startswith("first-")
        assert len(identity.epoch) == len("first-") + 32
        await ensure_topology(nc)
        assert await find_log(nc) == identity
    finally:
        await nc.close()


@pytest.mark.parametrize("has_epoch", [False, True])
async def test_a_log_without_its_metadata_keeps_its_identity(
    fresh_bus_url: str, has_epoch: bool
) -> None:
    """A library that redeclares the stream removes the metadata. No event is missing."""
    nc = await connect(fresh_bus_url, name="test")
    try:
        await ensure_topology(nc)
        if has_epoch:
            identity = LogIdentity(await find_log_id(nc), "e2.e1", "2026-11-25T00:00:00Z")
            await begin_restoration(nc, identity)
            await ensure_topology(nc, restored=identity)
            await end_restoration(nc, identity)
        previous_identity = await find_log(nc)
        await publish(nc, "log.a.b.c.fact", b"{}")
        await publish(nc, "rec.desired.a.b.c", b"{}")
        config = (await api_request(nc, f"STREAM.INFO.{LOG}", None))["config"]
        await api_request(nc, f"STREAM.UPDATE.{LOG}", {**config, "metadata": {"by": "a library"}})
        assert await find_log(nc) == previous_identity
        assert (await topology_differences(nc))[LOG]
        assert (await ensure_topology(nc)).changes[LOG] == "updated"
        assert not any((await topology_differences(nc)).values())
        assert await find_log(nc) == previous_identity
    finally:
        await nc.close()


async def test_a_log_keeps_its_identity_if_all_streams_lose_their_metadata(
    fresh_bus_url: str,
) -> None:
    """A tool that redeclares all streams keeps their consumers."""
    nc = await connect(fresh_bus_url, name="test")
    try:
        await ensure_topology(nc)
        identity = LogIdentity(await find_log_id(nc), "e2.e1", "2026-11-25T00:00:00Z")
        await begin_restoration(nc, identity)
        await ensure_topology(nc, restored=identity)
        await end_restoration(nc, identity)
        await publish(nc, "log.a.b.c.fact", b"{}")
        await publish(nc, f"{ROWS_PREFIX}checkpoint", b"{}")
        await remove_metadata(nc, SUBJECTS)
        assert await find_log(nc) == identity
        assert await existing_log(nc) == identity
        assert (await ensure_topology(nc)).changes[LOG] == "updated"
        assert not any((await topology_differences(nc)).values())
        assert await find_log(nc) == identity
    finally:
        await nc.close()


async def test_a_log_that_lost_every_copy_of_its_id_is_not_called_deleted(
    fresh_bus_url: str,
) -> None:
    nc = await connect(fresh_bus_url, name="test")
    try:
        await ensure_topology(nc)
        await publish(nc, "log.a.b.c.fact", b"{}")
        await publish(nc, f"{ROWS_PREFIX}checkpoint", b"{}")
        await remove_metadata(nc, SUBJECTS)
        for consumer in decider_consumers():
            await delete_consumer(nc, INTAKE, consumer)
        for use in (find_log, existing_log):
            with pytest.raises(
                IncompatibleStreamError, match=r"lost its metadata.*1 event; .*init"
            ):
                await use(nc)
    finally:
        await nc.close()


async def test_a_recreated_log_does_not_get_the_identity_of_the_lost_one(
    fresh_bus_url: str,
) -> None:
    nc = await connect(fresh_bus_url, name="test")
    try:
        await ensure_topology(nc)
        await publish(nc, "rec.desired.a.b.c", b"{}")
        config = (await api_request(nc, f"STREAM.INFO.{LOG}", None))["config"]
        await delete_stream(nc, LOG)
        await api_request(nc, f"STREAM.CREATE.{LOG}", {**config, "metadata": {}})
        await publish(nc, "log.a.b.c.fact", b"{}")
        for use in (find_log, ensure_topology, topology_differences):
            with pytest.raises(IncompatibleStreamError, match="was deleted or recreated"):
                await use(nc)
        log = await existing_log(nc)
        assert log is not None
        assert log.log_id == "unknown"  # an operator can pass it to `restore --replace`
    finally:
        await nc.close()


def without_metadata(config: dict[str, object]) -> dict[str, object]:
    """Return the configuration without the metadata, where the server records its versions."""
    return {key: value for key, value in config.items() if key != "metadata"}


async def test_a_log_that_lost_its_start_is_refused_by_roles_and_reported_by_doctor(
    fresh_bus_url: str,
) -> None:
    nc = await connect(fresh_bus_url, name="test")
    try:
        await ensure_topology(nc)
        for number in range(3):
            await publish(nc, f"log.a.b.c{number}.fact", b"{}")
        config = (await api_request(nc, f"STREAM.INFO.{LOG}", None))["config"]
        await api_request(nc, f"STREAM.UPDATE.{LOG}", {**config, "discard": "old", "max_msgs": 2})
        await ensure_topology(nc)
        with pytest.raises(IncompatibleStreamError, match=r"begins at position 2.*restore"):
            await watch_log(nc)
        [streams, log] = await check_streams(nc)
        assert (streams.verdict, log.verdict) == ("ok", "fail")
        assert "begins at position 2" in log.details
    finally:
        await nc.close()


@pytest.mark.parametrize("is_recreated", [False, True])
async def test_undecided_messages_that_left_the_intake_are_reported_by_doctor(
    fresh_bus_url: str, is_recreated: bool
) -> None:
    nc = await connect(fresh_bus_url, name="test")
    try:
        await ensure_topology(nc)
        if is_recreated:  # next to a log with events, an intake does not start at 1
            await publish(nc, "log.a.b.c.fact", b"{}")
            await delete_stream(nc, INTAKE)
            await ensure_topology(nc)
        for number in range(5):
            await publish(nc, f"rec.desired.a.b.c{number}", b"{}")
        assert [each.verdict for each in await check_streams(nc)] == ["ok"]
        state = await stream_state(nc, INTAKE)
        await api_request(nc, f"STREAM.PURGE.{INTAKE}", {"seq": state.first_seq + 3})
        [streams, intake] = await check_streams(nc)
        assert (streams.verdict, intake.verdict) == ("ok", "warn")
        assert "3 messages" in intake.details
    finally:
        await nc.close()


async def test_a_difference_that_cannot_be_changed_is_reported(fresh_bus_url: str) -> None:
    nc = await connect(fresh_bus_url, name="test")
    try:
        config = {"name": LOG, "subjects": ["log.>"], "storage": "memory", "num_replicas": 1}
        await api_request(nc, f"STREAM.CREATE.{LOG}", config)
        with pytest.raises(IncompatibleStreamError, match=f"{LOG}.*storage"):
            await ensure_topology(nc)
    finally:
        await nc.close()


async def test_a_log_from_a_newer_release_is_refused_and_left_unchanged(fresh_bus_url: str) -> None:
    nc = await connect(fresh_bus_url, name="test")
    try:
        await ensure_topology(nc)
        await write_log_metadata(nc, {FORMAT_METADATA: str(LOG_FORMAT + 1)})
        before = await api_request(nc, f"STREAM.INFO.{LOG}", None)
        newer = rf"newer release \(format {LOG_FORMAT + 1}, this release reads {LOG_FORMAT}\)"
        for use in (find_log_id, open_log, ensure_topology, topology_differences):
            with pytest.raises(IncompatibleStreamError, match=newer):
                await use(nc)
        after = await api_request(nc, f"STREAM.INFO.{LOG}", None)
        assert after["config"] == before["config"]
    finally:
        await nc.close()


@pytest.mark.parametrize("older", ["", *map(str, range(1, LOG_FORMAT))])
async def test_a_log_in_an_older_format_is_refused_and_left_unchanged(
    fresh_bus_url: str, older: str
) -> None:
    nc = await connect(fresh_bus_url, name="test")
    try:
        first = await ensure_topology(nc)
        format_metadata = {FORMAT_METADATA: older} if older else {}
        await write_log_metadata(nc, {LOG_ID_METADATA: first.log_id, **format_metadata})
        before = await api_request(nc, f"STREAM.INFO.{LOG}", None)
        old = (
            rf"older format {older or 1}, .* format {LOG_FORMAT}; use the revision .* [0-9a-f]+ to"
        )
        for use in (find_log_id, open_log, ensure_topology, topology_differences, existing_log):
            with pytest.raises(IncompatibleStreamError, match=old):
                await use(nc)
        after = await api_request(nc, f"STREAM.INFO.{LOG}", None)
        assert after["config"] == before["config"]
    finally:
        await nc.close()


@pytest.mark.parametrize("subject", ["state.mine", "log.>", "$KV.reconciler.>"])
async def test_a_foreign_stream_with_our_subjects_is_reported_before_any_creation(
    fresh_bus_url: str, subject: str
) -> None:
    nc = await connect(fresh_bus_url, name="test")
    try:
        await api_request(nc, "STREAM.CREATE.MINE", {"name": "MINE", "subjects": [subject]})
        with pytest.raises(IncompatibleStreamError, match="another client's stream MINE uses"):
            await ensure_topology(nc)
        assert (await api_request(nc, "STREAM.NAMES", None))["streams"] == ["MINE"]
    finally:
        await nc.close()


@pytest.mark.parametrize("name", [TIMERS, STATES, "RATES", INTAKE, LOG])
async def test_a_foreign_stream_with_the_name_of_one_of_ours_is_left_unchanged(
    fresh_bus_url: str, name: str
) -> None:
    """Our configuration would delete its messages, and a restore would delete the whole stream."""
    nc = await connect(fresh_bus_url, name="test")
    try:
        await api_request(nc, f"STREAM.CREATE.{name}", {"name": name, "subjects": ["mine.>"]})
        for number in range(3):
            await publish(nc, "mine.one", str(number).encode())
        before = (await stream_state(nc, name)).config
        with pytest.raises(IncompatibleStreamError, match=f"stream {name} belongs to another"):
            await ensure_topology(nc)
        with pytest.raises(IncompatibleStreamError, match=f"stream {name} belongs to another"):
            await prepare_restoration(nc)
        if name not in (INTAKE, LOG):  # a restoration creates these two
            await begin_restoration(nc, LogIdentity("log", "epoch"))
        after = await stream_state(nc, name)
        assert (after.config, after.messages) == (before, 3)
    finally:
        await nc.close()


async def test_a_suspended_init_does_not_rename_the_log_of_another_init(
    fresh_bus_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The roles of that log have already written its id to owner labels."""
    nc = await connect(fresh_bus_url, name="test")
    others: list[streams.Topology] = []

    async def create_streams_first(client: Client) -> None:
        monkeypatch.undo()
        others.append(await ensure_topology(client))

    monkeypatch.setattr(streams, "_check_subjects", create_streams_first)
    try:
        mine = await ensure_topology(nc)
        assert await find_log_id(nc) == others[0].log_id == mine.log_id
        assert set(mine.changes.values()) == {"unchanged"}
    finally:
        await nc.close()


async def write_log_metadata(nc: Client, metadata: dict[str, str]) -> None:
    """Write to the log the metadata that another release would write."""
    config = (await api_request(nc, f"STREAM.INFO.{LOG}", None))["config"]
    new_metadata = {**config["metadata"], **metadata} if FORMAT_METADATA in metadata else metadata
    await api_request(nc, f"STREAM.UPDATE.{LOG}", {**config, "metadata": new_metadata})


async def test_a_new_intake_next_to_an_old_log_continues_its_positions(fresh_bus_url: str) -> None:
    nc = await connect(fresh_bus_url, name="test")
    try:
        await ensure_topology(nc)
        key = new_key()
        await (await open_log(nc)).append([ResourceAppend(key, [event(key, 1)], 0)])
        await delete_stream(nc, INTAKE)
        await ensure_topology(nc)
        old_positions = 1_000_000_000_000
        assert (await stream_state(nc, INTAKE)).first_seq > old_positions
        second = await ensure_topology(nc)
        assert second.changes[INTAKE] == "unchanged"
    finally:
        await nc.close()
