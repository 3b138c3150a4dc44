"""A PostgreSQL server that sends too much causes an error that names the limit."""

from __future__ import annotations

import base64
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
from psycopg import sql

from events.provider_config import Limits, ProviderConfigSpec, Scope
from infra.components.postgres import Postgres
from infra.providers.postgres import limits
from infra.providers.postgres.database import DATABASE
from infra.providers.postgres.passwords import build_verifier
from infra.providers.postgres.role import DATABASE_ROLE
from infra.providers.postgres.server import PostgresServer
from reconciler.errors import NotDoneError, UnreadableObjectsError
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.contract import listing
from reconciler.provider.secrets import Secrets
from tests.hostile_server import MIB, measure_event_loop, measure_resident_memory, raw_server
from tests.postgres import Superuser, connect_superuser
from tests.providers.connect import Connect

ENOUGH_BYTES = 4 * limits.MAX_RESULT_BYTES
"""libpq doubles its buffer, and copies a row into its result."""

ENOUGH_SECONDS = 1.5


def message(kind: bytes, content: bytes, *, stated_bytes: int | None = None) -> bytes:
    return (
        kind
        + struct.pack(">I", 4 + (len(content) if stated_bytes is None else stated_bytes))
        + content
    )


def parameter(name: bytes, value: bytes) -> bytes:
    return message(b"S", name + b"\0" + value + b"\0")


def columns(count: int) -> bytes:
    column = b"a\0" + struct.pack(">IHIHIH", 0, 0, 25, 0xFFFF, 0xFFFFFFFF, 0)
    return message(b"T", struct.pack(">H", count) + column * count)


LOGIN = message(b"R", bytes(4)) + b"".join(
    parameter(name, value)
    for name, value in (
        (b"server_version", b"17.0"),
        (b"client_encoding", b"UTF8"),
        (b"in_hot_standby", b"off"),
        (b"default_transaction_read_only", b"off"),
        (b"integer_datetimes", b"on"),
    )
)
READY = message(b"Z", b"I")
DONE = message(b"C", b"SELECT 1\0") + READY


def postgres_server_with(
    *results: bytes, repeat: bytes = b"", times: int = 0, login: bytes = LOGIN + READY
) -> Callable[[socket.socket], None]:
    """Return a server that sends these results to any query."""

    def serve(connection: socket.socket) -> None:
        (size,) = struct.unpack(">I", connection.recv(4, socket.MSG_WAITALL))
        connection.recv(size - 4, socket.MSG_WAITALL)
        connection.sendall(login)
        if login.endswith(READY):
            connection.recv(65_536)
        for piece in results:
            connection.sendall(piece)
        for _ in range(times):
            connection.sendall(repeat)
        connection.recv(65_536)

    return serve


HOSTILE: dict[str, tuple[Callable[[socket.socket], None], str]] = {
    "a row of 1 GiB": (
        postgres_server_with(
            columns(1),
            message(b"D", struct.pack(">HI", 1, 2**30 - 64), stated_bytes=2**30 - 64 + 6),
            repeat=bytes(MIB),
            times=1024,
        ),
        "more than 32 MiB for one call",
    ),
    "endless rows": (
        postgres_server_with(
            columns(1),
            repeat=message(b"D", struct.pack(">HI", 1, 1000) + b"x" * 1000) * 1000,
            times=1000,
        ),
        "more than 32 MiB for one call",
    ),
    "endless notices": (
        postgres_server_with(repeat=message(b"N", b"Mx\0\0") * 100_000, times=100),
        "more than 32 MiB for one call",
    ),
    "many empty values": (
        postgres_server_with(
            columns(1000),
            message(b"D", struct.pack(">H", 1000) + b"\xff\xff\xff\xff" * 1000) * 2001,
            DONE,
        ),
        "more than 2000000 values",
    ),
    "an error with many lines": (
        postgres_server_with(
            message(b"E", b"SERROR\0C42704\0M" + b"ab\n" * 4_000_000 + b"\0\0"), READY
        ),
        "ab; ab; ab",
    ),
    "endless parameters": (
        postgres_server_with(repeat=parameter(b"a", b"x" * 10_000) * 100, times=1000, login=LOGIN),
        "more than 32 MiB for one call",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
async def test_a_result_that_is_too_large_is_an_error_that_names_the_limit(case: str) -> None:
    serve, error_text = HOSTILE[case]
    with raw_server(serve) as port:
        server = PostgresServer(
            ProviderConfigSpec(
                "postgres",
                f"postgresql://127.0.0.1:{port}",
                limits=Limits(request_timeout_seconds=30),
            ),
            Secrets(),
            CallPermit(),
        )
        async with measure_event_loop() as loop:
            with measure_resident_memory() as memory, pytest.raises(NotDoneError, match=error_text):
                async with server.session() as session:
                    await session.run(sql.SQL("SELECT 1"))
        await server.close()
    assert memory.peak_bytes < ENOUGH_BYTES
    assert loop.blocked_seconds < ENOUGH_SECONDS


def scram_login(iterations: int) -> Callable[[socket.socket], None]:
    """Return a server that asks for a number of SCRAM iterations, and then refuses the login."""

    def receive(connection: socket.socket) -> bytes:
        (size,) = struct.unpack(">I", connection.recv(4, socket.MSG_WAITALL))
        return connection.recv(size - 4, socket.MSG_WAITALL)

    def serve(connection: socket.socket) -> None:
        receive(connection)
        connection.sendall(message(b"R", struct.pack(">I", 10) + b"SCRAM-SHA-256\0\0"))
        connection.recv(1)
        nonce = receive(connection).split(b"r=")[1]
        salt = base64.b64encode(bytes(16))
        challenge = b"r=%bx,s=%b,i=%d" % (nonce, salt, iterations)
        connection.sendall(message(b"R", struct.pack(">I", 11) + challenge))
        connection.recv(1)
        connection.sendall(message(b"E", b"SFATAL\0C28P01\0Mrefused\0\0"))

    return serve


def server_at(port: int, *, seconds: float) -> PostgresServer:
    limits_ = Limits(request_timeout_seconds=seconds)
    endpoint = f"postgresql://127.0.0.1:{port}"
    return PostgresServer(
        ProviderConfigSpec("postgres", endpoint, limits=limits_),
        Secrets(credential="planted-password-77a1"),
        CallPermit(),
    )


async def read_connection_error(server: PostgresServer) -> str:
    with pytest.raises(NotDoneError) as caught:
        async with server.session():
            pass
    return caught.value.message


async def test_a_login_with_millions_of_scram_iterations_does_not_block_anything_else() -> None:
    """libpq computes as many iterations as the server requests, up to two billion, in C."""
    with raw_server(scram_login(3_000_000)) as port:
        server, other_server = server_at(port, seconds=1), server_at(port, seconds=1)
        async with measure_event_loop() as loop:
            first = await read_connection_error(server)
            started_at = time.monotonic()
            second, third = (
                await read_connection_error(server),
                await read_connection_error(other_server),
            )
            assert time.monotonic() - started_at < ENOUGH_SECONDS
            login_threads = [each for each in threading.enumerate() if each.name == "login"]
            assert len(login_threads) == 1, "all providers of a server share one thread"
        assert "within 1 s" in first
        assert "SCRAM iterations" in first
        assert "still being computed" in second
        assert "still being computed" in third
        assert loop.blocked_seconds < ENOUGH_SECONDS
        deadline = time.monotonic() + 120
        while "still being computed" in (
            error := await read_connection_error(server_at(port, seconds=60))
        ):
            assert time.monotonic() < deadline
            time.sleep(0.1)  # noqa: ASYNC251 - nothing else runs on this loop
        assert "refused" in error, "later logins are attempted"


def test_a_process_can_exit_while_it_computes_a_login() -> None:
    program = """
import asyncio, sys
from tests.providers.test_postgres_limits import read_connection_error, server_at
print(asyncio.run(read_connection_error(server_at(int(sys.argv[1]), seconds=0.5))))
"""
    with raw_server(scram_login(2**31 - 1)) as port:
        process = subprocess.run(
            [sys.executable, "-c", program, str(port)],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert "within 0.5 s" in process.stdout


def test_a_verifier_has_a_fixed_number_of_iterations() -> None:
    """libpq would compute any ``scram_iterations`` that a server reports."""
    assert build_verifier("planted-password-77a1").startswith("SCRAM-SHA-256$4096:")


@pytest.mark.postgres
async def test_huge_text_in_the_catalog_is_not_read(
    postgres_server: Postgres, connect: Connect, unique: str
) -> None:
    """A tenant can write 1 GiB into the comment of its database, and a verifier of its role."""
    superuser = Superuser(postgres_server)
    name = sql.Identifier(unique)
    try:
        await superuser.run(sql.SQL("CREATE ROLE {}").format(name))
        await superuser.run(sql.SQL("CREATE DATABASE {} OWNER {}").format(name, name))
        for object_sql in ("DATABASE", "ROLE"):
            statement = sql.SQL(
                "DO $$ BEGIN EXECUTE 'COMMENT ON {} {} IS ' || quote_literal("
                "repeat('é', 40000000) || e'\\nreconciler: {{\"key\":\"k\"}}'); END $$"
            )
            await superuser.run(statement.format(sql.SQL(object_sql), name))
        verifier = sql.SQL(
            "UPDATE pg_authid SET rolpassword = 'SCRAM-SHA-256$4096:' || repeat('A', 40000000)"
            " WHERE rolname = {}"
        )
        await superuser.run(verifier.format(unique))
        started_at = time.monotonic()
        await superuser.run(sql.SQL("SELECT max(right(description, 1)) FROM pg_shdescription"))
        full_read_seconds = time.monotonic() - started_at
        for kind in (DATABASE, DATABASE_ROLE):
            provider = connect(kind, postgres_server.endpoint)
            assert await provider.read("postgres-has-no-such-name") is None  # connects
            started_at = time.monotonic()
            objects = [
                existing
                async for page in provider.pages(Scope(prefix=unique), page_size=500)
                for existing in page
            ]
            assert time.monotonic() - started_at < full_read_seconds / 2
            assert [existing.written_by for existing in objects] == [None]
    finally:
        await superuser.run(sql.SQL("DROP DATABASE IF EXISTS {}").format(name))
        await superuser.run(sql.SQL("DROP ROLE IF EXISTS {}").format(name))
        await superuser.close()


@pytest.mark.postgres
async def test_the_comments_of_a_full_page_stay_below_the_limit(
    postgres_server: Postgres, connect: Connect, unique: str
) -> None:
    superuser = Superuser(postgres_server)
    count = limits.MAX_RESULT_BYTES // limits.MAX_TEXT_BYTES + 1
    names = [f"{unique}_{each}" for each in range(count)]
    login, password = sql.Identifier(f"{unique}l"), "planted-password-77a1"
    # The bytes of a local socket are not counted.
    endpoint = f"postgresql://{unique}l@127.0.0.1:{postgres_server.port}/postgres"
    write = sql.SQL("CREATE ROLE {}; COMMENT ON ROLE {} IS {}")
    drop = sql.SQL("DROP ROLE IF EXISTS {}")
    create = sql.SQL("CREATE ROLE {} SUPERUSER LOGIN PASSWORD {}")
    try:
        await superuser.run(create.format(login, password))
        for each in map(sql.Identifier, names):
            await superuser.run(write.format(each, each, "x" * limits.MAX_TEXT_BYTES))
        provider = connect(DATABASE_ROLE, endpoint, secret=password)
        pages = provider.pages(Scope(prefix=f"{unique}_"), page_size=1000)
        assert sum([len(page) async for page in pages]) == count
    finally:
        roles = [login, *map(sql.Identifier, names)]
        await superuser.run(drop.format(sql.SQL(", ").join(roles)))
        await superuser.close()


@pytest.mark.postgres
async def test_invalid_text_in_the_catalog_does_not_hide_other_objects(
    postgres_server: Postgres, connect: Connect, unique: str
) -> None:
    """In a database without an encoding, a tenant can write any bytes into the shared catalog."""
    superuser = Superuser(postgres_server)
    tenant_database, other_name = sql.Identifier(f"{unique}a"), sql.Identifier(f"{unique}b")
    role = sql.SQL(f'"{unique}c\\377"')  # pyright: ignore[reportArgumentType]
    try:
        create = "CREATE DATABASE {} TEMPLATE template0 ENCODING SQL_ASCII LOCALE 'C'"
        await superuser.run(sql.SQL(create).format(tenant_database))
        await superuser.run(sql.SQL("CREATE DATABASE {}").format(other_name))
        async with await connect_superuser(postgres_server, f"{unique}a") as tenant:
            for statement in (
                sql.SQL("COMMENT ON DATABASE {} IS {}").format(
                    tenant_database, sql.SQL("e'\\377'")
                ),
                sql.SQL("DO $$ BEGIN EXECUTE e'CREATE ROLE {}'; END $$").format(role),
            ):
                await tenant.execute(statement)
        objects = await listing(connect(DATABASE, postgres_server.endpoint), Scope(prefix=unique))
        assert [each.name for each in objects] == [f"{unique}a", f"{unique}b"]
        roles = connect(DATABASE_ROLE, postgres_server.endpoint)
        with pytest.raises(UnreadableObjectsError, match="not valid UTF-8"):
            await listing(roles, Scope(prefix=unique))
    finally:
        async with await connect_superuser(postgres_server, f"{unique}a") as tenant:
            drop = sql.SQL("DO $$ BEGIN EXECUTE e'DROP ROLE {}'; END $$")
            await tenant.execute(drop.format(role))
        for each in (tenant_database, other_name):
            await superuser.run(sql.SQL("DROP DATABASE IF EXISTS {}").format(each))
        await superuser.close()
