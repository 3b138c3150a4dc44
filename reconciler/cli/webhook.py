"""`reconciler webhook`: receive pushes from a Git host."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import structlog
from cyclopts import Parameter

from events.names import check_token
from infra.named_files import MAX_KEY_BYTES, read_at_most
from reconciler.cli.client import connect_client
from reconciler.cli.connection import DEFAULT_CONNECTION, Connection, run_async
from reconciler.cli.errors import CommandError, UsageError
from reconciler.cli.exits import Exit
from reconciler.cli.options import Integer, NamedPath
from reconciler.composites.git_source import KIND
from reconciler.provider.lazy import check_extra

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from uvicorn import Server

_MIN_SECRET_CHARACTERS: Final = 16

_logger = structlog.get_logger(__name__)


def webhook(
    *,
    secret_file: NamedPath,
    host: str = "127.0.0.1",
    port: Integer = 8091,
    namespace: Annotated[str | None, Parameter(name=("--namespace", "-n"))] = None,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Receive webhooks from a Git host, to detect pushes immediately.

    A push makes Reconciler read the GitSources of that repository. Without a
    webhook, the observer polls each source at its own interval. GitHub, Gitea
    and Forgejo sign a request with the secret, and GitLab sends the secret. The
    server uses plain HTTP: put a TLS proxy in front of it.

    For example:

        reconciler webhook --secret-file /etc/reconciler/webhook
        reconciler webhook --secret-file ./secret --host 0.0.0.0 --port 9000
        reconciler webhook --secret-file ./billing --namespace billing

    Parameters
    ----------
    secret_file
        File with the webhook secret, at least 16 characters.
    host
        Address to listen on.
    port
        Port to listen on; 0 selects a free port.
    namespace
        Only GitSources in this namespace. By default, a client with the secret
        can trigger reads of the GitSources in every namespace, and the response
        contains their names.
    """
    check_extra("webhook", "`reconciler webhook`")
    try:
        secret = read_at_most(secret_file, MAX_KEY_BYTES).decode().strip()
    except OSError as error:
        raise CommandError(
            f"cannot read {secret_file}: {error.strerror}; name the file with --secret-file"
        ) from None
    except UnicodeDecodeError as error:
        raise CommandError(f"{secret_file}: not UTF-8 text ({error}); save it as UTF-8") from None
    if len(secret) < _MIN_SECRET_CHARACTERS:
        raise UsageError(f"{secret_file}: must have at least {_MIN_SECRET_CHARACTERS} characters")
    if namespace is not None:
        check_token(namespace, what="namespace")
    run_async(_serve(connection, secret, host, port, namespace))
    return Exit.OK


async def _serve(
    connection: Connection, secret: str, host: str, port: int, namespace: str | None
) -> None:
    from infra.webhook import repository_key, webhook  # noqa: PLC0415 - only for the server

    async with connect_client(connection) as client:

        async def on_push(urls: Sequence[str]) -> Sequence[str]:
            pushed = {repository_key(url) for url in urls}
            keys = [
                row.key
                for row in await client.statuses(namespace, KIND)
                if row.declared and repository_key(str(row.outputs.get("url", ""))) in pushed
            ]
            if keys:
                await client.reconcile_many(keys, reason=f"a push to {min(pushed)}")
            _logger.info("pushed", repository=sorted(pushed), sources=[str(key) for key in keys])
            return [str(key) for key in keys]

        listener = _listen(host, port)
        server = build_server(webhook(secret, on_push))
        print(f"listening on http://{host}:{listener.getsockname()[1]}/", flush=True)
        await server.serve(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise CommandError(f"cannot listen on {host} port {port}: {error.strerror}") from None


def build_server(app: Starlette) -> Server:
    """Return a server for an application, with limits on unverified clients.

    The server reads at most 64 KiB of headers, and closes connections that do not send a request.
    """
    import uvicorn  # noqa: PLC0415 - only for the server

    from infra.webhook import MAX_HEADER_BYTES, BoundedProtocol  # noqa: PLC0415 - only for the server

    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=BoundedProtocol,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            log_config=None,
            access_log=False,
            server_header=False,
        )
    )
