"""How the provider of JetStream objects logs in: with its own credentials, never a role's."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from pathlib import Path

import pytest

from events.external import ExternalObject
from events.log import Action
from events.provider_config import ProviderConfigSpec, Scope, Tls
from infra.bus.permission_files import User
from infra.embedded import EmbeddedServer
from infra.jetstream.connection import close
from infra.jetstream.connection import connect as connect_as
from infra.jetstream.errors import BusAccessError
from infra.jetstream.identity import Login
from infra.providers.jetstream.bucket import BUCKET
from infra.providers.jetstream.consumer import CONSUMER
from infra.providers.jetstream.stream import STREAM
from reconciler.errors import ConfigurationError, NotDoneError, UnknownResultError
from reconciler.provider import Provider, WatchingProvider
from reconciler.provider.call_permit import CallPermit
from reconciler.provider.contract import action, listing
from reconciler.provider.secrets import Secrets
from tests.providers.connect import Connect, action_on
from tests.security.keys import Pair
from tests.security.operator_mode import Operator

PAGE = Path(__file__).parents[2] / "docs" / "kinds" / "jetstream.md"


async def read_refusal(url: str, secret: str | None) -> str:
    provider = build_provider(config_of(url), secret)
    try:
        with pytest.raises(NotDoneError) as caught:
            await provider.read("x")
        return str(caught.value)
    finally:
        await provider.close()


def build_provider(config: ProviderConfigSpec, secret: str | None = None) -> Provider:
    assert STREAM.connect is not None
    return STREAM.connect(config, Secrets(secret), CallPermit())


def config_of(endpoint: str, tls: Tls | None = None) -> ProviderConfigSpec:
    return ProviderConfigSpec(provider="jetstream", endpoint=endpoint, tls=tls)


@pytest.mark.parametrize(
    ("authorization", "secret"),
    [
        ("{ token: 's3cret-token' }", "s3cret-token"),
        ("{ user: ann, password: 'p:w/@ 1' }", "ann:p:w/@ 1"),
    ],
    ids=["token", "user"],
)
async def test_it_logs_in_with_only_its_own_secret(
    tmp_path: Path,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    authorization: str,
    secret: str,
) -> None:
    server = EmbeddedServer()
    await server.start(tmp_path, extra_config=f"authorization: {authorization}\n")
    monkeypatch.setenv("RECONCILER_CREDENTIALS", str(tmp_path / "a-role-that-is-not-used.creds"))
    try:
        provider = connect(STREAM, server.url, secret=secret)
        assert await provider.read("x") is None
        assert "rejects" in await read_refusal(server.url, None)
        assert "wrong-secret" not in await read_refusal(server.url, "wrong-secret")
        await provider.close()
    finally:
        await server.stop()


async def test_it_logs_in_with_an_nkey(tmp_path: Path, connect: Connect) -> None:
    own_key_pair = Pair.of_user()
    server = EmbeddedServer()
    authorization = f"authorization: {{ users: [ {{ nkey: {own_key_pair.public} }} ] }}\n"
    await server.start(tmp_path, extra_config=authorization)
    try:
        provider = connect(STREAM, server.url, secret=f"{own_key_pair.seed}\n")
        assert await provider.read("x") is None
        await provider.close()
    finally:
        await server.stop()


async def test_it_logs_in_with_the_contents_of_a_creds_file(
    tmp_path: Path, connect: Connect
) -> None:
    operator = Operator([User("ann", "operator")])
    text = operator.write_credentials(tmp_path / "ann.creds", "ann").read_text()
    server = EmbeddedServer()
    await server.start(tmp_path / "data", extra_config=operator.configuration)
    try:
        provider = connect(STREAM, server.url, secret=text)
        assert await listing(provider, Scope()) == []
        with pytest.raises(NotDoneError, match=r"permission denied.*ann.*credentialsRef"):
            await provider.create(action("Create", "x", STREAM.check_fields({"subjects": ["x"]})))
        await provider.close()
    finally:
        await server.stop()


def format_permissions(verb: str, *, without: str = "-") -> str:
    """Return the documented permissions in the syntax of the server's configuration."""
    lines = re.findall(rf"^{verb}: (\S+)$", PAGE.read_text(), re.MULTILINE)
    assert len(lines) > 3
    return f"{verb}: {json.dumps([line for line in lines if without not in line])}"


def format_authorization(*permissions: str) -> str:
    entry = f"user: ann, password: s3cret, permissions: {{ {', '.join(permissions)} }}"
    return f"authorization: {{ users: [ {{ {entry} }} ] }}\n"


async def test_the_documented_permissions_are_enough(tmp_path: Path, connect: Connect) -> None:
    server = EmbeddedServer()
    permissions = format_authorization(
        format_permissions("publish"), format_permissions("subscribe")
    )
    await server.start(tmp_path, extra_config=permissions)
    try:
        for kind, name, fields in (
            (STREAM, "S", {"subjects": ["s.>"]}),
            (BUCKET, "b", {}),
            (CONSUMER, "S/c", {"filterSubjects": ["s.a"]}),
        ):
            provider = connect(kind, server.url, secret="ann:s3cret")
            assert isinstance(provider, WatchingProvider)
            mark = await provider.changes(None)
            checked_fields = kind.check_fields(fields)
            created_object = (await provider.create(action("Create", name, checked_fields))).object
            assert await provider.changes(mark) != mark
            changed_fields = kind.check_fields({**fields, "description": "x"})
            updated_object = (
                await provider.update(action_on("Update", created_object, changed_fields))
            ).object
            assert await listing(provider, Scope()) == [updated_object]
            if kind is not STREAM:
                await provider.delete(action_on("Delete", updated_object, {}))
                assert await provider.read(name) is None
            await provider.close()
    finally:
        await server.stop()


async def test_missing_permission_for_advisories_is_reported_and_listings_continue(
    tmp_path: Path, connect: Connect
) -> None:
    server = EmbeddedServer()
    permissions = format_authorization(
        format_permissions("publish"), format_permissions("subscribe", without="ADVISORY")
    )
    await server.start(tmp_path, extra_config=permissions)
    try:
        provider = connect(STREAM, server.url, secret="ann:s3cret")
        assert isinstance(provider, WatchingProvider)
        for _ in range(2):
            with pytest.raises(NotDoneError, match=r"may not subscribe to .*ADVISORY"):
                await provider.changes(None)
        assert await listing(provider, Scope()) == []
        await provider.close()
    finally:
        await server.stop()


@pytest.mark.parametrize(
    "endpoint",
    ["", "http://h", "nats://", "nats://h/path", "nats://h:x", "nats://u:p@h", "nats://h?x=1"],
)
def test_an_endpoint_that_cannot_be_called_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match=r"spec\.endpoint") as caught:
        build_provider(config_of(endpoint))
    assert "u:p" not in str(caught.value)


@pytest.mark.parametrize("secret", ["", "two\nlines", "-----BEGIN NATS USER JWT-----\nabc\n"])
def test_a_secret_that_is_not_a_credential_is_refused_without_showing_it(secret: str) -> None:
    with pytest.raises(ConfigurationError, match=r"credentialsRef") as caught:
        build_provider(config_of("nats://h"), secret)
    assert "abc" not in str(caught.value)
    assert "two" not in str(caught.value)


async def test_nothing_is_sent_to_a_server_without_the_required_tls(
    nats_server: EmbeddedServer,
) -> None:
    text = await read_refusal(nats_server.url.replace("nats://", "tls://"), "token-not-to-be-sent")
    assert "does not offer TLS" in text
    assert "token-not-to-be-sent" not in text


async def test_calls_fail_while_a_server_is_stopped_and_are_unknown_while_it_hangs(
    tmp_path: Path, connect: Connect, unique: str
) -> None:
    server = EmbeddedServer()
    await server.start(tmp_path)
    provider = connect(STREAM, server.url, timeout_seconds=1)
    create = action("Create", unique, STREAM.check_fields({"subjects": [unique]}))
    assert await provider.read(unique) is None
    os.kill(server.pid, signal.SIGSTOP)
    with pytest.raises(UnknownResultError):
        await provider.create(create)
    os.kill(server.pid, signal.SIGCONT)
    effect = await create_when_reachable(provider, create)
    assert effect is not None
    assert effect.written_by == create.idempotency_key
    await server.stop()
    await asyncio.sleep(0.2)
    with pytest.raises(NotDoneError):
        await provider.create(create)


async def create_when_reachable(provider: Provider, create: Action) -> ExternalObject | None:
    async with asyncio.timeout(20):
        while True:
            try:
                return (await provider.create(create)).object
            except (NotDoneError, UnknownResultError):
                await asyncio.sleep(0.1)


async def test_a_role_without_a_login_still_reads_the_environment(
    nats_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECONCILER_CREDENTIALS", "/not/there.creds")
    with pytest.raises(BusAccessError, match=r"not/there\.creds"):
        await connect_as(nats_server.url, name="role", timeout_seconds=1)
    await close(await connect_as(nats_server.url, name="provider", login=Login()))
