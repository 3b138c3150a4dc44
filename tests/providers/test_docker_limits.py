"""A Docker Engine that sends too much causes one error, which names the limit."""

from __future__ import annotations

import asyncio
import json
import socket
from urllib.parse import parse_qs, urlsplit

import pytest

from events.provider_config import Limits, ProviderConfigSpec, Scope
from infra.providers.docker.containers import ContainersProvider
from reconciler.errors import ProviderError, RefusedError, UnreadableObjectsError
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.secrets import Secrets
from tests.hostile_server import (
    HEAD,
    MIB,
    Answer,
    gzip_of_zeros,
    hostile_server,
    measure_event_loop,
    measure_resident_memory,
    send,
)

ENOUGH_BYTES = 96 * MIB
ENOUGH_SECONDS = 1.5
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def engine(respond: Answer) -> Answer:
    """Return an Engine that negotiates a version, and then responds as given."""

    def serve(connection: socket.socket, head: bytes) -> None:
        body = b'{"ApiVersion":"1.47"}'
        is_version = head.startswith(b"GET /version ")
        close = b"Connection: close\r\n"
        if is_version:
            connection.sendall(HEAD + close + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        else:
            respond(connection, head)

    return serve


EVENTS: dict[str, tuple[Answer, str]] = {
    "an endless event": (
        send(HEAD + b"\r\n", repeat=b"x" * MIB, times=1024),
        "an event is longer than 256 KiB",
    ),
    "an event in chunks of a byte": (
        send(CHUNKED, repeat=b"1\r\nx\r\n" * 100_000, times=100),
        "an event is longer than 256 KiB",
    ),
    "a compressed event": (
        send(HEAD + b"Content-Encoding: gzip\r\n\r\n", gzip_of_zeros(2048 * MIB)),
        "invalid response: it is compressed",
    ),
    "an endless refusal": (
        send(b"HTTP/1.1 500 Error\r\n\r\n", repeat=b"x" * MIB, times=1024),
        "500",
    ),
    "endless headers": (
        send(HEAD, repeat=b"a:b\r\n" * 100_000, times=100),
        "headers are longer",
    ),
    "an endlessly nested event": (
        send(HEAD + b"\r\n", b"[" * 200_000 + b"\n"),
        "not an Engine event",
    ),
}


@pytest.mark.parametrize("case", EVENTS)
async def test_events_that_are_too_large_are_an_error_that_names_the_limit(case: str) -> None:
    respond, error_text = EVENTS[case]
    with hostile_server(engine(respond)) as port:
        provider = provider_at(port)
        async with measure_event_loop() as loop:
            with (
                measure_resident_memory() as memory,
                pytest.raises(ProviderError, match=error_text),
            ):
                await asyncio.wait_for(provider.changes("1"), 20)
        await provider.close()
    assert memory.peak_bytes < ENOUGH_BYTES
    assert loop.blocked_seconds < ENOUGH_SECONDS


async def test_a_listing_that_is_too_large_is_an_error_that_names_the_limit() -> None:
    huge = send(HEAD + b"\r\n", repeat=b'{"Id":"x"},' * 100_000, times=1000)
    with hostile_server(engine(huge)) as port:
        provider = provider_at(port)
        with (
            measure_resident_memory() as memory,
            pytest.raises(ProviderError, match="longer than 32 MiB"),
        ):
            async for _ in provider.pages(Scope(), page_size=100):
                pass
        await provider.close()
    assert memory.peak_bytes < 2 * ENOUGH_BYTES


@pytest.mark.parametrize(("number", "size"), [(100, 400_000), (30, 1_500_000), (6, 20 * MIB)])
async def test_a_listing_of_large_containers_is_read_in_pages(number: int, size: int) -> None:
    """Together they exceed the limit of a response. An image may have labels of any size."""
    ids = [f"{each:064}" for each in range(number)]

    def respond(connection: socket.socket, head: bytes) -> None:
        url = urlsplit(head.split(b" ")[1].decode())
        query = parse_qs(url.query)
        if not url.path.endswith("/containers/json"):
            id_ = url.path.split("/")[-2]
            body = b'{"Id":"%s","Name":"/c"}' % id_.encode()
        else:
            cursor = json.loads(query["filters"][0]).get("before")
            start = ids.index(cursor[0]) + 1 if cursor else 0
            page_ids = ids[start : start + int(query.get("limit", ["1000"])[0])]
            body = json.dumps([{"Id": each, "Command": "x" * size} for each in page_ids]).encode()
        connection.sendall(HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body))
        connection.sendall(body)

    with hostile_server(engine(respond)) as port:
        provider = provider_at(port)
        uids = [each.uid async for page in provider.pages(Scope(), page_size=30) for each in page]
        await provider.close()
    assert uids == ids


def provider_at(port: int) -> ContainersProvider:
    config = ProviderConfigSpec(
        "docker", f"http://127.0.0.1:{port}", limits=Limits(request_timeout_seconds=30)
    )
    return ContainersProvider(config, Secrets(), CallPermit())


# --- containers that are too large or odd


def inspection(id_: str, **more: object) -> dict[str, object]:
    config = {"Image": "x"}
    return {"Id": id_, "Name": f"/name-{id_}", "Image": "x", "Config": config, **more}


def with_variables(id_: str, number: int) -> dict[str, object]:
    return inspection(id_, Config={"Image": "x", "Env": [f"V{each}=x" for each in range(number)]})


ODD = {
    "port": inspection("odd", HostConfig={"PortBindings": {"/tcp": [{"HostPort": "1"}]}}),
    "key": inspection("odd", HostConfig={"PortBindings": {"": [{"HostPort": "1"}]}}),
    "mapping": inspection(
        "odd",
        State={"Running": True},
        NetworkSettings={"Ports": {"80/tcp": [{"HostPort": "?"}]}},
    ),
    "type": inspection("odd", Config={"Image": 7}),
    "variables": with_variables("odd", 150_000),
    "bytes": inspection("odd", Config={"Image": "x", "Cmd": ["x" * 2 * MIB]}),
}


def engine_of(*containers: dict[str, object]) -> Answer:
    """Return an Engine that lists containers and shows each of them."""
    bodies = {str(each["Id"]): json.dumps(each).encode() for each in containers}

    def serve(connection: socket.socket, head: bytes) -> None:
        path = urlsplit(head.split()[1].decode()).path
        name = path.removesuffix("/json").rpartition("/")[2].removeprefix("name-")
        listed = [{"Id": each["Id"]} for each in containers]
        body = json.dumps(listed).encode() if path.endswith("/containers/json") else bodies[name]
        close = b"Connection: close\r\n"
        connection.sendall(HEAD + close + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    return engine(serve)


async def collect_names(provider: ContainersProvider, names: list[str]) -> None:
    async for page in provider.pages(Scope(), page_size=2):
        names += [each.name for each in page]


@pytest.mark.parametrize("case", ODD)
async def test_a_container_that_cannot_be_shown_does_not_hide_others_and_is_not_absent(
    case: str,
) -> None:
    names: list[str] = []
    with hostile_server(engine_of(ODD[case], inspection("good"))) as port:
        provider = provider_at(port)
        with pytest.raises(UnreadableObjectsError) as unreadable:
            await collect_names(provider, names)
        with pytest.raises(ProviderError) as raised:
            await provider.read("name-odd")
        await provider.close()
    assert names == ["name-good"]
    assert list(unreadable.value.objects) == [("name-odd", "odd")]
    assert case == "type" or isinstance(raised.value, RefusedError)


async def test_the_largest_containers_do_not_block_the_event_loop() -> None:
    containers = [with_variables(str(number), 32_000) for number in range(24)]
    with hostile_server(engine_of(*containers)) as port:
        provider = provider_at(port)
        async with measure_event_loop() as loop:
            pages = [page async for page in provider.pages(Scope(), page_size=100)]
            await provider.read("name-1")
        await provider.close()
    assert [len(page) for page in pages] == [len(containers)]
    assert loop.blocked_seconds < ENOUGH_SECONDS
