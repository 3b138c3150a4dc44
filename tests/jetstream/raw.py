"""A publisher without a client, which can send any bytes that the server accepts."""

from __future__ import annotations

import asyncio

_OPTIONS = b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\n'


async def publish_raw(
    port: int, subject: bytes, payload: bytes, *, headers: bytes | None = None
) -> None:
    """Publish raw bytes and wait until the server accepts them; fail with its error."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        if headers is None:
            line = b"PUB %b %d\r\n" % (subject, len(payload))
        else:
            sizes = len(headers), len(headers) + len(payload)
            line = b"HPUB %b %d %d\r\n%b" % (subject, *sizes, headers)
        writer.write(_OPTIONS + line + payload + b"\r\nPING\r\n")
        await writer.drain()
        await reader.readline()  # INFO
        response = await asyncio.wait_for(reader.readline(), 60)
        if not response.startswith(b"PONG"):
            raise AssertionError(f"the server responded {response!r}")
    finally:
        writer.close()
