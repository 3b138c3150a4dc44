"""A bus and an API for each module, and unique names for each test."""

from tests.crashes.conftest import lane, name

__all__ = ["lane", "name"]
