"""Format permissions for the server or its tools: as a configuration or as JWT claims."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from events.names import check_token
from infra.bus.permissions import (
    PURPOSES,
    Exchange,
    Permissions,
    Principal,
    principal_permissions,
    service_exchanges,
    service_permissions,
)

ACCOUNT: Final = "RECONCILER"
PLACEHOLDER: Final = "PUT-THE-PUBLIC-KEY-HERE-OF"
"""Placeholder for a key. The server does not start with it, so a forgotten key grants no access."""

_PUBLIC_KEY: Final = re.compile(r"U[A-Z2-7]{55}")


class User(msgspec.Struct, frozen=True):
    """A NATS user.

    ``key``: the public nkey; empty for a placeholder. ``namespace``: only for a service.
    ``finalizers``: whether a service may remove its finalizers. ``provider_configs``: the
    configurations whose condition a service may read.
    """

    name: str
    principal: Principal
    key: str = ""
    namespace: str = ""
    finalizers: bool = False
    provider_configs: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise ``ValueError`` for a user that the server would reject or misinterpret."""
        check_token(self.name, what="user")
        if self.key and _PUBLIC_KEY.fullmatch(self.key) is None:
            raise ValueError(
                f"user {self.name}: {self.key[:8]}... is not a user's public nkey; use "
                "one with 56 characters that starts with U"
            )
        if (self.principal == "service") != bool(self.namespace):
            raise ValueError(
                f"user {self.name}: a service requires a namespace, and no other principal can "
                "have one"
            )

    @property
    def account(self) -> str:
        """The account: one for Reconciler, and one for each namespace's services."""
        return f"SERVICE_{self.namespace}" if self.principal == "service" else ACCOUNT

    @property
    def inboxes(self) -> tuple[str, ...]:
        """Names of the inboxes: the user's name, and the key for a client that has only the key."""
        return (self.name, self.key) if self.key else (self.name,)

    @property
    def permissions(self) -> Permissions:
        """The permissions of the user."""
        if self.principal == "service":
            return service_permissions(
                self.namespace,
                self.inboxes,
                finalizers=self.finalizers,
                provider_configs=self.provider_configs,
            )
        return principal_permissions(self.principal, self.inboxes)


def server_configuration(users: Sequence[User]) -> str:
    """Return an ``accounts`` block for nats-server, with users that sign with an nkey."""
    lines = ["accounts {", f"  {ACCOUNT} {{", "    jetstream: enabled"]
    lines += _format_users([user for user in users if user.principal != "service"])
    exports = [_format_export(account, each) for account, each in _exchanges(users)]
    lines += ["    exports: [", *(f"      {each}" for each in exports), "    ]", "  }"]
    for account in _accounts(users):
        imports = [_format_import(each) for name, each in _exchanges(users) if name == account]
        lines += [
            f"  {json.dumps(account)} {{",
            *_format_users([user for user in users if user.account == account]),
            "    imports: [",
            *(f"      {each}" for each in imports),
            "    ]",
            "  }",
        ]
    return "\n".join([*lines, "}", ""])


def claims(users: Sequence[User]) -> dict[str, Any]:
    """Return the ``nats`` claims of account and user JWTs, for ``nsc`` or another signer."""
    services = [
        {
            "name": account,
            "nats": {
                "imports": [
                    {
                        "name": each.subject,
                        "subject": each.subject,
                        "account": f"{PLACEHOLDER}-{ACCOUNT}",
                        "type": each.kind,
                    }
                    for name, each in _exchanges(users)
                    if name == account
                ]
            },
        }
        for account in _accounts(users)
    ]
    exports = [
        {
            "name": each.subject,
            "subject": each.subject,
            "type": each.kind,
            **({"response_type": "Stream"} if each.has_many_responses else {}),
        }
        for each in dict.fromkeys(each for _account, each in _exchanges(users))
    ]
    return {
        "accounts": [{"name": ACCOUNT, "nats": {"exports": exports}}, *services],
        "users": [
            {
                "name": user.name,
                "account": user.account,
                "nats": {
                    "pub": {
                        "allow": list(user.permissions.publish),
                        **({"deny": denied} if (denied := [*user.permissions.denied]) else {}),
                    },
                    "sub": {"allow": list(user.permissions.subscribe)},
                },
            }
            for user in users
        ],
    }


def _accounts(users: Iterable[User]) -> list[str]:
    return list(dict.fromkeys(user.account for user in users if user.principal == "service"))


def _exchanges(users: Sequence[User]) -> list[tuple[str, Exchange]]:
    """Return the distinct exchanges per account. Users of a namespace differ only by inbox."""
    exchanges = [
        (user.account, each)
        for user in users
        if user.principal == "service"
        for each in service_exchanges(
            user.namespace,
            user.inboxes,
            finalizers=user.finalizers,
            provider_configs=user.provider_configs,
        )
    ]
    return list(dict.fromkeys(exchanges))


def _format_users(users: Iterable[User]) -> list[str]:
    lines = ["    users: ["]
    for user in users:
        permissions = user.permissions
        lines += [
            f"      # {user.name}, {user.principal}: {PURPOSES[user.principal]}",
            f"      {{ nkey: {json.dumps(user.key or f'{PLACEHOLDER}-{user.name}')}, "
            "permissions: {",
            *_format_allowed("publish", permissions.publish, permissions.denied),
            *_format_allowed("subscribe", permissions.subscribe),
            "      } }",
        ]
    return [*lines, "    ]"]


def _format_allowed(verb: str, allowed: Sequence[str], denied: Sequence[str] = ()) -> list[str]:
    lines = [f"        {verb}: {{ allow: [", *(f"          {json.dumps(each)}" for each in allowed)]
    if denied:
        lines += ["        ], deny: [", *(f"          {json.dumps(each)}" for each in denied)]
    return [*lines, "        ] }"]


def _format_export(account: str, each: Exchange) -> str:
    response_type = ", response: stream" if each.has_many_responses else ""
    accounts = f"[{json.dumps(account)}]"
    return f"{{ {each.kind}: {json.dumps(each.subject)}, accounts: {accounts}{response_type} }}"


def _format_import(each: Exchange) -> str:
    return f"{{ {each.kind}: {{ account: {ACCOUNT}, subject: {json.dumps(each.subject)} }} }}"
