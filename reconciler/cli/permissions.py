"""`reconciler permissions`: what each principal may do on the bus, in a NATS format."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import msgspec
from cyclopts import Parameter

from infra.bus.permission_files import User, claims, server_configuration
from infra.bus.permissions import PRINCIPALS, Principal
from reconciler.cli.errors import UsageError
from reconciler.cli.exits import Exit
from reconciler.cli.output import print_structured


def permissions(
    principal: Principal | None = None,
    /,
    *,
    namespace: tuple[str, ...] = (),
    user: tuple[str, ...] = (),
    key: tuple[str, ...] = (),
    finalizers: bool = False,
    provider_config: tuple[str, ...] = (),
    output: Annotated[Literal["conf", "json"], Parameter(name=("--output", "-o"))] = "conf",
) -> int:
    """Print the minimal NATS permissions of each principal.

    Without PRINCIPAL, print all principals except restore, and a service for
    each --namespace. Users authenticate with nkeys (`nk -gen user`). The
    output has a placeholder for each missing key, and a NATS server does not
    start until you replace it. The command does not need a server.

    For example:

        reconciler permissions --namespace billing > accounts.conf
        reconciler permissions worker --key worker=UDXU4RCSJNZ...
        reconciler permissions operator --user ann --user bob
        reconciler permissions backup --user nightly
        reconciler permissions service --namespace billing --output json

    Parameters
    ----------
    principal
        Print only this principal.
    namespace
        Namespace of a service. May be repeated.
    user
        Name of a user with the permissions of PRINCIPAL. May be repeated. Default: the name of the
        principal, or the namespace of the service.
    key
        Public nkey of a user, as NAME=KEY. May be repeated.
    finalizers
        Also allow services to add and remove finalizers in their namespace.
    provider_config
        Name of a ProviderConfig that the services use. They may read whether its API responds, and
        nothing else of it. May be repeated.
    output
        conf: a block for the NATS server configuration. json: JWT claims in the format of `nsc`.
    """
    users = _users(
        principal, namespace, user, finalizers=finalizers, provider_configs=provider_config
    )
    users = _with_keys(users, key)
    if output == "conf":
        sys.stdout.write(server_configuration(users))
    else:
        print_structured(claims(users), "json")
    return Exit.OK


def _users(
    principal: Principal | None,
    namespaces: tuple[str, ...],
    names: tuple[str, ...],
    *,
    finalizers: bool,
    provider_configs: tuple[str, ...],
) -> list[User]:
    if names and (principal is None or len(namespaces) > 1):
        raise UsageError("--user: requires a PRINCIPAL, and for a service exactly one --namespace")
    if principal == "service" and not namespaces:
        raise UsageError("missing option --namespace, which a service requires")
    if principal not in (None, "service") and namespaces:
        raise UsageError(f"--namespace: allowed only for a service, not for {principal}")
    if finalizers and not namespaces:
        raise UsageError("--finalizers: allowed only for services; add --namespace")
    if provider_configs and not namespaces:
        raise UsageError("--provider-config: allowed only for services; add --namespace")
    namespaces, names = tuple(dict.fromkeys(namespaces)), tuple(dict.fromkeys(names))
    users = [
        User(name, each)
        for each in PRINCIPALS
        if each != "service" and (principal == each or (principal is None and each != "restore"))
        for name in (names or (each,))
    ]
    for namespace in namespaces:
        users += [
            User(
                name,
                "service",
                namespace=namespace,
                finalizers=finalizers,
                provider_configs=tuple(dict.fromkeys(provider_configs)),
            )
            for name in (names or (namespace,))
        ]
    return users


def _with_keys(users: list[User], keys: tuple[str, ...]) -> list[User]:
    pairs = [_parse_key(text) for text in dict.fromkeys(keys)]
    keys_by_name = dict(pairs)
    if len(keys_by_name) < len(pairs) or len(set(keys_by_name.values())) < len(pairs):
        raise UsageError("--key: give each user exactly one key, and each key to exactly one user")
    unknown = keys_by_name.keys() - {user.name for user in users}
    if unknown:
        raise UsageError(
            f"--key: unknown user {', '.join(sorted(unknown))}; the users are "
            f"{', '.join(user.name for user in users)}"
        )
    names = {user.name for user in users if user.principal != "service"}
    matches: list[User] = []
    for user in users:
        if user.principal == "service" and user.name in names:
            raise UsageError(
                f"a service cannot be named {user.name}: that is the name of a principal, and "
                "the two would share an inbox; name its users with --user"
            )
        keyed = msgspec.structs.replace(user, key=keys_by_name.get(user.name, ""))
        _check_user(keyed)
        matches.append(keyed)
    return matches


def _check_user(user: User) -> None:
    try:
        user.check()
        _ = user.permissions
    except ValueError as error:
        raise UsageError(str(error)) from None


def _parse_key(text: str) -> tuple[str, str]:
    name, equals, public_key = text.partition("=")
    if not equals or not name or not public_key:
        raise UsageError(f"--key {text[:80]!r}: must have the form NAME=PUBLIC_KEY")
    return name, public_key
