"""The module's settings, out of the application's environment."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from eventsourcing.persistence import InfrastructureFactoryError
from eventsourcing.utils import Environment

from infra.eventstore.bus import DEFAULT_TIMEOUT_SECONDS

NATS_URL: Final = "NATS_URL"
CREDENTIALS: Final = "NATS_CREDENTIALS"
STREAM_PREFIX: Final = "NATS_STREAM_PREFIX"
STREAM_REPLICAS: Final = "NATS_STREAM_REPLICAS"
TIMEOUT: Final = "NATS_TIMEOUT_SECONDS"

N = TypeVar("N", int, float)


@dataclass(frozen=True)
class Settings:
    """Where the bus is, and how the application's streams are called and kept.

    Attributes:
        credentials: a `.creds` file, if the server wants one.
        base: first part of the names of the streams: the prefix and the application's name.
        timeout: how long an answer may take before the result counts as unknown.
    """

    url: str
    credentials: Path | None
    base: str
    replicas: int
    timeout: float

    @classmethod
    def from_environment(cls, env: Environment) -> "Settings":
        """Read the settings; a key with the application's name in front of it goes first.

        Raises:
            OSError: `NATS_URL` is missing.
            InfrastructureFactoryError: another setting is missing, or no number where one belongs.
        """
        url = (env.get(NATS_URL) or "").strip()
        if not url:
            raise OSError(
                "the NATS server's URL was not found in the environment: set "
                f"{' or '.join(env.create_keys(NATS_URL))}, as in {NATS_URL}=nats://127.0.0.1:4222"
            )
        credentials = (env.get(CREDENTIALS) or "").strip()
        return cls(
            url=url,
            credentials=Path(credentials) if credentials else None,
            base=_base(env),
            replicas=_number(env, STREAM_REPLICAS, 1, int),
            timeout=_number(env, TIMEOUT, DEFAULT_TIMEOUT_SECONDS, float),
        )


def _base(env: Environment) -> str:
    parts = [part for part in ((env.get(STREAM_PREFIX) or "").strip(), env.name) if part]
    if not parts:
        raise InfrastructureFactoryError(
            f"nothing to name the streams by: set {STREAM_PREFIX}, or give the application a name"
        )
    return "-".join(parts)


def _number(env: Environment, key: str, default: N, read: Callable[[str], N]) -> N:
    text = (env.get(key) or "").strip()
    try:
        number = read(text) if text else default
    except ValueError:
        number = read("0")
    if number <= 0:
        raise InfrastructureFactoryError(f"{key} must be a number above 0, and is {text!r}")
    return number
