"""The systems under test: a bus, an Engine, a PostgreSQL server, and one `reconciler up`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
from msgspec.structs import replace
from psycopg import sql

from benchmarks.converge.stack import ReconcilerProcess
from events.allow import ROOT, Allow
from events.manifest import RECONCILER_API_VERSION, Fields, Manifest, Metadata
from events.names import SYSTEM_NAMESPACE, ResourceKey
from events.provider_config import PROVIDER_CONFIG_KIND, Limits, ProviderConfigSpec, Scope
from infra.components.docker_engine import DockerEngine
from infra.components.postgres import Postgres
from infra.embedded import EmbeddedServer
from reconciler.sdk import Client, client_on
from reconciler.wiring import open_connection
from tests.engines import EngineAdmin
from tests.folders import short_folder
from tests.postgres import Superuser

LONG_RESYNC_SECONDS = 3_600.0
TIMEOUT_SECONDS = 300.0
MIN_RESYNC_SECONDS = 0.5
"""Minimum time between a listing and one that an event triggers, as in `up --with docker`."""

CONCURRENCY = Limits().concurrency
REST_SECONDS = 1.5

_CALL = re.compile(r'time="([^"]+)" level=debug msg="Calling (\w+) (?:/v[\d.]+)?([^"?]*)')
_ID = re.compile(r"(?<=^/containers/)(?!json$|create$)[^/]+")
_STATEMENT = re.compile(r"^\S* LOG: +(?:statement|execute [^:]*): *(.*)")
_TICKS = os.sysconf("SC_CLK_TCK")


class Systems:
    """The running systems, with direct access to them and their logs."""

    def __init__(self, engine: DockerEngine, postgres: Postgres, client: Client) -> None:
        self.engine = engine
        self.postgres = postgres
        self.client = client
        self.admin = EngineAdmin(engine.endpoint)
        self.superuser = Superuser(postgres)
        self.image = self.admin.import_image("bench:1", 'CMD ["/bin/sleep", "1000000"]')
        self.http: aiohttp.ClientSession
        self.pids: Mapping[str, int] = {}

    # --- declarations

    async def configure(
        self, name: str, provider: str, prefix: str, resync_seconds: float = LONG_RESYNC_SECONDS
    ) -> None:
        """Declare a configuration like that of `up --with`, but for a prefix."""
        system = self.engine if provider == "docker" else self.postgres
        scope = Scope(prefix=prefix)
        spec = ProviderConfigSpec(
            provider, system.endpoint, scope=scope, resync_seconds=resync_seconds
        )
        if provider == "docker":
            allow = Allow(users=(ROOT,))
            spec = replace(spec, least_resync_seconds=MIN_RESYNC_SECONDS, allow=allow)
        fields = msgspec.to_builtins(spec, str_keys=True)
        metadata = Metadata(name, SYSTEM_NAMESPACE)
        config = Manifest(RECONCILER_API_VERSION, PROVIDER_CONFIG_KIND, metadata, fields)
        await self.client.declare(config)

    async def declare(self, manifests: Sequence[Manifest], generation: int = 1) -> float:
        """Declare resources, and return the seconds until all are ready."""
        began = time.perf_counter()
        await self.client.publish(manifests, timeout_seconds=TIMEOUT_SECONDS)
        expected = {each.key: generation for each in manifests}
        outcomes = await self.client.wait_for_many(expected, timeout_seconds=TIMEOUT_SECONDS)
        seconds = time.perf_counter() - began
        failed = [each for each in outcomes.values() if each.outcome != "Converged"]
        assert not failed, failed[0]
        return seconds

    async def withdraw(self, keys: Sequence[ResourceKey], generation: int = 1) -> float:
        """Withdraw resources, and return the seconds until all are deleted."""
        began = time.perf_counter()
        await self.client.withdraw_many(keys, timeout_seconds=TIMEOUT_SECONDS)
        expected = dict.fromkeys(keys, generation)
        await self.client.wait_for_many(
            expected, outcomes=["Deleted"], timeout_seconds=TIMEOUT_SECONDS
        )
        return time.perf_counter() - began

    # --- direct access

    async def call_engine(self, method: str, path: str, body: object = None, **query: str) -> bytes:
        """Call the Engine directly; raises if it rejects the request."""
        url = f"http://engine/v1.41{path}"
        async with self.http.request(method, url, json=body, params=query) as response:
            content = await response.read()
            assert response.status < 400 or response.status == 404, content
            return content

    async def execute_sql(self, text: str, *names: str) -> object:
        """Execute a statement with identifiers as superuser, and return the first value."""
        composed = sql.SQL(text).format(*map(sql.Identifier, names))  # pyright: ignore[reportArgumentType]
        return await self.superuser.value(composed)

    # --- requests, from the systems' own logs

    def calls_since(self, mark: int) -> Counter[str]:
        """Count the calls to the Engine since a mark, without IDs."""
        return Counter(f"{method} {_ID.sub('*', path)}" for _, method, path in self._calls(mark))

    def listing_seconds(self, mark: int) -> list[float]:
        """Return the duration of each listing since a mark, until its last read."""
        listings: list[tuple[float, float]] = []
        for timestamp, method, path in self._calls(mark):
            at = _seconds(timestamp)
            if (method, path) == ("GET", "/containers/json"):
                listings.append((at, at))
            elif listings and path.startswith("/containers/"):
                listings[-1] = (listings[-1][0], at)
        return [last - first for first, last in listings]

    def _calls(self, mark: int) -> Iterable[tuple[str, str, str]]:
        with self.engine.log.open("rb") as log:
            log.seek(mark)
            for line in log:
                if (call := _CALL.match(line.decode(errors="replace"))) is not None:
                    yield call[1], call[2], call[3]

    def statements_since(self, mark: int) -> list[str]:
        """Return the statements that PostgreSQL executed since a mark."""
        with self.postgres.log.open("rb") as log:
            log.seek(mark)
            text = log.read().decode(errors="replace").replace("\n\t", " ")
        lines = text.splitlines()  # the later lines of a statement begin with tabs
        return [match[1] for line in lines if (match := _STATEMENT.match(line)) is not None]

    def marks(self) -> tuple[int, int]:
        """Return the current sizes of the Engine's and PostgreSQL's logs."""
        return self.engine.log.stat().st_size, self.postgres.log.stat().st_size

    def cpu(self) -> dict[str, float]:
        """Return the CPU seconds of each system so far, including exited children."""
        return {name: _cpu_of_tree(pid) for name, pid in self.pids.items()}


@asynccontextmanager
async def running() -> AsyncGenerator[Systems]:
    """Start all systems in an empty folder, and stop them afterwards."""
    with short_folder() as folder:
        folder.chmod(0o755)  # if this process is root, PostgreSQL runs as another user
        bus = EmbeddedServer()
        # Their logs contain the requests of all clients.
        engine = DockerEngine("--log-level=debug", isolated=True)
        postgres = Postgres("log_statement=all", "log_line_prefix=%a ")
        up: ReconcilerProcess | None = None
        systems: Systems | None = None
        try:
            url = await bus.start(folder / "nats")
            await engine.start(folder / "docker")
            await postgres.start(folder / "postgres")
            up = ReconcilerProcess("decider,worker,observer,projector", url, folder / "up")
            await up.start()
            connector = aiohttp.UnixConnector(
                engine.endpoint.removeprefix("unix://"), limit=CONCURRENCY
            )
            async with (
                open_connection(url) as nc,
                client_on(nc, source="benchmark") as client,
                aiohttp.ClientSession(connector=connector) as http,
            ):
                systems = Systems(engine, postgres, client)
                systems.http = http
                systems.pids = {
                    "reconciler": up.pid,
                    "nats-server": bus.pid,
                    "dockerd": _pid_of(folder / "docker" / "docker.pid"),
                    "PostgreSQL": postgres.pid,
                }
                yield systems
                await systems.superuser.close()
        finally:
            if up is not None:
                await up.stop()
            if systems is not None and engine.is_running:
                await asyncio.to_thread(systems.admin.remove_all, "")
            await engine.stop()
            await postgres.stop()
            await bus.stop()


async def wait_until(holds: Callable[[], Awaitable[object]], what: str) -> float:
    """Wait until a condition holds, checked every 5 ms; return the seconds."""
    began = time.perf_counter()
    while not await holds():
        assert time.perf_counter() - began < TIMEOUT_SECONDS, what
        await asyncio.sleep(0.005)
    return time.perf_counter() - began


def manifest(api_version: str, kind: str, name: str, config: str, **spec: object) -> Manifest:
    """Return the manifest of a resource in a configuration."""
    fields: Fields = {"providerConfigRef": {"name": config}, **spec}
    return Manifest(api_version, kind, Metadata(name), fields)


def _pid_of(file: Path) -> int:
    return int(file.read_text())


def _seconds(timestamp: str) -> float:
    """Parse dockerd's time of day, which has nanoseconds."""
    hours, minutes, seconds = timestamp.partition("T")[2].rstrip("Z").split("+")[0].split(":")
    return int(hours) * 3_600 + int(minutes) * 60 + float(seconds)


def _cpu_of_tree(root: int) -> float:
    parents: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            pid = int(stat.parent.name)
            parents.setdefault(int(fields[1]), []).append(pid)
            used[pid] = sum(map(int, fields[11:15])) / _TICKS
    total, waiting = 0.0, [root]
    while waiting:
        pid = waiting.pop()
        total += used.get(pid, 0.0)
        waiting += parents.get(pid, [])
    return total
