"""The operator of the reconciler, who uses its command line and has access to the disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.cli.runner import CommandResult, InProcessCli


class Operator:
    """Runs commands against a server, from a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._in_process = InProcessCli(folder)

    async def run(self, url: str, *arguments: str) -> CommandResult:
        """Run a command in a thread, because it has its own event loop."""
        return await asyncio.to_thread(self._in_process.run, *arguments, "--nats-url", url)

    async def run_ok(self, url: str, *arguments: str) -> CommandResult:
        result = await self.run(url, *arguments)
        assert result.status == 0, f"{arguments}: {result}"
        return result

    async def diagnose(self, url: str, check: str) -> dict[str, str]:
        """Return the finding of one check of `doctor`."""
        findings = (await self.run(url, "doctor", "--output", "json")).json
        (finding,) = [each for each in findings if each["check"] == check]
        return finding


def list_blocks(data_dir: Path, stream: str) -> list[Path]:
    """Return the files in which a stopped server stores a stream's messages, oldest first."""
    folder = data_dir / "jetstream" / "$G" / "streams" / stream / "msgs"
    return sorted(folder.glob("*.blk"), key=lambda path: int(path.stem))
