"""`reconciler init-example`: write example manifests for getting started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from infra.providers.file_root import ROOT_MARKER
from reconciler.cli.errors import CommandError
from reconciler.cli.exits import Exit
from reconciler.cli.options import NamedPath
from reconciler.provider.kind import installed_kinds

EXAMPLE_DIRECTORY: Final = Path("example")
SHAPE_MANIFEST: Final = "shape.yaml"
FILE_MANIFEST: Final = "file.yaml"

COMMAND_VARIABLE: Final = "RECONCILER_COMMAND"
"""Command that users type to run this program; the ``run`` script of a clone sets it."""

_ROOT_DIRECTORY: Final = "files"

_SHAPE_CONTENT: Final = """\
# A shape of the example API, which `reconciler up` starts.
apiVersion: shapes/v1
kind: Shape
metadata:
  name: foo
spec:
  type: Square
  color: Purple
"""

_FILE_CONTENT: Final = """\
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


def init_example(directory: NamedPath = EXAMPLE_DIRECTORY, /) -> int:
    """Write example manifests for getting started into a directory.

    The command never overwrites a file. It writes file.yaml, which declares a
    file and the directory for it, and shape.yaml if the example API is
    installed.

    For example:

        reconciler init-example
        reconciler init-example /tmp/first-steps

    Parameters
    ----------
    directory
        Directory for the manifests. The command creates it if it is missing.
    """
    root = (directory / _ROOT_DIRECTORY).absolute()
    files = {FILE_MANIFEST: _FILE_CONTENT.format(root=root.as_uri())}
    if installed_kinds().find("Shape") is not None:
        files = {SHAPE_MANIFEST: _SHAPE_CONTENT, **files}
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
    print(
        "\n".join([*(f"created {directory / name}" for name in files), "", *_next_steps(directory)])
    )
    return Exit.OK


def _next_steps(directory: Path) -> list[str]:
    program = os.environ.get(COMMAND_VARIABLE, "reconciler")
    return [
        f"Next, while `{program} up` is running in another terminal in this directory:",
        f"  {program} apply -f {directory / FILE_MANIFEST} --wait",
        f"  {program} get",
        f"  {program} why hello",
    ]
