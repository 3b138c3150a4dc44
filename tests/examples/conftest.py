"""The examples run against the same stack as the SDK's tests."""

from tests.sdk.conftest import client, name, stack

__all__ = ["client", "name", "stack"]
