"""The invariants are told in the scenarios' worlds."""

from tests.scenarios.conftest import (
    api_url,
    bare_world,
    bare_world_of_its_own,
    exclusive_world,
    world,
)

__all__ = ["api_url", "bare_world", "bare_world_of_its_own", "exclusive_world", "world"]
