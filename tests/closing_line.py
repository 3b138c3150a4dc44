"""Print one closing line for several pytest runs: ``python -m tests.closing_line LOG...``.

The counts are summed. Exits with 1 if a run failed or did not finish, that is, if its log has no
closing line.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

_CLOSING_LINE = re.compile(r"^=+ (?P<counts>.+) in (?P<seconds>\d+\.\d+)s(?: \([\d:]+\))? =+$")
_COUNT = re.compile(r"(\d+) ([a-z]+)")
_ORDER = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "warning", "error")
_BAD = ("failed", "error")


def closing_line(logs: Sequence[str]) -> tuple[str, bool]:
    """Return the line for the output of some runs, and whether all of them finished and passed."""
    counts: Counter[str] = Counter()
    seconds, unfinished = 0.0, 0
    for log in logs:
        matches = [match for line in log.splitlines() if (match := _CLOSING_LINE.match(line))]
        if not matches:
            unfinished += 1
            continue
        seconds += float(matches[-1]["seconds"])
        for number, name in _COUNT.findall(matches[-1]["counts"]):
            counts[name.removesuffix("s")] += int(number)
    # An unfinished run is an error: a reader of the line must not mistake the rest for the whole.
    counts["error"] += unfinished
    names = sorted(counts, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))
    parts = [f"{counts[name]} {_plural(name, counts[name])}" for name in names if counts[name]]
    line = f" {', '.join(parts) or 'no tests ran'} in {seconds:.2f}s "
    is_good = not any(counts[name] for name in _BAD) and counts["passed"] > 0
    return line.center(80, "="), is_good


def _plural(name: str, count: int) -> str:
    """Return a count's name as pytest writes it."""
    return f"{name}s" if name in ("error", "warning") and count > 1 else name


def main(paths: Sequence[str]) -> int:
    """Print the line for the logs with these paths; return the exit status."""
    logs = [Path(path).read_text(errors="replace") if Path(path).exists() else "" for path in paths]
    line, is_good = closing_line(logs)
    print(line)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
