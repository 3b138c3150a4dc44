"""A process without roles: it serves servers, and knows nothing that could become untrue."""

import pytest
from nats.aio.client import Client

from reconciler.roles.process import Role
from reconciler.wiring import run_roles


@pytest.mark.parametrize("roles", [(), ("worker",)])
async def test_only_a_process_with_roles_follows_the_log(
    bus: Client, roles: tuple[Role, ...]
) -> None:
    """Else `up --roles none` would end when the log is restored, which it is there for."""
    async with run_roles(bus, roles) as parts:
        assert parts.feed.caught_up.is_set() is bool(roles)
