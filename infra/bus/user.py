"""Determine the connection's user name, which the server verifies in declarations."""

from __future__ import annotations

import re
from typing import Final

import msgspec
from nats.aio.client import Client

from events.subjects import USER_SEPARATOR
from infra.jetstream.errors import BusError
from infra.jetstream.wire import FastClient, request

USER_INFO_SUBJECT: Final = "$SYS.REQ.USER.INFO"
"""Subject at which the server reports a connection's user and permissions."""

_SECONDS: Final = 2.0
_OWN_SUBJECT: Final = re.compile(rf"rec\.[a-z]+{USER_SEPARATOR}([A-Za-z0-9_-]+)\.")


class _Allowed(msgspec.Struct, frozen=True):
    allow: tuple[str, ...] = ()


class _Permissions(msgspec.Struct, frozen=True):
    publish: _Allowed = _Allowed()


class _User(msgspec.Struct, frozen=True):
    permissions: _Permissions = _Permissions()


class _UserInfo(msgspec.Struct, frozen=True):
    data: _User


async def user_of_connection(nc: Client) -> str:
    """Return the user name in the permission to declare, or "" if there is none.

    The name comes from the connection's permissions, so it does not need to be configured.
    """
    if not (isinstance(nc, FastClient) and nc.requires_authentication):
        return ""
    try:
        message = await request(nc, USER_INFO_SUBJECT, b"", timeout=_SECONDS)
        response = msgspec.json.decode(message.data, type=_UserInfo)
    except (BusError, msgspec.DecodeError):
        return ""  # older permissions do not contain a user name
    allowed = response.data.permissions.publish.allow
    return next((found[1] for each in allowed if (found := _OWN_SUBJECT.match(each))), "")
