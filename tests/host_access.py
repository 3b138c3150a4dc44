"""Permission to use everything on the host, for tests of kinds that use it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from events.allow import Allow

if TYPE_CHECKING:
    from tests.cli.runner import Cli

EVERYTHING = Allow(
    addresses=("**",),
    binds=("/**",),
    certificates=("/**",),
    devices=("**",),
    listen=("**",),
    modes=("**",),
    networks=("**",),
    privileges=("**",),
    renderers=("**",),
    users=("0",),
)


def allow_more(cli: Cli, config: str, **patterns: str) -> None:
    """Add patterns to the allow lists of a ProviderConfig, as an operator does for more paths."""
    config_row: dict[str, Any] = cli.ok(
        "get", "ProviderConfig", config, "-n", "system", "-o", "json"
    ).json
    allow = config_row["spec"].setdefault("allow", {})
    for name, pattern in patterns.items():
        allow[name] = sorted({*allow.get(name, ()), pattern})
    manifest = {name: config_row[name] for name in ("apiVersion", "kind", "spec")}
    metadata = {"name": config, "namespace": "system"}
    cli.ok("apply", "-f", "-", text=json.dumps({**manifest, "metadata": metadata}))
