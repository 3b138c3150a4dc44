"""CPU time and memory of processes, from /proc (Linux only)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from benchmarks.converge.results import ProcessUsage

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_USER_TICKS, _SYSTEM_TICKS = 11, 12  # fields of /proc/<pid>/stat after the command's name


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, in steps of 10 ms."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[_USER_TICKS]) + int(after_name[_SYSTEM_TICKS])) / _TICKS_PER_SECOND


def peak_mb(pid: int) -> float:
    """Return the peak memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def resident_mb() -> float:
    """Return the current memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024 / 1024


class Meter:
    """Measures the CPU time of named processes since the meter was created."""

    def __init__(self, processes: Mapping[str, int]) -> None:
        self._processes = dict(processes)
        self._before = {name: cpu_seconds(pid) for name, pid in self._processes.items()}

    def read(self) -> tuple[ProcessUsage, ...]:
        """Return the usage since the meter was created."""
        return tuple(
            ProcessUsage(
                name,
                round(cpu_seconds(pid) - self._before[name], 2),
                round(peak_mb(pid), 1),
            )
            for name, pid in self._processes.items()
        )


def usage_since_start(processes: Mapping[str, int]) -> tuple[ProcessUsage, ...]:
    """Return the usage of processes since their start."""
    return tuple(
        ProcessUsage(name, cpu_seconds(pid), round(peak_mb(pid), 1))
        for name, pid in processes.items()
    )


def highest(*readings: tuple[ProcessUsage, ...]) -> tuple[ProcessUsage, ...]:
    """Return each process's highest peak, with the CPU time of the last reading."""
    highest_usage: dict[str, ProcessUsage] = {}
    for reading in readings:
        for usage in reading:
            previous_usage = highest_usage.get(usage.process)
            peak = max(usage.peak_mb, previous_usage.peak_mb if previous_usage else 0.0)
            highest_usage[usage.process] = ProcessUsage(usage.process, usage.cpu_seconds, peak)
    return tuple(highest_usage.values())
