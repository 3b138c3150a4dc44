"""Streams are made and upgraded by one function, which changes nothing the second time."""

import asyncio
from pathlib import Path

import pytest

from infra.bus.shape_log import open_log
from infra.bus.streams import INTAKE, SHAPES, ensure_topology, find_log_id
from infra.embedded import EmbeddedServer
from infra.jetstream.connection import api_request, connect
from infra.jetstream.errors import IncompatibleStreamError, NotFoundOnBusError
from infra.jetstream.reads import stream_state
from infra.jetstream.topology import delete_stream
from reconciler.ports import ShapeAppend
from tests.bus.histories import event, new_key


async def test_twice_is_once_and_the_log_keeps_its_name(tmp_path: Path) -> None:
    server = EmbeddedServer()
    nc = await connect(await server.start(tmp_path), name="test")
    try:
        with pytest.raises(NotFoundOnBusError):
            await find_log_id(nc)
        first = await ensure_topology(nc)
        assert set(first.changes.values()) == {"created"}
        second = await ensure_topology(nc)
        assert set(second.changes.values()) == {"unchanged"}
        assert second.log_id == first.log_id == await find_log_id(nc)
    finally:
        await nc.close()
        await server.stop()


async def test_a_difference_that_cannot_be_changed_is_told(tmp_path: Path) -> None:
    server = EmbeddedServer()
    nc = await connect(await server.start(tmp_path), name="test")
    try:
        wrong = {"name": SHAPES, "subjects": ["log.>"], "storage": "memory", "num_replicas": 1}
        await api_request(nc, f"STREAM.CREATE.{SHAPES}", wrong)
        with pytest.raises(IncompatibleStreamError, match=f"{SHAPES}.*storage"):
            await ensure_topology(nc)
    finally:
        await nc.close()
        await server.stop()


async def test_a_new_intake_beside_an_old_log_goes_on_counting(tmp_path: Path) -> None:
    server = EmbeddedServer()
    nc = await connect(await server.start(tmp_path), name="test")
    try:
        await ensure_topology(nc)
        key = new_key()
        await (await open_log(nc)).append([ShapeAppend(key, [event(key, 1)], 0)])
        await delete_stream(nc, INTAKE)
        await ensure_topology(nc)
        old_positions = 1_000_000_000_000
        assert (await stream_state(nc, INTAKE)).first_seq > old_positions
        again = await ensure_topology(nc)
        assert again.changes[INTAKE] == "unchanged"
    finally:
        await nc.close()
        await asyncio.shield(server.stop())
