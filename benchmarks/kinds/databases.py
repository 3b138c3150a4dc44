"""The cost of roles and grants, compared with plain SQL."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from psycopg import sql

from benchmarks.kinds.systems import REST_SECONDS, Systems, manifest, wait_until
from events.manifest import Manifest
from events.names import ResourceKey
from tests.postgres import Connection, connect_superuser

_CONFIG = "bench-sql"
_PREFIX = "bench"
_DATABASE = "base"
_CONNECTIONS = 8
_RESYNC_SECONDS = 1.0


class GrantTimes(msgspec.Struct, frozen=True):
    """Times to create all roles, each with one grant, and to remove them, with one method."""

    method: str
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


async def measure_grants(systems: Systems, count: int, rounds: int) -> list[GrantTimes]:
    """Create the same roles and grants with each method in turn; return the medians."""
    await systems.execute_sql("CREATE DATABASE {}", _DATABASE)
    await systems.configure(_CONFIG, "postgres", _PREFIX)
    connections = [await connect_superuser(systems.postgres) for _ in range(_CONNECTIONS)]
    plain = f"plain SQL, {_CONNECTIONS} connections, grants one by one"
    methods: dict[str, Callable[[int, int], Awaitable[tuple[float, float, float]]]] = {
        "reconciler": lambda count, number: _by_reconciler(systems, count, number),
        plain: lambda count, _: _with_plain_sql(connections, count),
    }
    measurements: dict[str, list[GrantTimes]] = {name: [] for name in methods}
    for number in range(rounds + 1):  # the first round is a warm-up
        for name, run_method in methods.items():
            before = systems.cpu()
            times = await run_method(count if number else 2, number)
            after = systems.cpu()
            used = {each: round(after[each] - before[each], 2) for each in after}
            if number:
                measurements[name].append(GrantTimes(name, *times, used))
    for each in connections:
        await each.close()
    return [_median(each) for each in measurements.values()]


async def _by_reconciler(systems: Systems, count: int, number: int) -> tuple[float, float, float]:
    names = [f"{_PREFIX}-{number}-{each}" for each in range(count)]
    roles = await systems.declare([_role(name) for name in names])
    grants = [_grant(name, "CONNECT") for name in names]
    granted = await systems.declare(grants)
    removed = await systems.withdraw([each.key for each in grants])
    removed += await systems.withdraw([_role(name).key for name in names])
    return roles, granted, removed


async def _with_plain_sql(connections: list[Connection], count: int) -> tuple[float, float, float]:
    names = [f"plain-{each}" for each in range(count)]

    async def run_for_each(*statements: str, concurrency: int = _CONNECTIONS) -> float:
        began, waiting = time.perf_counter(), iter(names)

        async def work(connection: Connection) -> None:
            for name in waiting:
                parameters = {
                    "role": sql.Identifier(name),
                    "mark": sql.Literal(f"created for {name}"),
                }
                async with connection.transaction():
                    for each in statements:
                        text = sql.SQL(each)  # pyright: ignore[reportArgumentType]
                        await connection.execute(text.format(**parameters))

        await asyncio.gather(*map(work, connections[:concurrency]))
        return time.perf_counter() - began

    return (
        await run_for_each("CREATE ROLE {role} LOGIN", "COMMENT ON ROLE {role} IS {mark}"),
        # Concurrent grants on one database fail: "tuple concurrently updated".
        await run_for_each(f"GRANT CONNECT ON DATABASE {_DATABASE} TO {{role}}", concurrency=1),
        await run_for_each(
            f"REVOKE ALL ON DATABASE {_DATABASE} FROM {{role}}", "DROP ROLE {role}", concurrency=1
        ),
    )


def _median(rounds: list[GrantTimes]) -> GrantTimes:
    def median_of(pick: Callable[[GrantTimes], float]) -> float:
        return statistics.median(map(pick, rounds))

    return GrantTimes(
        rounds[0].method,
        median_of(lambda each: each.roles_seconds),
        median_of(lambda each: each.grants_seconds),
        median_of(lambda each: each.removed_seconds),
        {
            name: median_of(lambda each, name=name: each.cpu_seconds[name])
            for name in rounds[0].cpu_seconds
        },
    )


async def measure_repair(systems: Systems, times: int) -> float:
    """Revoke a grant out of band several times; return the median seconds until it is restored.

    PostgreSQL does not report such changes, so the listings, one second apart here, detect it.
    """
    name = f"{_PREFIX}-harmed"
    await systems.declare([_role(name)])
    await systems.declare([_grant(name, "CONNECT")])
    await systems.configure(_CONFIG, "postgres", _PREFIX, resync_seconds=_RESYNC_SECONDS)
    granted = (
        "SELECT 1 FROM pg_database, aclexplode(datacl) WHERE datname = 'base'"
        f" AND grantee = '\"{name}\"'::regrole"
    )

    async def is_restored() -> object:
        return await systems.execute_sql(granted)

    durations: list[float] = []
    for number in range(times):
        await asyncio.sleep(REST_SECONDS + number / times)  # at any time between listings
        await systems.execute_sql(f"REVOKE CONNECT ON DATABASE {_DATABASE} FROM {{}}", name)
        durations.append(await wait_until(is_restored, "the grant is restored"))
    await systems.configure(_CONFIG, "postgres", _PREFIX)
    await asyncio.sleep(2 * _RESYNC_SECONDS)
    return statistics.median(durations)


async def count_statements(systems: Systems) -> Mapping[str, Counter[str]]:
    """Count the statements for each type of change by first word, until the system is idle."""
    name = f"{_PREFIX}-counted"
    keys = [ResourceKey("default", kind, name) for kind in ("Grant", "DatabaseRole")]
    changes: dict[str, Callable[[], Awaitable[object]]] = {
        "role created": lambda: systems.declare([_role(name)]),
        "role changed": lambda: systems.declare([_role(name, 5)], 2),
        "grant created": lambda: systems.declare([_grant(name, "CONNECT")]),
        "grant changed": lambda: systems.declare([_grant(name, "CONNECT", "CREATE")], 2),
        "grant withdrawn": lambda: systems.withdraw(keys[:1], 2),
        "role withdrawn": lambda: systems.withdraw(keys[1:], 2),
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
