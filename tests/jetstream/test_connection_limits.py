"""A connection that the server closes because of a connection limit."""

from __future__ import annotations

import asyncio

from infra.jetstream.connection import close, connect

GREETING = b'INFO {"server_id":"A","version":"2.15.0","max_payload":1048576,"headers":true}\r\n'
REFUSED = b"-ERR 'maximum account active connections exceeded'\r\n"


async def test_a_connection_closed_after_it_was_accepted_is_retried() -> None:
    """A restarted server closes connections beyond the limit of their account in this way."""
    connections = 0
    has_connected, has_returned = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.write(GREETING)
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
                break
        if connections == 1:
            await has_connected.wait()
            writer.write(REFUSED)
            await writer.drain()
            writer.close()
        else:
            has_returned.set()
            await reader.read()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        client = await connect(f"nats://127.0.0.1:{port}", name="test")
        has_connected.set()
        async with asyncio.timeout(20):
            await has_returned.wait()
            while not client.is_connected:  # noqa: ASYNC110 - the client reports nothing
                await asyncio.sleep(0)
        await close(client)
