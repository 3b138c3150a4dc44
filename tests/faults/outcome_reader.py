"""A service that follows outcomes and writes their positions to a file: ``… URL FILE``."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from reconciler.sdk import connect

NAME = "outcome-reader"


async def _follow(url: str, file: int) -> None:
    async with connect(url, source=NAME) as client, client.outcomes(after=0) as outcomes:
        async for each in outcomes:
            os.write(file, b"%d\n" % each.position)


def main() -> None:
    """Follow until the process is killed."""
    file = os.open(Path(sys.argv[2]), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    asyncio.run(_follow(sys.argv[1], file))


if __name__ == "__main__":
    main()
