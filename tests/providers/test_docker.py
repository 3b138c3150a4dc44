"""The `Container` and `Volume` kinds on a real Engine: the contract, and their own behavior."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from aiohttp import web

from events.allow import Allow
from events.external import ExternalObject
from events.manifest import Fields, InvalidManifestError
from events.provider_config import Limits, ProviderConfigSpec, Scope
from infra.providers.docker import containers
from infra.providers.docker.container import CONTAINER, ready
from infra.providers.docker.containers import ContainersProvider
from infra.providers.docker.engine import RESERVED_LABELS, EngineApi, strip_headers
from infra.providers.docker.volume import VOLUME
from infra.providers.docker.volumes import VolumesProvider
from infra.secrets import open_stores
from reconciler.errors import (
    ConfigurationError,
    ConflictError,
    NotCalledError,
    NotDoneError,
    NotFoundError,
    ProviderError,
    RefusedError,
)
from reconciler.provider import Effect, LoggingProvider
from reconciler.provider.call_permit import CALL_GATE, CallPermit
from reconciler.provider.contract import ProviderContract, action, listing, with_version_of
from reconciler.provider.kind import Kind
from reconciler.provider.secrets import SecretKey, Secrets
from reconciler.resource.owner_label import OWNER_LABEL
from tests.engines import TestEngine
from tests.host_access import EVERYTHING
from tests.providers.permit import ClosedGate

PLANTED = "planted-s3cr3t-of-a-variable-83c0"
MIB = 1024 * 1024

pytestmark = pytest.mark.dockerd


class EngineContract(ProviderContract):
    @pytest.fixture
    def endpoint(self, engine: TestEngine, name: str) -> Iterator[str]:
        yield engine.endpoint
        engine.admin.remove_all(name)


class TestContainerContract(EngineContract):
    kind = CONTAINER
    fields: ClassVar[Fields] = {
        "image": "filled in by the fixture",
        "env": {"A": "1", "B": 2},
        "stopSeconds": 0,
        "memoryBytes": 64 * 1024 * 1024,
    }
    other_fields: ClassVar[Fields] = {**fields, "memoryBytes": 96 * 1024 * 1024, "restart": "no"}
    refused_fields: ClassVar[Fields] = {"image": "no-such-image:1"}

    @pytest.fixture(autouse=True)
    def use_engine_image(self, engine: TestEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("fields", "other_fields"):
            monkeypatch.setattr(type(self), name, {**getattr(self, name), "image": engine.image})


class TestVolumeContract(EngineContract):
    kind = VOLUME
    fields: ClassVar[Fields] = {}
    other_fields: ClassVar[Fields] = {"options": {"type": "tmpfs", "device": "tmpfs"}}
    refused_fields: ClassVar[Fields] = {"options": {"no-such-option": "1"}}


class Case:
    """Providers for the Engine, with operations for tests."""

    def __init__(self, engine: TestEngine, prefix: str, folder: Path) -> None:
        self.admin, self.image, self.prefix = engine.admin, engine.image, prefix
        self.stores = open_stores(folder)
        config = ProviderConfigSpec(
            provider="docker",
            allow=EVERYTHING,
            endpoint=engine.endpoint,
            limits=Limits(request_timeout_seconds=10),
        )
        secrets = Secrets(stores=self.stores.by_name, key=self.stores.key)
        self.containers = ContainersProvider(config, secrets, CallPermit())
        self.volumes = VolumesProvider(config, secrets, CallPermit())

    def fields(self, **spec: Any) -> Fields:
        return CONTAINER.check_fields({"image": self.image, "stopSeconds": 0, **spec})

    async def create_container(self, suffix: str = "", /, **spec: Any) -> ExternalObject:
        name = f"{self.prefix}{suffix}"
        effect = await self.containers.create(action("Create", name, self.fields(**spec)))
        assert effect.object is not None
        return effect.object

    async def update_container(self, existing: ExternalObject, **spec: Any) -> ExternalObject:
        update = with_version_of(action("Update", existing.name, self.fields(**spec)), existing)
        effect = await self.containers.update(update)
        assert effect.object is not None
        return effect.object


@pytest.fixture
async def case(engine: TestEngine, name: str, tmp_path: Path) -> AsyncIterator[Case]:
    opened = Case(engine, name, tmp_path)
    yield opened
    await opened.containers.close()
    await opened.volumes.close()
    await asyncio.to_thread(engine.admin.remove_all, name)


def is_as_declared(existing: ExternalObject | None, fields: Fields) -> bool:
    assert existing is not None
    assert CONTAINER.comparable is not None
    actual, expected = map(CONTAINER.comparable, (CONTAINER.normalize(existing.fields), fields))
    return actual == expected


@pytest.mark.parametrize("users", [(), ("app",), ("0",)])
async def test_an_images_programs_cannot_become_root_unless_root_is_allowed(
    case: Case, engine: TestEngine, users: tuple[str, ...]
) -> None:
    config = ProviderConfigSpec("docker", engine.endpoint, allow=Allow(users=users))
    containers = ContainersProvider(config, Secrets(), CallPermit())
    fields = case.fields(user="1000", command=["sleep", "1000"])
    effect = await containers.create(action("Create", case.prefix, fields))
    await containers.close()
    assert is_as_declared(effect.object, fields)
    inspected = case.admin.inspect(case.prefix)
    assert inspected is not None
    expected = None if users == ("0",) else ["no-new-privileges"]
    assert (inspected["HostConfig"]["SecurityOpt"] or None) == expected


# --- comparison


async def test_every_declared_field_is_read_back_unchanged(case: Case) -> None:
    network = f"{case.prefix}-net"
    pool = {"Config": [{"Subnet": "10.199.77.0/24"}]}
    case.admin.post("/networks/create", {"Name": network, "IPAM": pool})
    case.admin.post("/volumes/create", {"Name": f"{case.prefix}-v"})
    spec: Fields = {
        "command": ["sleep", "5000"],
        "entrypoint": ["/bin/busybox"],
        "env": {"N": 5, "B": True, "EMPTY": "", "EQ": "a=b"},
        "user": "1000:1000",
        "workingDir": "/tmp",
        "mounts": [
            {"target": "/scratch", "type": "tmpfs", "sizeBytes": 1 * MIB},
            {"target": "/data", "source": f"{case.prefix}-v", "readOnly": True},
            {"target": "/host", "type": "bind", "source": "/usr"},
        ],
        "ports": [{"container": 90}, {"container": 80, "address": "127.0.0.1"}],
        "networks": [{"name": network, "aliases": ["b", "a"], "address": "10.199.77.9"}],
        "memoryBytes": 32 * MIB,
        "cpus": 0.25,
        "healthCheck": {"command": ["/bin/true"], "intervalSeconds": 0.5, "retries": 2},
        "restart": "on-failure",
        "maxRestarts": 3,
    }
    container = await case.create_container(**spec)

    assert is_as_declared(container, case.fields(**spec))
    assert container == await case.containers.read(case.prefix)
    assert [container] == await listing(case.containers, Scope(prefix=case.prefix))
    assert container.outputs["addresses"] == {network: "10.199.77.9"}
    assert container.outputs["address"] == "10.199.77.9"
    assert set(container.outputs["ports"]) == {"80/tcp", "90/tcp"}
    assert not RESERVED_LABELS & container.labels.keys()
    normalized = case.fields(**spec)
    assert CONTAINER.check_fields(normalized) == normalized


async def test_a_paged_listing_is_complete_and_restarts_if_a_container_is_deleted(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers, "LISTING_PAGE_SIZE", 2)
    own_ids = {
        str((await case.create_container(str(number), running=False)).uid) for number in range(5)
    }
    scope, names = Scope(prefix=case.prefix), [f"{case.prefix}{number}" for number in range(5)]
    assert sorted(each.name for each in await listing(case.containers, scope)) == names
    original_get = EngineApi.get
    deleted: list[str] = []

    async def get(api: EngineApi, path: str, *arguments: Any) -> Any:
        response = await original_get(api, path, *arguments)
        last: str = response[-1].id if path == "/containers/json" and response else ""
        if last in own_ids and not deleted:
            deleted.append(last)
            await asyncio.to_thread(case.admin.delete, f"/containers/{last}", force="true")
        return response

    monkeypatch.setattr(EngineApi, "get", get)
    assert len(await listing(case.containers, scope)) == 4


async def test_defaults_of_the_image_and_the_engine_do_not_count_as_differences(case: Case) -> None:
    container = await case.create_container(memoryBytes=32 * MIB)

    assert container.fields == case.fields(memoryBytes=32 * MIB)
    inspected = case.admin.inspect(case.prefix)
    assert inspected is not None
    assert "OF_THE_IMAGE=1" in inspected["Config"]["Env"]
    assert inspected["HostConfig"]["MemorySwap"] == 64 * MIB


async def test_a_secret_is_in_the_environment_and_shown_only_as_a_digest(case: Case) -> None:
    await case.stores.by_name["files"].write(SecretKey("default", "db"), PLANTED)
    secret = {"$secret": "db"}
    container = await case.create_container(env={"PLAIN": "1", "PASSWORD": secret})
    digest = Secrets(key=case.stores.key).digest(PLANTED)

    assert container.fields["env"] == {"PLAIN": "1", "PASSWORD": {"secret": digest}}
    assert PLANTED not in repr(container)
    inspected = case.admin.inspect(case.prefix)
    assert inspected is not None
    assert f"PASSWORD={PLANTED}" in inspected["Config"]["Env"]
    assert PLANTED not in repr(inspected["Config"]["Labels"])
    with pytest.raises(ConfigurationError, match="is missing from store"):
        await case.create_container("-other", env={"PASSWORD": {"$secret": "none"}})


async def test_a_foreign_environment_is_shown_as_digests(case: Case) -> None:
    body = {"Image": case.image, "Env": [f"TOKEN={PLANTED}"]}
    case.admin.post("/containers/create", body, name=case.prefix)
    existing = await case.containers.read(case.prefix)

    assert existing is not None
    assert PLANTED not in repr(existing)
    assert set(existing.fields["env"]) == {"TOKEN", "PATH", "OF_THE_IMAGE"}
    assert existing.written_by is None


# --- identity


async def test_an_id_prefix_is_not_accepted_as_a_name(case: Case) -> None:
    container = await case.create_container()
    assert container.uid is not None

    assert await case.containers.read(container.uid[:12]) is None
    assert (await case.containers.delete(action("Delete", container.uid[:12], {}))).absent
    with pytest.raises(NotFoundError):
        await case.containers.update(action("Update", container.uid[:12], case.fields()))
    assert await case.containers.read(case.prefix) == container


async def test_a_container_that_was_renamed_is_deleted_by_its_id(case: Case) -> None:
    container = await case.create_container()
    case.admin.post(f"/containers/{case.prefix}/rename", name=f"{case.prefix}-away")
    assert await case.containers.read(case.prefix) is None
    await case.containers.delete(with_version_of(action("Delete", container.name, {}), container))
    assert case.admin.containers(case.prefix) == []


@pytest.mark.parametrize("label", sorted(RESERVED_LABELS))
async def test_our_own_labels_cannot_be_declared(case: Case, label: str) -> None:
    create = action("Create", case.prefix, case.fields())
    create.labels[label] = "x"
    try:
        with pytest.raises(RefusedError, match="reserved for Reconciler"):
            await case.containers.create(create)
    finally:
        del create.labels[label]


# --- several calls


class RaiseAtRequest(ClosedGate):
    """Call gate that raises an error at one of the call's requests."""

    def __init__(self, request: int, error: BaseException) -> None:
        self.remaining, self.error = request, error

    async def wait(self, *, has_priority: bool = False) -> None:
        self.remaining -= 1
        if self.remaining == 0:
            raise self.error


async def test_a_creation_interrupted_at_any_request_is_resumed(case: Case) -> None:
    case.admin.post("/networks/create", {"Name": f"{case.prefix}-a"})
    case.admin.post("/networks/create", {"Name": f"{case.prefix}-b"})
    networks = [{"name": f"{case.prefix}-{each}"} for each in "ab"]
    fields, requests = case.fields(networks=networks), 0
    states: list[tuple[str, bool]] = []
    while True:
        requests += 1
        name = f"{case.prefix}-{requests}"
        create = action("Create", name, fields)
        error = asyncio.CancelledError() if requests % 2 else NotCalledError("cut")
        permit = RaiseAtRequest(requests, error)
        token = CALL_GATE.set(permit)
        raised_error: BaseException | None = None
        try:
            await case.containers.create(create)
        except (ProviderError, asyncio.CancelledError) as raised:
            raised_error = raised
        finally:
            CALL_GATE.reset(token)
        if raised_error is None:
            break
        unfinished = case.admin.inspect(name)
        exists = unfinished is not None
        assert not exists or not isinstance(raised_error, NotDoneError), (
            "NotDoneError means that nothing was done"
        )
        if exists:
            existing = await case.containers.read(name)
            assert existing is not None
            assert existing.written_by == create.idempotency_key
            assert existing.labels == create.labels
            states.append((existing.outputs["state"], is_as_declared(existing, fields)))
        completed = (await case.containers.create(create)).object
        assert is_as_declared(completed, fields)
        assert completed == (await case.containers.create(create)).object
        assert unfinished is None or (completed is not None and completed.uid == unfinished["Id"])
    assert states[0] == ("created", False)
    assert requests > 6


async def test_a_repeated_creation_does_not_run_a_finished_process_again(case: Case) -> None:
    create = action("Create", case.prefix, case.fields(command=["true"], restart="no"))
    await case.containers.create(create)
    case.admin.post(f"/containers/{case.prefix}/wait")
    finished = case.admin.inspect(case.prefix) or {}
    repeated = (await case.containers.create(create)).object
    assert repeated is not None
    assert repeated.outputs["exitCode"] == 0
    again = case.admin.inspect(case.prefix) or {}
    assert again["State"]["StartedAt"] == finished["State"]["StartedAt"]


async def test_a_missing_dependency_is_named_and_nothing_is_created(case: Case) -> None:
    cases: list[tuple[Fields, str]] = [
        ({"image": "nowhere/none:1"}, "image 'nowhere/none:1' does not exist on this Engine"),
        (
            {"mounts": [{"target": "/d", "source": f"{case.prefix}-typo"}]},
            "volume .* does not exist",
        ),
        ({"networks": [{"name": f"{case.prefix}-typo"}]}, "network .*-typo not found"),
        ({"mounts": [{"target": "/d", "type": "bind", "source": "/nowhere"}]}, "/nowhere"),
    ]
    for spec, error_text in cases:
        with pytest.raises(NotDoneError, match=error_text) as caught:
            await case.create_container(**spec)
        assert caught.value.status in (404, 409), "not a sign of a failing Engine"
    assert case.admin.containers(case.prefix) == []
    assert case.admin.volume(f"{case.prefix}-typo") is None


async def test_a_creation_is_not_done_while_another_container_uses_its_port(case: Case) -> None:
    first = await case.create_container("-first", ports=[{"container": 80}])
    port = first.outputs["ports"]["80/tcp"]
    create = action(
        "Create", f"{case.prefix}-second", case.fields(ports=[{"container": 80, "host": port}])
    )
    with pytest.raises(
        NotDoneError, match=f"container '{first.name}'.* uses port {port}/tcp"
    ) as caught:
        await case.containers.create(create)
    assert caught.value.status == 409, "not a sign of a failing Engine"
    assert await case.containers.read(create.external_name) is None
    stopped = await case.create_container(
        "-stopped", running=False, ports=[{"container": 80, "host": port}]
    )
    with pytest.raises(NotDoneError, match=r"already allocated|already in use"):
        await case.containers.update(
            with_version_of(action("Update", stopped.name, create.fields), stopped)
        )
    await case.containers.delete(with_version_of(action("Delete", first.name, {}), first))
    effect = await case.containers.create(create)
    assert is_as_declared(effect.object, create.fields)


async def test_a_renamed_container_that_uses_the_port_is_named(case: Case) -> None:
    create = action("Create", case.prefix, case.fields(ports=[{"container": 80}]))
    create.labels[OWNER_LABEL] = "log/default/Container/web"
    first = (await case.containers.create(create)).object
    assert first is not None
    port = first.outputs["ports"]["80/tcp"]
    case.admin.post(f"/containers/{case.prefix}/rename", name=f"{case.prefix}-old")
    again = action("Create", case.prefix, case.fields(ports=[{"container": 80, "host": port}]))
    again.labels[OWNER_LABEL] = create.labels[OWNER_LABEL]
    with pytest.raises(NotDoneError) as caught:
        await case.containers.create(again)
    name = f"{case.prefix}-old"
    assert f"container {name!r}, which another client renamed, uses" in str(caught.value)


async def test_containers_may_publish_a_port_at_different_addresses(case: Case) -> None:
    first = await case.create_container("-a", ports=[{"container": 80, "address": "127.0.0.1"}])
    port = first.outputs["ports"]["80/tcp"]
    shared: Fields = {"container": 80, "address": "127.0.0.2", "host": port}
    assert await case.create_container("-b", ports=[shared])
    with pytest.raises(NotDoneError, match=f"container '{first.name}'.* uses port"):
        await case.create_container("-c", ports=[{**shared, "address": "127.0.0.1"}])


async def test_a_creation_is_not_done_while_another_process_uses_its_port(case: Case) -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        fields = case.fields(ports=[{"container": 80, "host": port}])
        create = action("Create", case.prefix, fields)
        with pytest.raises(NotDoneError, match="a process outside of this Engine uses") as caught:
            await case.containers.create(create)
        assert caught.value.status == 409, "not a sign of a failing Engine"
        assert await case.containers.read(case.prefix) is None, "it never ran"
    effect = await case.containers.create(create)
    assert is_as_declared(effect.object, fields)


async def test_an_equivalent_spelling_does_not_count_as_a_difference(case: Case) -> None:
    spec: Fields = {
        "workingDir": "//tmp/../tmp/",
        "healthCheck": {"command": ["true"], "timeoutSeconds": 5.0000000001},
    }
    assert is_as_declared(await case.create_container(**spec), case.fields(**spec))


async def test_a_network_is_declared_by_its_name(case: Case) -> None:
    network = case.admin.post("/networks/create", {"Name": f"{case.prefix}-net"})
    plain = await case.create_container("-plain")
    for id_ in (network["Id"], network["Id"][:12]):
        with pytest.raises(RefusedError, match=f"{case.prefix}-net"):
            await case.create_container(networks=[{"name": id_}])
        with pytest.raises(RefusedError, match=f"{case.prefix}-net"):
            await case.update_container(plain, networks=[{"name": id_}])
    assert await case.containers.read(case.prefix) is None


async def test_a_user_who_is_not_in_the_image_is_refused(case: Case) -> None:
    with pytest.raises(RefusedError, match="nobodyhere") as caught:
        await case.create_container(user="nobodyhere")
    assert caught.value.obstacle == await case.containers.read(case.prefix)


async def test_a_command_that_is_not_in_the_image_is_refused(case: Case) -> None:
    create = action("Create", case.prefix, case.fields(command=["/nope"]))
    with pytest.raises(RefusedError, match="/nope") as caught:
        await case.containers.create(create)
    unfinished = await case.containers.read(case.prefix)
    assert unfinished is not None
    assert caught.value.obstacle == unfinished, (
        "the error contains the existing object, which is ours"
    )
    with pytest.raises(RefusedError, match="/nope"):
        await case.containers.update(
            with_version_of(action("Update", unfinished.name, create.fields), unfinished)
        )
    small = action("Create", f"{case.prefix}-small", {**case.fields(), "memoryBytes": 1})
    with pytest.raises(RefusedError, match=r"Minimum memory|minimum"):
        await case.containers.create(small)


# --- replacements


@pytest.mark.parametrize(
    ("spec", "error_text"),
    [
        ({"image": "nowhere/nnginx:1"}, "image 'nowhere/nnginx:1' does not exist on this Engine"),
        ({"image": "localhost:5000/a@sha256:" + 64 * "0"}, "image .* does not exist"),
        ({"networks": [{"name": "net-typo"}]}, "network net-typo not found"),
        ({"mounts": [{"target": "/d", "source": "typo"}]}, "volume 'typo' does not exist"),
        ({"env": {"PASSWORD": {"$secret": "typo"}}}, "typo"),
    ],
    ids=["image", "digest", "network", "volume", "secret"],
)
async def test_a_container_keeps_running_until_its_replacement_can_be_created(
    case: Case, spec: Fields, error_text: str
) -> None:
    container = await case.create_container()
    deletion = action("Delete", case.prefix, case.fields(**spec))
    deletion = msgspec.structs.replace(deletion, uid=container.uid, purpose="Replace")
    with pytest.raises((NotDoneError, ConfigurationError), match=error_text):
        await case.containers.delete(deletion)
    assert await case.containers.read(case.prefix) == container
    for fields in (case.fields(command=["/bin/true"]), {}):  # older releases recorded no fields
        container = await case.containers.read(case.prefix) or await case.create_container()
        effect = await case.containers.delete(
            msgspec.structs.replace(deletion, uid=container.uid, fields=fields)
        )
        assert effect == Effect(None)
        assert await case.containers.read(case.prefix) is None


# --- updates in place


async def test_mutable_fields_are_changed_in_place(case: Case) -> None:
    network = f"{case.prefix}-net"
    case.admin.post("/networks/create", {"Name": network})
    container = await case.create_container(memoryBytes=32 * MIB, cpus=0.5)
    changes: list[Fields] = [
        {"memoryBytes": 96 * MIB, "cpus": 1.5, "restart": "on-failure", "maxRestarts": 2},
        {"memoryBytes": 16 * MIB},
        {"memoryBytes": 16 * MIB, "networks": [{"name": network, "aliases": ["x"]}]},
        {"memoryBytes": 16 * MIB, "networks": [{"name": network}, {"name": "bridge"}]},
        {"memoryBytes": 16 * MIB, "running": False},
        {"memoryBytes": 16 * MIB},
    ]
    for spec in changes:
        updated = await case.update_container(container, **spec)
        assert is_as_declared(updated, case.fields(**spec)), spec
        assert updated.uid == container.uid
        assert updated == await case.containers.read(case.prefix)

    unlimited = await case.update_container(container)
    assert unlimited.fields["memoryBytes"] > 512 * MIB, "all of the host's memory"
    with pytest.raises(RefusedError, match="command: the Engine cannot change this"):
        await case.update_container(container, command=["/bin/true"])


@pytest.mark.parametrize("harm", ["kill", "stop", "pause"])
async def test_a_container_that_no_longer_runs_is_drift_and_is_restarted(
    case: Case, harm: str
) -> None:
    container = await case.create_container()
    case.admin.post(f"/containers/{case.prefix}/{harm}", **({"t": "0"} if harm == "stop" else {}))
    existing = await case.containers.read(case.prefix)
    assert existing is not None
    assert existing.fields["running"] is False
    restarted = await case.update_container(existing)
    assert is_as_declared(restarted, case.fields())
    assert restarted.uid == container.uid


async def test_a_container_is_ready_when_its_health_check_succeeds(case: Case) -> None:
    check = {"command": ["/bin/test", "-e", "/tmp/ok"], "intervalSeconds": 0.1, "retries": 1}
    spec: Fields = {
        "healthCheck": check,
        "command": ["sh", "-c", "sleep 0.5; touch /tmp/ok; sleep 9999"],
    }
    container = await case.create_container(**spec)
    reasons = [ready(case.fields(**spec), container).reason]
    deadline = time.monotonic() + 20
    while reasons[-1] != "Ready":
        assert time.monotonic() < deadline, reasons
        await asyncio.sleep(0.05)
        existing = await case.containers.read(case.prefix)
        assert existing is not None
        reasons.append(ready(case.fields(**spec), existing).reason)
    assert reasons[0] in ("Starting", "Unhealthy")


# --- volumes


async def test_an_existing_volume_is_a_conflict_although_the_engine_reports_creation(
    case: Case,
) -> None:
    case.admin.post("/volumes/create", {"Name": case.prefix, "Labels": {"owner": "theirs"}})
    create = action("Create", case.prefix, VOLUME.check_fields({}))
    with pytest.raises(ConflictError) as caught:
        await case.volumes.create(create)
    assert caught.value.obstacle == await case.volumes.read(case.prefix)
    assert caught.value.obstacle is not None
    assert caught.value.obstacle.labels == {"owner": "theirs"}


async def test_writing_to_a_volume_does_not_change_its_uid(case: Case) -> None:
    created = await case.volumes.create(action("Create", case.prefix, VOLUME.check_fields({})))
    command = ["sh", "-c", "touch /d/x; sleep 9999"]
    await case.create_container(
        "-user", mounts=[{"target": "/d", "source": case.prefix}], command=command
    )
    await asyncio.sleep(0.2)
    assert await case.volumes.read(case.prefix) == created.object


async def test_a_volume_in_use_is_not_deleted_and_the_message_names_its_users(case: Case) -> None:
    container = (
        await case.volumes.create(action("Create", case.prefix, VOLUME.check_fields({})))
    ).object
    assert container is not None
    user = await case.create_container("-user", mounts=[{"target": "/d", "source": case.prefix}])
    delete = with_version_of(action("Delete", case.prefix, {}), container)
    with pytest.raises(NotDoneError, match=f"is in use by {user.name}; ") as caught:
        await case.volumes.delete(delete)
    assert caught.value.status == 409
    await case.containers.delete(with_version_of(action("Delete", user.name, {}), user))
    assert not (await case.volumes.delete(delete)).absent


async def test_no_message_names_a_container_of_another_namespace(case: Case) -> None:
    volume = (
        await case.volumes.create(action("Create", case.prefix, VOLUME.check_fields({})))
    ).object
    assert volume is not None
    fields = case.fields(
        mounts=[{"target": "/d", "source": case.prefix}], ports=[{"container": 80}]
    )
    create = action("Create", f"{case.prefix}-theirs", fields)
    labels = {OWNER_LABEL: "log.billing.Container.theirs"}
    create = msgspec.structs.replace(create, labels=labels)
    theirs = (await case.containers.create(create)).object
    assert theirs is not None
    with pytest.raises(NotDoneError, match="in use by a container in another namespace") as caught:
        await case.volumes.delete(with_version_of(action("Delete", case.prefix, {}), volume))
    assert "theirs" not in str(caught.value)
    ports = [{"container": 80, "host": theirs.outputs["ports"]["80/tcp"]}]
    with pytest.raises(NotDoneError, match="a container in another namespace uses port") as caught:
        await case.create_container(ports=ports)
    assert "theirs" not in str(caught.value)


async def test_a_tmpfs_has_the_declared_size(case: Case) -> None:
    options = {"type": "tmpfs", "device": "tmpfs", "o": "size=1m"}
    create = action("Create", case.prefix, VOLUME.check_fields({"options": options}))
    container = (await case.volumes.create(create)).object
    assert container is not None
    assert VOLUME.describe_data_loss(None, container) == ""
    command = ["sh", "-c", "dd if=/dev/zero of=/d/x bs=65536 count=64; sleep 9999"]
    await case.create_container(
        "-user", mounts=[{"target": "/d", "source": case.prefix}], command=command
    )
    log = b""
    for _ in range(100):
        query = {"stdout": "1", "stderr": "1"}
        log = case.admin.http.get(f"/containers/{case.prefix}-user/logs", params=query).content
        if b"No space left" in log:
            break
        await asyncio.sleep(0.05)
    assert b"No space left" in log


# --- change events


@pytest.mark.parametrize("kind", ["containers", "volumes"])
async def test_an_event_ends_the_wait_and_events_between_two_calls_are_reported(
    case: Case, kind: str
) -> None:
    provider = case.containers if kind == "containers" else case.volumes

    def create_object(suffix: str) -> None:
        if kind == "containers":
            name = f"{case.prefix}{suffix}"
            case.admin.post("/containers/create", {"Image": case.image}, name=name)
        else:
            case.admin.post("/volumes/create", {"Name": f"{case.prefix}{suffix}"})

    async def read_newest_mark(mark: str | None) -> str:
        """Follow until there are no new events, because other tests use the Engine too."""
        while True:
            try:
                async with asyncio.timeout(1):
                    mark = await provider.changes(mark)
            except TimeoutError:
                assert mark is not None
                return mark

    mark = await read_newest_mark(None)
    pending_call = asyncio.create_task(provider.changes(mark))
    await asyncio.sleep(0.1)
    started_at = time.monotonic()
    await asyncio.to_thread(create_object, "-one")
    new_mark = await asyncio.wait_for(pending_call, 3)
    assert new_mark != mark
    assert time.monotonic() - started_at < 1.5
    mark = await read_newest_mark(new_mark)
    await asyncio.to_thread(create_object, "-two")
    assert await asyncio.wait_for(provider.changes(mark), 3) != mark


# --- logs


async def read_all(pieces: AsyncGenerator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


async def test_a_containers_output_is_read_and_followed(case: Case) -> None:
    assert isinstance(case.containers, LoggingProvider)
    assert not isinstance(case.volumes, LoggingProvider)
    script = "echo one; echo two >&2; while ! test -e /tmp/on; do sleep 0.02; done; echo three"
    container = await case.create_container(command=["sh", "-c", script], restart="no")
    assert container.uid is not None
    output = b""
    while output.count(b"\n") < 2:
        output = await read_all(case.containers.logs(container.uid))
    assert sorted(output.split()) == [b"one", b"two"]
    assert (await read_all(case.containers.logs(container.uid, tail=1))).count(b"\n") == 1

    chunks: list[bytes] = []
    async with contextlib.aclosing(case.containers.logs(container.uid, follow=True)) as pieces:
        async for piece in pieces:
            chunks.append(piece)
            if b"".join(chunks).count(b"\n") == 2:
                touch = {"Cmd": ["/bin/touch", "/tmp/on"]}
                started = case.admin.post(f"/containers/{case.prefix}/exec", touch)
                await asyncio.to_thread(
                    case.admin.post, f"/exec/{started['Id']}/start", {"Detach": True}
                )
    assert b"".join(chunks).endswith(b"three\n"), "the log ends when the container exits"
    with pytest.raises(NotFoundError):
        await read_all(case.containers.logs("0" * 64))


@pytest.mark.parametrize("size", range(1, 12))
async def test_chunks_of_the_output_may_end_anywhere(size: int) -> None:
    stream = b"".join(
        bytes([1, 0, 0, 0]) + len(part).to_bytes(4) + part for part in (b"one\n", b"", b"three\n")
    )

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(stream), size):
            yield stream[start : start + size]

    assert await read_all(strip_headers(pieces())) == b"one\nthree\n"


# --- other servers and unusual Engines


class _Responder:
    """A server on a local socket that sends the given responses."""

    def __init__(self) -> None:
        self.responses: dict[str, tuple[int, str]] = {}
        self.paths: list[str] = []

    async def respond(self, request: web.Request) -> web.Response:
        self.paths.append(request.path)
        status, body = self.responses.get(request.path, (404, "404 page not found"))
        return web.Response(status=status, text=body, content_type="application/json")


@pytest.fixture
async def responder(tmp_path: Path) -> AsyncIterator[tuple[_Responder, str]]:
    server, app = _Responder(), web.Application()
    app.router.add_route("*", "/{any:.*}", server.respond)
    runner = web.AppRunner(app)
    await runner.setup()
    path = tmp_path / "s"
    await web.UnixSite(runner, str(path)).start()
    yield server, f"unix://{path}"
    await runner.cleanup()


@contextlib.asynccontextmanager
async def provider_at(endpoint: str, kind: Kind = CONTAINER) -> AsyncGenerator[Any]:
    assert kind.connect is not None
    provider = kind.connect(ProviderConfigSpec("docker", endpoint), Secrets(), CallPermit())
    yield provider
    await provider.close()


@pytest.mark.parametrize(
    ("versions", "version"),
    [
        ('{"ApiVersion":"1.41","MinAPIVersion":"1.12"}', "1.41"),
        ('{"ApiVersion":"1.52","MinAPIVersion":"1.44"}', "1.44"),
        ('{"ApiVersion":"1.40","MinAPIVersion":"1.12"}', None),
    ],
)
async def test_the_client_uses_a_version_that_both_sides_support(
    responder: tuple[_Responder, str], versions: str, version: str | None
) -> None:
    server, endpoint = responder
    server.responses["/version"] = (200, versions)
    server.responses[f"/v{version}/containers/json"] = (200, "[]")
    async with provider_at(endpoint) as provider:
        if version is None:
            with pytest.raises(NotDoneError, match=r"20.10 or newer"):
                await listing(provider, Scope())
        else:
            assert await listing(provider, Scope()) == []


async def test_a_404_from_a_server_that_is_not_an_engine_does_not_prove_absence(
    responder: tuple[_Responder, str],
) -> None:
    server, endpoint = responder
    server.responses["/version"] = (200, '{"ApiVersion":"1.41"}')
    for kind in (CONTAINER, VOLUME):
        async with provider_at(endpoint, kind) as provider:
            with pytest.raises(NotDoneError, match=r"check spec.endpoint"):
                await provider.read("any")


async def test_a_listing_fails_if_a_driver_is_unavailable(
    responder: tuple[_Responder, str],
) -> None:
    server, endpoint = responder
    server.responses["/version"] = (200, '{"ApiVersion":"1.41"}')
    server.responses["/v1.41/volumes"] = (
        200,
        '{"Volumes":[],"Warnings":["plugin x is unavailable"]}',
    )
    async with provider_at(endpoint, VOLUME) as provider:
        with pytest.raises(NotDoneError, match="plugin x is unavailable"):
            await listing(provider, Scope())


async def test_a_call_to_an_unreachable_engine_was_not_executed(tmp_path: Path) -> None:
    async with provider_at(f"unix://{tmp_path / 'none'}") as provider:
        calls: list[Callable[[], Any]] = [
            lambda: provider.read("any"),
            lambda: provider.changes(None),
            lambda: provider.create(
                action("Create", "any", CONTAINER.check_fields({"image": "x"}))
            ),
        ]
        for call in calls:
            with pytest.raises(NotDoneError, match="not sent"):
                await call()


async def test_an_engine_that_returns_an_error_message_is_reachable(
    responder: tuple[_Responder, str],
) -> None:
    server, endpoint = responder
    server.responses["/version"] = (200, '{"ApiVersion":"1.41"}')
    server.responses["/v1.41/containers/any/json"] = (500, '{"message":"this one is broken"}')
    server.responses["/v1.41/containers/other/json"] = (500, "")
    async with provider_at(endpoint) as provider:
        with pytest.raises(NotDoneError, match="this one is broken") as explained:
            await provider.read("any")
        with pytest.raises(NotDoneError) as unexplained:
            await provider.read("other")
    assert (explained.value.status, unexplained.value.status) == (409, 500)


@pytest.mark.parametrize("endpoint", ["unix://var/run/docker.sock", "docker.sock", "tcp://h:1"])
def test_an_invalid_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match=r"spec.endpoint"):
        ContainersProvider(ProviderConfigSpec("docker", endpoint), Secrets(), CallPermit())


@pytest.mark.parametrize(
    ("fields", "error_text"),
    [
        ({}, "image"),
        ({"image": "x", "memory": 1}, "unknown field"),
        ({"image": "x", "maxRestarts": 3}, "on-failure"),
        ({"image": "x", "mounts": [{"target": "/a"}]}, "required for a volume and a bind"),
        ({"image": "x", "mounts": [{"target": "/a", "type": "tmpfs", "source": "b"}]}, "source"),
        (
            {"image": "x", "mounts": [{"target": "/a", "type": "bind", "source": "b"}]},
            "a directory",
        ),
        ({"image": "x", "networks": [{"name": "host"}, {"name": "b1"}]}, "must be the only"),
        ({"image": "x", "env": {"A=B": "1"}}, "spec"),
        ({"image": "x", "user": ""}, "user"),
        ({"image": "x", "entrypoint": [""]}, "entrypoint"),
        ({"image": "x", "mounts": [{"target": "/a", "type": "tmpfs", "source": ""}]}, "source"),
        ({"image": "x", "ports": [{"container": 1, "address": "localhost"}]}, "localhost"),
        ({"image": "x", "ports": [{"container": n, "host": 80} for n in (1, 2)]}, "is a duplicate"),
        ({"image": "x", "networks": [{"name": "n1", "address": "::1"}]}, "address"),
        ({"image": "x", "healthCheck": {"command": ["a"], "intervalSeconds": 0}}, "interval"),
    ],
)
def test_an_invalid_declaration_is_refused(fields: Fields, error_text: str) -> None:
    with pytest.raises(InvalidManifestError, match=error_text):
        CONTAINER.check_fields(fields)
