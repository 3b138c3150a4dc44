"""Observing is told in the scenarios' worlds."""

from tests.scenarios.conftest import api_url, bare_world, exclusive_world, world

__all__ = ["api_url", "bare_world", "exclusive_world", "world"]
