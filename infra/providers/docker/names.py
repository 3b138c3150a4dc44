"""Valid names of containers and volumes."""

from __future__ import annotations

import re
from typing import Final

_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{1,254}")


def name_problem(name: str) -> str | None:
    """Describe what is wrong with a container's or volume's name; None if it is valid."""
    if _NAME.fullmatch(name) is not None:
        return None
    return "use 2 to 255 of the characters a-z A-Z 0-9 _ . - and start with a letter or digit"
