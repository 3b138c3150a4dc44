"""Folders for tests whose programs need more than pytest's ``tmp_path``."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def short_folder() -> Generator[Path]:
    """Create a folder with a short path, because a socket's path has at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="rec-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
