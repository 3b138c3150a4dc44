"""Rows of the matrix on real systems: an Engine, PostgreSQL, disks, and certificates.

Only the Engine reports its effects. For the other systems, the tests check the final state: one
object, which the log has recorded, as declared, and no partially created one.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, cast

import msgspec
from psycopg import sql

from events.intake import Approved, Declared, Withdrawn
from events.log import ActionSucceeded, OwnershipClaimed
from events.manifest import Fields, Manifest, Metadata
from events.provider_config import ProviderConfigSpec
from infra.components.postgres import Postgres
from infra.providers.certificates.certificate import CERTIFICATE
from infra.providers.certificates.pem import certificates_in, read_info
from infra.providers.certificates.spec import STORE
from infra.providers.certificates.store import CertificateRecord, Store
from infra.providers.disks.attachment import ATTACHMENT
from infra.providers.disks.disk import DISK, DisksProvider
from infra.providers.docker.container import CONTAINER
from infra.providers.docker.volume import VOLUME
from infra.providers.file_root import FileRoot
from infra.providers.postgres.database import DATABASE
from infra.providers.postgres.grant import GRANT
from infra.providers.postgres.role import DATABASE_ROLE
from infra.secrets import open_stores
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.contract import action
from reconciler.provider.kind import Kind
from reconciler.provider.secrets import SecretKey, Secrets
from reconciler.resource.owner_label import OWNER_LABEL
from tests.certificates import OWN_CA, create_issuer, create_root
from tests.crashes.cases import Case, Row
from tests.crashes.lane import Lane, config_key, key
from tests.crashes.roles import SECRETS
from tests.crashes.story import Story
from tests.disks import MIB, disk_folder, remaining_mounts, run
from tests.engines import TestEngine
from tests.judge.from_bus import read_bus
from tests.judge.judging import findings
from tests.postgres import Superuser


class KindLane(Lane):
    """A lane whose resources are on an Engine and a server that it shares with other lanes."""

    def __init__(self, folder: Path, engine: TestEngine, server: Postgres, prefix: str) -> None:
        super().__init__(folder)
        self.engine = engine
        self.sql = Superuser(server)
        self.prefix = prefix
        self._server = server
        self.disks = folder / "disks"
        (folder / SECRETS).mkdir(parents=True, mode=0o700)

    @property
    def root(self) -> Path:
        """The folder of the certificates."""
        return self._folder / "root"

    def _make_root(self) -> str:
        return create_root(self._folder).as_uri()

    @property
    def database(self) -> str:
        """Another client's database, for grants."""
        return f"{self.prefix}-base"

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Lane]:
        with disk_folder(self.disks):
            async with super().open() as lane, self._configure_systems():
                yield lane

    @asynccontextmanager
    async def _configure_systems(self) -> AsyncGenerator[None]:
        endpoints = {
            "docker": self.engine.endpoint,
            "postgres": self._server.endpoint,
            "disks": self.disks.as_uri(),
            "certificates": await asyncio.to_thread(self._make_root),
        }
        await create_issuer(self.root, "own", OWN_CA)
        for name, endpoint in endpoints.items():
            await self.configure(name, self.prefix, provider=name, endpoint=endpoint)
        await self.run("CREATE DATABASE {}", self.database)
        yield
        await self.run("DROP DATABASE {} WITH (FORCE)", self.database)
        await asyncio.to_thread(self.engine.admin.remove_all, self.prefix)
        await self.sql.close()

    async def assert_sound(self) -> None:
        history = replace(await read_bus(self.nc), acknowledged=self.acknowledged)
        breaches = findings(history)
        assert not breaches, "\n".join(map(str, breaches))

    async def secret(self, name: str) -> str | None:
        """Read a secret in the store."""
        store = open_stores(self._folder / SECRETS).by_name["files"]
        return await store.read(SecretKey("default", name), "default")

    async def query_value(self, query: str, name: str) -> Any:
        """Return the single value of a query about a name."""
        return await self.sql.value(sql.SQL(query).format(sql.Literal(name)))  # pyright: ignore[reportArgumentType]

    async def run(self, statement: str, name: str) -> None:
        """Execute a statement about a name as superuser."""
        await self.sql.run(sql.SQL(statement).format(sql.Identifier(name)))  # pyright: ignore[reportArgumentType]


class KindStory(Story):
    """One resource of a kind, which is created, updated, or withdrawn."""

    installed_kind: ClassVar[Kind]
    has_data: ClassVar[bool] = False
    has_ids: ClassVar[bool] = True
    change: ClassVar[Fields] = {}

    def __init__(self, lane: KindLane, case: Case, number: int) -> None:
        super().__init__(lane, case, number)
        self.lane: KindLane = lane
        self.name = f"{lane.prefix}-{case.row.replace(' ', '-')}-{number}"
        self.spec: Fields = {}
        self.policy: Fields = {}

    @property
    def kind(self) -> str:
        return self.installed_kind.name

    @property
    def metadata(self) -> Metadata:
        return Metadata(self.name)

    # --- the operation

    async def declare(self, **more: Any) -> None:
        config = {"providerConfigRef": {"name": self.installed_kind.provider}}
        spec: Fields = {**config, **self.spec, **more, "policy": self.policy}
        manifest = Manifest(self.installed_kind.api_version, self.kind, self.metadata, spec)
        await self.lane.publish(manifest.key, Declared(manifest))

    async def declare_existing(self) -> None:
        if self.case.operation != "Create":
            await self.declare()

    async def wait_until_prepared(self) -> None:
        await self.lane.wait_for_outcome(config_key(self.installed_kind.provider), "Converged")
        if self.case.operation == "Create":
            return
        resource = key(self.name, self.kind)
        await self.lane.wait_for_outcome(resource, "Converged")
        if self.case.operation == "Delete" and self.has_data:
            await self.lane.publish(resource, Withdrawn())
            await self.lane.wait_for_outcome(resource, "Held")

    async def record_baseline(self) -> None:
        self._began = time.time()
        self._uid = await self.uid()
        await self.record_event_baseline()

    async def trigger(self) -> None:
        resource = key(self.name, self.kind)
        if self.case.operation == "Create":
            await self.declare()
        elif self.case.operation == "Update":
            await self.declare(**self.change)
        elif self.has_data:
            await self.lane.publish(resource, Approved("DataLoss"))
        else:
            await self.lane.publish(resource, Withdrawn())

    # --- the result

    async def wait_until_done(self) -> None:
        await self.lane.wait_for_outcome(key(self.name, self.kind), self.outcome, self.generation)
        await self.lane.wait_until_idle()

    async def assert_done_once(self) -> None:
        uid = await self.uid()
        if self.case.operation == "Delete":
            assert uid is None, "the object must be deleted"
        else:
            assert uid is not None
            assert not self.has_ids or await self._recorded_uid() == uid, (
                "the log must have recorded it"
            )
            is_replaced = self._uid not in (None, uid)
            assert is_replaced == (self.actions[0][1] == "Replace"), (
                "an object is replaced only if it must be"
            )
            assert await self.content() == (
                {**self.spec, **self.change} if self.case.operation == "Update" else self.spec
            )
        await self.assert_created_once()
        await self.assert_recorded_once()
        await self.lane.assert_sound()

    def must_be_replayed(self) -> bool:
        """Only a created object carries the action's key; a repeated change finds it as desired."""
        return super().must_be_replayed() and self.case.operation == "Create" and self.has_ids

    async def _recorded_uid(self) -> str:
        history = await self.lane.history(key(self.name, self.kind))
        objects = [each.data.object for each in history if isinstance(each.data, ActionSucceeded)]
        return "" if objects[-1] is None else objects[-1].uid or ""

    # --- for each kind to implement

    async def uid(self) -> str | None:
        """Return the ID of the object in the system, or its name if objects have no ID."""
        raise NotImplementedError

    async def content(self) -> Fields:
        """Return the declared fields of the object in the system."""
        raise NotImplementedError

    async def assert_created_once(self) -> None:
        """Assert that no other object was created or is left."""

    async def count_engine_events(self, what: str, **resource: str) -> dict[str, int]:
        """Count the Engine's events since the operation."""
        expected = {name: [value] for name, value in {"type": what, **resource}.items()}
        query = {
            "since": f"{self._began:.9f}",
            "until": f"{time.time():.9f}",
            "filters": msgspec.json.encode(expected).decode(),
        }
        response = await asyncio.to_thread(self.lane.engine.admin.http.get, "/events", params=query)
        counts: dict[str, int] = {}
        for line in response.text.splitlines():
            event = msgspec.json.decode(line)
            counts[event["Action"]] = counts.get(event["Action"], 0) + 1
        return counts


class ContainerStory(KindStory):
    """A container whose memory is changed in place."""

    installed_kind = CONTAINER
    change: ClassVar[Fields] = {"memoryBytes": 128 << 20}

    def __init__(self, lane: KindLane, case: Case, number: int) -> None:
        super().__init__(lane, case, number)
        command = ["/bin/sleep", "1000000"]
        image = lane.engine.image
        self.spec = {"image": image, "command": command, "memoryBytes": 64 << 20, "stopSeconds": 0}

    async def _inspect(self) -> dict[str, Any] | None:
        return await asyncio.to_thread(self.lane.engine.admin.inspect, self.name)

    async def uid(self) -> str | None:
        container = await self._inspect()
        return None if container is None else container["Id"]

    async def content(self) -> Fields:
        container = await self._inspect()
        assert container is not None
        assert container["State"]["Running"]
        config, host = container["Config"], container["HostConfig"]
        return {
            "image": config["Image"],
            "command": config["Cmd"],
            "memoryBytes": host["Memory"],
            "stopSeconds": config["StopTimeout"],
        }

    async def assert_created_once(self) -> None:
        counts = await self.count_engine_events("container", container=self.name)
        created_count, removed = counts.get("create", 0), counts.get("destroy", 0)
        is_replaced = self.actions[0][1] == "Replace"
        assert created_count == int(is_replaced or self.case.operation == "Create"), counts
        assert removed == int(is_replaced or self.case.operation == "Delete"), counts


class ReplacedContainerStory(ContainerStory):
    """A container whose command is changed, which needs a new container."""

    change: ClassVar[Fields] = {"command": ["/bin/sleep", "77"]}

    def __init__(self, lane: KindLane, case: Case, number: int) -> None:
        super().__init__(lane, case, number)
        self.actions = [("Delete", "Replace"), ("Create", "Converge")]


class VolumeStory(KindStory):
    """A volume, which cannot be changed."""

    installed_kind = VOLUME
    has_data = True
    has_ids = False

    async def uid(self) -> str | None:
        volume = await asyncio.to_thread(self.lane.engine.admin.volume, self.name)
        return None if volume is None else self.name

    async def content(self) -> Fields:
        return {}

    async def assert_created_once(self) -> None:
        counts = await self.count_engine_events("volume", volume=self.name)
        # The Engine also reports a creation that finds an existing volume.
        engine_event = "create" if self.case.operation == "Create" else "destroy"
        assert counts.keys() == {engine_event}, counts


class _PostgresStory(KindStory):
    change: ClassVar[Fields] = {"connectionLimit": 7}
    uid_query: ClassVar[str]
    limit_query: ClassVar[str]

    async def uid(self) -> str | None:
        oid = await self.lane.query_value(self.uid_query, self.name)
        return None if oid is None else str(oid)

    async def content(self) -> Fields:
        limit = await self.lane.query_value(self.limit_query, self.name)
        return {**self.spec, **({} if limit == -1 else {"connectionLimit": limit})}


class DatabaseStory(_PostgresStory):
    """A database."""

    installed_kind = DATABASE
    has_data = True
    uid_query = "SELECT oid FROM pg_database WHERE datname = {}"
    limit_query = "SELECT datconnlimit FROM pg_database WHERE datname = {}"

    async def assert_created_once(self) -> None:
        marked = (
            "SELECT count(*) FROM pg_database"
            " WHERE shobj_description(oid, 'pg_database') LIKE '%' || {} || '\"%'"
        )
        expected_count = int(self.case.operation != "Delete")
        assert await self.lane.query_value(marked, self.name) == expected_count, (
            "no partially created database"
        )


class RoleStory(_PostgresStory):
    """A role with a generated password."""

    installed_kind = DATABASE_ROLE
    uid_query = "SELECT oid FROM pg_roles WHERE rolname = {}"
    limit_query = "SELECT rolconnlimit FROM pg_roles WHERE rolname = {}"

    def __init__(self, lane: KindLane, case: Case, number: int) -> None:
        super().__init__(lane, case, number)
        self.spec = {"login": True, "generatedPassword": {"name": self.name}}

    async def assert_created_once(self) -> None:
        secret = await self.lane.secret(self.name)
        if self.case.operation == "Delete":
            assert secret is None, "the password must be deleted with the role"
        else:
            assert secret is not None
            assert await self.lane.sql.logs_in(self.name, secret, "postgres")


class GrantStory(KindStory):
    """A role's privileges on a database; another client owns both."""

    installed_kind = GRANT
    has_ids = False
    change: ClassVar[Fields] = {"privileges": ["CREATE", "TEMPORARY"]}

    def __init__(self, lane: KindLane, case: Case, number: int) -> None:
        super().__init__(lane, case, number)
        self.spec = {"privileges": ["CREATE"]}
        self.policy = {"adoption": "Adopt"}  # a grant has no labels: docs/kinds/grant.md

    @property
    def metadata(self) -> Metadata:
        external = {"reconciler/external-name": f"{self.name}@{self.lane.database}"}
        return Metadata(self.name, annotations=external)

    async def declare_existing(self) -> None:
        await self.lane.run("CREATE ROLE {}", self.name)
        await super().declare_existing()

    async def assert_recorded_once(self) -> None:
        """Assert that a grant is adopted if its creation is unconfirmed: it has no creator."""
        if not super(KindStory, self).must_be_replayed() or self.case.operation != "Create":
            await super().assert_recorded_once()
            return
        history = [each.data for each in await self.lane.history(key(self.name, self.kind))]
        (claimed,) = [each for each in history if isinstance(each, OwnershipClaimed)]
        assert claimed.reason == "Adopted"

    async def _read_privileges(self) -> list[str]:
        query = (
            "SELECT array_agg(privilege_type ORDER BY privilege_type)"
            " FROM pg_database, aclexplode(datacl) JOIN pg_roles r ON r.oid = grantee"
            f" WHERE datname = '{self.lane.database}' AND rolname = {{}}"
        )
        return cast("list[str]", await self.lane.query_value(query, self.name) or [])

    async def uid(self) -> str | None:
        return self.name if await self._read_privileges() else None

    async def content(self) -> Fields:
        return {"privileges": await self._read_privileges()}


class DiskStory(KindStory):
    """A disk, which grows."""

    installed_kind = DISK
    has_data = True
    change: ClassVar[Fields] = {"sizeBytes": 16 * MIB}

    def __init__(self, lane: KindLane, case: Case, number: int) -> None:
        super().__init__(lane, case, number)
        self.spec = {"sizeBytes": 8 * MIB}
        self.image = lane.disks / "images" / f"{self.name}.img"

    async def record_baseline(self) -> None:
        if self.case.operation != "Create":
            run("debugfs", "-w", "-R", "mkdir /written-once", self.image)
        await super().record_baseline()

    async def uid(self) -> str | None:
        if not self.image.exists():
            return None
        return f"disk-{run('blkid', '-p', '-o', 'value', '-s', 'UUID', self.image)}"

    async def content(self) -> Fields:
        run("e2fsck", "-f", "-n", self.image)
        blocks = re.search(r"Block count: +(\d+)", run("dumpe2fs", "-h", self.image))
        assert blocks is not None
        return {"sizeBytes": int(blocks[1]) * 4096}

    async def assert_created_once(self) -> None:
        if self.case.operation == "Update":
            assert " written-once" in run("debugfs", "-R", "ls /", self.image)
        temporary_images = [each.name for each in self.image.parent.glob(".reconciler-*")]
        assert temporary_images == [], "no partially created image"


class AttachmentStory(KindStory):
    """A mounted disk that becomes read-only."""

    installed_kind = ATTACHMENT
    change: ClassVar[Fields] = {"readOnly": True}

    def __init__(self, lane: KindLane, case: Case, number: int) -> None:
        super().__init__(lane, case, number)
        self.spec = {"disk": self.name}

    async def declare_existing(self) -> None:
        config = ProviderConfigSpec("disks", self.lane.disks.as_uri())
        disks = DisksProvider(config, Secrets(), CallPermit())
        created_action = action("Create", self.name, DISK.check_fields({"sizeBytes": 8 * MIB}))
        labels = {OWNER_LABEL: f"test.default.Disk.{self.name}"}
        await disks.create(msgspec.structs.replace(created_action, labels=labels))
        await disks.close()
        await super().declare_existing()

    async def uid(self) -> str | None:
        record_file = self.lane.disks / "attachments" / f"{self.name}.json"
        return (
            msgspec.json.decode(record_file.read_bytes())["uid"] if record_file.exists() else None
        )

    def _remaining_mounts(self) -> tuple[int, list[bool]]:
        mounted, attached = remaining_mounts(self.lane.disks)
        devices = [each for each in attached if Path(each.backing).stem == self.name]
        return len(devices), [
            each.is_read_only for each in mounted if Path(each.mount_path).name == self.name
        ]

    async def content(self) -> Fields:
        (is_read_only,) = self._remaining_mounts()[1]
        return {**self.spec, **({"readOnly": True} if is_read_only else {})}

    async def assert_created_once(self) -> None:
        is_deleted = self.case.operation == "Delete"
        assert self._remaining_mounts()[0] == (0 if is_deleted else 1)
        assert len(self._remaining_mounts()[1]) == (0 if is_deleted else 1)


class CertificateStory(KindStory):
    """A certificate of our own CA; new names need a new order."""

    installed_kind = CERTIFICATE
    change: ClassVar[Fields] = {"dnsNames": ["other.test"]}

    def __init__(self, lane: KindLane, case: Case, number: int) -> None:
        super().__init__(lane, case, number)
        self.spec = {"issuer": "own", "dnsNames": ["web.test"]}
        self._store = Store(FileRoot(lane.root), "certificates", CertificateRecord)

    async def uid(self) -> str | None:
        record = await asyncio.to_thread(self._store.read, self.name)
        return None if record is None else record.uid

    async def content(self) -> Fields:
        delivered = await asyncio.to_thread((self.lane.root / self.name / "tls.pem").read_bytes)
        names = read_info(certificates_in(delivered)[0]).dns_names
        return {"issuer": "own", "dnsNames": list(names)}

    async def assert_created_once(self) -> None:
        store_folder = self.lane.root / STORE / "certificates" / self.name
        remaining_suffixes = await asyncio.to_thread(
            lambda: sorted(path.suffix for path in store_folder.glob("*"))
        )
        is_deleted = self.case.operation == "Delete"
        assert remaining_suffixes == ([] if is_deleted else [".crt", ".crt", ".json", ".key"])
        assert await asyncio.to_thread((self.lane.root / self.name).exists) != is_deleted


_STORIES: dict[Row, type[KindStory]] = {
    "container": ContainerStory,
    "replaced container": ReplacedContainerStory,
    "volume": VolumeStory,
    "database": DatabaseStory,
    "role": RoleStory,
    "grant": GrantStory,
    "disk": DiskStory,
    "attachment": AttachmentStory,
    "certificate": CertificateStory,
}


def create_kind_story(lane: Lane, case: Case, number: int) -> Story:
    """Create the story of a case on a real system."""
    assert isinstance(lane, KindLane)
    return _STORIES[case.row](lane, case, number)
