"""A server in operator mode: accounts and users by the claims that the product prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nkeys

from infra.bus.permission_files import ACCOUNT, PLACEHOLDER, User, claims
from tests.security.keys import Pair, signed, write_credentials

_UNLIMITED = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
_LIMITS = {
    "subs": -1,
    "data": -1,
    "payload": -1,
    "imports": -1,
    "exports": -1,
    "wildcards": True,
    "conn": -1,
    "leaf": -1,
}
_USER_LIMITS = {"subs": -1, "data": -1, "payload": -1}


class Operator:
    """Signs the accounts and users of a reconciler."""

    def __init__(self, users: list[User]) -> None:
        self._pair = Pair(nkeys.PREFIX_BYTE_OPERATOR)
        self._users = {user.name: user for user in users}
        self._claims = claims(users)
        names = [each["name"] for each in self._claims["accounts"]]
        self._accounts = {name: Pair(nkeys.PREFIX_BYTE_ACCOUNT) for name in ("SYS", *names)}

    @property
    def configuration(self) -> str:
        """Give what the server's file needs."""
        accounts: dict[str, dict[str, Any]] = {"SYS": {}}
        accounts |= {each["name"]: each["nats"] for each in self._claims["accounts"]}
        preloaded = "\n".join(
            f"  {self._accounts[name].public}: {self._account_jwt(name, found)}"
            for name, found in accounts.items()
        )
        operator = signed(self._pair, self._pair, "operator", {"type": "operator"})
        return (
            f"operator: {operator}\nsystem_account: {self._accounts['SYS'].public}\n"
            f"resolver: MEMORY\nresolver_preload: {{\n{preloaded}\n}}\n"
        )

    def write_credentials(self, path: Path, name: str, *, seconds: int = 0) -> Path:
        """Sign a user again, valid for some seconds (0: without an end), with a new key."""
        user = Pair.of_user()
        user_claims = next(each for each in self._claims["users"] if each["name"] == name)
        issuer = self._accounts[user_claims["account"]]
        body = {"type": "user", **user_claims["nats"], **_USER_LIMITS}
        jwt = signed(issuer, user, name, body, seconds=seconds)
        return write_credentials(path, jwt, user)

    def _account_jwt(self, name: str, found: dict[str, Any]) -> str:
        owner = self._accounts[ACCOUNT].public
        text = json.dumps(found).replace(f"{PLACEHOLDER}-{ACCOUNT}", owner)
        storage = _UNLIMITED if name == ACCOUNT else {}
        body = {"type": "account", "limits": {**_LIMITS, **storage}, **json.loads(text)}
        return signed(self._pair, self._accounts[name], name, body)
