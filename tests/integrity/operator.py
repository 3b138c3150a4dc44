"""The person who runs the reconciler: uses its command line, and has access to the disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.cli.runner import CommandResult, InProcessCli


class Operator:
    """Runs commands against a server, from a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._inside = InProcessCli(folder)

    async def runs(self, url: str, *arguments: str) -> CommandResult:
        """Run a command in a thread: it has an event loop of its own."""
        return await asyncio.to_thread(self._inside.run, *arguments, "--nats-url", url)

    async def succeeds(self, url: str, *arguments: str) -> CommandResult:
        ran = await self.runs(url, *arguments)
        assert ran.status == 0, f"{arguments}: {ran}"
        return ran

    async def finds(self, url: str, check: str) -> dict[str, str]:
        """Give what `doctor` says to one check."""
        findings = (await self.runs(url, "doctor", "--output", "json")).json
        (finding,) = [each for each in findings if each["check"] == check]
        return finding


def blocks_of(data_dir: Path, stream: str) -> list[Path]:
    """Give the files in which a stopped server keeps a stream's messages, oldest first."""
    folder = data_dir / "jetstream" / "$G" / "streams" / stream / "msgs"
    return sorted(folder.glob("*.blk"), key=lambda path: int(path.stem))
