"""`reconciler init-example`: write manifests for the first steps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from infra.providers.file_root import ROOT_MARKER
from reconciler.cli.errors import CommandError
from reconciler.cli.exits import Exit
from reconciler.cli.options import NamedPath
from reconciler.provider.kind import installed_kinds

EXAMPLE_FOLDER: Final = Path("example")
SHAPE_FILE: Final = "shape.yaml"
FILE_FILE: Final = "file.yaml"

COMMAND_VARIABLE: Final = "RECONCILER_COMMAND"
"""Command with which users call this program, if not its own name. The clone's ``run`` sets it."""

_ROOT_FOLDER: Final = "files"

_SHAPE: Final = """\
# A shape of the example API, which `reconciler up` starts.
apiVersion: shapes/v1
kind: Shape
metadata:
  name: foo
spec:
  type: Square
  color: Purple
"""

_FILE: Final = """\
# The directory in which a worker on this machine may write files.
apiVersion: reconciler/v1
kind: ProviderConfig
metadata:
  name: example-files
  namespace: system
spec:
  provider: file
  endpoint: {root}
---
# A file in that directory.
apiVersion: files/v1
kind: File
metadata:
  name: hello
spec:
  providerConfigRef:
    name: example-files
  content: |
    Hello
"""


def init_example(directory: NamedPath = EXAMPLE_FOLDER, /) -> int:
    """Write example manifests for the first steps into a directory.

    The command never overwrites a file. It writes file.yaml, with a directory
    in which the file is created, and shape.yaml if the example API is
    installed.

    For example:

        reconciler init-example
        reconciler init-example /tmp/first-steps

    Parameters
    ----------
    directory
        Directory for the manifests. The command creates it if it is missing.
    """
    root = (directory / _ROOT_FOLDER).absolute()
    files = {FILE_FILE: _FILE.format(root=root.as_uri())}
    if installed_kinds().find("Shape") is not None:
        files = {SHAPE_FILE: _SHAPE, **files}
    existing = [directory / name for name in files if (directory / name).exists()]
    if existing:
        raise CommandError(f"{existing[0]}: already exists; name another directory")
    try:
        root.mkdir(parents=True, exist_ok=True)
        (root / ROOT_MARKER).touch()
        for name, text in files.items():
            with (directory / name).open("x") as file:
                file.write(text)
    except OSError as error:
        raise CommandError(
            f"cannot write into {directory}: {error.strerror}; name another directory"
        ) from None
    print("\n".join([*(f"created {directory / name}" for name in files), "", *_next(directory)]))
    return Exit.OK


def _next(directory: Path) -> list[str]:
    program = os.environ.get(COMMAND_VARIABLE, "reconciler")
    return [
        f"Next, while `{program} up` runs in another terminal in this directory:",
        f"  {program} apply -f {directory / FILE_FILE} --wait",
        f"  {program} get",
        f"  {program} why hello",
    ]
