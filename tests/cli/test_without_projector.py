"""Commands while no projector stores rows: they read what the log already contains."""

import asyncio
import json
from pathlib import Path

from reconciler.wiring import initialize, open_connection, run_roles
from tests.cli.runner import InProcessCli, shape

CONFIG = """\
apiVersion: reconciler/v1
kind: ProviderConfig
metadata: {name: own}
spec: {provider: shapes, endpoint: 'http://127.0.0.1:9'}
"""


async def test_delete_warns_of_users_that_no_stored_row_shows(
    fresh_bus_url: str, tmp_path: Path
) -> None:
    cli = InProcessCli(tmp_path, fresh_bus_url)
    user = shape("new").replace("spec: {", "spec: {providerConfigRef: {name: own}, ")
    async with open_connection(fresh_bus_url) as nc:
        await initialize(nc)
    async with open_connection(fresh_bus_url) as nc, run_roles(nc, ["decider"]):
        await asyncio.to_thread(cli.ok, "apply", "-f", "-", text=f"{CONFIG}---\n{user}")
        deleted = await asyncio.to_thread(cli.ok, "delete", "ProviderConfig/own", "-o", "json")
    assert [each["reason"] for each in json.loads(deleted.out)] == ["Accepted"]
    assert "default/Shape/new still uses ProviderConfig 'own'" in deleted.err
