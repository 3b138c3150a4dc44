"""Connection settings from flags, the environment, an `up` in this directory, or a file.

The file is `$RECONCILER_CONFIG`, or `reconciler.toml` in this directory, or
`~/.config/reconciler/config.toml`. Its keys are the names of the flags.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from infra.jetstream.access import VARIABLE_PREFIX
from infra.named_files import MAX_KEY_BYTES, read_at_most
from reconciler.errors import ConfigurationError

NAMES: Final = (
    "nats_url",
    "credentials",
    "nkey",
    "inbox_prefix",
    "tls_ca",
    "tls_cert",
    "tls_key",
)
_IDENTITY_SETTINGS: Final = frozenset({"credentials", "nkey"})
_FILE_VARIABLE: Final = f"{VARIABLE_PREFIX}CONFIG"
_LOCAL_FILE: Final = Path("reconciler.toml")
UP_SOURCE: Final = "`reconciler up` in this directory"
"""The source of a setting that comes from an `up` in this directory."""


class Setting(msgspec.Struct, frozen=True):
    """One setting and its source."""

    name: str
    value: str
    source: str


def flag_name(name: str) -> str:
    """Return the flag of a setting. Without the leading dashes, it is the key in the file."""
    return f"--{name.replace('_', '-')}"


def settings(flags: Mapping[str, Any], *, running: str = "") -> dict[str, Setting]:
    """Collect the settings; the identity (credentials or nkey) comes from only one source.

    ``running``: the URL of an `up` in this directory, or "". If it selects the bus, the file is not
    used, because the file describes a different bus.

    Raises ``ConfigurationError`` for an invalid file.
    """
    collected: dict[str, Setting] = {}
    _add_missing(
        collected, {name: (str(value), f"flag {flag_name(name)}") for name, value in flags.items()}
    )
    variables = {name: f"{VARIABLE_PREFIX}{name.upper()}" for name in NAMES}
    _add_missing(
        collected,
        {
            name: (value, f"environment {variable}")
            for name, variable in variables.items()
            if (value := os.environ.get(variable))
        },
    )
    if "nats_url" not in collected and running:
        collected["nats_url"] = Setting("nats_url", running, UP_SOURCE)
        return collected
    path = _find_file()
    if path is not None:
        _add_missing(
            collected, {name: (value, f"file {path}") for name, value in _read_file(path).items()}
        )
    return collected


def _add_missing(collected: dict[str, Setting], more: Mapping[str, tuple[str, str]]) -> None:
    has_identity = not _IDENTITY_SETTINGS.isdisjoint(collected)
    for name, (value, source) in more.items():
        if name not in collected and not (has_identity and name in _IDENTITY_SETTINGS):
            collected[name] = Setting(name, value, source)


def _find_file() -> Path | None:
    if named := os.environ.get(_FILE_VARIABLE):
        return Path(named)
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    default_paths = (_LOCAL_FILE, Path(base) / "reconciler" / "config.toml")
    return next((path for path in default_paths if path.is_file()), None)


def _read_file(path: Path) -> dict[str, str]:
    try:
        content = tomllib.loads(read_at_most(path, MAX_KEY_BYTES).decode())
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else f"not TOML: {error}"
        raise ConfigurationError(f"{path}: invalid: {what}") from None
    known = {flag_name(name).removeprefix("--"): name for name in NAMES}
    for key, value in content.items():
        if key not in known:
            raise ConfigurationError(
                f"{path}: unknown setting {key}; use one of {', '.join(known)}"
            )
        if not isinstance(value, str):
            raise ConfigurationError(f"{path}: {key} must be a string")
    return {known[key]: value for key, value in content.items()}
