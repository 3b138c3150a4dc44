"""Each extra installs the imports of its modules, and the base installs all others."""

from __future__ import annotations

import importlib.metadata
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import infra.components
import infra.providers
from reconciler.provider.kind import installed_kinds
from reconciler.shadowing import DISTRIBUTION

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

MODULES = {
    "caddy": ["infra.components.caddy", "infra.providers.caddy"],
    "certificates": ["infra.components.certificates", "infra.providers.certificates"],
    "composition": ["infra.providers.composition.engine"],
    "docker": ["infra.components.docker_engine", "infra.providers.docker"],
    "git": ["infra.providers.git"],
    "http": ["infra.providers.http", "reconciler.provider.listing", "infra.providers.trust"],
    "postgres": ["infra.components.postgres", "infra.providers.postgres"],
    "rest": ["infra.providers.rest"],
    "server": ["infra.embedded", "reconciler.cli.up", "reconciler.cli.run"],
    "webhook": ["infra.webhook", "reconciler.cli.webhook"],
    "": [
        *("reconciler.sdk", "reconciler.wiring", "reconciler.cli", "infra.bus", "infra.backup"),
        *("infra.eventstore", "infra.jetstream", "infra.secrets", "projections", "events"),
        *("infra.providers.disks", "infra.providers.file", "infra.providers.jetstream"),
        *("infra.providers.nftables", "infra.providers.deployment", "infra.providers.manifest_set"),
    ],
}
"""Modules by the extra that they require; the empty name means no extra."""

IMPORT = """
import importlib, pkgutil, sys
sys.path[:0] = {path}
for name in {names}:
    module = importlib.import_module(name)
    for each in pkgutil.walk_packages(getattr(module, "__path__", []), f"{{name}}."):
        if each.name.rpartition(".")[2] not in {optional}:
            importlib.import_module(each.name)
"""
OPTIONAL_MODULES = {"webhook"}
"""Modules that require a different extra than their package."""


def _installed_by(requirements: list[str]) -> Iterator[str]:
    """Yield the distributions that requirements install on this platform."""
    for text in requirements:
        expected_requirement = Requirement(text)
        extras = expected_requirement.extras or {""}
        if expected_requirement.marker is not None and not any(
            expected_requirement.marker.evaluate({"extra": each}) for each in extras
        ):
            continue
        if expected_requirement.name == DISTRIBUTION:
            for each in expected_requirement.extras:
                yield from _installed_by(EXTRAS[each])
            continue
        yield _canonical(expected_requirement.name)
        requires = importlib.metadata.requires(expected_requirement.name) or []
        inner = [Requirement(each) for each in requires]
        yield from _installed_by(
            [
                f"{each.name}{''.join(sorted(f'[{extra}]' for extra in each.extras))}"
                for each in inner
                if each.marker is None
                or any(each.marker.evaluate({"extra": extra}) for extra in extras)
            ]
        )


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_module_of_kinds_and_components_belongs_to_an_extra() -> None:
    assert MODULES.keys() - {""} == EXTRAS.keys() - {"all", "contract"}
    listed_modules = {name for names in MODULES.values() for name in names}
    packages = {
        f"{package.__name__}.{each.name}"
        for package in (infra.providers, infra.components)
        for each in pkgutil.iter_modules(package.__path__)
        if each.ispkg
    }
    assert packages - listed_modules == {"infra.providers.composition"}


def test_all_includes_every_extra_for_operators() -> None:
    (everything,) = EXTRAS["all"]
    assert Requirement(everything).extras == EXTRAS.keys() - {"all", "contract", "http"}


def test_each_kinds_extra_exists() -> None:
    assert {kind.extra for kind in installed_kinds().values()} <= {*EXTRAS, ""}


@pytest.mark.parametrize(("extra", "names"), MODULES.items())
def test_an_extra_installs_what_its_modules_import(
    tmp_path: Path, extra: str, names: list[str]
) -> None:
    for name in {*_installed_by(PROJECT["dependencies"]), *_installed_by(EXTRAS.get(extra, []))}:
        for top in {each.parts[0] for each in importlib.metadata.files(name) or []} - {".."}:
            if not (tmp_path / top).exists():
                (tmp_path / top).symlink_to(
                    str(importlib.metadata.distribution(name).locate_file(top))
                )
    code = IMPORT.format(names=names, path=[str(tmp_path), str(ROOT)], optional=OPTIONAL_MODULES)
    process = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
