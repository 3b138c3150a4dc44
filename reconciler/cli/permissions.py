"""`reconciler permissions`: what each principal may do on the bus, ready for the server."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

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
    output: Annotated[Literal["conf", "json"], Parameter(name=("--output", "-o"))] = "conf",
) -> int:
    """Print the minimal NATS permissions of each principal.

    Without PRINCIPAL, it prints all principals except restore, with a
    service for each --namespace. Users authenticate with nkeys (`nk -gen
    user`). The output has a placeholder for each missing key, and a NATS
    server does not start with it until you replace the placeholder. The
    command needs no server.

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
        Name of a user of PRINCIPAL. May be repeated. Default: the name of the principal, or the
        namespace of the service.
    key
        Public nkey of a user, as NAME=KEY. May be repeated.
    finalizers
        Also allow services to add and remove finalizers in their namespace.
    output
        A block for the configuration of the NATS server, or claims for JWTs in the format of `nsc`.
    """
    users = _users(principal, namespace, user, finalizers=finalizers)
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
) -> list[User]:
    if names and (principal is None or len(namespaces) > 1):
        raise UsageError("--user: requires one PRINCIPAL, and for a service one --namespace")
    if principal == "service" and not namespaces:
        raise UsageError("missing option --namespace, which a service requires")
    if principal not in (None, "service") and namespaces:
        raise UsageError(f"--namespace: allowed only for a service, not for {principal}")
    if finalizers and not namespaces:
        raise UsageError("--finalizers: allowed only for services; give their --namespace")
    namespaces, names = tuple(dict.fromkeys(namespaces)), tuple(dict.fromkeys(names))
    users = [
        User(name, each)
        for each in PRINCIPALS
        if each != "service" and (principal == each or (principal is None and each != "restore"))
        for name in (names or (each,))
    ]
    for namespace in namespaces:
        users += [
            User(name, "service", namespace=namespace, finalizers=finalizers)
            for name in (names or (namespace,))
        ]
    return users


def _with_keys(users: list[User], keys: tuple[str, ...]) -> list[User]:
    named = [_named_key(text) for text in dict.fromkeys(keys)]
    public = dict(named)
    if len(public) < len(named) or len(set(public.values())) < len(named):
        raise UsageError("--key: give each user exactly one key, and each key to exactly one user")
    unknown = public.keys() - {user.name for user in users}
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
                f"a service cannot be named {user.name}: this is the name of a principal, and "
                "both would have the same inbox; name its users with --user"
            )
        keyed = User(
            user.name, user.principal, public.get(user.name, ""), user.namespace, user.finalizers
        )
        _check(keyed)
        matches.append(keyed)
    return matches


def _check(user: User) -> None:
    try:
        user.check()
        _ = user.permissions
    except ValueError as error:
        raise UsageError(str(error)) from None


def _named_key(text: str) -> tuple[str, str]:
    name, equals, public = text.partition("=")
    if not equals or not name or not public:
        raise UsageError(f"--key {text[:80]!r}: must have the form NAME=PUBLIC_KEY")
    return name, public
