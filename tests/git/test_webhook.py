"""Authentic webhooks trigger a read of their repository's sources; others have no effect."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from infra import webhook as webhook_module
from infra.webhook import MAX_BODY_BYTES, MAX_UNVERIFIED_BYTES, repository_key, webhook
from reconciler.cli.webhook import build_server
from tests.cli.runner import Cli, shape, up, wait_until
from tests.git.repositories import Repository
from tests.host_access import allow_more

SECRET = "a secret of enough characters"
UNSIGNED = {"X-Hub-Signature-256": "sha256=0"}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Cli]:
    cli = Cli(tmp_path / "machine")
    cli.folder.mkdir()
    (cli.folder / "secret").write_text(SECRET + "\n")
    with up(cli, "--with", "composition", "--resync", "0.5"):
        yield cli


def test_a_push_is_read_immediately(folder: Cli, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "Acme" / "shop.git")
    repository.write({"a.yaml": shape("a")})
    repository.commit()
    spec = {
        "providerConfigRef": {"name": "composition"},
        "url": repository.url,
        "intervalSeconds": 3600,
    }
    source = {"apiVersion": "git/v1", "kind": "GitSource", "metadata": {"name": "shop"}}
    allow_more(folder, "composition", addresses=repository.url)
    folder.ok("apply", "-f", "-", "--wait", text=json.dumps({**source, "spec": spec}))
    assert names(folder) == ["a"]
    start = ("webhook", "--secret-file", "secret", "--port", "0")
    server, other_server = folder.start(*start), folder.start(*start, "--namespace", "billing")
    url, other_url = address(server), address(other_server)
    try:
        payload = {"repository": {"clone_url": repository.url.removesuffix(".git")}}
        body = json.dumps(payload).encode()
        signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        for headers in ({}, {"X-Hub-Signature-256": "sha256=0"}, {"X-Gitlab-Token": "guessed"}):
            assert httpx.post(url, content=body, headers=headers).status_code == 401
        assert httpx.get(url).status_code == 405
        token = {"X-Gitlab-Token": SECRET}
        assert httpx.post(url, content=b"{}", headers=token).status_code == 400
        assert httpx.post(url, content=b"[", headers=token).status_code == 400
        large = b" " * (MAX_BODY_BYTES + 1)
        assert httpx.post(url, content=large, headers=token).status_code == 413
        other_response = httpx.post(
            url, json={"project": {"git_ssh_url": "git@h:o/r"}}, headers=token
        )
        assert (other_response.status_code, other_response.json()) == (202, {"lookedAt": []})

        repository.write({"b.yaml": shape("b")})
        repository.commit()
        response = httpx.post(
            url, content=body, headers={"X-Hub-Signature-256": f"sha256={signature}"}
        )
        assert response.json() == {"lookedAt": ["default/GitSource/shop"]}
        response = httpx.post(other_url, content=body, headers=token)
        assert response.json() == {"lookedAt": []}, (
            "the response does not show another namespace's source"
        )
        wait_until(folder, ("get", "Shape"), lambda rows: len(rows) == 2)
        assert names(folder) == ["a", "b"]
    finally:
        for each in (server, other_server):
            each.terminate()
            each.communicate(timeout=30)
    bad = folder.run("webhook", "--secret-file", "no")
    assert bad.status == 1
    assert "cannot read no: " in bad.err


def address(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    return server.stdout.readline().split()[-1]


def names(cli: Cli) -> list[str]:
    return [each["metadata"]["name"] for each in cli.ok("get", "Shape", "-o", "json").json]


@pytest.mark.parametrize(
    "url",
    [
        "https://git.example.org/acme/shop.git",
        "https://git.example.org/acme/shop",
        "ssh://git@Git.example.org/acme/shop.git",
        "git@git.example.org:acme/shop.git",
    ],
)
def test_urls_of_one_repository_are_equal(url: str) -> None:
    assert repository_key(url) == "git.example.org/acme/shop"


# --- clients without the secret


class Push:
    """A request whose body the test ends; ``sent_parts`` counts the parts that were read."""

    def __init__(self, headers: Mapping[str, str], part: bytes = b"x") -> None:
        self._part = part
        self.sent_parts = 0
        self.status = 0
        named = [(name.lower().encode(), text.encode()) for name, text in headers.items()]
        self._scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": "/",
            "query_string": b"",
            "headers": named,
        }
        self.may_end = asyncio.Event()
        self.may_disconnect = asyncio.Event()
        self._messages = self._parts()

    async def call(self, app: Starlette) -> None:
        await app(self._scope, self._receive, self._send)

    async def _receive(self) -> Any:
        return await anext(self._messages)

    async def _parts(self) -> AsyncIterator[Any]:
        self.sent_parts += 1
        yield {
            "type": "http.request",
            "body": self._part,
            "more_body": not self.may_end.is_set(),
        }
        await self.may_disconnect.wait()
        yield {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)


async def refresh_nothing(urls: Sequence[str]) -> Sequence[str]:
    return urls


@pytest.mark.parametrize("headers", [{}, {"X-Gitlab-Token": "guessed"}])
async def test_no_body_is_read_from_a_client_without_a_signature_or_the_token(
    headers: dict[str, str],
) -> None:
    push = Push(headers)
    async with asyncio.timeout(5):
        await push.call(webhook(SECRET, refresh_nothing))
    assert (push.status, push.sent_parts) == (401, 0)


async def test_slow_bodies_do_not_delay_pushes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_module, "BODY_SECONDS", 8.0)
    app = webhook(SECRET, refresh_nothing)
    slow = [Push(UNSIGNED) for _ in range(100)]
    async with asyncio.timeout(30), asyncio.TaskGroup() as calls:
        for each in slow:
            calls.create_task(each.call(app))
        await turns()
        assert sum(each.sent_parts for each in slow) == len(slow)
        slow[0].may_disconnect.set()  # this client disconnects, which is not our error
        push = Push({"X-Gitlab-Token": SECRET}, b'{"repository": {"url": "https://h/r"}}')
        push.may_end.set()
        await push.call(app)
        assert push.status == 202
    assert [each.status for each in slow] == [400] + [408] * (len(slow) - 1)


async def test_unverified_bodies_take_bounded_memory() -> None:
    app = webhook(SECRET, refresh_nothing)
    part = b"x" * MAX_BODY_BYTES
    accepted_count = MAX_UNVERIFIED_BYTES // MAX_BODY_BYTES
    large = [Push(UNSIGNED, part) for _ in range(accepted_count + 2)]
    async with asyncio.timeout(30), asyncio.TaskGroup() as calls:
        for each in large:
            calls.create_task(each.call(app))
        await turns()
        assert [each.status for each in large] == [408, 408] + [0] * accepted_count, (
            "the oldest are refused"
        )
        for each in large:
            each.may_disconnect.set()
    assert [each.status for each in large] == [408, 408] + [400] * accepted_count


async def turns() -> None:
    """Let every task run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_client_that_sends_endless_headers_is_disconnected() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = build_server(webhook(SECRET, refresh_nothing))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(b"POST / HTTP/1.1\r\nX: ")
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionError):
                for _ in range(64):
                    writer.write(b"x" * 65_536)
                    await writer.drain()
                await reader.read()
            writer.close()
            server.should_exit = True
            await serving


@pytest.mark.parametrize("cut", [10, 40, 1_000])
async def test_a_body_without_a_length_is_refused_unread(cut: int) -> None:
    request = (
        b"POST / HTTP/1.1\r\nHost: h\r\ntransfer-Encoding: chunked\r\n"
        b"X-Hub-Signature-256: sha256=0\r\n\r\n" + b"1\r\nx\r\n" * 100_000
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = build_server(webhook(SECRET, refresh_nothing))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(request[:cut])
        await writer.drain()
        await turns()
        writer.write(request[cut:])
        async with asyncio.timeout(8):
            assert (await reader.readline()).startswith(b"HTTP/1.1 411")
        writer.close()
        server.should_exit = True
        await serving


async def test_the_oldest_of_too_many_connections_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(webhook_module, "MAX_CONNECTIONS", 3)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = build_server(webhook(SECRET, refresh_nothing))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        socket_address = listener.getsockname()
        async with asyncio.timeout(8):  # less than HEAD_SECONDS
            opened = [await asyncio.open_connection(*socket_address) for _ in range(5)]
            for reader, _writer in opened[:2]:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
            last, writer = opened[-1]
            writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            assert (await last.readline()).startswith(b"HTTP/1.1 405")
        for _reader, each in opened:
            each.close()
        server.should_exit = True
        await serving


@pytest.mark.parametrize(
    "request_bytes", [b"", b"POST / HTT", b"GET / HTTP/1.1\r\nHost: h\r\n\r\nPOST"]
)
async def test_a_connection_without_a_complete_request_is_closed(
    request_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_module, "HEAD_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = build_server(webhook(SECRET, refresh_nothing))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(request_bytes)
        async with asyncio.timeout(4):  # uvicorn's own limit for an idle connection is 5 s
            response = await reader.read()
        assert response.startswith(b"HTTP/1.1 405") is (b"\r\n\r\n" in request_bytes)
        writer.close()
        server.should_exit = True
        await serving
