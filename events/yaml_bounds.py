"""Limits on a YAML document, checked before any value is built.

The composer in C recurses for each level, without a limit. Aliases expand a few words into
many values. Of two equal keys, the first would be lost. The parser's events reveal all three.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

MAX_DEPTH: Final = 100
MAX_VALUES: Final = 200_000
MAX_CHARACTERS: Final = 16 * 1024 * 1024
"""Maximum total length of values. An alias for long text costs nothing until it is expanded."""

_MERGE: Final = "<<"


@dataclass(slots=True)
class _OpenNode:
    """A list or a mapping that has not ended, with expanded aliases.

    ``size`` is the number of its values so far, and ``characters`` their total length.
    """

    anchor: str | None
    is_mapping: bool
    size: int = 1
    characters: int = 0
    keys: set[str] = field(default_factory=set[str])
    is_key_next: bool = True

    def add(self, size: int, characters: int) -> str:
        """Add a value. Return the problem, or an empty string."""
        self.size += size
        self.characters += characters
        if self.size > MAX_VALUES:
            return f"the document's aliases expand to more than {MAX_VALUES} values"
        if self.characters > MAX_CHARACTERS:
            return f"the document's aliases expand to more than {MAX_CHARACTERS} characters"
        return ""


def find_yaml_problem(text: str, loader: Any) -> tuple[int, str] | None:
    """Return the first problem and its line, counted from 0. Raises ``yaml.YAMLError``."""
    sizes: dict[str, tuple[int, int]] = {}
    opened = [_OpenNode(None, is_mapping=False)]
    parse: Any = vars(yaml)["parse"]  # it is untyped
    events: Iterable[yaml.Event] = parse(text, Loader=loader)
    for event in events:
        mark: Any = event.start_mark
        line: int = 0 if mark is None else mark.line
        anchor: str | None = getattr(event, "anchor", None)
        match event:
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                opened.append(_OpenNode(anchor, isinstance(event, yaml.MappingStartEvent)))
                if len(opened) > MAX_DEPTH:
                    return line, "the document is nested too deeply"
                continue
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                ended = opened.pop()
                anchor, size, characters = ended.anchor, ended.size, ended.characters
                key = None
            case yaml.AliasEvent():
                size, characters = sizes.get(anchor or "", (1, 0))
                key = anchor = None
            case yaml.ScalarEvent():
                size, key = 1, str(event.value)
                characters = len(key)
            case _:
                continue
        if anchor is not None:
            sizes[anchor] = size, characters
        parent = opened[-1]
        if problem := parent.add(size, characters):
            return line, problem
        if parent.is_mapping:
            if parent.is_key_next and key is not None and key != _MERGE and key in parent.keys:
                return line, f"duplicate key {key!r}"
            if parent.is_key_next and key is not None:
                parent.keys.add(key)
            parent.is_key_next = not parent.is_key_next
    return None
