"""Check whether an allowed signer signed a commit, with Git and SSH keys."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

from infra.providers.git.problems import GitError
from reconciler.errors import HostError

_SECONDS: Final = 20


def check_signature(repository: Path, commit: str, signers: str) -> None:
    """Check a commit's signature. Raises ``GitError`` unless one of the signers made it.

    ``signers`` has lines in `ssh-keygen` format: ``ann@example.org ssh-ed25519 AAAA…``.
    """
    git = shutil.which("git")
    if git is None or shutil.which("ssh-keygen") is None:
        raise HostError("spec.signers requires the git and ssh-keygen programs", "; install them")
    allowed = repository / "allowed-signers"
    allowed.write_text(signers.strip() + "\n")
    command = [git, "-c", "gpg.format=ssh", "-c", f"gpg.ssh.allowedSignersFile={allowed}"]
    try:
        process = subprocess.run(  # noqa: S603 - no shell, and the id is hexadecimal
            [*command, "verify-commit", commit],
            cwd=repository,
            env={
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                "HOME": str(repository),
                "GIT_CONFIG_NOSYSTEM": "1",
                "GIT_CONFIG_GLOBAL": "/dev/null",
                "LC_ALL": "C",
            },
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise GitError("Unsigned", "checking its signature took too long") from None
    if process.returncode:
        lines = (process.stderr or process.stdout).strip().splitlines()
        reason = lines[0] if lines else "it has no signature"
        raise GitError("Unsigned", f"no signer in spec.signers signed it: {reason}")
