"""Checks whether a Docker Engine responds; run as a program, it exits with 0 if one does."""

from __future__ import annotations

import functools
import sys

TIMEOUT_SECONDS = 5


@functools.cache
def engine_problem() -> str | None:
    """Return why no Engine can be used; None if one responds at $DOCKER_HOST or its socket."""
    import docker  # noqa: PLC0415 - 0.2 s that only these tests need
    from docker.errors import DockerException  # noqa: PLC0415
    from requests import RequestException  # noqa: PLC0415

    try:
        docker.from_env(timeout=TIMEOUT_SECONDS).close()  # asks the engine for its version
    except (DockerException, RequestException, OSError) as error:
        return f"no Docker Engine responds: {error}"
    return None


if __name__ == "__main__":
    sys.exit(engine_problem())
