"""The stories of ``tests/scenarios``, the same functions, with the server in a container.

A choice that has each kind of trouble once. The server's end is the container's: killed and started
again, with its data.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.docker.container_server import ContainerServer
from tests.permutations.test_ownership import (
    test_6_in_an_exclusive_scope_what_a_human_makes_is_removed,
)
from tests.permutations.test_unusable import (
    test_27_a_refused_declaration_is_reported_on_the_outcome_stream_and_changes_nothing,
)
from tests.scenarios.conftest import api_url, exclusive_world, world
from tests.scenarios.harness import Human, World
from tests.scenarios.test_convergence import (
    test_1_a_declared_resource_is_created,
    test_2_another_color_is_one_update,
    test_3_a_deleted_object_is_recreated,
    test_4_a_repainted_object_gets_its_color_back,
    test_24_of_five_declarations_in_a_row_the_newest_is_decided,
    test_26_a_declaration_that_comes_twice_late_and_out_of_order_is_one_generation,
)
from tests.scenarios.test_listings import (
    test_16_a_listing_that_fails_half_way_deletes_and_makes_nothing,
)
from tests.scenarios.test_modes import test_21_observe_only_reports_and_writes_nothing
from tests.scenarios.test_ownership import (
    test_5_in_a_shared_api_what_a_human_makes_is_left_alone_and_shown,
    test_7_what_is_withdrawn_while_the_reconciler_is_down_does_not_leak,
    test_8_ownership_is_rebuilt_from_the_log_alone_and_the_lost_object_is_recreated,
    test_19_an_unowned_resource_is_adopted_without_a_create_and_corrected,
    test_20_an_orphan_is_released_and_stays_in_the_api,
)
from tests.scenarios.test_trouble import (
    test_13_an_answer_after_our_time_out_is_folded_in_and_there_is_one_foo,
    test_14_an_api_that_refuses_the_connection_is_waited_for,
    test_15_what_the_api_refuses_for_good_waits_for_a_new_generation,
)

__all__ = [
    "api_url",
    "exclusive_world",
    "test_1_a_declared_resource_is_created",
    "test_2_another_color_is_one_update",
    "test_3_a_deleted_object_is_recreated",
    "test_4_a_repainted_object_gets_its_color_back",
    "test_5_in_a_shared_api_what_a_human_makes_is_left_alone_and_shown",
    "test_6_in_an_exclusive_scope_what_a_human_makes_is_removed",
    "test_7_what_is_withdrawn_while_the_reconciler_is_down_does_not_leak",
    "test_8_ownership_is_rebuilt_from_the_log_alone_and_the_lost_object_is_recreated",
    "test_13_an_answer_after_our_time_out_is_folded_in_and_there_is_one_foo",
    "test_14_an_api_that_refuses_the_connection_is_waited_for",
    "test_15_what_the_api_refuses_for_good_waits_for_a_new_generation",
    "test_16_a_listing_that_fails_half_way_deletes_and_makes_nothing",
    "test_19_an_unowned_resource_is_adopted_without_a_create_and_corrected",
    "test_20_an_orphan_is_released_and_stays_in_the_api",
    "test_21_observe_only_reports_and_writes_nothing",
    "test_24_of_five_declarations_in_a_row_the_newest_is_decided",
    "test_26_a_declaration_that_comes_twice_late_and_out_of_order_is_one_generation",
    "test_27_a_refused_declaration_is_reported_on_the_outcome_stream_and_changes_nothing",
    "world",
]

pytestmark = [
    pytest.mark.docker,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:testcontainers"),  # its own module's
]


class ContainerWorld(World):
    """A world whose server outlives it."""

    async def end_server(self) -> None:
        pass


@pytest.fixture
async def bare_world(container_server: ContainerServer, api_url: str) -> AsyncIterator[World]:
    """A world like any other, but for where its server is."""
    await container_server.empty()
    human = Human(api_url)
    async with ContainerWorld(
        container_server.data_dir, human, container_server
    ).open() as container_world:
        yield container_world
    await human.close()


async def test_a_container_that_is_killed_comes_back_with_all_that_was_stored(
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
