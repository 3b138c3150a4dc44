"""The wheel is complete, and an installation from it works."""

from __future__ import annotations

import json
import signal
import subprocess
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from reconciler.cli.stack import EXAMPLE_API_MISSING
from tests.packaging.installing import ROOT, Installed, environment, run

PACKAGES = ("events", "infra", "projections", "reconciler")
STOP_SECONDS = 90.0


def _list_checkout() -> set[str]:
    """Return the files of the packages, except those that Python itself writes."""
    return {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def test_the_wheel_contains_every_file_of_the_packages_and_the_license(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    packaged_files = {name for name in names if ".dist-info/" not in name}
    assert packaged_files == _list_checkout()
    assert packaged_files >= {f"{package}/py.typed" for package in PACKAGES}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


@contextmanager
def _up(installed: Installed, folder: Path) -> Generator[dict[str, Any]]:
    """Run ``up`` in a folder, and stop it with SIGTERM."""
    with (
        (folder / "up.log").open("wb") as log,
        subprocess.Popen(
            [
                installed.bin / "reconciler",
                "up",
                *("--port", "0", "--api-port", "0", "--output", "json"),
            ],
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=log,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, (folder / "up.log").read_text()
            yield msgspec.json.decode(line, type=dict[str, Any])
            process.send_signal(signal.SIGTERM)
            assert process.wait(STOP_SECONDS) == 0
        finally:
            process.kill()


def test_the_installed_command_starts_responds_and_stops(
    installed: Installed, tmp_path: Path
) -> None:
    reconciler = installed.bin / "reconciler"
    with _up(installed, tmp_path) as ready:
        assert (ready["ready"], ready["apiUrl"]) == (True, None)
        assert ready["notes"] == [EXAMPLE_API_MISSING]
        kinds = run(reconciler, "kinds", "--output", "json", cwd=tmp_path)
        assert "Shape" not in {kind["kind"] for kind in json.loads(kinds)}
        output = run(reconciler, "init-example", cwd=tmp_path)
        assert "shape.yaml" not in output
        run(reconciler, "apply", "-f", "example/file.yaml", "--wait", cwd=tmp_path)
        assert (tmp_path / "example" / "files" / "hello").exists()


def test_the_example_api_starts_where_it_is_installed(
    installed_with_example_api: Installed, tmp_path: Path
) -> None:
    reconciler = installed_with_example_api.bin / "reconciler"
    with _up(installed_with_example_api, tmp_path) as ready:
        assert ready["apiUrl"].startswith("http://127.0.0.1:")
        assert EXAMPLE_API_MISSING not in ready["notes"]
        run(reconciler, "init-example", cwd=tmp_path)
        run(reconciler, "apply", "-f", "example/shape.yaml", "--wait", cwd=tmp_path)


def test_a_component_whose_kinds_lack_their_extra_is_not_started(
    installed: Installed, tmp_path: Path
) -> None:
    process = subprocess.run(
        [installed.bin / "reconciler", "up", "--port", "0", "--with", "postgres"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 1
    assert process.stderr == (
        "error: psycopg is not installed; run pip install 'event-sourced-reconciler[postgres]'\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_the_example_api_has_its_own_wheel(wheel: Path, wheel_of_example_api: Path) -> None:
    with zipfile.ZipFile(wheel_of_example_api) as archive:
        names = set(archive.namelist())
        [entry_points] = [name for name in names if name.endswith("/entry_points.txt")]
        kinds = archive.read(entry_points).decode()
    package = ROOT / "examples" / "shapes_api"
    checkout_files = {
        path.relative_to(package).as_posix()
        for path in (package / "shapes_api").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert {name for name in names if ".dist-info/" not in name} == checkout_files
    assert "shapes_api/openapi.yaml" in names
    assert "Shape = shapes_api.kinds.shapes:SHAPE" in kinds
    with zipfile.ZipFile(wheel) as archive:
        assert not any("shapes_api" in name for name in archive.namelist())


def test_the_installed_modules_come_from_the_wheel(installed: Installed, tmp_path: Path) -> None:
    """Not from the checkout, which an editable installation would add to the path."""
    program = "import events, infra, projections, reconciler as r; print(r.__file__)"
    output = run(installed.bin / "python", "-I", "-c", program, cwd=tmp_path)
    assert Path(output.strip()).is_relative_to(installed.folder)
