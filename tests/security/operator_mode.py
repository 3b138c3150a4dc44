"""A server in operator mode: accounts and users with the claims that the product prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nkeys

from infra.bus.permission_files import ACCOUNT, PLACEHOLDER, User, claims
from tests.security.keys import Pair, sign_jwt, write_credentials

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
        """Return the lines for the server's configuration file."""
        accounts: dict[str, dict[str, Any]] = {"SYS": {}}
        accounts |= {each["name"]: each["nats"] for each in self._claims["accounts"]}
        preloaded = "\n".join(
            f"  {self._accounts[name].public}: {self._account_jwt(name, account)}"
            for name, account in accounts.items()
        )
        operator = sign_jwt(self._pair, self._pair, "operator", {"type": "operator"})
        return (
            f"operator: {operator}\nsystem_account: {self._accounts['SYS'].public}\n"
            f"resolver: MEMORY\nresolver_preload: {{\n{preloaded}\n}}\n"
        )

    def write_credentials(self, path: Path, name: str, *, seconds: int = 0) -> Path:
        """Sign a user with a new key, valid for ``seconds`` (0: no expiry)."""
        user = Pair.of_user()
        user_claims = next(each for each in self._claims["users"] if each["name"] == name)
        issuer = self._accounts[user_claims["account"]]
        body = {"type": "user", **user_claims["nats"], **_USER_LIMITS}
        jwt = sign_jwt(issuer, user, name, body, seconds=seconds)
        return write_credentials(path, jwt, user)

    def _account_jwt(self, name: str, account: dict[str, Any]) -> str:
        owner = self._accounts[ACCOUNT].public
        text = json.dumps(account).replace(f"{PLACEHOLDER}-{ACCOUNT}", owner)
        storage = _UNLIMITED if name == ACCOUNT else {}
        body = {"type": "account", "limits": {**_LIMITS, **storage}, **json.loads(text)}
        return sign_jwt(self._pair, self._accounts[name], name, body)
