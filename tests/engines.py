"""A real Docker Engine for tests: the one at $DOCKER_HOST if it responds, else our own."""

from __future__ import annotations

import asyncio
import functools
import io
import os
import tarfile
import uuid
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import msgspec

from infra.components import docker_engine
from infra.components.docker_engine import DockerEngine
from infra.providers.endpoint import socket_path
from tests.folders import short_folder

BUSYBOX = Path("/usr/bin/busybox")
PROGRAMS = (
    *("sh", "sleep", "true", "false", "echo", "env", "cat", "touch", "ls", "dd", "test"),
    *("mkdir", "httpd"),
)
TIMEOUT_SECONDS = 20
DEFAULT_SOCKET = "unix:///var/run/docker.sock"


@functools.cache
def running_endpoint() -> str | None:
    """Return the endpoint of an Engine that is already running, if any."""
    endpoint = os.environ.get("DOCKER_HOST", DEFAULT_SOCKET)
    try:
        with http_client(endpoint) as client:
            return endpoint if client.get("/_ping").status_code == HTTPStatus.OK else None
    except (httpx.HTTPError, OSError):
        return None


def dockerd_problem() -> str | None:
    """Return why there is no Engine for tests; None if one responds or can be started."""
    if not BUSYBOX.exists():
        return f"{BUSYBOX}, which images are made from, is missing (busybox-static package)"
    return None if running_endpoint() else docker_engine.problem()


def own_dockerd_problem() -> str | None:
    """Return why no Engine can be started on this machine; None if one can."""
    if not BUSYBOX.exists():
        return f"{BUSYBOX}, which images are made from, is missing (busybox-static package)"
    return docker_engine.problem()


def http_client(endpoint: str) -> httpx.Client:
    """Return a client that uses an Engine directly."""
    path = socket_path(endpoint)
    transport = None if path is None else httpx.HTTPTransport(uds=path)
    base = "http://localhost" if path is not None else endpoint.replace("tcp://", "http://")
    return httpx.Client(transport=transport, base_url=f"{base}/v1.41", timeout=30)


class EngineAdmin:
    """Changes an Engine outside the reconciler."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.http = http_client(endpoint)

    def post(self, path: str, body: Any = None, **query: str) -> Any:
        response = self.http.post(path, json=body, params=query)
        assert response.is_success or response.status_code == HTTPStatus.NOT_MODIFIED, response.text
        return response.json() if response.content else None

    def delete(self, path: str, **query: str) -> None:
        response = self.http.delete(path, params=query)
        assert response.is_success, response.text

    def inspect(self, name: str) -> dict[str, Any] | None:
        response = self.http.get(f"/containers/{name}/json")
        return None if response.status_code == HTTPStatus.NOT_FOUND else response.json()

    def volume(self, name: str) -> dict[str, Any] | None:
        response = self.http.get(f"/volumes/{name}")
        return None if response.status_code == HTTPStatus.NOT_FOUND else response.json()

    def containers(self, prefix: str) -> list[dict[str, Any]]:
        filters = msgspec.json.encode({"name": [f"^/{prefix}"]}).decode()
        return self.http.get("/containers/json", params={"all": "true", "filters": filters}).json()

    def import_image(self, name: str, *changes: str) -> str:
        """Create an image with only busybox, like `docker import`."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            tar.add(BUSYBOX, "bin/busybox")
            for program in PROGRAMS:
                link = tarfile.TarInfo(f"bin/{program}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
            folder = tarfile.TarInfo("tmp")
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
            tar.addfile(folder)
        repository, _, tag = name.partition(":")
        query: dict[str, str | list[str]] = {"fromSrc": "-", "repo": repository, "tag": tag}
        query["changes"] = list(changes)
        response = self.http.post("/images/create", params=query, content=packed.getvalue())
        assert response.is_success, response.text
        return name

    def remove_all(self, prefix: str) -> None:
        """Delete all objects whose names begin with this prefix."""
        query = {"force": "true", "v": "true"}
        with ThreadPoolExecutor(8) as threads:
            paths = [f"/containers/{each['Id']}" for each in self.containers(prefix)]
            for path in paths:
                threads.submit(self.http.delete, path, params=query)
        for each in self.http.get("/volumes").json()["Volumes"] or ():
            if each["Name"].startswith(prefix):
                self.http.delete(f"/volumes/{each['Name']}")
        for each in self.http.get("/networks").json():
            if each["Name"].startswith(prefix):
                self.http.delete(f"/networks/{each['Id']}")


class TestEngine:
    """An Engine with an image; ``own`` can be killed."""

    __test__ = False

    def __init__(self, endpoint: str, own: DockerEngine | None = None) -> None:
        self.endpoint = endpoint
        self.own = own
        self.admin = EngineAdmin(endpoint)
        self.image = self.admin.import_image(
            f"reconciler-test:{uuid.uuid4().hex[:12]}",
            'CMD ["/bin/sleep", "1000000"]',
            "ENV PATH=/bin",
            "ENV OF_THE_IMAGE=1",
            "EXPOSE 81/tcp",
        )


@contextmanager
def shared_engine() -> Generator[TestEngine]:
    """Yield the Engine that is already running, or a new one for this process."""
    endpoint = running_endpoint()
    if endpoint is not None:
        engine = TestEngine(endpoint)
        yield engine
        engine.admin.http.delete(f"/images/{engine.image}", params={"force": "true"})
        return
    with own_engine() as engine:
        yield engine


@contextmanager
def own_engine() -> Generator[TestEngine]:
    """Yield a new Engine."""
    with short_folder() as folder:
        own = DockerEngine(isolated=True)
        try:
            asyncio.run(own.start(folder / "docker"))
            engine = TestEngine(own.endpoint, own)
            yield engine
            engine.admin.remove_all("")
        finally:
            asyncio.run(own.stop())


@asynccontextmanager
async def disposable_engine() -> AsyncGenerator[TestEngine]:
    """Yield a new Engine for one test, which may kill it."""
    with short_folder() as folder:
        own = DockerEngine(isolated=True)
        try:
            await own.start(folder / "docker")
            engine = TestEngine(own.endpoint, own)
            yield engine
            engine.admin.remove_all("")
        finally:
            await own.stop()
