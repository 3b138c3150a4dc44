"""No secret appears in a stream, a log line, an error or a command's output."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from events.manifest import Manifest, Metadata
from infra.bus.permissions import ALL_STREAMS
from infra.embedded import EmbeddedServer
from infra.jetstream.access import Access
from infra.jetstream.connection import api_request, connect, redact_url
from infra.jetstream.errors import BusAccessError, BusError
from infra.jetstream.reads import read_subject
from reconciler.cli.process_logs import configure_logs
from reconciler.errors import ConfigurationError, DeclarationRefusedError, ProviderError
from reconciler.roles.runtime.secret_guard import MAX_ERROR_CHARACTERS, mask_secrets
from reconciler.sdk import Client as Sdk
from reconciler.sdk import client_on
from reconciler.secrecy import Secrecy
from reconciler.wiring import ROLES, initialize, open_connection, run_roles
from tests.cli.runner import Cli
from tests.security.echo_api import EchoApi
from tests.security.guarded import PATIENCE_SECONDS, Guarded
from tests.security.keys import Pair

VARIABLE_SECRET = "planted-in/a+variable=7f3a"
FILE_SECRET = "planted-in-a-file-91c2"
PASSWORD = "planted-in-the-url-55d0"
SECRETS = (VARIABLE_SECRET, FILE_SECRET, PASSWORD)


def _config(name: str, endpoint: str, reference: dict[str, str]) -> Manifest:
    spec: dict[str, Any] = {
        "provider": "shapes",
        "endpoint": endpoint,
        "credentialsRef": reference,
        "resyncSeconds": 0.2,
        "retry": {"initialSeconds": 0.1, "maxSeconds": 0.2},
    }
    return Manifest("reconciler/v1", "ProviderConfig", Metadata(name, "system"), spec)


def _shape(name: str, config: str) -> Manifest:
    spec = {"type": "Square", "color": "Red", "providerConfigRef": {"name": config}}
    return Manifest("shapes/v1", "Shape", Metadata(name), spec)


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    """Run a server that requires a password; yield its URL with the password."""
    server = EmbeddedServer()
    users = f'authorization {{ user: "reconciler", password: "{PASSWORD}" }}'
    await server.start(tmp_path / "nats", extra_config=users)
    yield server.url.replace("//", f"//reconciler:{PASSWORD}@")
    await server.stop()


async def test_a_secret_that_an_api_repeats_appears_nowhere(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PLANTED_TOKEN", VARIABLE_SECRET)
    (tmp_path / "token").write_text(f"{FILE_SECRET}\n")
    references = {400: {"env": "PLANTED_TOKEN"}, 409: {"env": "PLANTED_TOKEN"}}
    references[500] = {"file": str(tmp_path / "token")}
    logged = _log_everything()
    async with AsyncExitStack() as stack:
        apis = {each: await stack.enter_async_context(EchoApi(each)) for each in references}
        nc = await stack.enter_async_context(open_connection(url))
        await initialize(nc)
        async with run_roles(nc, ROLES), client_on(nc, source="test") as client:
            for status, reference in references.items():
                config = _config(f"c{status}", apis[status].url, reference)
                await client.declare(config)
                await client.declare(_shape(f"s{status}", f"c{status}"))
            for status in references:
                await _wait_for_failure(client, f"default/Shape/s{status}")
            await _wait_for_listing(client)
        received_headers = {header for api in apis.values() for header in api.received}
        assert received_headers == {f"Bearer {VARIABLE_SECRET}", f"Bearer {FILE_SECRET}"}
        stored = await _read_all_streams(nc)
        output_lines = await asyncio.to_thread(_run_commands, tmp_path, url)
    assert b"you sent Bearer ***" in stored  # the API's message is stored without the secret
    logs = "\n".join(logged) + "".join(capfd.readouterr())
    for secret in SECRETS:
        for encoded in (secret, json.dumps(secret)[1:-1], secret.replace("/", "\\/")):
            assert encoded.encode() not in stored
            assert encoded not in logs
            assert encoded not in output_lines


def _log_everything() -> list[str]:
    """Log at debug level, as `--log-level debug` does; return the list that receives the lines."""
    configure_logs("debug")
    lines: list[str] = []

    class LineHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(f"{record.getMessage()} {record.exc_info}")

    root = logging.getLogger()
    root.addHandler(LineHandler())
    return lines


async def _wait_for_failure(client: Sdk, shape: str) -> None:
    """Wait until a call has failed, and its reason is in the log."""
    await _wait_for_event(client, shape, "reconciler.log.ActionFailed")


async def _wait_for_listing(client: Sdk) -> None:
    """Wait until the listing with the header in a label is in the log."""
    await _wait_for_event(client, "default/Shape/echo", "")


async def _wait_for_event(client: Sdk, shape: str, event_type: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), aclosing(client.replay(follow=True)) as batches:
        async for batch in batches:
            for _, event in batch:
                if event.subject == shape and event.type.endswith(event_type.rpartition(".")[2]):
                    return


async def _read_all_streams(nc: Client) -> bytes:
    """Return the messages of all streams with their headers."""
    payloads: list[bytes] = []
    for stream in ALL_STREAMS:
        for message in await read_subject(nc, stream, ">"):
            payloads += [message.payload, str(message.headers).encode(), message.subject.encode()]
        payloads.append(json.dumps(await api_request(nc, f"STREAM.INFO.{stream}", None)).encode())
    return b"\n".join(payloads)


def _run_commands(folder: Path, url: str) -> str:
    """Return the output of commands that read, with errors and tracebacks."""
    cli = Cli(folder)
    outputs: list[str] = []
    for arguments in (("describe", "Shape/s400"), ("history", "Shape/s500"), ("doctor",)):
        result = cli.run(
            *arguments, "--nats-url", url, "--log-level", "debug", PLANTED_TOKEN=VARIABLE_SECRET
        )
        outputs += [result.out, result.err]
    failed = cli.run("get", "--nats-url", url.replace(PASSWORD, f"{PASSWORD}x"), "--debug")
    assert failed.status == 1
    return "\n".join([*outputs, failed.out, failed.err])


async def test_a_secret_in_place_of_a_reference_is_refused_and_erased(
    guarded: Guarded, admin: Client, name: str
) -> None:
    misplaced = "sk-live-planted-4711"
    async with guarded.sdk_as("operator") as operator:
        for reference in ({"env": misplaced}, {"file": misplaced}, {"token": misplaced}):
            with pytest.raises(DeclarationRefusedError) as refused:
                await operator.declare(_config(name, "http://127.0.0.1:1", reference))
            assert misplaced not in str(refused.value)
        with pytest.raises(DeclarationRefusedError):
            await operator.declare(_config(name, f"http://u:{misplaced}@127.0.0.1:1", {}))
    stored = await _read_all_streams(admin)
    assert misplaced.encode() not in stored
    assert f"ProviderConfig.{name}".encode() in stored  # the dead letters give the reason


async def test_no_error_and_no_log_line_shows_a_seed(
    tmp_path: Path, guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    stranger = Pair.of_user()
    key = stranger.write(tmp_path / "stranger.nk")
    outputs: list[str] = []
    for path in (key, _write_damaged(tmp_path, stranger), _write_truncated(tmp_path, stranger)):
        with pytest.raises(BusAccessError) as refused:
            await connect(guarded.bus.url, name="stranger", access=Access(nkey=path))
        outputs += traceback.format_exception(refused.value)
    assert stranger.seed[:20] not in "\n".join([*outputs, caplog.text])


def _write_damaged(folder: Path, pair: Pair) -> Path:
    path = folder / "damaged.nk"
    path.write_text(pair.seed[:-1] + ("A" if pair.seed[-1] != "A" else "B"))
    return path


def _write_truncated(folder: Path, pair: Pair) -> Path:
    path = folder / "halved.nk"
    path.write_text(pair.seed[:30])
    return path


def test_a_url_is_shown_without_its_secrets() -> None:
    for url, expected in (
        ("nats://u:p@h:1", "nats://h:1"),
        ("nats://token@h:1,tls://u:p@i:2", "nats://h:1,tls://i:2"),
        ("u:p@h:1", "h:1"),
        ("nats://u:p@ss@h:1", "nats://h:1"),
        ("nats://h:1", "nats://h:1"),
    ):
        assert redact_url(url) == expected


async def test_an_unreachable_server_is_named_without_the_password() -> None:
    with pytest.raises(BusError) as raised:
        await connect(f"nats://u:{PASSWORD}@127.0.0.1:1", name="t", timeout_seconds=0.2)
    assert PASSWORD not in str(raised.value)


def test_an_unexpected_error_is_reported_without_the_secret() -> None:
    secrecy = Secrecy(FILE_SECRET)
    with pytest.raises(ProviderError) as raised, mask_secrets(secrecy):
        _raise_key_error(FILE_SECRET)
    assert "***" in str(raised.value)
    chain: BaseException | None = raised.value
    while chain is not None and not (
        chain is not raised.value and raised.value.__suppress_context__
    ):
        assert FILE_SECRET not in repr(chain)
        chain = chain.__cause__
    assert raised.value.__suppress_context__


def test_a_long_error_is_truncated_before_it_is_searched() -> None:
    """An API may repeat megabytes in its response; searching them would block the event loop."""
    secrecy = Secrecy(VARIABLE_SECRET)
    long = "\\u1234" * 500_000
    began = time.process_time()
    assert not secrecy.is_in(long[:MAX_ERROR_CHARACTERS])
    search_seconds, began = time.process_time() - began, time.process_time()
    for error in (ProviderError(long), ConfigurationError(long), ValueError(long)):
        with pytest.raises(Exception, match="u1234") as caught, mask_secrets(secrecy):
            raise error from ProviderError(f"{long} {VARIABLE_SECRET}")
        assert len(str(caught.value)) <= MAX_ERROR_CHARACTERS + len("ValueError: ")
        assert caught.value.__cause__ is None
    assert time.process_time() - began < 100 * search_seconds  # 180 times without truncation


def test_a_secret_at_the_end_of_a_truncated_error_is_hidden() -> None:
    secrecy = Secrecy(VARIABLE_SECRET)
    prefix = "." * (MAX_ERROR_CHARACTERS - len(VARIABLE_SECRET) // 3)
    with pytest.raises(ProviderError) as caught, mask_secrets(secrecy):
        raise ProviderError(f"{prefix}{VARIABLE_SECRET}{prefix}")
    assert caught.value.message.startswith(prefix)
    assert caught.value.message.strip(".*") == ""


def test_an_error_that_is_its_own_cause_is_reported_like_any_other() -> None:
    error = ProviderError(FILE_SECRET)
    with pytest.raises(ProviderError) as raised, mask_secrets(Secrecy(FILE_SECRET)):
        raise error from error
    assert str(raised.value) == "***"


def _raise_key_error(text: str) -> None:
    raise KeyError(f"header {text}")


def test_a_secret_is_hidden_in_every_encoding() -> None:
    secrecy = Secrecy(VARIABLE_SECRET)
    text = (
        f"{VARIABLE_SECRET} {json.dumps({'a': VARIABLE_SECRET})} planted-in%2Fa%2Bvariable%3D7f3a"
    )
    hidden = secrecy.hide(f"{text} cGxhbnRlZC1pbi9hK3ZhcmlhYmxlPTdmM2E=")
    assert "planted" not in hidden
    assert "cGxhbnRlZC" not in hidden
    assert Secrecy(None).hide("nothing") == "nothing"
    assert Secrecy("ab").hide("abc") == "abc"
    assert VARIABLE_SECRET not in repr(secrecy)
