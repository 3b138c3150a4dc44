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


class Granting(msgspec.Struct, frozen=True):
    """Time to create all roles with one grant each, and to remove them, in one of the ways."""

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


async def measure_grants(systems: Systems, count: int, rounds: int) -> list[Granting]:
    """Create the same roles and grants alternately in each way; return the medians."""
    await systems.execute_sql("CREATE DATABASE {}", _DATABASE)
    await systems.configure(_CONFIG, "postgres", _PREFIX)
    connections = [await connect_superuser(systems.postgres) for _ in range(_CONNECTIONS)]
    plain = f"plain SQL, {_CONNECTIONS} at once, grants one by one"
    ways: dict[str, Callable[[int, int], Awaitable[tuple[float, float, float]]]] = {
        "reconciler": lambda count, number: _by_reconciler(systems, count, number),
        plain: lambda count, _: _with_plain_sql(connections, count),
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
        # Concurrent grants on one database fail: "tuple concurrently updated".
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


async def measure_repair(systems: Systems, times: int) -> float:
    """Revoke a grant out of band several times; return the median seconds until it is restored.

    PostgreSQL has no notifications, so the listings, a second apart here, detect it.
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
        await asyncio.sleep(REST_SECONDS + number / times)  # anywhere between two listings
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
        "role made": lambda: systems.declare([_role(name)]),
        "role changed": lambda: systems.declare([_role(name, 5)], 2),
        "grant made": lambda: systems.declare([_grant(name, "CONNECT")]),
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
