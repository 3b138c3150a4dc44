"""A server in a container: the image contains only the wheel's binary."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from infra.embedded.binary import find_server_binary
from tests.docker.container_server import CONFIGURATION, ContainerServer
from tests.ports import free_port

if TYPE_CHECKING:
    from testcontainers.community.nats import NatsContainer
    from testcontainers.core.image import DockerImage

# Read when testcontainers is imported. Its reaper is an image that would have to be pulled.
os.environ.setdefault("TESTCONTAINERS_HOST_OVERRIDE", "127.0.0.1")
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")

_DOCKERFILE = """\
FROM scratch
COPY nats-server /nats-server
ENTRYPOINT ["/nats-server"]
"""


@contextmanager
def _image(folder: Path, instructions: str = "") -> Generator[DockerImage]:
    """Build a unique image: equal images share an id, and removing one would remove all."""
    from testcontainers.core.image import DockerImage  # noqa: PLC0415 - after the settings

    name = uuid.uuid4().hex[:12]
    shutil.copy(find_server_binary(), folder / "nats-server")
    (folder / "Dockerfile").write_text(f"{_DOCKERFILE}LABEL test={name}\n{instructions}")
    with DockerImage(folder, tag=f"reconciler-test-nats:{name}") as image:
        yield image


@pytest.fixture(scope="module")
def container_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerServer]:
    """One container for the tests of a module, which kill, start and empty it."""
    from testcontainers.community.nats import NatsContainer  # noqa: PLC0415 - after the settings

    folder = tmp_path_factory.mktemp("image")
    (folder / "nats.conf").write_text(CONFIGURATION)
    port = free_port()
    with _image(folder, "COPY nats.conf /nats.conf\n") as image:
        nats = NatsContainer(str(image)).with_command("-c /nats.conf")
        with nats.with_bind_ports(4222, port) as container:
            yield ContainerServer(container.get_wrapped_container(), port)


@pytest.fixture
def nats_container(tmp_path: Path) -> Iterator[NatsContainer]:
    """JetStream in a container, ready for connections."""
    from testcontainers.community.nats import NatsContainer  # noqa: PLC0415 - after the settings

    with (
        _image(tmp_path) as image,
        NatsContainer(str(image)).with_command("--jetstream --store_dir /data") as container,
    ):
        yield container
