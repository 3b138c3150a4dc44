"""Every program in ``examples/`` runs in its own process, as users run it."""

import asyncio
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from reconciler.sdk import Client
from tests.sdk.conftest import Stack, shape
from tests.security.keys import Pair

EXAMPLES = Path(__file__).parents[2] / "examples"
TIMEOUT_SECONDS = 60


async def run(stack: Stack, program: str, *arguments: str, stdin: bytes = b"") -> list[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / program),
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "RECONCILER_NATS_URL": stack.bus_url},
    )
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            out, err = await process.communicate(stdin)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, err.decode()
    return out.decode().splitlines()


async def test_declare_and_wait(stack: Stack, name: str) -> None:
    assert await run(stack, "declare_and_wait.py", name) == [
        f"default/Shape/{name} Red: Converged, generation 1",
        f"default/Shape/{name} Purple: Converged, generation 2",
        f"default/Shape/{name} withdrawn: Deleted, generation 3",
    ]


async def test_follow_outcomes_continues_where_it_stopped(
    stack: Stack, client: Client, name: str
) -> None:
    for color in ("Red", "Green", "Blue"):
        reply = await client.declare(shape(name, color))
        await client.wait_for(shape(name).key, generation=reply.generation)

    first = await run(stack, "follow_outcomes.py", name, "2")
    second = await run(stack, "follow_outcomes.py", name, "1")

    positions = [json.loads(line)["position"] for line in first + second]
    assert positions == sorted(set(positions))
    assert len(positions) == 3


async def test_audit_replay_lists_the_objects_owned_at_a_time(
    stack: Stack, client: Client, name: str
) -> None:
    started_at = datetime.now(UTC)
    await client.declare(shape(name))
    owned = await client.wait_for(shape(name).key, generation=1)
    await client.withdraw(shape(name).key)
    deleted = await client.wait_for(shape(name).key, generation=2)

    def own_lines(lines: list[str]) -> list[str]:
        return [line for line in lines if line.startswith(f"default/Shape/{name} ")]

    second = own_lines(await run(stack, "audit_replay.py", owned.at.isoformat()))
    assert len(second) == 1
    assert f"owned {name} (uid " in second[0]
    assert "Created by" in second[0]
    for moment in (started_at, deleted.at):
        assert not own_lines(await run(stack, "audit_replay.py", moment.isoformat()))


async def test_failure_counts_continue_where_they_stopped(
    stack: Stack, client: Client, name: str, tmp_path: Path
) -> None:
    async def fail_calls(shape_name: str, times: int) -> None:
        faults = {"error_rate": 1, "methods": ["POST"], "name_prefix": name, "remaining": times}
        async with httpx.AsyncClient(base_url=stack.api.url) as api:
            (await api.put("/_faults", json=faults)).raise_for_status()
        reply = await client.declare(shape(shape_name))
        await client.wait_for(shape(shape_name).key, generation=reply.generation)

    file = str(tmp_path / "failures.db")
    await fail_calls(name, 2)
    first = await run(stack, "failure_counts.py", file)
    second = await run(stack, "failure_counts.py", file)
    await fail_calls(f"{name}-b", 1)
    last = await run(stack, "failure_counts.py", file)

    own_line = f"default/Shape/{name}: 2 calls failed"
    assert own_line in first
    assert second[:-1] == first[:-1]
    assert {own_line, f"default/Shape/{name}-b: 1 calls failed"} <= set(last)
    positions = [int(lines[-1].split()[3]) for lines in (first, second, last)]
    assert positions == sorted(positions)


async def test_publish_listing(stack: Stack, client: Client, name: str) -> None:
    objects = [{"name": name, "uid": "1", "fields": {"type": "Square", "color": "Red"}}]
    async with client.outcomes(name=name) as outcomes:
        printed = await run(
            stack, "publish_listing.py", "default", "Shape", stdin=json.dumps(objects).encode()
        )
        assert (await anext(outcomes)).outcome == "Unowned"
    assert printed == ["published 1 objects"]


async def test_plain_nats_uses_none_of_our_packages(stack: Stack, name: str) -> None:
    source = (EXAMPLES / "plain_nats.py").read_text()
    lines = await run(stack, "plain_nats.py", name)

    assert lines[0].startswith("stored in INTAKE at ")
    assert lines[1] == "reply: Accepted, generation 1"
    assert lines[-1] == "outcome: Converged, generation 1"
    for package in ("events", "reconciler", "infra", "projections"):
        assert f"from {package}" not in source
        assert f"import {package}" not in source


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("follow_outcomes.py", []),
        ("follow_outcomes.py", ["name", "many"]),
        ("publish_listing.py", []),
        ("publish_listing.py", ["default"]),
        ("plain_service.py", []),
        ("audit_replay.py", ["yesterday"]),
        ("failure_counts.py", []),
    ],
)
def test_invalid_arguments_print_the_usage(program: str, arguments: list[str]) -> None:
    without_key = {name: text for name, text in os.environ.items() if name != "RECONCILER_NKEY"}
    without_key["RECONCILER_NATS_URL"] = "nats://127.0.0.1:1"
    process = subprocess.run(
        [sys.executable, str(EXAMPLES / program), *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        env=without_key,
        check=False,
    )
    assert process.returncode != 0
    assert "Traceback" not in process.stderr
    assert process.stderr.splitlines()[-1].startswith("usage: ")
    assert f"examples/{program}" in process.stderr


PROGRAMS: list[tuple[str, list[str]]] = [
    ("audit_replay.py", []),
    ("declare_and_wait.py", []),
    ("failure_counts.py", [":memory:"]),
    ("follow_outcomes.py", ["name"]),
    ("plain_nats.py", []),
    ("plain_service.py", []),
    ("publish_listing.py", ["default", "Shape"]),
]


@pytest.mark.parametrize(("program", "arguments"), PROGRAMS)
def test_without_a_server_the_last_line_says_what_to_do(
    program: str, arguments: list[str], tmp_path: Path
) -> None:
    url = "nats://127.0.0.1:1"
    env = {**os.environ, "RECONCILER_NATS_URL": url}
    if program == "plain_service.py":
        env["RECONCILER_NKEY"] = str(Pair.of_user().write(tmp_path / "seed"))
    process = subprocess.run(
        [sys.executable, str(EXAMPLES / program), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        env=env,
        check=False,
    )
    assert (process.returncode, process.stdout) == (1, "")
    assert "Traceback" not in process.stderr
    lines = process.stderr.splitlines()
    for word in (f"cannot reach {url}: ", "`./run up`", "RECONCILER_NATS_URL"):
        assert word in lines[-1]
    if program.startswith("plain"):
        assert len(lines) == 1


def test_every_example_is_tested() -> None:
    tested = Path(__file__).read_text() + '"plain_service.py"'  # in tests/security, with its user
    for program in EXAMPLES.glob("*.py"):
        assert f'"{program.name}"' in tested


@pytest.mark.parametrize(("program", "arguments"), PROGRAMS)
def test_without_the_variable_no_server_is_assumed(program: str, arguments: list[str]) -> None:
    process = subprocess.run(
        [sys.executable, str(EXAMPLES / program), *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        env={name: value for name, value in os.environ.items() if "RECONCILER" not in name},
        check=False,
    )
    assert (process.returncode, process.stdout) == (1, "")
    assert process.stderr.startswith("RECONCILER_NATS_URL is not set; ")
    assert process.stderr.count("\n") == 1
