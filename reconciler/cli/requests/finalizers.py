"""`finalizer` and `release`: add and remove finalizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from cyclopts import Parameter

from events.names import ResourceKey, check_finalizer
from events.provider_config import is_config
from reconciler.cli.connection import DEFAULT_CONNECTION, Connection
from reconciler.cli.errors import UsageError
from reconciler.cli.naming import resolve_kind
from reconciler.cli.options import (
    Duration,
    Filter,
    Kind,
    Names,
    Namespace,
    Output,
    Reason,
    ReplyTimeout,
    Words,
)
from reconciler.cli.requests.request import ReplyOrRefusal, request
from reconciler.cli.selection import select_keys
from reconciler.errors import DeclarationRefusedError
from reconciler.provider.kind import installed_kinds
from reconciler.sdk.client import Client


def finalizer(
    verb: Literal["add", "remove"],
    /,
    *words: Annotated[
        Words,
        Parameter(
            help="The resource (NAME, KIND NAME, KIND/NAME or NAMESPACE/KIND/NAME), and the name "
            "of the finalizer, such as billing/last-invoice."
        ),
    ],
    force: bool = False,
    reason: Reason = "",
    namespace: Namespace = None,
    timeout: Duration = 10.0,
    output: Output = "table",
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Add a finalizer to a resource, or remove one from it.

    While a withdrawn resource has a finalizer, Reconciler neither deletes nor
    releases its object. Only the service that added a finalizer can remove it
    without --force. `reconciler describe` shows the finalizers.

    For example:

        reconciler finalizer add Shape foo billing/last-invoice
        reconciler finalizer add foo billing/last-invoice
        reconciler finalizer remove default/Shape/foo billing/last-invoice
        reconciler finalizer remove Shape foo billing/last-invoice --force

    Parameters
    ----------
    verb
        Whether to add or remove the finalizer.
    force
        With remove: also remove a finalizer that another service added.
    timeout
        Maximum time to wait for the response, such as 500ms, 30s, 2m or 1h.
    """
    if verb == "add" and (force or reason):
        raise UsageError("--force and --reason: allowed only with remove")
    key, name = _parse(connection, words, namespace)

    async def send_requests(client: Client) -> list[ReplyOrRefusal]:
        try:
            if verb == "add":
                return [await client.request_finalizer(key, name, timeout_seconds=timeout)]
            return [
                await client.release_finalizer(
                    key, name, force=force, reason=reason, timeout_seconds=timeout
                )
            ]
        except DeclarationRefusedError as refused:
            return [refused]

    not_found = "the resource has no such finalizer; `reconciler describe` lists its finalizers"
    return request(
        connection,
        [key],
        send_requests,
        output=output,
        done=f"finalizer {name} {'added' if verb == 'add' else 'removed'}",
        unchanged=not_found if verb == "remove" else "",
    )


def _parse(
    connection: Connection, words: Sequence[str], namespace: str | None
) -> tuple[ResourceKey, str]:
    """Return the resource and the name of its finalizer; raises ``UsageError``."""
    *resource, name = words or ("",)
    usage = UsageError(
        "finalizer: use NAME FINALIZER, KIND NAME FINALIZER, or NAMESPACE/KIND/NAME FINALIZER"
    )
    first = resource[0] if resource else ""
    min_words = 2 if resolve_kind(first) in installed_kinds() else 1
    max_words = 1 if "/" in first else 2  # the first word may be a kind that is defined at run time
    if not min_words <= len(resource) <= max_words:
        raise usage
    check_finalizer(name)
    keys = select_keys(connection, resource, "finalizer", Filter(namespace=namespace))
    if len(keys) != 1:  # the words are two names without a kind
        raise usage
    return keys[0], name


def release(
    kind: Kind,
    /,
    *names: Names,
    reason: Reason,
    orphan: bool = False,
    namespace: Namespace = None,
    timeout: ReplyTimeout = 30.0,
    output: Output = "table",
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Forcibly remove all finalizers and references from withdrawn resources.

    Use this command when the service that added them can no longer remove
    them. `reconciler describe` shows the finalizers and references. After the
    release, Reconciler deletes or orphans the object, as the policy requires.
    With --orphan, it keeps the object in the API. The log records the release
    with your name and reason.

    A withdrawn ProviderConfig ends immediately, although resources use it.
    Reconciler then makes no calls to its API.

    For example:

        reconciler release Shape foo --reason "billing is shut down"
        reconciler release Shape foo --orphan --reason "the API was shut down"
        reconciler release ProviderConfig billing --reason "INC-42"

    Parameters
    ----------
    orphan
        Keep the object in the API, stop managing it, and abandon a deletion in flight.
    """
    if not reason.strip():
        raise UsageError("--reason: must not be empty; the log records it")
    keys = select_keys(connection, (kind, *names), "release", Filter(namespace=namespace))
    stays = "stays in the API" if orphan else "is deleted or released, as its policy requires"
    done = f"finalizers and references removed; the object {stays}"
    if all(map(is_config, keys)):
        done = "Reconciler makes no more calls to its API"
    return request(
        connection,
        keys,
        lambda client: client.force_release_many(
            keys, reason=reason, orphan=orphan, timeout_seconds=timeout
        ),
        output=output,
        done=done,
        unchanged="nothing blocks the resource, and it owns no object; nothing to release",
    )
