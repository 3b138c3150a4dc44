"""A server in a container, which tests may kill and start like a local one."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from infra.embedded import EmbeddedServer
from infra.embedded.server import DEFAULT_MAX_PAYLOAD_BYTES
from infra.jetstream.connection import api_request, connect
from infra.jetstream.errors import BusUnavailableError
from infra.jetstream.topology import delete_stream

if TYPE_CHECKING:
    from docker.models.containers import Container

CONFIGURATION = f"""\
jetstream {{ store_dir: /data, sync_interval: always }}
max_payload: {DEFAULT_MAX_PAYLOAD_BYTES}
"""

_START_SECONDS = 120  # on a slow disk, reading streams before listening is slow


class ContainerServer(EmbeddedServer):
    """Has the interface of the embedded server; its data folder is in the container.

    One container serves many tests; ``empty`` deletes the streams of the previous test.
    """

    def __init__(self, container: Container, port: int) -> None:
        super().__init__()
        self._container = container
        self._port = port
        self._data_dir = Path("/data")

    async def empty(self) -> None:
        """Start the container if necessary, and delete every stream."""
        await self.start(self._data_dir)
        nc = await connect(self.url, name="test")
        names = (await api_request(nc, "STREAM.NAMES", None))["streams"] or ()
        for name in names:
            await delete_stream(nc, name)
        await nc.close()

    async def start(self, data_dir: Path, **_ignored: object) -> str:
        """Restart the container if it was killed; its data is kept."""
        await asyncio.to_thread(self._container.start)
        try:
            nc = await connect(self.url, name="test", timeout_seconds=_START_SECONDS)
        except BusUnavailableError as error:
            raise AssertionError(f"{error}; {await asyncio.to_thread(self._describe)}") from error
        await nc.close()
        return self.url

    def _describe(self) -> str:
        """Return the state and the last log lines of the container."""
        self._container.reload()
        lines = self._container.logs(tail=20).decode()
        return f"the container is {self._container.attrs['State']}; its log ends with:\n{lines}"

    async def kill(self) -> None:
        """Kill the server, and the container with it."""
        from docker.errors import APIError  # noqa: PLC0415 - needed only if there is an engine

        with suppress(APIError):  # it is not running
            await asyncio.to_thread(self._container.kill)
        # A container that is still stopping counts as running, so starting it would do nothing.
        await asyncio.to_thread(self._container.wait)

    async def stop(self) -> None:
        """Stop the container gracefully."""
        await asyncio.to_thread(self._container.stop)
