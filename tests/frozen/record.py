"""Record a data folder in the current format: ``python -m tests.frozen.record``.

Later code must start with it as long as the format is the same, and then refuse it (ADR 0020).
"""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path

from infra.bus.streams import LOG_FORMAT
from tests.cli.runner import Cli, shape, up

RECORDED = Path(__file__).parent / f"format-{LOG_FORMAT}.tar.xz"
PAGE = Path(__file__).parents[2] / "docs" / "kinds" / "kind-definition.md"
_EXAMPLE = "<!-- applied by tests/scenarios/test_definitions.py -->\n```yaml\n"
_EXCLUDED = (".log", ".lock", ".conf")


def definition(api_url: str) -> str:
    """Return the manifests of the page's example, for the API at this address."""
    example = PAGE.read_text().split(_EXAMPLE)[1].split("```")[0]
    return example.replace("http://127.0.0.1:8080", api_url)


def declare_everything(cli: Cli, api_url: str) -> None:
    """Declare and withdraw resources of each kind, so that the log has most event types."""
    cli.write("badge.yaml", definition(api_url))
    cli.write(
        "shapes.yaml", "---\n".join([shape("kept"), shape("changed"), shape("gone"), shape("held")])
    )
    cli.write(
        "reference.yaml",
        "apiVersion: reconciler/v1\nkind: ShapeRef\nmetadata: {name: needs-kept}\n"
        "spec: {target: {kind: Shape, name: kept}}\n",
    )
    for name in ("badge.yaml", "shapes.yaml", "reference.yaml"):
        cli.ok("apply", "-f", name, "--wait")
    cli.write("changed.yaml", shape("changed", "Blue"))
    cli.ok("apply", "-f", "changed.yaml", "--wait")
    cli.ok("delete", "shape", "gone", "--wait")
    cli.ok("finalizer", "add", "Shape", "held", "billing/invoice")
    cli.ok("delete", "shape", "held")


def main() -> None:
    """Run everything in a new folder, and archive that folder."""
    with tempfile.TemporaryDirectory() as name:
        cli = Cli(Path(name))
        with up(cli, "--resync", "0.5") as running:
            declare_everything(cli, running.ready["apiUrl"])
            running.stop()
        with tarfile.open(RECORDED, "w:xz") as archive:
            for path in sorted((cli.folder / "reconciler-data").rglob("*")):
                if path.is_file() and path.suffix not in _EXCLUDED and "secrets" not in path.parts:
                    archive.add(path, path.relative_to(cli.folder), filter=_without_owner)


def _without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    return entry


if __name__ == "__main__":
    main()
