"""What the faults happen to: a bus and an API for each module, and names for each test."""

from tests.crashes.conftest import lane, name

__all__ = ["lane", "name"]
