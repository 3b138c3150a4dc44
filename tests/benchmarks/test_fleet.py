"""The benchmark of a fleet's costs runs to completion; its times are not judged here."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_small_fleet_is_measured() -> None:
    command = [sys.executable, "-m", "benchmarks.fleet", "--shapes", "20,60"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "targets at 60 resources" in process.stdout
