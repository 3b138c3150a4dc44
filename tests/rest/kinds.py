"""The kinds of ``examples/kinds``, as processes build them from their definitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from events.manifest import Fields
from reconciler.provider.defined_kind import build_defined_kind
from reconciler.provider.kind import Kind, KindRegistry

KINDS = Path(__file__).parents[2] / "examples/kinds"


def manifest(name: str) -> dict[str, Any]:
    return yaml.safe_load((KINDS / f"{name}.yaml").read_text())


def kind_from(definition: dict[str, Any]) -> Kind:
    name: str = definition["metadata"]["name"]
    spec: Fields = definition["spec"]
    return build_defined_kind(KindRegistry([]), name, spec, 1)


def example(name: str) -> Kind:
    return kind_from(manifest(name))
