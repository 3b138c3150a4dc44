"""Keys that expire, are revoked, replaced or damaged are reported, and a new file repairs them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from nats.aio.client import Client

from infra.bus.permission_files import User
from infra.bus.permissions import PRINCIPALS
from infra.embedded import EmbeddedServer
from infra.jetstream.access import Access
from infra.jetstream.connection import connect
from infra.jetstream.errors import BusAccessError
from infra.jetstream.identity import Identity, KeyFile
from reconciler.sdk import connect as connect_sdk
from reconciler.wiring import ROLES as RUNNING_ROLES
from reconciler.wiring import initialize, open_connection, run_roles
from tests.cli.runner import Cli
from tests.faulty_api import FaultyApi
from tests.security.guarded import NAMESPACES, PATIENCE_SECONDS, provider_config, shape
from tests.security.keys import Pair
from tests.security.operator_mode import Operator

SHORT_SECONDS = 3


@dataclass
class JwtBus:
    """A server in operator mode, and a `.creds` file for each user."""

    folder: Path
    operator: Operator
    bus: EmbeddedServer
    api: FaultyApi

    def access(self, name: str) -> Access:
        return Access(credentials=self.folder / f"{name}.creds")

    def renew(self, name: str, *, seconds: int = 0) -> Access:
        self.operator.write_credentials(self.folder / f"{name}.creds", name, seconds=seconds)
        return self.access(name)


@pytest.fixture
async def jwt_bus(tmp_path: Path) -> AsyncIterator[JwtBus]:
    roles = [User(principal, principal) for principal in PRINCIPALS if principal != "service"]
    services = [User(name, "service", namespace=name) for name in NAMESPACES]
    bus = JwtBus(tmp_path, Operator([*roles, *services]), EmbeddedServer(), FaultyApi())
    for user in (*roles, *services):
        bus.renew(user.name)
    await bus.bus.start(tmp_path / "nats", extra_config=bus.operator.configuration)
    await bus.api.start(tmp_path / "api")
    yield bus
    await bus.api.stop()
    await bus.bus.stop()


async def wait_until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            value = condition()
            if value if isinstance(value, bool) else await value:
                return
            await asyncio.sleep(0.02)


async def test_a_role_whose_jwt_expires_continues_with_a_fresh_file(
    jwt_bus: JwtBus, caplog: pytest.LogCaptureFixture
) -> None:
    """All principals and a service use `.creds` files, and the worker's expires."""
    caplog.set_level(logging.WARNING)
    url = jwt_bus.bus.url
    async with AsyncExitStack() as stack:
        async with open_connection(url, access=jwt_bus.access("installer")) as nc:
            await initialize(nc, namespaces=["acme"])
        connections: dict[str, Client] = {}
        for principal in RUNNING_ROLES:
            seconds = SHORT_SECONDS if principal == "worker" else 0
            access = jwt_bus.renew(principal, seconds=seconds)
            nc = await stack.enter_async_context(open_connection(url, access=access))
            connections[principal] = nc
            await stack.enter_async_context(run_roles(nc, (principal,)))
        client = await stack.enter_async_context(
            connect_sdk(url, source="acme", access=jwt_bus.access("acme"))
        )
        async with connect_sdk(url, source="op", access=jwt_bus.access("operator")) as operator:
            await operator.declare(provider_config(jwt_bus.api.url))
        await wait_until(lambda: not connections["worker"].is_connected)

        reply = await client.declare(shape("acme", "waiting"))
        assert reply.accepted  # decided, although no worker is connected
        await wait_until(lambda: caplog.text.count("rejects user worker from") > 0)
        assert f"rejects user worker from {jwt_bus.folder / 'worker.creds'}" in caplog.text
        assert not connections["worker"].is_closed

        (jwt_bus.folder / "worker.creds").write_text("-----BEGIN NATS USER JWT-----\n")
        await wait_until(lambda: "worker.creds is not a .creds file" in caplog.text)

        jwt_bus.renew("worker")
        outcome = await client.wait_for("acme/Shape/waiting", generation=1)
        assert outcome.outcome == "Converged"
        assert all(nc.is_connected for nc in connections.values())


async def test_a_revoked_nkey_is_replaced_without_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, fresh = Pair.of_user(), Pair.of_user()
    key = old.write(tmp_path / "all.nk")
    bus, api = EmbeddedServer(), FaultyApi()

    def allow_only(pair: Pair) -> str:
        return f'authorization {{ users: [ {{ nkey: "{pair.public}" }} ] }}'

    url = await bus.start(tmp_path / "nats", extra_config=allow_only(old))
    await api.start(tmp_path / "api")
    try:
        async with open_connection(url, access=Access(nkey=key)) as nc:
            await initialize(nc, namespaces=["acme"])
            async with run_roles(nc, RUNNING_ROLES):
                config = bus.data_dir / "nats.conf"
                config.write_text(config.read_text().replace(allow_only(old), allow_only(fresh)))
                os.kill(bus.pid, signal.SIGHUP)
                await wait_until(lambda: "rejects user" in caplog.text and not nc.is_connected)

                fresh.write(key)
                async with connect_sdk(url, source="t", access=Access(nkey=key)) as client:
                    await client.declare(provider_config(api.url))
                    await client.declare(shape("default", "after"))
                    outcome = await client.wait_for("default/Shape/after", generation=1)
                    assert outcome.outcome == "Converged"
    finally:
        await api.stop()
        await bus.stop()


def test_every_principals_jwt_fits_in_a_protocol_line(tmp_path: Path) -> None:
    """`max_control_line` is 4,096 bytes by default, and the JWT is part of a line."""
    users = [User(principal, principal) for principal in PRINCIPALS if principal != "service"]
    users.append(User("accounting", "service", namespace="accounting"))
    operator = Operator(users)
    for user in users:
        path = operator.write_credentials(tmp_path / "any.creds", user.name)
        assert len(KeyFile(path, with_jwt=True).read().jwt) < 3_600, user.name


async def test_a_refused_login_names_its_user_immediately(jwt_bus: JwtBus, tmp_path: Path) -> None:
    stranger = Pair.of_user().write(tmp_path / "stranger.nk")
    with pytest.raises(BusAccessError, match=rf"rejects user U\w+ from {stranger}"):
        await connect(jwt_bus.bus.url, name="stranger", access=Access(nkey=stranger))
    result = await asyncio.to_thread(
        Cli(tmp_path).run, "get", "--nats-url", jwt_bus.bus.url, RECONCILER_NKEY=str(stranger)
    )
    assert result.status == 1
    assert result.err.startswith("error: cannot use nats://")
    assert "rejects user" in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "cannot read"),
        ("", "is not a .creds file"),
        ("-----BEGIN NATS USER JWT-----\nabc\n", "is not a .creds file"),
        ("\x00\xff", "is not a key file"),
    ],
)
async def test_unusable_credentials_are_named(
    tmp_path: Path, content: str | None, expected: str
) -> None:
    path = tmp_path / "my.creds"
    if content is not None:
        path.write_bytes(content.encode("latin-1"))
    with pytest.raises(BusAccessError, match=expected) as error:
        await connect("nats://127.0.0.1:1", name="t", access=Access(credentials=path))
    assert str(path) in str(error.value)


def test_options_override_the_environment() -> None:
    environment = {
        "RECONCILER_CREDENTIALS": "/env.creds",
        "RECONCILER_INBOX_PREFIX": "_INBOX.me",
        "RECONCILER_TLS_CA": "/ca.pem",
    }
    access = Access().with_environment(environment)
    assert (access.credentials, access.inbox_prefix, access.tls_ca) == (
        Path("/env.creds"),
        "_INBOX.me",
        Path("/ca.pem"),
    )
    given_access = Access(nkey=Path("/my.nk")).with_environment(environment)
    assert (given_access.nkey, given_access.credentials) == (Path("/my.nk"), None)
    with pytest.raises(BusAccessError, match="not both"):
        Access().with_environment({"RECONCILER_CREDENTIALS": "/a", "RECONCILER_NKEY": "/b"})
    with pytest.raises(BusAccessError, match="requires its certificate"):
        Access(tls_key=Path("/k")).with_environment({})


def test_the_inbox_prefix_is_derived_from_the_user(tmp_path: Path) -> None:
    pair = Pair.of_user()
    nkey = pair.write(tmp_path / "a.nk")
    operator = Operator([User("ann", "operator")])
    credentials = operator.write_credentials(tmp_path / "ann.creds", "ann")
    url = ["nats://h"]
    assert Identity(url, Access(nkey=nkey)).inbox_prefix == f"_INBOX.{pair.public}"
    assert Identity(url, Access(credentials=credentials)).inbox_prefix == "_INBOX.ann"
    assert Identity(["nats://bob:secret@h"], Access()).inbox_prefix == "_INBOX.bob"
    assert Identity(["nats://a-token@h"], Access()).inbox_prefix == "_INBOX"
    assert Identity(url, Access()).inbox_prefix == "_INBOX"
    assert Identity(url, Access(inbox_prefix="_INBOX_eve")).inbox_prefix == "_INBOX_eve"
    for invalid_prefix in ("INBOX", "_INBOX.>", "_INBOX.*", "_INBOX. x", "_INBOX."):
        with pytest.raises(BusAccessError, match="inbox prefix"):
            Identity(url, Access(inbox_prefix=invalid_prefix))
