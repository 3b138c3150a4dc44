"""Repositories that tests write, using Git itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.needs import skip_unless_in_ci

AUTHOR: Final = "Ann <ann@example.org>"

_ISOLATED: Final = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "Ann",
    "GIT_AUTHOR_EMAIL": "ann@example.org",
    "GIT_COMMITTER_NAME": "Ann",
    "GIT_COMMITTER_EMAIL": "ann@example.org",
}


class Repository:
    """A repository in a folder; a commit updates its branch immediately."""

    def __init__(self, folder: Path, *, branch: str = "main") -> None:
        self.folder = folder
        self.branch = branch
        self._files = folder / ".git"  # what `git init` creates, without a process
        for each in ("objects", "refs/heads"):
            (self._files / each).mkdir(parents=True)
        (self._files / "HEAD").write_text(f"ref: refs/heads/{branch}\n")

    @property
    def url(self) -> str:
        return f"file://{self.folder}"

    @property
    def head(self) -> str:
        branch = self._files / (self._files / "HEAD").read_text().strip().removeprefix("ref: ")
        if branch.exists():
            return branch.read_text().strip()
        return self.git("rev-parse", "HEAD").strip()  # its refs are packed, or it has no branch

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def remove(self, *names: str) -> None:
        for name in names:
            (self.folder / name).unlink()

    def commit(self, subject: str = "a change", *options: str) -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", subject, *options)
        return self.head

    def store(self, kind: str, content: bytes) -> str:
        """Store an object unchanged, even one that Git itself would not create."""
        file = self.folder.parent / "object"
        file.write_bytes(content)
        return self.git("hash-object", "-t", kind, "-w", "--literally", str(file)).strip()

    def git(self, *arguments: str, stdin: str = "") -> str:
        process = subprocess.run(
            ["git", *arguments],
            input=stdin,
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder.parent), **_ISOLATED},
            capture_output=True,
            text=True,
            check=False,
        )
        assert not process.returncode, process.stderr
        return process.stdout


def signing_key(folder: Path, name: str = "key") -> tuple[Path, str]:
    """Create an SSH key; return its file and its line for the allowed signers."""
    if shutil.which("ssh-keygen") is None:
        skip_unless_in_ci("ssh-keygen is not installed (openssh-client package)")
    key = folder / name
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "ann", "-f", str(key)]
    subprocess.run(command, check=True, capture_output=True)
    public = key.with_suffix(".pub").read_text().split()
    return key, f"ann@example.org {public[0]} {public[1]}"
