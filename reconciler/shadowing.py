"""Checks that Python finds this project's packages, and not others with the same names.

The wheel installs ``events``, ``infra``, ``projections`` and ``reconciler`` as top-level packages
(ADR 0002). A folder earlier on the path *shadows* one of them; another distribution in the same
environment *mixes* its files with ours. Both would cause an ``ImportError`` or worse in some
module, so ``check_packages`` reports them before anything is imported.

This module imports nothing from this project, because it checks those packages.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("events", "infra", "projections", "reconciler")

DISTRIBUTION = "event-sourced-reconciler"
_RECORD = "event_sourced_reconciler-*.dist-info/RECORD"
_HINT = f"install {DISTRIBUTION} in its own environment (uv tool, pipx, venv or container)"


class PackageConflictError(Exception):
    """A package of this project is not the one that Python imports; the message names both."""


def check_packages(home: Path | None = None) -> None:
    """Check that Python finds each of our packages next to this one, with our files.

    ``home``: the folder that contains our packages. Raises ``PackageConflictError``.
    """
    ours = home if home is not None else Path(__file__).resolve().parents[1]
    installed = dict(_installed_digests(ours))
    for name in PACKAGES:
        expected = ours / name / "__init__.py"
        _check_not_shadowed(name, expected)
        if name in installed and _digest(expected) != installed[name]:
            raise PackageConflictError(
                f"{expected} is not the file that {DISTRIBUTION} installed as package "
                f"{name!r}: {_other_owner(name)} has overwritten it; {_HINT}"
            )


def _check_not_shadowed(name: str, expected: Path) -> None:
    spec = importlib.util.find_spec(name)
    origin = spec.origin if spec is not None else None
    if origin is None:
        raise PackageConflictError(
            f"package {name!r} of {DISTRIBUTION} is incomplete: {expected} is missing, "
            f"possibly removed together with another distribution; install {DISTRIBUTION} "
            "again, in its own environment"
        )
    found = Path(origin).resolve()
    if found != expected:
        raise PackageConflictError(
            f"package {name!r} of {DISTRIBUTION} at {expected} is shadowed by {found}; remove "
            f"that directory from PYTHONPATH, start in another directory, or {_HINT}"
        )


def _installed_digests(home: Path) -> Iterator[tuple[str, str]]:
    """Return each package, with the digest of its ``__init__.py`` when it was installed.

    A checkout has none. The file is read directly, as importing ``importlib.metadata`` takes 40 ms.
    """
    for record in home.glob(_RECORD):
        with record.open(encoding="utf-8") as lines:
            for line in lines:
                path, digest, _size = line.rsplit(",", 2)
                name, _, rest = path.partition("/")
                if name in PACKAGES and rest == "__init__.py":
                    yield name, digest


def _digest(path: Path) -> str:
    """Return the digest of a file in the form that ``RECORD`` uses."""
    digest = hashlib.sha256(path.read_bytes()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _other_owner(name: str) -> str:
    """Return the other distribution that lists this package, or a general description."""
    from importlib.metadata import distributions  # noqa: PLC0415 - takes 40 ms, so only after a failure

    for distribution in distributions():
        if distribution.name == DISTRIBUTION:
            continue
        for file in distribution.files or ():
            if file.as_posix() == f"{name}/__init__.py":
                return f"{distribution.name} {distribution.version}"
    return "another installation"
