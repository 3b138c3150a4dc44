"""The wheel has everything in it, and what is installed from it works."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import zipfile
from pathlib import Path

import msgspec

from tests.packaging.installing import ROOT, Installed, run

PACKAGES = ("events", "infra", "projections", "reconciler")
STOP_SECONDS = 90.0


def _environment() -> dict[str, str]:
    """Ours, without what would let the installed program see this checkout."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV") and not name.startswith("RECONCILER_")
    }


def _in_the_checkout() -> set[str]:
    """Every file of the packages that is not written by Python itself."""
    return {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def test_the_wheel_has_every_file_of_the_packages_and_the_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    inside = {name for name in names if ".dist-info/" not in name}
    assert inside == _in_the_checkout()
    assert inside >= {f"{package}/py.typed" for package in PACKAGES}
    assert "infra/example_api/openapi.yaml" in inside
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_what_is_installed_starts_answers_and_stops(installed: Installed, tmp_path: Path) -> None:
    reconciler = installed.bin / "reconciler"
    with (
        (tmp_path / "up.log").open("wb") as log,
        subprocess.Popen(
            [reconciler, "up", "--port", "0", "--api-port", "0", "--output", "json"],
            cwd=tmp_path,
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=log,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, (tmp_path / "up.log").read_text()
            assert msgspec.json.decode(line, type=dict[str, object])["ready"] is True
            listed = run(reconciler, "get", "--all-namespaces", "--output", "json", cwd=tmp_path)
            assert "ProviderConfig" in listed
            assert json.loads(listed)
            process.send_signal(signal.SIGTERM)
            assert process.wait(STOP_SECONDS) == 0
        finally:
            process.kill()


def test_the_installed_modules_are_the_wheels_own(installed: Installed, tmp_path: Path) -> None:
    """Not those of the checkout, which an editable installation would have put on the path."""
    program = "import events, infra, projections, reconciler as r; print(r.__file__)"
    found = run(installed.bin / "python", "-I", "-c", program, cwd=tmp_path)
    assert Path(found.strip()).is_relative_to(installed.folder)
