"""The shop during random kills of roles, dockerd, PostgreSQL, and containers.

    ./run python -m tests.shop.chaos --seed 7 --rounds 200

Each role is a separate process. During the kills, containers are removed and grants are changed
out of band, and declarations change. At the end, Docker and PostgreSQL must be as declared,
including labels, and each creation in the Engine's events or the server's log must have been
decided. Then all resources are withdrawn during further kills, and nothing may be left. A seed
determines the choices, but not their timing. The exit status is 1 if there are problems.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import itertools
import os
import random
import re
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psycopg
import yaml
from nats.aio.client import Client as Connection
from psycopg import sql

from events.log import ActionDecided
from events.manifest import Manifest, Metadata
from infra.components.docker_engine import DockerEngine
from infra.components.postgres import Postgres
from infra.embedded import EmbeddedServer
from infra.jetstream.connection import connect as connect_to_bus
from infra.providers.docker.engine import WRITTEN_BY
from infra.providers.postgres.marks import Mark, read_mark
from reconciler.errors import WaitTimeoutError
from reconciler.sdk import Client, connect
from reconciler.wiring import ROLES, initialize
from tests.engines import EngineAdmin
from tests.faulty_api.journal import JournalEntry
from tests.folders import short_folder
from tests.judge.from_bus import effects_of, read_bus
from tests.judge.history import History
from tests.judge.judging import Finding, findings
from tests.postgres import connect_superuser
from tests.scenarios.processes import RoleProcess
from tests.shop.image import make_image

EXAMPLE = Path(__file__).parents[2] / "examples" / "shop" / "manifests.yaml"
SETTLE_SECONDS = 90.0
OWNER = "reconciler/owner"
CONTAINERS = ("shop-orders", "shop-billing", "shop-printer")
_MARK = re.compile(r'reconciler: (\{"key":"([0-9a-f]+)".*?\})\'')


class EngineEventRecorder:
    """Records the container events of an Engine, which loses them when it is killed."""

    def __init__(self, admin: EngineAdmin) -> None:
        self.events: list[dict[str, Any]] = []
        self._admin = admin
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        since = "0"
        expected = '{"type":["container"],"event":["create","destroy"]}'
        event_ids: set[tuple[int, str]] = set()
        while not self._ended.is_set():
            query = {"since": since, "filters": expected}
            with (
                contextlib.suppress(httpx.HTTPError),
                self._admin.http.stream("GET", "/events", params=query) as response,
            ):
                for line in response.iter_lines():
                    event = msgspec.json.decode(line)
                    event_key = (event["timeNano"], event["Actor"]["ID"])
                    if event_key not in event_ids:
                        event_ids.add(event_key)
                        self.events.append(event)
                    since = f"{event['timeNano'] // 10**9}.{event['timeNano'] % 10**9:09d}"
            self._ended.wait(0.02)

    def close(self) -> None:
        self._ended.set()


@dataclass
class RunRecord:
    """The counts and problems of a run."""

    seed: int
    fault_counts: Counter[str] = field(default_factory=Counter[str])
    creations: int = 0
    events: int = 0
    settle_seconds: float = 0.0
    problems: list[str] = field(default_factory=list[str])

    def __str__(self) -> str:
        faults = ", ".join(f"{name} {count}" for name, count in sorted(self.fault_counts.items()))
        lines = [
            f"seed {self.seed}: {self.events} events, {self.creations} containers were created,"
            f" settled in {self.settle_seconds:.1f} s; {faults}",
            *(f"  FOUND {each}" for each in self.problems),
        ]
        return "\n".join(lines)


class Shop:
    """The bus, Engine, server and roles of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bus = EmbeddedServer()
        self.engine = DockerEngine(isolated=True)
        self.postgres = Postgres("log_statement=all", "fsync=off", "log_line_prefix=%m [%p] ")
        self.manifests = [
            msgspec.convert(each, Manifest) for each in yaml.safe_load_all(EXAMPLE.read_text())
        ]
        self.removed_by_hand: set[str] = set()
        self.roles: dict[str, RoleProcess] = {}
        self.client: Client
        self.nc: Connection
        self.docker: EngineAdmin
        self.event_recorder: EngineEventRecorder
        self._logs = itertools.count()

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Shop]:
        """Start everything, declare the shop, and stop everything afterward."""
        self.folder.chmod(0o755)  # as root PostgreSQL runs as another user
        try:
            await self.bus.start(self.folder / "nats")
            await self.engine.start(self.folder / "docker")
            await self.postgres.start(self.folder / "postgres")
            self.docker = EngineAdmin(self.engine.endpoint)
            await asyncio.to_thread(make_image, self.docker)
            self.event_recorder = EngineEventRecorder(EngineAdmin(self.engine.endpoint))
            self.nc = await connect_to_bus(self.bus.url, name="shop")
            await initialize(self.nc)
            for role in ROLES:
                self.start_role(role)
            async with connect(self.bus.url, source="shop") as self.client:
                try:
                    await self.configure()
                    await self.retry(lambda: self.client.declare_many(self.manifests))
                    yield self
                finally:
                    self.event_recorder.close()
                    await self.nc.close()
        finally:
            for each in self.roles.values():
                await asyncio.to_thread(each.kill)
            if self.engine.is_running:
                await asyncio.to_thread(self.docker.remove_all, "")
            await self.engine.stop()
            await self.postgres.stop()
            await self.bus.kill()

    async def configure(self) -> None:
        configs = {
            "docker": {"endpoint": self.engine.endpoint, "leastResyncSeconds": 0.5},
            "postgres": {"endpoint": self.postgres.endpoint},
        }
        retry = {"initialSeconds": 0.2, "maxSeconds": 1.0}
        # Only the shop's objects, without grants to all roles.
        allow = {"users": ["0"], "networks": ["host"]}
        common = {"allow": allow, "resyncSeconds": 1, "retry": retry, "scope": {"prefix": "shop"}}
        manifests = [
            Manifest(
                "reconciler/v1",
                "ProviderConfig",
                Metadata(name, "system"),
                {"provider": name, **common, **spec},
            )
            for name, spec in configs.items()
        ]
        await self.retry(lambda: self.client.declare_many(manifests))

    def start_role(self, role: Any) -> None:
        log = self.folder / "logs" / f"{role}-{next(self._logs)}.log"
        secrets = str(self.folder / "secrets")
        self.roles[role] = RoleProcess(role, self.bus.url, log, RECONCILER_SECRETS=secrets)

    async def retry(self, do: Callable[[], Awaitable[Any]]) -> Any:
        """Repeat a request until a reply arrives, because the decider may be dead."""
        while True:
            with contextlib.suppress(WaitTimeoutError):
                return await do()

    async def wait_until_no_problems(
        self, problems: Callable[[], Awaitable[list[str]]]
    ) -> tuple[list[str], float]:
        """Wait until there are no problems, or until the timeout."""
        began = time.monotonic()
        while True:
            try:
                remaining_problems = await problems()
            except (psycopg.Error, httpx.HTTPError, OSError) as error:
                remaining_problems = [f"check failed: {error}"]
            if not remaining_problems or time.monotonic() - began > SETTLE_SECONDS:
                return remaining_problems, time.monotonic() - began
            await asyncio.sleep(0.3)

    # --- problems of the final state

    async def find_differences(self) -> list[str]:
        """Compare Docker and PostgreSQL with the example: objects, their content and labels."""
        rows = {row.key: row for row in await self.client.statuses("default")}
        problems_found = [
            f"{each.key} is {row.outcome if row else 'missing'}: {row.message if row else ''}"
            for each in self.manifests
            if (row := rows.get(each.key)) is None or row.outcome != "Converged"
        ]
        return problems_found or [
            *await asyncio.to_thread(self._containers_problems),
            *await self._database_problems(),
        ]

    def _containers_problems(self) -> Iterable[str]:
        expected_manifests = {
            f"/{each.metadata.name}": each for each in self.manifests if each.kind == "Container"
        }
        listed = self.docker.containers("")
        names = sorted(each["Names"][0] for each in listed)
        if names != sorted(expected_manifests):
            yield f"containers are {names}"
            return
        password = (self.folder / "secrets" / "default" / "shop-app-password").read_text()
        for name, manifest in expected_manifests.items():
            container = self.docker.inspect(name[1:])
            if container is None:  # replaced since the listing
                yield f"{name} is missing"
                continue
            labels, state = container["Config"]["Labels"], container["State"]
            if labels.get("team") != manifest.metadata.labels["team"]:
                yield f"{name} has the labels {labels}"
            if not labels.get(OWNER, "").endswith(f".default.Container{name.replace('/', '.')}"):
                yield f"{name} is labeled for {labels.get(OWNER)}"
            if not state["Running"] or state["Paused"]:
                yield f"{name} is {state['Status']}"
            env = dict(each.split("=", 1) for each in container["Config"]["Env"])
            connection = (env["PGPORT"], env["PGDATABASE"], env["PGUSER"], env["PGPASSWORD"])
            if connection != (str(self.postgres.port), "shop", "shop-app", password):
                yield f"{name} has a different database, role or password"
            if "WAVE" in manifest.spec["env"] and env.get("WAVE") != manifest.spec["env"]["WAVE"]:
                yield f"{name} has wave {env.get('WAVE')}"
        volumes = [
            each["Name"] for each in self.docker.http.get("/volumes").json()["Volumes"] or ()
        ]
        if volumes != ["shop-receipts"]:
            yield f"volumes are {volumes}"
        elif (self.docker.volume("shop-receipts") or {})["Labels"].get("team") != "shop":
            yield "the volume has different labels"

    async def _database_problems(self) -> list[str]:
        roles = (
            "SELECT rolname, shobj_description(oid, 'pg_authid') FROM pg_roles"
            " WHERE rolname !~ '^pg_' AND rolname <> 'postgres' ORDER BY 1"
        )
        bases = (
            "SELECT datname, shobj_description(oid, 'pg_database') FROM pg_database"
            " WHERE datname !~ '^(template|postgres$)' ORDER BY 1"
        )
        acl = (
            "SELECT string_agg(privilege_type, ' ' ORDER BY privilege_type) FROM pg_database,"
            " aclexplode(datacl), pg_roles r WHERE datname = 'shop' AND grantee = r.oid"
            " AND rolname = 'shop-app'"
        )
        uses = (
            "SELECT string_agg(privilege_type, ' ' ORDER BY privilege_type) FROM pg_namespace,"
            " aclexplode(nspacl) WHERE nspname = 'public' AND grantee = '\"shop-app\"'::regrole"
        )
        names_found: list[str] = []
        for query, names in ((roles, ["shop-app", "shop-owner"]), (bases, ["shop"])):
            rows = await self.query(query)
            if [name for name, _ in rows] != names:
                names_found.append(f"{[name for name, _ in rows]} and not {names}")
            for name, comment in rows:
                mark = read_mark(comment, Mark)
                if mark is None or mark.labels.get("team") != "shop":
                    names_found.append(f"{name} is marked {comment}")
        if names_found:
            return names_found
        if (granted := await self.query(acl)) != [("CONNECT TEMPORARY",)]:
            names_found.append(f"granted is {granted}")
        if (granted := await self.query(uses, "shop")) != [("CREATE USAGE",)]:
            names_found.append(f"granted on the schema is {granted}")
        return names_found or await self._orders_problems()

    async def _orders_problems(self) -> list[str]:
        """Check that the containers still bill orders with SQL."""
        query = "SELECT count(*) FROM orders WHERE billed"
        try:
            rows_before = await self.query(query, "shop")
            await asyncio.sleep(2.5)
            return [] if await self.query(query, "shop") > rows_before else ["no order is billed"]
        except psycopg.errors.UndefinedTable:
            return ["the table orders does not exist"]

    async def find_leftovers(self) -> list[str]:
        """Return the remaining objects and resources."""
        rows = await self.client.statuses("default")
        held = [row.key for row in rows if row.outcome == "Held" and row.reason == "DataLoss"]
        if held:
            with contextlib.suppress(WaitTimeoutError):
                await self.client.approve_many(held, hold="DataLoss", timeout_seconds=2)
        problems_found = [
            f"{row.key} is {row.outcome}: {row.message}"
            for row in rows
            if row.outcome not in ("Deleted", "Unowned")
        ]
        problems_found += [each["Names"][0] for each in self.docker.containers("")]
        problems_found += [
            each["Name"] for each in self.docker.http.get("/volumes").json()["Volumes"] or ()
        ]
        problems_found += [
            name
            for (name,) in await self.query(
                "SELECT rolname FROM pg_roles WHERE rolname !~ '^pg_' AND rolname <> 'postgres'"
                " UNION SELECT datname FROM pg_database WHERE datname !~ '^(template|postgres$)'"
            )
        ]
        problems_found += [each.name for each in (self.folder / "secrets").rglob("shop*")]
        return problems_found

    async def query(self, query: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        async with await connect_superuser(self.postgres, database) as connection:
            cursor = await connection.execute(sql.SQL(query))  # pyright: ignore[reportArgumentType]
            return await cursor.fetchall() if cursor.description else []

    # --- problems of the history

    async def find_unexplained_effects(self) -> list[str]:
        """Judge the log, then compare it with the records of the Engine and the server."""
        history = await read_bus(self.nc)
        effects = effects_of(list(self._container_creations()))
        history = dataclasses.replace(history, effects=effects, by_hand=CONTAINERS)
        checks: list[Finding | str] = [*findings(history)]
        checks += self._unknown_effects(history)
        return list(map(str, checks))

    def _container_creations(self) -> Iterable[JournalEntry]:
        """Return the creations that the Engine reported, as journal entries."""
        deleted_uids: set[str] = set()
        uids_by_key: dict[str, str] = {}
        for number, event in enumerate(list(self.event_recorder.events), start=1):
            uid, attributes = event["Actor"]["ID"], event["Actor"]["Attributes"]
            if event["Action"] == "destroy":
                deleted_uids.add(uid)
                continue
            key = attributes.get(WRITTEN_BY)
            if (
                key in uids_by_key
                and uids_by_key[key] in deleted_uids
                and uids_by_key[key] in self.removed_by_hand
            ):
                continue  # objects that a person removed between two attempts are recreated
            if key is not None:
                uids_by_key[key] = uid
            moment = datetime.fromtimestamp(event["timeNano"] / 1e9, UTC).isoformat()
            yield JournalEntry(number, moment, "POST", attributes["name"], uid, key)

    def _unknown_effects(self, history: History) -> Iterable[str]:
        decided = [
            each.event.data.action
            for each in history.log
            if isinstance(each.event.data, ActionDecided)
        ]
        keys = {each.idempotency_key for each in decided}
        deleted = {each.uid for each in decided if each.operation == "Delete"}
        created_names = {each.external_name for each in decided if each.operation == "Create"}
        for event in self.event_recorder.events:
            uid, attributes = event["Actor"]["ID"], event["Actor"]["Attributes"]
            if event["Action"] == "create" and attributes.get(WRITTEN_BY) not in keys:
                yield f"container {attributes['name']} was created without a decision"
            if event["Action"] == "destroy" and uid not in deleted | self.removed_by_hand:
                yield f"container {attributes['name']} was removed without a decision"
        for each in self.docker.containers(""):  # includes those whose events were lost
            if each["Labels"].get(WRITTEN_BY) not in keys:
                yield f"container {each['Names'][0]} exists without a decision"
        log = self.postgres.log.read_text(errors="replace")
        for key in {key for _mark, key in _MARK.findall(log)} - keys:
            yield f"the server was sent a mark with key {key} without a decision"
        for name in set(re.findall(r'CREATE ROLE "([^"]+)"', log)) - created_names:
            yield f"role {name} was created without a decision"
        for name in set(re.findall(r'RENAME TO "([^"]+)"', log)) - created_names:
            yield f"database {name} was created without a decision"


class Killer:
    """Injects faults one after another, from a deck that is reshuffled when it is empty."""

    def __init__(self, shop: Shop, seed: int, record: RunRecord) -> None:
        self._shop, self._record = shop, record
        self._random = random.Random(seed)
        self._injectors: dict[str, Callable[[], Awaitable[None]]] = {
            **{f"{role} killed": lambda role=role: self._kill_role(role) for role in ROLES},
            "dockerd killed": self._kill_dockerd,
            "postmaster killed": self._kill_postmaster,
            "backend killed": self._kill_backend,
            "container killed": lambda: self._post_to_container("kill"),
            "container paused": lambda: self._post_to_container("pause"),
            "container removed": self._remove_container,
            "grant revoked": self._revoke,
            "password changed": self._change_password,
            "container changed": self._declare_change,
        }
        self._deck: list[str] = []
        self._wave = 0

    async def run_rounds(self, count: int, *, without: frozenset[str] = frozenset()) -> None:
        for _ in range(count):
            self._deck = self._deck or self._random.sample(
                sorted(self._injectors), len(self._injectors)
            )
            fault = self._deck.pop()
            if fault in without:
                continue
            with contextlib.suppress(psycopg.Error):
                await self._injectors[fault]()
            self._record.fault_counts[fault] += 1
            await asyncio.sleep(self._random.uniform(0.0, 0.8))

    async def _kill_role(self, role: str) -> None:
        await asyncio.to_thread(self._shop.roles[role].kill)
        await asyncio.sleep(self._random.uniform(0, 0.3))
        self._shop.start_role(role)

    async def _kill_dockerd(self) -> None:
        response = await asyncio.to_thread(self._shop.docker.http.get, "/containers/json?all=true")
        await self._shop.engine.kill()
        _thaw([each["Id"] for each in response.json()])
        await self._shop.engine.start(self._shop.folder / "docker")

    async def _kill_postmaster(self) -> None:
        await self._shop.postgres.kill()
        await self._shop.postgres.start(self._shop.folder / "postgres")

    async def _kill_backend(self) -> None:
        query = (
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
            " AND pid <> pg_backend_pid() ORDER BY pid"
        )
        pids = [pid for (pid,) in await self._shop.query(query)]
        if pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._random.choice(pids), signal.SIGKILL)

    async def _post_to_container(self, what: str) -> None:
        name = self._random.choice(CONTAINERS)
        await asyncio.to_thread(self._shop.docker.http.post, f"/containers/{name}/{what}")

    async def _remove_container(self) -> None:
        name = self._random.choice(CONTAINERS)
        container = await asyncio.to_thread(self._shop.docker.inspect, name)
        if container is not None:
            self._shop.removed_by_hand.add(container["Id"])
            path = f"/containers/{container['Id']}"
            await asyncio.to_thread(
                lambda: self._shop.docker.http.delete(path, params={"force": "true"})
            )

    async def _revoke(self) -> None:
        await self._shop.query('REVOKE ALL ON DATABASE shop FROM "shop-app"')

    async def _change_password(self) -> None:
        await self._shop.query("ALTER ROLE \"shop-app\" PASSWORD 'guessed'")

    async def _declare_change(self) -> None:
        self._wave += 1
        container_name = self._random.choice(CONTAINERS)
        (manifest,) = [
            each for each in self._shop.manifests if each.metadata.name == container_name
        ]
        manifest.spec["env"]["WAVE"] = str(self._wave)
        await self._shop.client.publish([manifest])


async def chaos(folder: Path, *, seed: int, rounds: int) -> RunRecord:
    """Run the chaos test, and return its record."""
    record = RunRecord(seed)
    async with Shop(folder).open() as shop:
        killer = Killer(shop, seed, record)
        await killer.run_rounds(rounds // 3)  # while the shop is created
        record.problems, _ = await shop.wait_until_no_problems(shop.find_differences)
        await killer.run_rounds(rounds)
        record.problems, record.settle_seconds = await shop.wait_until_no_problems(
            shop.find_differences
        )
        record.problems += (await shop.wait_until_no_problems(shop.find_unexplained_effects))[0]
        if not record.problems:
            order = [
                each.key for each in shop.manifests
            ]  # the database first, which is the wrong order
            await shop.retry(lambda: shop.client.withdraw_many(order))
            out_of_band = {
                "container removed",
                "container changed",
                "grant revoked",
                "password changed",
            }
            await killer.run_rounds(rounds // 3, without=frozenset(out_of_band))
            remaining, seconds = await shop.wait_until_no_problems(shop.find_leftovers)
            record.settle_seconds += seconds
            record.problems += remaining
            record.problems += (await shop.wait_until_no_problems(shop.find_unexplained_effects))[0]
        record.creations = sum(each["Action"] == "create" for each in shop.event_recorder.events)
        record.events = len((await read_bus(shop.nc)).log)
    return record


def main() -> int:
    """Run the chaos test from the command line."""
    parser = argparse.ArgumentParser(description="Run the shop during random kills.")
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="seed of the random choices"
    )
    parser.add_argument("--rounds", type=int, default=100, help="number of faults (%(default)d)")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with short_folder() as folder:
        record = asyncio.run(chaos(folder, seed=options.seed, rounds=options.rounds))
        print(record)
        if record.problems:
            log_folder = Path(f"{folder}-logs")
            shutil.copytree(folder / "logs", log_folder)
            print(f"  the logs are in {log_folder}", file=sys.stderr)
    return 1 if record.problems else 0


if __name__ == "__main__":
    sys.exit(main())


def _thaw(containers: Iterable[str]) -> None:
    """Thaw the cgroups that a killed Engine left frozen; runc cannot start a container there.

    This requires root on the Engine's machine.
    """
    for container in containers:
        for path in Path("/sys/fs/cgroup").glob(f"*/*/{container}/freezer.state"):
            path.write_text("THAWED")
        for path in Path("/sys/fs/cgroup").glob(f"*/*{container}*/cgroup.freeze"):
            path.write_text("0")
