"""A command imports what it uses: what starting one costs is mostly imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("aiohttp", "click", "eventsourcing", "httpx", "pygments", "typing_extensions")
IMPORTED = """
import sys
from reconciler.cli.main import main
main([{command!r}, "--help"])
print(*(name for name in {heavy} if name in sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize("command", ["apply", "get", "up", "watch"])
def test_a_command_does_not_import_what_it_does_not_use(command: str) -> None:
    code = IMPORTED.format(command=command, heavy=HEAVY)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stderr.split() == []


def test_who_uses_a_spared_package_finds_it() -> None:
    code = "import nats.aio.transport, aiohttp; assert aiohttp.ClientSession"
    setup = "from reconciler.cli.spared_imports import import_without_spared as f; f(); "
    subprocess.run([sys.executable, "-c", setup + code], check=True)


def test_who_prints_nothing_for_people_needs_nothing_for_it() -> None:
    code = "import sys; from reconciler.cli.spared_imports import import_without_spared as f; f(); "
    code += "import reconciler.cli.app, reconciler.cli.up; assert 'rich' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
