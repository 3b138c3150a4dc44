"""A process without roles runs only servers, and does not follow the log."""

import pytest
from nats.aio.client import Client

from reconciler.roles.process import Role
from reconciler.wiring import run_roles


@pytest.mark.parametrize("roles", [(), ("worker",)])
async def test_only_a_process_with_roles_follows_the_log(
    bus: Client, roles: tuple[Role, ...]
) -> None:
    """Otherwise `up --roles none`, which exists for restores, would exit during a restore."""
    async with run_roles(bus, roles) as parts:
        assert parts.feed.caught_up.is_set() is bool(roles)
