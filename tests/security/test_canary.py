"""An API repeats every secret before and after a rotation, and no secret leaks.

The search covers the bus's files, the output of `up` and of all commands that read, and a backup.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from infra.backup.file import Backup
from infra.secrets import FileSecrets
from reconciler.cli.connection import DATA_DIRECTORY, SECRETS_DIRECTORY, UP_FILE
from reconciler.provider.secrets import SecretKey
from tests.cli.runner import COMMAND, Cli
from tests.security.canary_api import CanaryApi
from tests.security.encodings import encode_in_every_way

PATIENCE_SECONDS = 120
TOKENS = ("tok&en/<7f3a91c2d4>+x", "tok&en/<b85e60f7a9>+y")
PASSWORDS = ("pass'wo rd%41=c4d2e8f1", "pass'wo rd%41=93b7a05e")
SHAPE_COUNT = len(encode_in_every_way(TOKENS[0]))
ROOT_MARKER = ".reconciler-root"


async def test_47_no_secret_is_written_anywhere(tmp_path: Path, cli: Cli) -> None:
    root, token = tmp_path / "files", tmp_path / "token"
    root.mkdir()
    (root / ROOT_MARKER).touch()
    _replace(token, TOKENS[0])
    store = FileSecrets(cli.folder / DATA_DIRECTORY / SECRETS_DIRECTORY)
    await store.write(SecretKey("default", "password"), PASSWORDS[0])
    async with CanaryApi() as api, _up(cli):
        cli.write("story.yaml", _manifests(api.url, token, root, "Red"))
        await asyncio.to_thread(cli.ok, "apply", "-f", "story.yaml")
        await _wait_until(lambda: _read_password(root) == PASSWORDS[0])
        api.secrets.append(PASSWORDS[0])  # as if `up`, which has read it, had sent it
        await _wait_until(lambda: _has_repeated_all(api, TOKENS[0]))

        await store.write(SecretKey("default", "password"), PASSWORDS[1])
        await _wait_until(lambda: _read_password(root) == PASSWORDS[1])
        api.secrets.append(PASSWORDS[1])
        _replace(token, TOKENS[1])
        cli.write("story.yaml", _manifests(api.url, token, root, "Blue"))
        await asyncio.to_thread(cli.ok, "apply", "-f", "story.yaml")
        await _wait_until(lambda: _has_repeated_all(api, TOKENS[1]))
        assert sorted(api.secrets) == sorted([*TOKENS, *PASSWORDS])
        outputs = await asyncio.to_thread(_wait_until_recorded, cli)
        api.newest = (TOKENS[1], PASSWORDS[1])
        outputs |= await asyncio.to_thread(_run_commands, cli)
    outputs |= {str(path): path.read_bytes() for path in _files(cli.folder / DATA_DIRECTORY)}
    outputs |= {name: (cli.folder / name).read_bytes() for name in ("up.out", "up.err")}
    leaks = [
        f"{source}: {name} of {secret}"
        for secret in (*TOKENS, *PASSWORDS)
        for name, needle in _needles(secret).items()
        for source, content in outputs.items()
        if needle in content
    ]
    assert leaks == []
    assert b"listing failed" in outputs["up.err"]
    assert b"you sent ***" in outputs["up.err"]


def _replace(path: Path, content: str) -> None:
    path.with_suffix(".new").write_text(f"{content}\n")
    path.with_suffix(".new").replace(path)


def _read_password(root: Path) -> str:
    file = root / "password"
    return file.read_text() if file.exists() else ""


def _has_repeated_all(api: CanaryApi, token: str) -> bool:
    """Return whether the API has repeated all secrets after writing each shape under a token."""
    writes = [api.refused[token, f"s{number}"] for number in range(SHAPE_COUNT)]
    is_written = all(count > number % 2 for number, count in enumerate(writes))
    return is_written and api.listings[len(api.secrets)] > 2


def _manifests(url: str, token: Path, root: Path, color: str) -> str:
    frequent = {"resyncSeconds": 0.3, "retry": {"initialSeconds": 0.05, "maxSeconds": 0.2}}
    frequent |= {"breaker": {"failures": 10_000}}
    shapes = {"provider": "shapes", "endpoint": url, "credentialsRef": {"file": str(token)}}
    files = {"provider": "file", "endpoint": root.as_uri()}
    secret = {"content": {"$secret": "password"}, "providerConfigRef": {"name": "files"}}
    documents = [
        _manifest("reconciler/v1", "ProviderConfig", "default", {**shapes, **frequent}, "system"),
        _manifest("reconciler/v1", "ProviderConfig", "files", {**files, **frequent}, "system"),
        _manifest("files/v1", "File", "password", secret),
    ]
    for number in range(SHAPE_COUNT):
        spec = {"type": "Square", "color": color}
        documents.append(_manifest("shapes/v1", "Shape", f"s{number}", spec))
    return "\n---\n".join(documents)


def _manifest(
    version: str, kind: str, name: str, spec: Mapping[str, object], namespace: str = "default"
) -> str:
    metadata = {"name": name, "namespace": namespace}
    return json.dumps(
        {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": dict(spec)}
    )


@asynccontextmanager
async def _up(cli: Cli) -> AsyncGenerator[None]:
    """Run all roles, and write their output to files."""
    command = [*COMMAND, "up", "--port", "0", "--no-api", "--log-level", "debug"]
    with (cli.folder / "up.out").open("wb") as out, (cli.folder / "up.err").open("wb") as err:
        process = subprocess.Popen(  # noqa: ASYNC220 - only starts the process
            command, cwd=cli.folder, stdout=out, stderr=err, env=cli.environment()
        )
    try:
        await _wait_until((cli.folder / DATA_DIRECTORY / UP_FILE).exists)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, PATIENCE_SECONDS)


async def _wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(PATIENCE_SECONDS * 10):
        if condition():
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"condition not met within {PATIENCE_SECONDS} s")


def _wait_until_recorded(cli: Cli) -> dict[str, bytes]:
    """Wait until the second generation of each shape has an outcome; return the output."""
    while True:
        result = cli.ok("get", "Shape", "-o", "json")
        rows = [each for each in result.json if each["metadata"]["name"] != "stray"]
        if len(rows) == SHAPE_COUNT and all(map(_is_settled, rows)):
            return {"get json": result.out.encode()}


def _is_settled(row: Any) -> bool:
    status = row["status"]
    return row["metadata"]["generation"] == 2 and status.get("outcome") in ("Converged", "Failed")


def _run_commands(cli: Cli) -> dict[str, bytes]:
    """Return the output of each command that reads."""
    commands = [
        ("get", "-o", "json"),
        ("get", "-o", "yaml"),
        ("get", "Shape", "s0", "-o", "yaml"),
        ("describe", "Shape/stray"),
        ("describe", "Shape/s0", "-o", "json"),
        ("history", "Shape/s0", "-o", "json"),
        ("history", "Shape/s1"),
        ("why", "Shape/s0"),
        ("events", "-o", "json"),
        ("doctor", "--log-level", "debug"),
        ("plan", "-f", "story.yaml", "--refresh", "--debug"),
        ("backup", "log.backup"),
    ]
    outputs: dict[str, bytes] = {}
    for command in commands:
        result = cli.run(*command)
        assert result.out, result.err
        outputs[" ".join(command)] = f"{result.out}\n{result.err}".encode()
    assert "you sent ***" in outputs["history Shape/s1"].decode()
    assert "you sent ***" in outputs["doctor --log-level debug"].decode()
    backup = Backup(cli.folder / "log.backup")
    for kind, blocks in (("events", backup.events()), ("declarations", backup.declarations())):
        messages = [message for block in blocks for message in block]
        outputs[f"backup's {kind}"] = b"\n".join(
            [msgspec.json.encode(msgspec.structs.replace(each, payload=b"")) for each in messages]
            + [each.payload for each in messages]
        )
    assert b"you sent ***" in outputs["backup's events"]
    return outputs


def _files(folder: Path) -> Iterator[Path]:
    for path, _folders, names in os.walk(folder):
        if SECRETS_DIRECTORY not in Path(path).relative_to(folder).parts:
            yield from (Path(path) / name for name in names)


def _needles(secret: str) -> dict[str, bytes]:
    """Return the bytes that must not appear: every encoding, also within JSON, and the core."""
    needles: dict[str, bytes] = {}
    for name, encoded in encode_in_every_way(secret).items():
        escaped = json.dumps(encoded, ensure_ascii=False)[1:-1]
        needles |= {name: encoded.encode(), f"{name}, escaped": escaped.encode()}
        needles[f"{name}, escaped twice"] = json.dumps(escaped, ensure_ascii=False)[1:-1].encode()
    core = max("".join(each if each.isalnum() else " " for each in secret).split(), key=len)
    needles |= {"its core": core.encode(), "its core in hexadecimal": core.encode().hex().encode()}
    for before in range(3):
        encoded = base64.b64encode(b"." * before + core.encode())
        needles[f"its core in Base64, {before}"] = encoded[before + 1 : -4]
    return needles
