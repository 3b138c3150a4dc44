"""What roles and grants cost, beside the same in plain SQL."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from psycopg import sql

from benchmarks.kinds.systems import REST_SECONDS, Systems, manifest, until
from events.manifest import Manifest
from events.names import ResourceKey
from tests.postgres import Connection, connect_superuser

_CONFIG = "bench-sql"
_PREFIX = "bench"
_DATABASE = "base"
_CONNECTIONS = 8
_RESYNC_SECONDS = 1.0


class Granting(msgspec.Struct, frozen=True):
    """How long so many roles took, each with one grant, and to be gone again; by whom."""

    by: str
    roles_seconds: float
    grants_seconds: float
    removed_seconds: float
    cpu_seconds: dict[str, float]


def _role(name: str, limit: int = -1) -> Manifest:
    return manifest("postgres/v1", "DatabaseRole", name, _CONFIG, login=True, connectionLimit=limit)


def _grant(role: str, *privileges: str) -> Manifest:
    created_manifest = manifest("postgres/v1", "Grant", role, _CONFIG, privileges=list(privileges))
    annotations = {"reconciler/external-name": f"{role}@{_DATABASE}"}
    metadata = msgspec.structs.replace(created_manifest.metadata, annotations=annotations)
    return msgspec.structs.replace(created_manifest, metadata=metadata)


async def granting(systems: Systems, count: int, rounds: int) -> list[Granting]:
    """Make the same roles and grants in turns, by each way; the median of each."""
    await systems.sql("CREATE DATABASE {}", _DATABASE)
    await systems.configure(_CONFIG, "postgres", _PREFIX)
    connections = [await connect_superuser(systems.postgres) for _ in range(_CONNECTIONS)]
    plain = f"plain SQL, {_CONNECTIONS} at once, grants one by one"
    ways: dict[str, Callable[[int, int], Awaitable[tuple[float, float, float]]]] = {
        "reconciler": lambda count, number: _by_us(systems, count, number),
        plain: lambda count, _: _plainly(connections, count),
    }
    measurements: dict[str, list[Granting]] = {name: [] for name in ways}
    for number in range(rounds + 1):  # the first is to warm up
        for name, way in ways.items():
            before = systems.cpu()
            times = await way(count if number else 2, number)
            after = systems.cpu()
            used = {each: round(after[each] - before[each], 2) for each in after}
            if number:
                measurements[name].append(Granting(name, *times, used))
    for each in connections:
        await each.close()
    return [_median(each) for each in measurements.values()]


async def _by_us(systems: Systems, count: int, number: int) -> tuple[float, float, float]:
    names = [f"{_PREFIX}-{number}-{each}" for each in range(count)]
    roles = await systems.declared([_role(name) for name in names])
    grants = [_grant(name, "CONNECT") for name in names]
    granted = await systems.declared(grants)
    removed = await systems.withdrawn([each.key for each in grants])
    removed += await systems.withdrawn([_role(name).key for name in names])
    return roles, granted, removed


async def _plainly(connections: list[Connection], count: int) -> tuple[float, float, float]:
    names = [f"plain-{each}" for each in range(count)]

    async def run_for_each(*statements: str, at_once: int = _CONNECTIONS) -> float:
        began, waiting = time.perf_counter(), iter(names)

        async def work(connection: Connection) -> None:
            for name in waiting:
                of = {"role": sql.Identifier(name), "mark": sql.Literal(f"made for {name}")}
                async with connection.transaction():
                    for each in statements:
                        text = sql.SQL(each)  # pyright: ignore[reportArgumentType]
                        await connection.execute(text.format(**of))

        await asyncio.gather(*map(work, connections[:at_once]))
        return time.perf_counter() - began

    return (
        await run_for_each("CREATE ROLE {role} LOGIN", "COMMENT ON ROLE {role} IS {mark}"),
        # Two at once of one database: "tuple concurrently updated".
        await run_for_each(f"GRANT CONNECT ON DATABASE {_DATABASE} TO {{role}}", at_once=1),
        await run_for_each(
            f"REVOKE ALL ON DATABASE {_DATABASE} FROM {{role}}", "DROP ROLE {role}", at_once=1
        ),
    )


def _median(rounds: list[Granting]) -> Granting:
    def of(pick: Callable[[Granting], float]) -> float:
        return statistics.median(map(pick, rounds))

    return Granting(
        rounds[0].by,
        of(lambda each: each.roles_seconds),
        of(lambda each: each.grants_seconds),
        of(lambda each: each.removed_seconds),
        {
            name: of(lambda each, name=name: each.cpu_seconds[name])
            for name in rounds[0].cpu_seconds
        },
    )


async def healing(systems: Systems, times: int) -> float:
    """Revoke a grant by hand so often; return the median until it is back.

    PostgreSQL has no notifications, so the listings, a second apart here, detect it.
    """
    name = f"{_PREFIX}-harmed"
    await systems.declared([_role(name)])
    await systems.declared([_grant(name, "CONNECT")])
    await systems.configure(_CONFIG, "postgres", _PREFIX, resync_seconds=_RESYNC_SECONDS)
    granted = (
        "SELECT 1 FROM pg_database, aclexplode(datacl) WHERE datname = 'base'"
        f" AND grantee = '\"{name}\"'::regrole"
    )

    async def is_back() -> object:
        return await systems.sql(granted)

    took: list[float] = []
    for number in range(times):
        await asyncio.sleep(REST_SECONDS + number / times)  # anywhere between two listings
        await systems.sql(f"REVOKE CONNECT ON DATABASE {_DATABASE} FROM {{}}", name)
        took.append(await until(is_back, "the grant is back"))
    await systems.configure(_CONFIG, "postgres", _PREFIX)
    await asyncio.sleep(2 * _RESYNC_SECONDS)
    return statistics.median(took)


async def statements(systems: Systems) -> Mapping[str, Counter[str]]:
    """Count the statements for each sort of change, by their first word, until all is at rest."""
    name = f"{_PREFIX}-counted"
    keys = [ResourceKey("default", kind, name) for kind in ("Grant", "DatabaseRole")]
    changes: dict[str, Callable[[], Awaitable[object]]] = {
        "role made": lambda: systems.declared([_role(name)]),
        "role changed": lambda: systems.declared([_role(name, 5)], 2),
        "grant made": lambda: systems.declared([_grant(name, "CONNECT")]),
        "grant changed": lambda: systems.declared([_grant(name, "CONNECT", "CREATE")], 2),
        "grant withdrawn": lambda: systems.withdrawn(keys[:1], 2),
        "role withdrawn": lambda: systems.withdrawn(keys[1:], 2),
    }
    counters: dict[str, Counter[str]] = {}
    for change, do in changes.items():
        await asyncio.sleep(REST_SECONDS)
        _, mark = systems.marks()
        await do()
        await asyncio.sleep(REST_SECONDS)
        statements_sent = systems.statements_since(mark)
        counters[change] = Counter(each.split()[0].strip(";").upper() for each in statements_sent)
    return counters
