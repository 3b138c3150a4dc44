"""The providers: a contract that each keeps with its real API, and their parts alone."""

import pytest

pytest.register_assert_rewrite("reconciler.provider.contract", "reconciler.provider.http_faults")
