"""A kind that is defined while everything is running, with a real API."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from events.intake import Declared
from events.manifest import RECONCILER_API_VERSION, Manifest, Metadata
from events.names import KIND_DEFINITION_KIND, SYSTEM_NAMESPACE, ResourceKey
from tests.scenarios.harness import World, api_config

DEFINITION = ResourceKey(SYSTEM_NAMESPACE, KIND_DEFINITION_KIND, "Badge")
ONE, TWO = (ResourceKey("default", "Badge", name) for name in ("one", "two"))
PAGE = Path(__file__).parents[2] / "docs/kinds/kind-definition.md"
(EXAMPLE,) = re.findall(
    r"<!-- applied by tests/scenarios/test_definitions.py -->\n```yaml\n(.*?)```",
    PAGE.read_text(),
    re.DOTALL,
)
SPEC: dict[str, Any] = next(yaml.safe_load_all(EXAMPLE))["spec"]


def definition(**changes: Any) -> Declared:
    metadata = Metadata(DEFINITION.name, DEFINITION.namespace)
    spec = {**SPEC, **changes}
    return Declared(Manifest(RECONCILER_API_VERSION, KIND_DEFINITION_KIND, metadata, spec))


def badge(key: ResourceKey, shade: str) -> Manifest:
    spec = {"shade": shade, "providerConfigRef": {"name": "badges"}}
    return Manifest("badges/v1", "Badge", Metadata(key.name), spec)


async def declare_badges(world: World) -> World:
    """Declare two badges of a kind that no process knew when it started."""
    reply = await world.ask(ONE, Declared(badge(ONE, "red")))
    assert reply.reason == "UnknownKind"
    assert (await world.ask(DEFINITION, definition())).accepted
    config = api_config(world.human.url, provider="badges")
    await world.configure(config, "badges")
    await world.declare_all([badge(ONE, "red"), badge(TWO, "BLUE")])
    for key in (ONE, TWO):
        await world.until_outcome(key, "Converged")
    return world


async def test_a_defined_kind_is_reconciled_like_an_installed_one(world: World):
    await declare_badges(world)
    shape = await world.human.get("badge-one")
    assert (shape["type"], shape["color"]) == ("Circle", "Red")
    await world.human.update("badge-one", color="Green")

    async def is_corrected() -> bool:
        return (await world.human.get("badge-one"))["color"] == "Red"

    await world.until(is_corrected, "the drift is corrected")
    await world.human.delete("badge-two")
    await world.until(lambda: world.human.find("badge-two"), "it is recreated")
