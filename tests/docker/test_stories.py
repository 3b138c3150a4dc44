"""Tests of ``tests/scenarios``, with the server in a container.

The selection includes each kind of failure once. The container is killed and restarted with its
data.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.docker.container_server import ContainerServer
from tests.permutations.test_ownership import (
    test_6_in_an_exclusive_scope_an_undeclared_object_is_deleted,
)
from tests.permutations.test_unusable import (
    test_27_a_refused_declaration_is_reported_on_the_outcome_stream_and_changes_nothing,
)
from tests.scenarios.conftest import api_url, exclusive_world, world
from tests.scenarios.harness import Human, World
from tests.scenarios.test_convergence import (
    test_1_a_declared_resource_is_created,
    test_2_a_changed_color_is_one_update,
    test_3_a_deleted_object_is_recreated,
    test_4_a_repainted_object_gets_its_color_back,
    test_24_the_newest_of_five_declarations_in_a_row_wins,
    test_26_a_declaration_redelivered_late_and_out_of_order_is_one_generation,
)
from tests.scenarios.test_listings import (
    test_16_a_listing_that_fails_halfway_deletes_and_creates_nothing,
)
from tests.scenarios.test_modes import test_21_observe_only_reports_and_writes_nothing
from tests.scenarios.test_ownership import (
    test_5_in_a_shared_api_an_undeclared_object_is_reported_and_left_alone,
    test_7_a_resource_withdrawn_while_the_reconciler_is_down_does_not_leak,
    test_8_ownership_is_rebuilt_from_the_log_alone_and_the_lost_object_is_recreated,
    test_19_an_unowned_resource_is_adopted_without_a_create_and_corrected,
    test_20_an_orphan_is_released_and_stays_in_the_api,
)
from tests.scenarios.test_trouble import (
    test_13_a_response_after_the_timeout_is_recorded_and_creates_one_object,
    test_14_an_api_that_refuses_connections_is_retried,
    test_15_a_permanent_refusal_is_not_retried_until_a_new_generation,
)

__all__ = [
    "api_url",
    "exclusive_world",
    "test_1_a_declared_resource_is_created",
    "test_2_a_changed_color_is_one_update",
    "test_3_a_deleted_object_is_recreated",
    "test_4_a_repainted_object_gets_its_color_back",
    "test_5_in_a_shared_api_an_undeclared_object_is_reported_and_left_alone",
    "test_6_in_an_exclusive_scope_an_undeclared_object_is_deleted",
    "test_7_a_resource_withdrawn_while_the_reconciler_is_down_does_not_leak",
    "test_8_ownership_is_rebuilt_from_the_log_alone_and_the_lost_object_is_recreated",
    "test_13_a_response_after_the_timeout_is_recorded_and_creates_one_object",
    "test_14_an_api_that_refuses_connections_is_retried",
    "test_15_a_permanent_refusal_is_not_retried_until_a_new_generation",
    "test_16_a_listing_that_fails_halfway_deletes_and_creates_nothing",
    "test_19_an_unowned_resource_is_adopted_without_a_create_and_corrected",
    "test_20_an_orphan_is_released_and_stays_in_the_api",
    "test_21_observe_only_reports_and_writes_nothing",
    "test_24_the_newest_of_five_declarations_in_a_row_wins",
    "test_26_a_declaration_redelivered_late_and_out_of_order_is_one_generation",
    "test_27_a_refused_declaration_is_reported_on_the_outcome_stream_and_changes_nothing",
    "world",
]

pytestmark = [
    pytest.mark.docker,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:testcontainers"),  # from its own module
]


class ContainerWorld(World):
    """A world that leaves its server running."""

    async def stop_server(self) -> None:
        pass


@pytest.fixture
async def bare_world(container_server: ContainerServer, api_url: str) -> AsyncIterator[World]:
    """A world whose server runs in a container."""
    await container_server.empty()
    human = Human(api_url)
    async with ContainerWorld(
        container_server.data_dir, human, container_server
    ).open() as container_world:
        yield container_world
    await human.close()


async def test_a_killed_container_restarts_with_all_stored_data(
    world: World,
) -> None:
    await world.declare("foo")
    await world.until_outcome("foo", "Converged", generation=1)
    position = await world.log_position()
    await world.kill_nats()
    await world.start_nats()
    await world.declare("foo", color="Purple")
    await world.until_outcome("foo", "Converged", generation=2)
    assert await world.human.effects("foo") == ["POST", "PUT"]
    assert await world.log_position() > position
