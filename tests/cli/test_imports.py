"""Commands import only what they use, because imports dominate their startup time."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.importing import (
    DECIDER,
    OPTIONAL_LIBRARIES,
    PROVIDERS,
    ImportListingCli,
    read_imports,
)
from tests.cli.runner import Cli, Up

HEAVY_MODULES = (
    "aiohttp",
    "click",
    "eventsourcing",
    "httpx",
    "nats.js.api",
    "pygments",
    "typing_extensions",
)
PROGRAM = """
import sys
from reconciler.cli.main import main
main([{command!r}, "--help"])
print(*(name for name in {heavy} if name in sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize("command", ["apply", "get", "up", "watch"])
def test_a_command_does_not_import_what_it_does_not_use(command: str) -> None:
    code = PROGRAM.format(command=command, heavy=HEAVY_MODULES)
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stderr.split() == []


def test_a_read_command_imports_neither_the_decider_nor_kinds(running_up: tuple[Cli, Up]) -> None:
    err = ImportListingCli(running_up[0].folder).ok("get").err
    assert (
        read_imports(err) & {*OPTIONAL_LIBRARIES, *DECIDER, "infra.providers", "rich.progress"}
        == set()
    )


def test_declaring_imports_neither_the_decider_nor_providers(live: Cli, unique: str) -> None:
    text = f"{{apiVersion: shapes/v1, kind: Shape, metadata: {{name: {unique.lower()}}}, "
    text += "spec: {type: Square, color: Red}}"
    err = ImportListingCli(live.folder).ok("apply", "-f", "-", text=text).err
    assert read_imports(err) & {*OPTIONAL_LIBRARIES, *DECIDER, *PROVIDERS, "rich.progress"} == {
        "yaml"
    }


@pytest.mark.parametrize(
    "code",
    [
        "import nats.aio.transport, aiohttp; assert aiohttp.ClientSession",
        "import nats.aio.client as c; assert c.nats.js.api.Header.STATUS",
        "from nats.js.api import Header; assert Header.STATUS",
        "import nats.js, nats; assert nats.NATS().jetstream()",
    ],
)
def test_a_skipped_package_can_still_be_imported(code: str) -> None:
    setup = "from reconciler.cli.skipped_imports import import_with_skips as f; f(); "
    subprocess.run([sys.executable, "-c", setup + code], check=True)


def test_the_command_line_starts_without_importing_rich() -> None:
    code = "import sys; from reconciler.cli.skipped_imports import import_with_skips as f; f(); "
    code += "import reconciler.cli.app, reconciler.cli.up; assert 'rich' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
