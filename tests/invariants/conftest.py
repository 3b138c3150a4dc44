"""The invariants are tested in the scenarios' worlds."""

from tests.scenarios.conftest import (
    api_url,
    bare_world,
    bare_world_on_own_server,
    exclusive_world,
    world,
)

__all__ = ["api_url", "bare_world", "bare_world_on_own_server", "exclusive_world", "world"]
