"""What processes take, as the kernel counts it: /proc, so Linux only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from benchmarks.converge.results import ProcessUsage

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_USER_TICKS, _SYSTEM_TICKS = 11, 12  # fields of /proc/<pid>/stat after the command's name


def cpu_seconds(pid: int) -> float:
    """Give the CPU time that a process has had, in steps of 10 ms."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[_USER_TICKS]) + int(after_name[_SYSTEM_TICKS])) / _TICKS_PER_SECOND


def peak_mb(pid: int) -> float:
    """Give the most memory that a process has held at any time."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def resident_mb() -> float:
    """Give the memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024 / 1024


class Meter:
    """CPU time from now on, of processes by name."""

    def __init__(self, processes: Mapping[str, int]) -> None:
        self._processes = dict(processes)
        self._before = {name: cpu_seconds(pid) for name, pid in self._processes.items()}

    def read(self) -> tuple[ProcessUsage, ...]:
        """Give what was used since the beginning."""
        return tuple(
            ProcessUsage(
                name,
                round(cpu_seconds(pid) - self._before[name], 2),
                round(peak_mb(pid), 1),
            )
            for name, pid in self._processes.items()
        )


def since_start(processes: Mapping[str, int]) -> tuple[ProcessUsage, ...]:
    """Give what processes have used in all their life."""
    return tuple(
        ProcessUsage(name, cpu_seconds(pid), round(peak_mb(pid), 1))
        for name, pid in processes.items()
    )


def highest(*readings: tuple[ProcessUsage, ...]) -> tuple[ProcessUsage, ...]:
    """Give each process's highest peak; its CPU time is that of the last reading."""
    highest_usage: dict[str, ProcessUsage] = {}
    for reading in readings:
        for usage in reading:
            previous_usage = highest_usage.get(usage.process)
            most = max(usage.peak_mb, previous_usage.peak_mb if previous_usage else 0.0)
            highest_usage[usage.process] = ProcessUsage(usage.process, usage.cpu_seconds, most)
    return tuple(highest_usage.values())
